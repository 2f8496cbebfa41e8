"""The files of a plan, for people to read and for other commands to take.

plan.json          q and m of each broker, and what they cost in the journals' time
thresholds.jsonl   every q and m that was tried
channels.jsonl     queries and recurring sets, by what a channel of theirs saves
tree.json          the tree and f(v): `roamcast place tree.json --filters K`
vertices.jsonl     which vertex is which client
demand.jsonl       where each client's traffic arises: for the choice of home brokers

f(v) of CBM counts the distinct items that a subtree wants; an item is an update of a broker. The
tree is given, or it is the one that journals know: a root, its brokers, their clients as leaves.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, LimitError, RoamcastError, TreeError
from roamcast.pipeline import plan
from roamcast.pipeline.journals.read import FAILED, read_journals
from roamcast.pipeline.spark.errors import collected
from roamcast.placement.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEAVES_MAX = 10_000_000
Place = tuple[str, str, str]
"""(run, broker, client): where an update is wanted."""


class TreeOfHosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dissemination tree and which vertex each client is, or hangs under."""

    parent: list[int]
    hosts: dict[str, int]


def read_tree(path: Path) -> TreeOfHosts:
    """Read {"parent": [-1, 0, …], "hosts": {"client-1": 3, …}}."""
    try:
        tree = msgspec.json.decode(path.read_bytes(), type=TreeOfHosts)
        Tree.of(tree.parent)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TreeError(f"not a tree of hosts: {error}", source=str(path)) from None
    except InputError as error:
        raise error.located(str(path)) from None
    for host, vertex in tree.hosts.items():
        if not 0 <= vertex < len(tree.parent):
            raise TreeError(f"{host!r} is at vertex {vertex}, which is none", source=str(path))
    return tree


def places_of(pairs: "DataFrame") -> "DataFrame":
    """Give where updates are wanted: (run, host, receiver), each once."""
    return pairs.select("run", "host", "receiver").distinct()


def star_of_brokers(places: list[Place]) -> tuple[list[int], dict[Place, int]]:
    """Make the tree that journals know: vertex 0, then the brokers, then their clients."""
    if len(places) > LEAVES_MAX:
        raise LimitError(f"a tree has at most {LEAVES_MAX} clients")
    brokers = sorted({(run, broker) for run, broker, _ in places})
    numbers = {broker: number for number, broker in enumerate(brokers, 1)}
    parent = [-1] + [0] * len(brokers)
    vertices = {}
    for place in sorted(places):
        vertices[place] = len(parent)
        parent.append(numbers[place[:2]])
    return parent, vertices


def located(tree: TreeOfHosts, places: list[Place]) -> dict[Place, int]:
    """Give each place its vertex of a tree; a client it does not name is an error."""
    missing = sorted({client for _, _, client in places if client not in tree.hosts})
    if missing:
        raise TreeError(f"the tree has no vertex for {missing[0]!r} ({len(missing)} in all)")
    return {place: tree.hosts[place[2]] for place in places}


def flows(
    spark: "SparkSession", pairs: "DataFrame", parent: list[int], vertices: Mapping[Place, int]
) -> "DataFrame":
    """Give (vertex, flow): the distinct updates that somebody at or below a vertex wants."""
    from pyspark.sql import functions as f

    above = [(*place, _upwards(parent, vertex)) for place, vertex in vertices.items()]
    ways = spark.createDataFrame(
        above, "run string, host string, receiver string, vertices array<int>"
    )
    joined = pairs.join(f.broadcast(ways), ["run", "host", "receiver"], "inner")
    each = joined.select("run", "host", "epoch", "number", f.explode("vertices").alias("vertex"))
    counted = each.groupBy("vertex").agg(_distinct_updates().alias("flow"))
    return counted.select("vertex", "flow")


def demand_of(pairs: "DataFrame") -> "DataFrame":
    """Give where each client's traffic arises: at which broker, of objects at which place."""
    counted = pairs.groupBy("run", "receiver", "host", "place").agg(
        _distinct_updates().alias("updates")
    )
    return counted.select("run", "receiver", "host", "place", "updates")


def _distinct_updates() -> "Column":
    from pyspark.sql import functions as f

    return f.count_distinct("run", "host", "epoch", "number")


def _upwards(parent: list[int], vertex: int) -> list[int]:
    way = [vertex]
    while parent[way[-1]] >= 0:
        way.append(parent[way[-1]])
    return way


def tree_document(parent: list[int], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Give TREE.json: the tree and its flows."""
    flow = [0] * len(parent)
    for row in found:
        flow[row["vertex"]] = row["flow"]
    return {"parent": parent, "flow": flow}


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
    given = None if tree is None else read_tree(tree)
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
            parent, vertices = star_of_brokers(places)
        else:
            parent, vertices = given.parent, located(given, places)
        flow = _rows(flows(spark, pairs, parent, vertices), "vertex") if places else []
        demand = _rows(demand_of(pairs), "run", "receiver", "host", "place")
    finally:
        pairs.unpersist()
    found = Plan(brokers, len(channels), len(parent), len(places), str(folder))
    named = [
        {"vertex": vertex, "run": run, "host": host, "receiver": receiver}
        for (run, host, receiver), vertex in sorted(vertices.items(), key=lambda item: item[1])
    ]
    documents = {"plan.json": found, "tree.json": tree_document(parent, flow)}
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


def _places(pairs: "DataFrame") -> list[Place]:
    rows = _rows(places_of(pairs), "run", "host", "receiver")
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
