"""Journals in numbers: the figures' quantities, live or simulated, run by run.

Each record gives a few facts. Facts are added up for each host, then for each run, and delays are
ranked. A fact is (measure, about, above, below, once): a measure is the sum of `above`; where it is
a ratio, that sum is divided by the sum of `below` and of `once`, which counts a host once. So one
scan gives all sums, whatever their number.
"""

from typing import TYPE_CHECKING, Any

from roamcast.model import records
from roamcast.model.records import Record, kind_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CARRIERS = ("channel.data", "map.batch")
"""Messages that carry updates; answers, heartbeats, heals and synchronisations are beside."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
COLUMNS = ("run", "host", "measure", "about", "value")
OF_BROKERS = ("bytes per broker", "transmissions per update", "all transmissions per update")
"""Only what brokers send counts: whoever holds updates against filters is one."""

RATIOS = (
    *OF_BROKERS,
    "bytes per client",
    "clients per update",
    "queries per update",
    "share of updates on a set's channel",
)


def metrics(journal: "DataFrame", *, by_host: bool = False) -> "DataFrame":
    """Give (run, host, measure, about, value); host is empty unless `by_host`."""
    from pyspark.sql import functions as f

    sums = sums_by_host(journal)
    host = f.col("host") if by_host else f.lit("")
    # What a channel's bytes cost one client by name no journal says: the mean is a run's.
    found = values(
        sums.where(f.col("measure") != "bytes per client") if by_host else sums_by_run(sums)
    )
    return found.unionByName(delays(journal, host)).select(*COLUMNS)


def _facts() -> "Column":
    """Give a record's facts as an array."""
    from pyspark.sql import functions as f

    one, size = f.lit(1), f.col("bytes")
    by_channel = f.col("channel") != ""
    way = f.when(by_channel, "channel").otherwise("unicast")
    closed = f.concat(f.lit("closed: "), f.col("reason"))
    carries = f.col("message").isin(*CARRIERS)
    heard = size * f.col("receivers")
    facts: list[Column] = [
        *_when(
            records.UpdateMatched,
            _fact("updates", f.col("change"), one),
            _fact("updates nobody wants", None, (f.col("clients") == 0).cast("long")),
            _fact("transmissions per update", None, below=one),
            _fact("all transmissions per update", None, below=one),
            _fact("clients per update", None, f.col("clients"), below=one),
            _fact("queries per update", None, f.col("queries"), below=one),
            _fact("share of updates on a set's channel", None, below=one),
            _fact("brokers", None, once=one),
        ),
        *_when(
            records.Transmission,
            _fact("transmissions", f.col("message"), one),
            _fact("bytes sent", f.col("message"), size),
            _fact("transmissions by way", way, one),
            _fact("transmissions per update", None, carries.cast("long")),
            _fact("all transmissions per update", None, one),
            _fact("bytes per broker", None, size, once=one),
            _fact("bytes per client", None, heard, once=one),
            f.when(by_channel, _fact("channel transmissions", f.col("channel"), one)),
            f.when(by_channel, _fact("channel bytes", f.col("channel"), size)),
        ),
        *_when(
            records.QuerySet,
            _fact("query sets", None, one),
            _fact("share of updates on a set's channel", None, by_channel.cast("long")),
        ),
        *_when(
            records.Drop,
            _fact("drops", f.col("reason"), one),
            _fact("bytes dropped", f.col("reason"), size),
        ),
        *_when(records.QueryStep, _fact("queries", f.col("step"), one)),
        *_when(records.ChannelStep, _fact("channel steps", f.col("step"), one)),
        *_when(records.Delivery, _fact("deliveries", None, one)),
        *_when(records.HandoffStep, _fact("handoff steps", f.col("step"), one)),
        *_when(records.CastStep, _fact("cast steps", f.col("step"), one)),
        *_when(records.Fault, _fact("faults", f.col("step"), one)),
        *_when(records.ContextOpened, _fact("contexts", f.lit("opened"), one)),
        *_when(records.ContextChanged, _fact("contexts", f.lit("changed"), one)),
        *_when(records.ContextClosed, _fact("contexts", closed, one)),
    ]
    return f.array_compact(f.array(*facts))


