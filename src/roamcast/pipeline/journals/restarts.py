"""Whose end did a broker not live to write? What had not come back a while after its restart.

A broker that starts again numbers its updates under a new epoch. Clients publish what they have
again within seconds (their link waits at most 15 s), and the broker what its disk kept. What
has not come by then ended when the broker fell: at the last moment at which its journal knows it
to have been up. The segment in which that is clear is fixed, so the context is loaded once.
"""

from typing import TYPE_CHECKING

from roamcast.model.time import MICROSECONDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RETURN_S = 60
"""How long after a restart an object may be heard of again as if nothing had happened."""

GONE = "Gone"
"""The kind of an end that nobody wrote."""


def with_gone(journal: "DataFrame", events: "DataFrame") -> "DataFrame":
    """Add to the contexts' events (`vid`, `kind`, `t_d`, …) the ends that restarts make clear."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("run", "host", "vid").orderBy("segment", "row")
    here = f.struct("segment", "row")
    heard_next = f.lead(here).over(order)
    missed = f.filter(
        "restarts",
        lambda one: (
            (one.at > f.col("here"))
            & (one.back_us > f.col("time_us"))  # what is heard first stands before the epoch
            & (f.col("heard_next").isNull() | (f.col("heard_next") > one.clear))
        ),
    )
    placed = events.select("*", here.alias("here"), heard_next.alias("heard_next"))
    known = placed.join(f.broadcast(restarts(journal)), ["run", "host"], "left")
    first = known.select(*events.columns, f.get(missed, f.lit(0)).alias("missed"))
    changed: dict[str, Column] = {
        "segment": f.col("missed.clear.segment"),
        "row": f.col("missed.clear.row"),
        "kind": f.lit(GONE),
        "t_d": f.col("missed.fell_us"),
    }
    ends = first.where(f.col("missed").isNotNull() & (f.col("kind") != "ContextClosed"))
    names = [changed[name].alias(name) if name in changed else name for name in events.columns]
    return events.unionByName(ends.select(*names))


def restarts(journal: "DataFrame") -> "DataFrame":
    """Give each broker's restarts in order: the first record after it, and when it had fallen.

    `clear` is the first record so much later that nobody returns any more; without one the restart
    is left out.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    host = ["run", "host"]
    here = f.struct("segment", "row")
    first = f.min(f.struct(here.alias("at"), f.col("time_us").alias("back_us")))
    epochs = journal.where(f.col("epoch").isNotNull()).groupBy(*host, "epoch")
    began = epochs.agg(first.alias("first")).select(*host, "first.at", "first.back_us")
    earliest = f.min("at").over(Window.partitionBy(*host))
    again = began.select("*", (f.col("at") > earliest).alias("again")).where("again").drop("again")
    up = (here < f.col("at")) & (f.col("time_us") < f.col("back_us"))
    late = (here > f.col("at")) & (f.col("time_us") >= f.col("back_us") + RETURN_S * MICROSECONDS)
    records = journal.select(*host, "segment", "row", "time_us")
    each = (
        records.join(f.broadcast(again), host)
        .groupBy(*host, "at", "back_us")
        .agg(
            f.max(f.when(up, f.col("time_us"))).alias("fell_us"),
            f.min(f.when(late, here)).alias("clear"),
        )
        .where(f.col("clear").isNotNull() & f.col("fell_us").isNotNull())
    )
    listed = f.sort_array(f.collect_list(f.struct("at", "back_us", "clear", "fell_us")))
    return each.groupBy(*host).agg(listed.alias("restarts"))
