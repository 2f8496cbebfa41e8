"""How finely contexts are divided: by day and cell where they are many, by month where few.

A file below some ten thousand rows costs a reader more to open than it saves by its narrow bounds.
So what is written together and is too little for a file by day and cell goes by week and cell,
else by month and cell, else into one file for the month. Compaction reads the small files of a
month together and divides them anew, which works in both directions (decision 0157).
"""

from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from roamcast.pipeline.archive.layout import PARTITIONS, Array

DENSE_ROWS = 32_768
"""Rows from which a division has files of its own: eight row groups."""

FILE_BYTES_GOAL = 64 * 1_048_576
"""Files are joined up to this size; those above half of it are left alone."""

MANY = "many"
"""The cell of files that hold contexts of all cells."""

Label = tuple[str, str, str]
"""Span, period and cell of a file."""


@lru_cache(maxsize=65_536)
def week(day: str) -> str:
    """Name the ISO week of a period's first day; weeks and months stay what they are."""
    if len(day) != len("2026-01-31"):
        return day
    year, number, _ = date.fromisoformat(day).isocalendar()
    return f"{year:04d}-W{number:02d}"


@lru_cache(maxsize=65_536)
def month(day: str) -> str:
    """Name the month of a period's first day."""
    if "W" in day:
        return date.fromisocalendar(int(day[:4]), int(day[6:]), 1).isoformat()[:7]
    return day[:7]


def coarser(label: Label) -> tuple[Label, Label, Label]:
    """Give the three divisions above the finest that a context may lie in."""
    span, day, cell = label
    return (span, week(day), cell), (span, month(day), cell), (span, month(day), MANY)


def settled(table: pa.Table) -> pa.Table:
    """Name for each placed context the finest division that is dense among these."""
    columns = [table[name].combine_chunks().dictionary_encode() for name in PARTITIONS]
    codes = np.zeros(table.num_rows, np.int64)
    for column in columns:
        codes = codes * len(column.dictionary) + np.asarray(column.indices)
    _, first, which, counts = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    if (counts >= DENSE_ROWS).all():
        return table
    chosen = [column.take(pa.array(first)).to_pylist() for column in columns]
    labels = _divided(list(zip(*chosen, strict=True)), counts)
    for at, name in enumerate(PARTITIONS):
        named = pa.array([label[at] for label in labels], pa.string())
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), named.take(pa.array(which)))
    return table


def _divided(labels: list[Label], counts: Array) -> list[Label]:
    above = [(label, *coarser(label)) for label in labels]
    found = [divisions[-1] for divisions in above]
    left = list(range(len(labels)))
    for level in range(4):
        rows: dict[Label, int] = {}
        for number in left:
            label = above[number][level]
            rows[label] = rows.get(label, 0) + int(counts[number])
        sparse = []
        for number in left:
            if rows[above[number][level]] >= DENSE_ROWS:
                found[number] = above[number][level]
            else:
                sparse.append(number)
        left = sparse
    return found


def label_of(file: dict[str, Any]) -> Label:
    """Read a file's division from its row of `Archive.files`."""
    span, day, cell = (str(file[f"partition.{name}"]) for name in PARTITIONS)
    return span, day, cell


def to_join(files: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group the files that compaction reads together: small ones of one span and month.

    A file is left alone if it is large, or dense and the only small one of its division.
    """
    small = [file for file in files if file["size_bytes"] < FILE_BYTES_GOAL // 2]
    sharing: dict[Label, int] = {}
    for file in small:
        sharing[label_of(file)] = sharing.get(label_of(file), 0) + 1
    months: dict[Label, list[dict[str, Any]]] = {}
    for file in small:
        if file["num_records"] < DENSE_ROWS or sharing[label_of(file)] > 1:
            months.setdefault(coarser(label_of(file))[-1], []).append(file)
    found = []
    for some in months.values():
        found += _filled(sorted(some, key=lambda file: (label_of(file), str(file["path"]))))
    return [group for group in found if len(group) > 1]


def _filled(files: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Divide files into groups of the target size."""
    groups: list[list[dict[str, Any]]] = [[]]
    size = 0
    for file in files:
        if groups[-1] and size + file["size_bytes"] > FILE_BYTES_GOAL:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file["size_bytes"]
    return groups