def _when(record: type[Record], *facts: "Column") -> "list[Column]":
    from pyspark.sql import functions as f

    return [f.when(f.col("kind") == kind_of(record), fact) for fact in facts]


def _fact(
    measure: str, about: Any, above: Any = None, *, below: Any = None, once: Any = None
) -> "Column":
    from pyspark.sql import functions as f

    none = f.lit(0).cast("long")
    parts = {"above": above, "below": below, "once": once}
    return f.struct(
        f.lit(measure).alias("measure"),
        f.coalesce(f.lit("") if about is None else about, f.lit("")).alias("about"),
        *(
            (none if part is None else f.coalesce(part.cast("long"), none)).alias(name)
            for name, part in parts.items()
        ),
    )


def sums_by_host(journal: "DataFrame") -> "DataFrame":
    """Add up each host's facts, and leave out what counts for brokers, or clients, only."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    each = journal.select("run", "host", f.explode(_facts()).alias("fact"))
    added = (
        each.select("run", "host", "fact.*")
        .groupBy("run", "host", "measure", "about")
        .agg(
            f.sum("above").alias("above"),
            f.sum("below").alias("below"),
            f.max("once").alias("once"),
        )
    )
    of_host = Window.partitionBy("run", "host")
    broker = f.max(f.col("measure") == "brokers").over(of_host)
    told = added.select("*", broker.alias("broker"))
    # What brokers send is what clients hear: there the sum is a broker's, the host a client.
    heard = f.col("measure") == "bytes per client"
    above = f.when(heard & ~f.col("broker"), f.lit(0)).otherwise(f.col("above"))
    once = f.when(heard & f.col("broker"), f.lit(0)).otherwise(f.col("once"))
    kept = f.col("broker") | ~f.col("measure").isin(*OF_BROKERS)
    return told.where(kept).select(
        "run", "host", "measure", "about", above.alias("above"), "below", once.alias("once")
    )


def sums_by_run(sums: "DataFrame") -> "DataFrame":
    """Add up the hosts of a run."""
    from pyspark.sql import functions as f

    parts = [f.sum(name).alias(name) for name in ("above", "below", "once")]
    added = sums.groupBy("run", "measure", "about").agg(*parts)
    return added.select(
        "run", f.lit("").alias("host"), "measure", "about", "above", "below", "once"
    )


def values(sums: "DataFrame") -> "DataFrame":
    """Compute ratios; a ratio with a zero divisor is left out."""
    from pyspark.sql import functions as f

    ratio = f.try_divide(f.col("above").cast("double"), f.col("below") + f.col("once"))
    plain = (f.col("above") + f.col("once")).cast("double")
    value = f.when(f.col("measure").isin(*RATIOS), ratio).otherwise(plain)
    found = sums.select("run", "host", "measure", "about", value.alias("value"))
    return found.where(f.col("value").isNotNull())


def delays(journal: "DataFrame", host: "Column") -> "DataFrame":
    """Rank the delays of deliveries, in milliseconds, by linear interpolation between ranks."""
    from pyspark.sql import functions as f

    delivered = journal.where(f.col("kind") == kind_of(records.Delivery)).select(
        "run", host.alias("host"), "delay_us"
    )
    ranks = delivered.groupBy("run", "host").agg(
        f.percentile("delay_us", list(QUANTILES.values())).alias("ranks"),
        f.max("delay_us").cast("double").alias("most"),
    )
    named = [
        f.struct(f.lit(name).alias("about"), f.col("ranks")[number].alias("us"))
        for number, name in enumerate(QUANTILES)
    ]
    most = f.struct(f.lit("max").alias("about"), f.col("most").alias("us"))
    each = ranks.select("run", "host", f.explode(f.array(*named, most)).alias("one"))
    value = (f.col("one.us") / 1_000).alias("value")
    return each.select("run", "host", f.lit("delay, ms").alias("measure"), "one.about", value)
