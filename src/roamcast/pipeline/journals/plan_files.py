"""What does a plan consist of? Files that people read and other commands take.

plan.json          q and m of each broker, and what they cost in the journals' time
thresholds.jsonl   every q and m that was tried
channels.jsonl     queries and recurring sets by what a channel of theirs saves
tree.json          the tree and f(v): `roamcast place tree.json --filters K`
vertices.jsonl     which vertex is whom
demand.jsonl       where each client's traffic arises: for the choice of home brokers
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, RoamcastError
from roamcast.pipeline import plan
from roamcast.pipeline.journals import plan_flows
from roamcast.pipeline.journals.read import FAILED, read_journals
from roamcast.pipeline.spark.errors import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANNELS_MAX = 100_000
"""Queries and sets listed, those that save most."""

Row = dict[str, Any]


class Plan(msgspec.Struct, frozen=True):
    """A plan in short; its parts lie in files."""

    brokers: list[Row]
    channels: int
    vertices: int
    clients: int
    folder: str


def make_plan(
    spark: "SparkSession", segments: Sequence[Path], folder: Path, tree: Path | None = None
) -> Plan:
    """Plan from journals' segments, and write the plan's files into a folder."""
    given = None if tree is None else plan_flows.read_tree(tree)
    journal = read_journals(spark, segments)
    tried = _rows(plan.thresholds(journal), "run", "host", "subscribers_min", "history_max")
    if not tried:
        raise InputError("these journals hold no update and no query: there is nothing to plan")
    brokers = chosen(tried)
    pairs = plan.wanted(journal).cache()
    try:
        channels = _channels(spark, pairs, brokers)
        places = _places(pairs)
        if given is None:
            parent, vertices = plan_flows.star_of_brokers(places)
        else:
            parent, vertices = given.parent, plan_flows.located(given, places)
        flow = _rows(plan_flows.flows(spark, pairs, parent, vertices), "vertex") if places else []
        demand = _rows(plan_flows.demand(pairs), "run", "receiver", "host", "place")
    finally:
        pairs.unpersist()
    found = Plan(brokers, len(channels), len(parent), len(places), str(folder))
    named = [
        {"vertex": vertex, "run": run, "host": host, "receiver": receiver}
        for (run, host, receiver), vertex in sorted(vertices.items(), key=lambda item: item[1])
    ]
    documents = {"plan.json": found, "tree.json": plan_flows.tree_document(parent, flow)}
    tables = {
        "thresholds.jsonl": tried,
        "channels.jsonl": channels,
        "vertices.jsonl": named,
        "demand.jsonl": demand,
    }
    _write(folder, documents, tables)
    return found


def chosen(tried: Iterable[Row]) -> list[Row]:
    """Choose q and m of each broker: least sent, then fewest channels, then the least kept."""
    best: dict[tuple[str, str], tuple[tuple[int, ...], Row]] = {}
    for row in tried:
        rank = (
            row["transmissions"] + row["announcements"],
            row["channels_max"],
            row["history_max"],
            -row["subscribers_min"],
        )
        broker = (row["run"], row["host"])
        if broker not in best or rank < best[broker][0]:
            best[broker] = (rank, row)
    return [row for _, (_, row) in sorted(best.items())]


def _channels(spark: "SparkSession", pairs: "DataFrame", brokers: list[Row]) -> list[Row]:
    from pyspark.sql import functions as f

    thresholds = spark.createDataFrame(
        [(row["run"], row["host"], row["subscribers_min"]) for row in brokers],
        "run string, host string, subscribers_min long",
    )
    both = plan.query_channels(pairs).unionByName(plan.set_channels(pairs, thresholds))
    order = (f.col("saved").desc(), "run", "host", "view_class", "queries")
    rows: list[Row] = collected(both.orderBy(*order).limit(CHANNELS_MAX), FAILED).to_pylist()
    return rows


def _places(pairs: "DataFrame") -> list[plan_flows.Place]:
    rows = _rows(plan_flows.places_of(pairs), "run", "host", "receiver")
    return [(row["run"], row["host"], row["receiver"]) for row in rows]


def _rows(frame: "DataFrame", *order: str) -> list[Row]:
    found = collected(frame, FAILED).sort_by([(name, "ascending") for name in order])
    rows: list[Row] = found.to_pylist()
    return rows


def _write(folder: Path, documents: dict[str, Any], tables: dict[str, list[Row]]) -> None:
    encode = msgspec.json.Encoder().encode
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            (folder / name).write_bytes(encode(document) + b"\n")
        for name, rows in tables.items():
            (folder / name).write_bytes(b"".join(encode(row) + b"\n" for row in rows))
    except OSError as error:
        raise RoamcastError(f"{folder}: cannot write the plan: {error.strerror}") from None
