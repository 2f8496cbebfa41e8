"""Moves from crowd to crowd: which of them flows may count, so that no other move can be told.

Who left a place is known from exits, and who came from entries. If a table of flows told where
nearly all of them went, the rest would be told as well. So of the visits of each crowd, k are never
counted as origins, and of those that came to a place in an hour, k never as destinations: first
those that came from nowhere or left for nowhere. Between these any hidden flow may be k or more
(decision 0460).

A move is told by what its two crowds are told by: a place or a region. Moves of less than k vids
are joined up the paths of origin and destination, as cells of visits are.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from roamcast.pipeline.analysis.crowds import People, few
from roamcast.pipeline.analysis.visits import CELL, codes, shortened, split

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FLOWS = "origin string, destination string, hour long, level long, count long"


def moves(visited: "DataFrame", crowded: "DataFrame", k: int) -> "DataFrame":
    """Give the flows that may be told: (origin, destination, hour, level, count), each move once.

    level: how many segments origin and destination were shortened to; 0 for whole paths.
    """
    from pyspark.sql import functions as f

    chosen = _withheld(_walked(visited, crowded), k)
    counted = chosen.groupBy(
        *("origin", "origin_level", "destination", "destination_level", "hour")
    ).agg(f.count("*").alias("count"), few(f.col("vid"), k).alias("people"))
    apart = counted.repartition(
        f.substring_index("origin", "/", 1), f.substring_index("destination", "/", 1), "hour"
    )

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        if held:
            yield from joined(pa.Table.from_batches(held), k).to_batches()

    return apart.mapInArrow(work, FLOWS)


def _walked(visited: "DataFrame", crowded: "DataFrame") -> "DataFrame":
    """Give each visit that is in a crowd with the one before, and whether that move may be told.

    Only if the hour is the whole crowd's, and the whole crowd of the visit before had left by then:
    else a flow would tell apart what a crowd has in common.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    walk = Window.partitionBy("vid").orderBy("step")
    known = crowded.select(*CELL, "crowd", "level", "entered_min", "entered_max", "left_max")
    walked = visited.join(known, list(CELL), "left").select(
        *("vid", "step", "place", "entered", "crowd", "level"),
        (f.col("entered_min") == f.col("entered_max")).alias("one_hour"),
        f.lag("crowd").over(walk).alias("from_crowd"),
        f.lag("place").over(walk).alias("from_place"),
        f.lag("level").over(walk).alias("from_level"),
        f.lag("left_max").over(walk).alias("from_left"),
    )
    common = f.least(_or_whole(f.col("level")), _or_whole(f.col("from_level")))
    differ = shortest(f.col("place"), common) != shortest(f.col("from_place"), common)
    may = (
        f.col("one_hour")
        & f.col("from_crowd").isNotNull()
        & (f.col("from_left") <= f.col("entered"))
        & differ
    )
    marked = walked.withColumn("may", f.coalesce(may, f.lit(False)))
    onward = marked.withColumn("onward", f.coalesce(f.lead("may").over(walk), f.lit(False)))
    return onward.where(f.col("crowd").isNotNull())


def _withheld(walked: "DataFrame", k: int) -> "DataFrame":
    """Leave out k visits of each crowd as origins, and k of each arrival as destinations."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # a crowd that is told by its place may be joined with others that came there in that hour
    exact = f.col("one_hour") & (f.col("level") == 0)
    arrival = f.when(exact, f.struct("place", "entered"))
    alone = f.when(~exact, f.col("crowd"))
    chance = f.xxhash64("vid", "step")  # by nothing that differs from run to run
    came = Window.partitionBy(arrival, alone).orderBy("may", chance, "vid", "step")
    left = Window.partitionBy("crowd").orderBy("onward", chance, "vid", "step")
    walk = Window.partitionBy("vid").orderBy("step")
    ranked = walked.withColumn("came", f.row_number().over(came)).withColumn(
        "left", f.row_number().over(left)
    )
    # the visit before is in a crowd wherever a move may be told
    followed = ranked.withColumn("from_rank", f.lag("left").over(walk))
    return followed.where(f.col("may") & (f.col("came") > k) & (f.col("from_rank") > k)).select(
        "vid",
        shortest(f.col("from_place"), _or_whole(f.col("from_level"))).alias("origin"),
        f.col("from_level").alias("origin_level"),
        shortest(f.col("place"), _or_whole(f.col("level"))).alias("destination"),
        f.col("level").alias("destination_level"),
        f.col("entered").alias("hour"),
    )


def _or_whole(level: "Column") -> "Column":
    """Take level 0, the whole path, as more segments than any path has."""
    from pyspark.sql import functions as f

    return f.when(level == 0, f.lit(2**31 - 1)).otherwise(level.cast("int"))


def shortest(place: "Column", level: "Column") -> "Column":
    """Give the first segments of a path."""
    from pyspark.sql import functions as f

    return f.call_function("substring_index", place, f.lit("/"), level)


def joined(counted: pa.Table, k: int) -> pa.Table:
    """Join moves up their paths until k vids are together; leave out those that never are."""
    counted = counted.combine_chunks()
    (starts, _), (ends, _) = split(counted["origin"]), split(counted["destination"])
    whole = np.iinfo(np.int64).max
    levels = np.minimum(
        *(
            np.where(np.asarray(counted[name]) == 0, whole, np.asarray(counted[name]))
            for name in ("origin_level", "destination_level")
        )
    )
    hour, count = np.asarray(counted["hour"]), np.asarray(counted["count"])
    people = People(counted["people"].combine_chunks())
    rest = np.ones(len(hour), bool)
    found = []
    finite = levels[levels < whole]
    depth = max(_deepest(starts), _deepest(ends), int(finite.max(initial=0)))
    for level in (0, *range(depth, 0, -1)):
        pair = (
            (counted["origin"].combine_chunks(), counted["destination"].combine_chunks())
            if level == 0
            else (shortened(starts, level), shortened(ends, level))
        )
        both = codes(pa.concat_arrays([*pair]))
        origin, destination = both[: len(hour)], both[len(hour) :]
        fit = np.flatnonzero(
            rest & (levels >= (whole if level == 0 else level)) & (origin != destination)
        )
        if not len(fit):
            continue
        keys = np.stack([origin[fit], destination[fit], hour[fit]])
        _, at, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        enough = people.distinct(fit, group) >= k
        rest[fit[enough[group]]] = False
        total = np.bincount(group, count[fit]).astype(np.int64)[enough]
        one = pa.array(fit[at[enough]])
        found.append(
            pa.table(
                {
                    "origin": pair[0].take(one),
                    "destination": pair[1].take(one),
                    "hour": hour[fit[at[enough]]],
                    "level": np.full(len(one), level),
                    "count": total,
                }
            )
        )
    if not found:
        return pa.table(
            {
                "origin": pa.array([], pa.string()),
                "destination": pa.array([], pa.string()),
                **{name: pa.array([], pa.int64()) for name in ("hour", "level", "count")},
            }
        )
    return pa.concat_tables(found)


def _deepest(parts: pa.ListArray) -> int:
    return int(np.diff(np.asarray(parts.offsets)).max(initial=0))
