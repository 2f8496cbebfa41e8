"""The questions people ask of an archive: occupancy, dwell, flows, entries, exposure.

Each is a function DataFrame → DataFrame over contexts (`analysis.source`). Counts are of vids: a
person who registered again is counted again, because nobody but a trusted node can tell. So a
count is of visits, never of people, and flows are those within the life of one vid.

Counts below k are suppressed, and with them those from which one could be computed (`suppression`);
or, for occupancy and flows, they get noise within a stated budget (`noise`).
"""

from typing import TYPE_CHECKING

from roamcast.errors import InputError
from roamcast.pipeline.analysis.meetings import BUCKET_S, MET, met
from roamcast.pipeline.analysis.noise import Budget, noisy
from roamcast.pipeline.analysis.suppression import suppressed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

K = 5
"""Counts below this are suppressed unless a caller says otherwise."""

HOUR_S = 3_600
BY_PLACE = [("place",), ("hour",), ("place", "day"), ("place/", "hour")]
"""Totals of places and hours that may be known: by day, and at every level above."""

BY_MOVE = [("origin", "destination"), ("origin", "hour"), ("destination", "hour"), ("hour",)]


def occupancy(
    contexts: "DataFrame",
    *,
    level: int = 0,
    hour_s: int = HOUR_S,
    k: int = K,
    budget: Budget | None = None,
) -> "DataFrame":
    """Count the vids at each place in each hour that their contexts overlap.

    level: how many segments of a place's path to count by; 0 counts by whole paths.
    budget: counts get noise within it, instead of being suppressed below k (`noise`).
    """
    from pyspark.sql import functions as f

    hours = _by_hour(_placed(contexts, level), hour_s)
    if budget is not None:
        return noisy(hours, ("place", "hour"), budget)
    counted = hours.groupBy("place", "hour").agg(f.countDistinct("vid").alias("count"))
    return suppressed(counted, BY_PLACE, k).select("place", "hour", "count")


def dwell(contexts: "DataFrame", *, level: int = 0, k: int = K) -> "DataFrame":
    """Give how long contexts last at each place, in seconds: median, mean, 90th percentile."""
    from pyspark.sql import functions as f

    lasted = f.unix_micros("t_d") - f.unix_micros("t_r")
    ended = _placed(contexts, level).where(f.col("t_d").isNotNull())
    found = (
        ended.withColumn("s", lasted / 1e6)
        .groupBy("place")
        .agg(
            f.count("*").alias("count"),
            f.percentile_approx("s", 0.5).alias("median_s"),
            f.avg("s").alias("mean_s"),
            f.percentile_approx("s", 0.9).alias("p90_s"),
        )
    )
    shown = suppressed(found, [("place/",)], k)
    return shown.select("place", "count", "median_s", "mean_s", "p90_s")


def entries(
    contexts: "DataFrame", *, level: int = 0, hour_s: int = HOUR_S, k: int = K
) -> "DataFrame":
    """Count the contexts that begin and that end at each place, hour by hour."""
    from pyspark.sql import functions as f

    placed = _placed(contexts, level)
    came = placed.select(
        "place", _hour(f.col("t_r"), hour_s).alias("hour"), f.lit("entry").alias("kind")
    )
    left = placed.where(f.col("t_d").isNotNull()).select(
        "place", _hour(f.col("t_d"), hour_s).alias("hour"), f.lit("exit").alias("kind")
    )
    counted = came.unionByName(left).groupBy("place", "hour", "kind").count()
    margins = [("kind", *margin) for margin in BY_PLACE]
    return suppressed(counted, margins, k).select("place", "hour", "kind", "count")


