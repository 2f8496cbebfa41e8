"""Crowds: visits of at least k vids that are only ever counted together.

Every table of counts is a sum of whole crowds, and each visit is in one crowd at most. So all
tables together, of all questions, levels and hours, tell no more than the sizes of the crowds, and
whatever is computed from them is a sum of whole crowds again: no count below k (decision 0460).

A cell (`visits.CELL`) of k vids is a crowd by itself. Smaller cells are joined with others that
began in the same hour, of their place, else of the region above and so on up the path; then with
others of the day likewise. What is told of a crowd is what all its visits have in common: its
place, or the region; the hour in which they began or ended, if it is one; the hours in which all of
them were there.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from roamcast.errors import InputError
from roamcast.pipeline.analysis.visits import CELL, Integers, codes, shortened, split

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAY_HOURS = 24
COUNTED = (
    "place string, entered long, since long, left long, ended boolean, count long, crowd long, "
    "level long, entered_min long, entered_max long, since_max long, left_min long, left_max long"
)
"""A cell, its crowd, the level of the region that the crowd is told by (0: the place itself), and
between which hours its visits began, counted and ended."""


def crowds(visited: "DataFrame", k: int) -> "DataFrame":
    """Give the cells that are in a crowd; what is in none is not told by any table."""
    from pyspark.sql import functions as f

    if k < 1:
        raise InputError("k is at least 1; 1 suppresses nothing")
    cells = visited.groupBy(*CELL).agg(
        f.count("*").alias("count"), few(f.col("vid"), k).alias("people")
    )
    # crowds never reach beyond the first segment of a path and a day
    apart = cells.repartition(
        f.substring_index("place", "/", 1), f.floor(f.col("entered") / DAY_HOURS)
    )

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        held = list(batches)
        if held:
            task = TaskContext.get()
            part = 0 if task is None else task.partitionId()
            yield from gathered(pa.Table.from_batches(held), k, part << 40).to_batches()

    return apart.mapInArrow(work, COUNTED)


def few(vid: "Column", k: int) -> "Column":
    """Give the distinct vids of a group, hashed, and not more than k of them."""
    from pyspark.sql import functions as f

    return f.slice(f.collect_set(f.xxhash64(vid)), 1, k)


def gathered(cells: pa.Table, k: int, first_id: int = 0) -> pa.Table:
    """Put cells into crowds, the same ones in whatever order cells come; leave out the others.

    Two runs that chose different crowds would together show what each of them hides.
    """
    cells = cells.combine_chunks()
    parts, depth = split(cells["place"])
    deepest = int(depth.max(initial=0))
    names = ("entered", "since", "left", "ended")
    entered, since, left, ended = (np.asarray(cells[name]).astype(np.int64) for name in names)
    place = codes(cells["place"])
    people = People(cells["people"].combine_chunks())
    order = np.lexsort([since, place, entered, ended, left])
    crowd = np.full(len(place), -1, np.int64)
    level = np.zeros(len(place), np.int64)
    alone = people.sizes >= k
    crowd[alone] = np.arange(int(alone.sum()))
    for when in (entered, entered // DAY_HOURS):
        for up in (0, *range(deepest - 1, 0, -1)):
            region = codes(shortened(parts, up)) if up else place
            rest = order[crowd[order] < 0]
            # a move within a region has both ends there: k visits each
            found = _joined(rest, [region, ended, when], people, k, 2 * k if up else k)
            there = found >= 0
            crowd[rest[there]] = found[there] + crowd.max(initial=-1) + 1
            level[rest[there]] = up
    kept = np.flatnonzero(crowd >= 0)
    of = crowd[kept]
    one = _most(of, place[kept]) == -_most(of, -place[kept])
    common = {
        "crowd": of + first_id,
        "level": np.where(one, 0, level[kept]),
        "entered_min": -_most(of, -entered[kept]),
        "entered_max": _most(of, entered[kept]),
        "since_max": _most(of, since[kept]),
        "left_min": -_most(of, -left[kept]),
        "left_max": _most(of, left[kept]),
    }
    cells = cells.take(pa.array(kept)).drop_columns(["people"])
    for name, column in common.items():
        cells = cells.append_column(name, pa.array(column))
    return cells


def _joined(
    rows: Integers, keys: Sequence[Integers], people: "People", k: int, enough: int
) -> Integers:
    """Join neighbours that are alike in their keys until enough vids are together; else give -1.

    Each row has 1 to k-1 vids, so those that begin within a stretch of enough + k - 2 are enough.
    """
    if not len(rows):
        return rows
    by = np.lexsort([np.arange(len(rows)), *(key[rows] for key in keys[::-1])])
    sorted_rows = rows[by]
    changed = np.zeros(len(rows), bool)
    for key in keys:
        values = key[sorted_rows]
        changed[1:] |= values[1:] != values[:-1]
    changed[0] = True
    group = np.cumsum(changed) - 1
    sizes = people.sizes[sorted_rows]
    before = np.cumsum(sizes) - sizes
    before -= before[changed][group]
    stretch = before // max(1, enough + k - 2)
    # the last stretch of a group may be short: it goes with the one before
    last = np.zeros(int(group[-1]) + 1, np.int64)
    np.maximum.at(last, group, stretch)
    in_last = stretch == last[group]
    ends = np.bincount(group, np.where(in_last, sizes, 0))
    stretch -= in_last & (ends[group] < enough) & (stretch > 0)
    new = changed.copy()
    new[1:] |= stretch[1:] != stretch[:-1]
    number = np.cumsum(new) - 1
    large = people.distinct(sorted_rows, number) >= enough
    names = np.where(large, np.cumsum(large) - 1, -1)
    found = np.empty(len(rows), np.int64)
    found[by] = names[number]
    return found


class People:
    """The vids of cells, as lists of hashes."""

    def __init__(self, lists: pa.ListArray) -> None:
        self._offsets = np.asarray(lists.offsets).astype(np.int64)
        self._values = np.asarray(lists.values)
        self.sizes: Integers = np.diff(self._offsets)

    def distinct(self, rows: Integers, group: Integers) -> Integers:
        """Count the distinct vids of each group of rows."""
        sizes = self.sizes[rows]
        total = int(sizes.sum())
        inner = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        values = self._values[np.repeat(self._offsets[rows], sizes) + inner]
        groups = np.repeat(group, sizes)
        order = np.lexsort([values, groups])
        values, groups = values[order], groups[order]
        new = np.ones(total, bool)
        new[1:] = (values[1:] != values[:-1]) | (groups[1:] != groups[:-1])
        return np.bincount(groups[new], minlength=int(group.max(initial=-1)) + 1)


def _most(crowd: Integers, values: Integers) -> Integers:
    """Give for each cell the largest value within its crowd."""
    found = np.full(int(crowd.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(found, crowd, values)
    return found[crowd]
