"""The questions people ask of an archive: occupancy, dwell, flows, entries, exposure.

Each is a function DataFrame → DataFrame over contexts (`analysis.source`). Counts are of vids: a
person who registered again is counted again, because nobody but a trusted node can tell. So a count
is of visits, never of people, and flows are those within the life of one vid.

With k above 1, tables count whole crowds of k vids and more (`crowds`), so that all tables of one
archive together give no count below k; a count is then of those whom it may tell, and may be less
than the number of vids. Or, for occupancy and flows, counts get noise within a stated budget
(`noise`).
"""

from typing import TYPE_CHECKING

from roamcast.errors import InputError
from roamcast.pipeline.analysis.crowds import crowds
from roamcast.pipeline.analysis.meetings import BUCKET_S, MET, met
from roamcast.pipeline.analysis.moves import moves
from roamcast.pipeline.analysis.noise import Budget, noisy
from roamcast.pipeline.analysis.visits import CELL, HOUR_S, LASTING_DAYS, visits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

K = 5
"""Fewer vids than this are never counted alone, unless a caller says otherwise."""


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
    budget: counts get noise within it, instead of being of crowds (`noise`).
    """
    from pyspark.sql import functions as f

    if k > 1 and budget is None:
        if hour_s != HOUR_S:
            raise InputError("vids at a place are counted by the hour if k is above 1")
        cells = _tellable(contexts, level, k)
        there = cells.where("since_max <= left_min")
        hour = f.explode(f.sequence("since_max", "left_min"))
        counted = there.select("place", hour.alias("number"), "count")
        return _summed(counted, "place", number="number", hour_s=HOUR_S)
    if budget is not None:
        return noisy(_by_hour(_placed(contexts, level), hour_s), ("place", "hour"), budget)
    hours = _by_hour(_placed(contexts, 0), hour_s).select("vid", "place", "hour").distinct()
    return hours.groupBy(_shortened("place", level).alias("place"), "hour").count()


def dwell(contexts: "DataFrame", *, level: int = 0, k: int = K) -> "DataFrame":
    """Give how long contexts last at each place, in seconds: median, mean, 90th percentile."""
    from pyspark.sql import functions as f

    if k > 1:
        visited = visits(_placed(contexts, 0))
        crowded = _within(crowds(visited, k), level).where("ended").select(*CELL)
        stays = visited.join(crowded, list(CELL), "left_semi")
        ended = stays.select(_shortened("place", level).alias("place"), f.col("seconds").alias("s"))
    else:
        lasted = f.unix_micros("t_d") - f.unix_micros("t_r")
        placed = _placed(contexts, level).where(f.col("t_d").isNotNull())
        ended = placed.select("place", (lasted / 1e6).alias("s"))
    return ended.groupBy("place").agg(
        f.count("*").alias("count"),
        f.percentile_approx("s", 0.5).alias("median_s"),
        f.avg("s").alias("mean_s"),
        f.percentile_approx("s", 0.9).alias("p90_s"),
    )


def entries(
    contexts: "DataFrame", *, level: int = 0, hour_s: int = HOUR_S, k: int = K
) -> "DataFrame":
    """Count the contexts that begin and that end at each place, hour by hour."""
    from pyspark.sql import functions as f

    if k > 1:
        cells = _tellable(contexts, level, k)
        ends = []
        for kind, column in (("entry", "entered"), ("exit", "left")):
            numbers = [_step(f.col(f"{column}_{end}"), hour_s) for end in ("min", "max")]
            # whoever has not left yet counts as no exit
            counts = (numbers[0] == numbers[1]) & (f.col("ended") | f.lit(kind == "entry"))
            chosen = cells.where(counts).withColumn("number", numbers[0])
            ends.append(chosen.select("place", "number", f.lit(kind).alias("kind"), "count"))
        counted = ends[0].unionByName(ends[1])
        found = _summed(counted, "place", "kind", number="number", hour_s=hour_s)
        return found.select("place", "hour", "kind", "count")
    placed = _placed(contexts, level)
    came = placed.select(
        "place", _hour(f.col("t_r"), hour_s).alias("hour"), f.lit("entry").alias("kind")
    )
    left = placed.where(f.col("t_d").isNotNull()).select(
        "place", _hour(f.col("t_d"), hour_s).alias("hour"), f.lit("exit").alias("kind")
    )
    return came.unionByName(left).groupBy("place", "hour", "kind").count()


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

    if k > 1 and budget is None:
        visited = visits(_placed(contexts, 0))
        flowing = _within(moves(visited, crowds(visited, k), k), level)
        ends = [_shortened(name, level).alias(name) for name in ("origin", "destination")]
        number = _step(f.col("hour"), hour_s).alias("number")
        counted = flowing.select(*ends, number, "count").where("origin <> destination")
        return _summed(counted, "origin", "destination", number="number", hour_s=hour_s)
    walk = Window.partitionBy("vid").orderBy("t_r", "t_d")
    placed = _placed(contexts, level)
    walked = placed.select(
        "vid",
        f.lag("place").over(walk).alias("origin"),
        f.col("place").alias("destination"),
        _hour(f.col("t_r"), hour_s).alias("hour"),
    ).where(f.col("origin") != f.col("destination"))
    if budget is not None:
        return noisy(walked, ("origin", "destination", "hour"), budget)
    return walked.groupBy("origin", "destination", "hour").count()


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


def _tellable(contexts: "DataFrame", level: int, k: int) -> "DataFrame":
    """Give the cells of crowds that a table of this level may count, with the places it tells."""
    found = _within(crowds(visits(_placed(contexts, 0)), k), level)
    return found.withColumn("place", _shortened("place", level))


def _within(counted: "DataFrame", level: int) -> "DataFrame":
    """Keep what is told by whole paths, or by as many segments as a table of this level needs."""
    _check_level(level)
    return counted.where(f"level = 0 OR ({level} > 0 AND level >= {level})")


def _summed(counted: "DataFrame", *names: str, number: str, hour_s: int) -> "DataFrame":
    from pyspark.sql import functions as f

    total = counted.groupBy(*names, number).agg(f.sum("count").alias("count"))
    hour = f.timestamp_seconds(f.col(number) * hour_s).alias("hour")
    return total.select(*names, hour, "count")


def _step(hour: "Column", hour_s: int) -> "Column":
    """Number the steps of a table by hours since 1970; crowds know no finer ones."""
    from pyspark.sql import functions as f

    if hour_s < HOUR_S or hour_s % HOUR_S:
        raise InputError("a table with k above 1 counts by whole hours")
    return f.floor(hour / (hour_s // HOUR_S))


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

    _check_level(level)
    return contexts.where(f.col("place").isNotNull()).select(
        "vid", _shortened("place", level).alias("place"), "t_r", "t_d"
    )


def _check_level(level: int) -> None:
    if level < 0:
        raise InputError("level counts segments of a place's path: 0 for all, or 1 and more")


def _shortened(name: str, level: int) -> "Column":
    from pyspark.sql import functions as f

    return f.substring_index(name, "/", level) if level else f.col(name)


def _hour(moment: "Column", hour_s: int) -> "Column":
    from pyspark.sql import functions as f

    if hour_s < 1:
        raise InputError("an hour has at least one second")
    seconds = f.floor(f.unix_micros(moment) / (hour_s * 1_000_000)) * hour_s
    return f.timestamp_seconds(seconds)


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
