"""Plans out of journals: what brokers should do differently tomorrow.

- channels: which queries and recurring update query sets save transmissions, and how many
- thresholds: q and m for each broker, by replaying its decisions under other values (`replay`)
- wanted: which client wanted which update, the base of flows f(v) and demand (`plan_files`)

An update and a subscription meet if the update's number lies between the subscription's beginning
and end: both are counted by the broker itself, so no clock decides.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from roamcast.model.records import QueryStep, UpdateMatched, kind_of
from roamcast.pipeline.journals.replay import HISTORY_MAX, SUBSCRIBERS_MIN, Replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BROKER = ("run", "host")
_TRIED = pa.schema(
    [
        ("run", pa.string()),
        ("host", pa.string()),
        ("subscribers_min", pa.int64()),
        ("history_max", pa.int64()),
        ("transmissions", pa.int64()),
        ("announcements", pa.int64()),
        ("channels_max", pa.int64()),
    ]
)
TRIED = (
    "run string, host string, subscribers_min long, history_max long, transmissions long, "
    "announcements long, channels_max long"
)


def updates(journal: "DataFrame") -> "DataFrame":
    """Give each update's query, a row for each query it met."""
    from pyspark.sql import functions as f

    met = journal.where((f.col("kind") == kind_of(UpdateMatched)) & (f.col("matched") != ""))
    numbers = f.split("matched", " ").cast("array<long>")
    return met.select(
        *_BROKER,
        "epoch",
        f.col("update").cast("long").alias("number"),
        "place",
        f.explode(numbers).alias("query"),
    )


def subscriptions(journal: "DataFrame") -> "DataFrame":
    """Return each client's queries, with the updates after which they began and ended."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = [*_BROKER, "epoch", "query", "receiver"]
    steps = journal.where(f.col("kind") == kind_of(QueryStep)).select(
        *(*key, "step", "filter", "view_class", "remote", "segment", "row"),
        f.col("update").cast("long").alias("placed"),
    )
    following = Window.partitionBy(*key).orderBy("segment", "row")
    ends = f.lead("placed").over(following).alias("withdrawn")
    each = steps.select(*key, "step", "filter", "view_class", "remote", "placed", ends)
    return each.where(f.col("step") == "placed").select(
        *key, "filter", "view_class", "remote", "placed", "withdrawn"
    )


def wanted(journal: "DataFrame") -> "DataFrame":
    """Give which client wanted which update by which query."""
    from pyspark.sql import functions as f

    change, asked = updates(journal).alias("c"), subscriptions(journal).alias("s")
    same = [f.col(f"c.{name}") == f.col(f"s.{name}") for name in (*_BROKER, "epoch", "query")]
    began = f.col("c.number") > f.col("s.placed")
    lasted = f.col("s.withdrawn").isNull() | (f.col("c.number") <= f.col("s.withdrawn"))
    return change.join(asked, [*same, began, lasted], "inner").select(
        *(f"c.{name}" for name in (*_BROKER, "epoch", "number", "place", "query")),
        *(f"s.{name}" for name in ("receiver", "filter", "view_class", "remote")),
    )


def query_channels(pairs: "DataFrame") -> "DataFrame":
    """Return for each query the cost of its updates by unicast, and what a channel would save."""
    from pyspark.sql import functions as f

    local = pairs.where(~f.col("remote"))
    costs = local.groupBy(*_BROKER, "view_class", "filter").agg(
        f.count_distinct("epoch", "number").alias("updates"),
        f.count_distinct("receiver").alias("clients"),
        f.count("*").alias("alone"),
    )
    saved = f.col("alone") - f.col("updates")
    # every client is told of the channel once
    return costs.select(
        *(*_BROKER, "view_class", f.array("filter").alias("queries"), "updates", "alone"),
        *(saved.alias("saved"), (saved > f.col("clients")).alias("earns")),
    )


def set_channels(pairs: "DataFrame", chosen: "DataFrame") -> "DataFrame":
    """Give for each update query set what a channel of its own would save beside its queries'.

    `chosen`: (run, host, subscribers_min), q of each broker: queries with as many have a channel.
    """
    from pyspark.sql import functions as f

    local = pairs.where(~f.col("remote")).join(f.broadcast(chosen), list(_BROKER), "inner")
    update = [*_BROKER, "epoch", "number", "view_class", "subscribers_min"]
    by_query = local.groupBy(*update, "filter").agg(f.count("*").alias("clients"))
    sent = f.when(f.col("clients") >= f.col("subscribers_min"), 1).otherwise(f.col("clients"))
    by_update = by_query.groupBy(*update).agg(
        f.sort_array(f.collect_list("filter")).alias("queries"), f.sum(sent).alias("sent")
    )
    several = by_update.where(f.size("queries") > 1)
    sets = several.groupBy(*_BROKER, "view_class", "subscribers_min", "queries").agg(
        f.count("*").alias("updates"), f.sum("sent").alias("alone")
    )
    saved = f.col("alone") - f.col("updates")
    recurs = f.col("updates") >= f.col("subscribers_min")
    return sets.select(
        *(*_BROKER, "view_class", "queries", "updates", "alone"),
        *(saved.alias("saved"), (recurs & (saved > 0)).alias("earns")),
    )


def thresholds(journal: "DataFrame") -> "DataFrame":
    """Replay every broker under every pair of q and m; a row for each."""
    from pyspark.sql import functions as f

    pairs = list(product(SUBSCRIBERS_MIN, HISTORY_MAX))
    tried = f.array(
        *(
            f.struct(f.lit(q).alias("subscribers_min"), f.lit(m).alias("history_max"))
            for q, m in pairs
        )
    )
    key = [*_BROKER, "subscribers_min", "history_max"]
    told = ["epoch", "kind", "matched", "query", "step", "receiver", "view_class", "remote"]
    events = journal.where(f.col("kind").isin(kind_of(UpdateMatched), kind_of(QueryStep)))
    ordered = events.select(*_BROKER, "segment", "row", *told, f.explode(tried).alias("pair"))
    replayed = (
        ordered.select(*_BROKER, "pair.*", "segment", "row", *told)
        .repartition(*key)
        .sortWithinPartitions(*key, "segment", "row")
        .mapInArrow(replay, TRIED)
    )
    return replayed.select(*_TRIED.names)


def replay(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replay brokers whose events come one after another, each in its own order."""
    key: tuple[Any, ...] | None = None
    broker = Replay(1, 1)
    epoch: int | None = None
    found: list[dict[str, Any]] = []
    for batch in batches:
        for row in batch.to_pylist():
            here = (row["run"], row["host"], row["subscribers_min"], row["history_max"])
            if here != key:
                if key is not None:
                    found.append(_answer(key, broker))
                key, epoch, broker = here, row["epoch"], Replay(here[2], here[3])
            if row["epoch"] != epoch:
                epoch = row["epoch"]
                broker.restart()
            _take(broker, row)
    if key is not None:
        found.append(_answer(key, broker))
    yield pa.RecordBatch.from_pylist(found, schema=_TRIED)


def _take(broker: Replay, row: dict[str, Any]) -> None:
    if row["kind"] == kind_of(UpdateMatched):
        broker.update(map(int, row["matched"].split()))
    elif row["step"] == "placed":
        broker.placed(row["query"], row["view_class"], row["receiver"], remote=row["remote"])
    else:
        broker.withdrawn(row["query"], row["receiver"])


def _answer(key: tuple[Any, ...], broker: Replay) -> dict[str, Any]:
    counts = (broker.transmissions, broker.announcements, broker.channels_max)
    return dict(zip(_TRIED.names, (*key, *counts), strict=True))