def flows(
    contexts: "DataFrame",
    *,
    level: int = 0,
    hour_s: int = HOUR_S,
    k: int = K,
    budget: Budget | None = None,
) -> "DataFrame":
    """Count the moves from place to place by the hour in which the next place begins.

    budget: as of `occupancy`; a vid then counts once for each pair of places and hour.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    walk = Window.partitionBy("vid").orderBy("t_r", "t_d")
    placed = _placed(contexts, level)
    moves = placed.select(
        "vid",
        f.lag("place").over(walk).alias("origin"),
        f.col("place").alias("destination"),
        _hour(f.col("t_r"), hour_s).alias("hour"),
    ).where(f.col("origin") != f.col("destination"))
    if budget is not None:
        return noisy(moves, ("origin", "destination", "hour"), budget)
    counted = moves.groupBy("origin", "destination", "hour").count()
    found = suppressed(counted, BY_MOVE, k)
    return found.select("origin", "destination", "hour", "count")


def exposure(
    contexts: "DataFrame", *, of: "DataFrame | None" = None, minutes: float, level: int = 0
) -> "DataFrame":
    """Find the vids that shared a place with the vids in `of` for at least so many minutes.

    Without `of` everybody with everybody, each pair in both directions. Contexts are swept in the
    order of their beginnings (`meetings`), so the work grows with those who met and not with
    everybody at the place. The answer is for the trusted node, which alone knows who they are.
    """
    from pyspark.sql import functions as f

    if minutes <= 0:
        raise InputError("give minutes above 0: everybody at a place meets for no time at all")
    stays = _by_bucket(_placed(contexts, level))
    if of is None:
        asked = stays.withColumn("asked", f.lit(True))
    else:
        wanted = f.broadcast(of.select("vid").distinct().withColumn("asked", f.lit(True)))
        marked = stays.join(wanted, "vid", "left").fillna(False, "asked")
        # whoever was nowhere near them takes no part: neither in the shuffle nor in the sweep
        near = marked.where("asked").select("place", "bucket").distinct()
        asked = marked.join(near, ["place", "bucket"], "left_semi")
    columns = ("place", "bucket", "vid", "start", "end", "reach", "asked")
    pairs = asked.select(*columns).repartition("place", "bucket").mapInArrow(met, MET)
    found = pairs.groupBy("source", "vid", "place").agg((f.sum("shared") / 60e6).alias("minutes"))
    return found.where(f.col("minutes") >= minutes).select("source", "vid", "place", "minutes")


def _by_bucket(placed: "DataFrame") -> "DataFrame":
    """Give a row with moments in µs for each bucket that a context overlaps."""
    from pyspark.sql import functions as f

    start = f.unix_micros("t_r")
    lasting = start + LASTING_DAYS * 86_400_000_000
    reach = f.coalesce(f.unix_micros("t_d"), lasting)
    width = BUCKET_S * 1_000_000
    buckets = f.sequence(f.floor(start / width), f.floor(reach / width))
    return placed.select(
        *("vid", "place", start.alias("start"), _end(f.col("t_d")).alias("end")),
        *(reach.alias("reach"), f.explode(buckets).alias("bucket")),
    )


def _placed(contexts: "DataFrame", level: int) -> "DataFrame":
    """Give vid, place and times of contexts that have a place, at so many segments of it."""
    from pyspark.sql import functions as f

    if level < 0:
        raise InputError("level counts segments of a place's path: 0 for all, or 1 and more")
    place: Column = f.col("place")
    if level:
        place = f.array_join(f.slice(f.split("place", "/"), 1, level), "/")
    return contexts.where(f.col("place").isNotNull()).select(
        "vid", place.alias("place"), "t_r", "t_d"
    )


def _hour(moment: "Column", hour_s: int) -> "Column":
    from pyspark.sql import functions as f

    if hour_s < 1:
        raise InputError("an hour has at least one second")
    seconds = f.floor(f.unix_micros(moment) / (hour_s * 1_000_000)) * hour_s
    return f.timestamp_seconds(seconds)


LASTING_DAYS = 7
"""A context that still lasts is counted for this many days: no job runs into the year 9999."""


def _end(t_d: "Column") -> "Column":
    from pyspark.sql import functions as f

    return f.coalesce(f.unix_micros(t_d), f.lit(2**63 - 1))


def _by_hour(placed: "DataFrame", hour_s: int) -> "DataFrame":
    """Give a row for each hour that a context overlaps."""
    from pyspark.sql import functions as f

    last = f.coalesce("t_d", f.timestamp_add("DAY", f.lit(LASTING_DAYS), f.col("t_r")))
    hours = f.sequence(
        _hour(f.col("t_r"), hour_s), _hour(last, hour_s), f.make_dt_interval(secs=f.lit(hour_s))
    )
    return placed.select("vid", "place", "t_r", "t_d", f.explode(hours).alias("hour"))
