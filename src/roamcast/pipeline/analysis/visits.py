"""Visits: contexts as tables of counts see them, by the hours in which they begin and end.

All tables are sums over visits. A vid counts once at a place in an hour, so a visit is counted
there from the first hour on that no earlier visit of the same vid to the same place has counted.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_S = 3_600
LASTING_DAYS = 7
"""A context that still lasts is counted for this many days: no job runs into the year 9999."""

CELL = ("place", "entered", "since", "left", "ended")
"""What tables can tell of a visit: visits that are equal in all of it are one cell."""

Integers = npt.NDArray[np.int64]


def visits(placed: "DataFrame") -> "DataFrame":
    """Give the visits of contexts (vid, place, t_r, t_d): `CELL`, vid, step and seconds.

    Hours are counted from 1970: `entered` and `left`, and `since` from when on it counts; a visit
    with `since` after `left` is counted by an earlier one. `step` numbers the visits of a vid.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = ("t_r", "t_d", "place")
    walk = Window.partitionBy("vid").orderBy(*order)
    again = Window.partitionBy("vid", "place").orderBy(*order)
    before = again.rowsBetween(Window.unboundedPreceding, -1)
    lasting = f.timestamp_add("DAY", f.lit(LASTING_DAYS), f.col("t_r"))
    hourly = placed.repartition("vid").select(
        *("vid", *order),
        _hours(f.col("t_r")).alias("entered"),
        _hours(f.coalesce("t_d", lasting)).alias("left"),
    )
    return hourly.select(
        *("vid", "place", "entered", "left"),
        f.row_number().over(walk).alias("step"),
        f.greatest("entered", f.max("left").over(before) + 1).alias("since"),
        f.col("t_d").isNotNull().alias("ended"),
        ((f.unix_micros("t_d") - f.unix_micros("t_r")) / 1e6).alias("seconds"),
    )


def _hours(moment: "Column") -> "Column":
    from pyspark.sql import functions as f

    return f.floor(f.unix_micros(moment) / (HOUR_S * 1_000_000))


def split(places: Any) -> tuple[Any, Integers]:
    """Give the segments of paths, and how many there are."""
    parts = pc.split_pattern(_flat(places), "/")
    return parts, np.asarray(pc.list_value_length(parts)).astype(np.int64)


def shortened(parts: Any, level: int) -> Any:
    """Give paths by their first segments."""
    return pc.binary_join(pc.list_slice(parts, 0, level), "/")


def codes(texts: Any) -> Integers:
    """Give texts numbers in the order of the texts, the same for equal ones."""
    coded = _flat(texts).dictionary_encode()
    rank = np.empty(len(coded.dictionary), np.int64)
    rank[np.asarray(pc.sort_indices(coded.dictionary))] = np.arange(len(rank))
    found: Integers = rank[np.asarray(coded.indices)]
    return found


def _flat(texts: Any) -> Any:
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
