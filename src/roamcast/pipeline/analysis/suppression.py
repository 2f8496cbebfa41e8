"""Which cells of a table of counts may be published: none below k, and none that gives one away.

Who knows a total, from a coarser table or otherwise, subtracts what is published: the rest is the
sum of what is missing. So of each group of cells whose total may be known, either nothing is
missing, or at least two cells whose sum is at least k. Where that does not hold, one more cell of
the group goes as well (complementary suppression), until it holds for all groups (decision 0159).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roamcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY_US = 86_400_000_000
Integers = npt.NDArray[np.int64]
Margin = tuple[str, ...]
"""Columns by which totals may be known. `place/` stands for all regions above a place, at each
depth, `day` for the day of an hour."""


def suppressed(counted: "DataFrame", margins: Sequence[Margin], k: int) -> "DataFrame":
    """Leave out the counts below k and those that would give one away.

    One task sees the whole table, because cells are chosen by what else is missing. It is a table
    of counts, so small beside what was counted.
    """
    if k < 1:
        raise InputError("k is at least 1; 1 suppresses nothing")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        if held:
            yield from shown(pa.Table.from_batches(held), margins, k).to_batches()

    return counted.repartition(1).mapInArrow(work, counted.schema)


def shown(counted: pa.Table, margins: Sequence[Margin], k: int) -> pa.Table:
    """Give the cells that may be published, the same ones in whatever order cells come.

    Spark's order differs from run to run: two runs that chose different cells would together show
    what each of them hides.
    """
    names = [name for name in counted.column_names if name != "count"]
    table = counted.sort_by([(name, "ascending") for name in names]).combine_chunks()
    keep = published(np.asarray(table["count"]), groups_of(table, margins), k)
    return table.filter(pa.array(keep))


def groups_of(table: pa.Table, margins: Sequence[Margin]) -> list[Integers]:
    """Give for each margin the number of each cell's group."""
    found: list[Integers] = []
    for margin in margins:
        above = [name.removesuffix("/") for name in margin if name.endswith("/")]
        if not above:
            found.append(_numbered([_column(table, name) for name in margin]))
            continue
        paths = table[above[0]].to_pylist()
        rest = [_column(table, name) for name in margin if not name.endswith("/")]
        # a region's own contexts are a cell beside those of the places within it
        for depth in range(1, max((path.count("/") for path in paths), default=0) + 1):
            regions = ["/".join(path.split("/")[:depth]) for path in paths]
            found.append(_numbered([_codes(regions), *rest]))
    return found


def published(counts: Integers, groups: Sequence[Integers], k: int) -> npt.NDArray[np.bool_]:
    """Say which cells may be published."""
    hidden = counts < k
    while any(_hide_more(counts, hidden, groups, number, k) for number in range(len(groups))):
        pass  # each pass hides a cell at least
    keep: npt.NDArray[np.bool_] = ~hidden
    return keep


def _hide_more(
    counts: Integers, hidden: Any, groups: Sequence[Integers], number: int, k: int
) -> bool:
    """Hide one more cell of each group of a margin whose missing cells can be told.

    Of its published cells the one that helps most other groups, harms the fewest, and is smallest.
    """
    group = groups[number]
    exposed = _exposed(counts, hidden, group, k)[0][group] & ~hidden
    candidates = np.flatnonzero(exposed)
    if not len(candidates):
        return False
    helps = np.zeros(len(candidates), np.int64)
    shared = np.zeros(len(candidates), np.int64)
    for other in groups:
        needy, missing = _exposed(counts, hidden, other, k)
        helps += needy[other[candidates]]
        shared += missing[other[candidates]] > 0
    order = np.lexsort([counts[candidates], -shared, -helps])
    _, first = np.unique(group[candidates[order]], return_index=True)
    hidden[candidates[order][first]] = True
    return True


def _exposed(counts: Integers, hidden: Any, group: Integers, k: int) -> tuple[Any, Any]:
    """Say for each group whether its missing cells can be told, and how many there are."""
    size = int(group.max()) + 1 if len(group) else 0
    missing = np.bincount(group, hidden, size)
    total = np.bincount(group, np.where(hidden, counts, 0), size)
    return (missing > 0) & ((missing < 2) | (total < k)), missing


def _column(table: pa.Table, name: str) -> Integers:
    if name == "day":
        return np.asarray(table["hour"].cast(pa.int64())) // DAY_US
    column = table[name].combine_chunks()
    return np.asarray(column.dictionary_encode().indices.fill_null(-1)).astype(np.int64)


def _codes(texts: list[str]) -> Integers:
    return np.asarray(pa.array(texts).dictionary_encode().indices).astype(np.int64)


def _numbered(columns: Sequence[Integers]) -> Integers:
    if not columns:
        return np.zeros(0, np.int64)
    _, numbers = np.unique(np.stack(columns), axis=1, return_inverse=True)
    found: Integers = numbers.reshape(-1).astype(np.int64)
    return found


def attack(
    tables: Sequence[tuple[dict[Any, int], Callable[[Any], Any], dict[Any, int]]], k: int
) -> list[tuple[Any, int]]:
    """Subtract published tables from each other; give every total below k that comes out.

    tables: (fine cells, the coarse cell of a fine one, coarse cells). What a checker does who has
    all published tables: a coarse cell less its fine ones is the sum of those that are missing.
    """
    found = []
    for fine, coarse_of, coarse in tables:
        rest = dict(coarse)
        for cell, count in fine.items():
            if coarse_of(cell) in rest:
                rest[coarse_of(cell)] -= count
        found += [(cell, left) for cell, left in rest.items() if 0 < left < k]
    return found
