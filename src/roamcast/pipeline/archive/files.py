"""Data files of the archive: sorted rows of one partition, written and read.

Row groups are small, and the footer holds the box and the times of each in one array, so a reader
decides on all groups of a file with a few vector operations. Statistics of the whole file go into
the Delta log. A damaged file is reported in one line that names it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast.errors import ContextError, InputError, RoamcastError
from roamcast.model import context_arrow
from roamcast.model.context_arrow import STAMP
from roamcast.model.time import FOREVER, format_instant
from roamcast.pipeline.archive.density import settled
from roamcast.pipeline.archive.layout import ORDER, PARTITIONS, Array, context_name, stored_name
from roamcast.pipeline.archive.storage import Storage, one_line


@contextmanager
def damage(path: str) -> Iterator[None]:
    """Raise a one-line error that names the damaged file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} in the archive is damaged: {told}") from None


def check_columns(path: str, schema: pa.Schema) -> dict[str, str]:
    """Give the stored name of every column, if the file has all it needs with the right types."""
    columns = {context_name(name): name for name in schema.names}
    fields = [pa.field(name, schema.field(stored).type) for name, stored in columns.items()]
    try:
        context_arrow.check_columns(pa.schema(fields))
    except ContextError as error:
        raise InputError(f"{path} in the archive is no file of contexts: {error}") from None
    return columns


def read_file(storage: Storage, path: str, only: Sequence[str] | None = None) -> pa.Table:
    """Read a file's contexts in the columns of `model.context_arrow`, or some of the columns."""
    with storage.open(path) as source, damage(path):
        file = pq.ParquetFile(source)
        names = check_columns(path, file.schema_arrow)
        stored = None if only is None else [names[name] for name in only]
        table = file.read(columns=stored, use_threads=False)
    table = table.rename_columns([context_name(name) for name in table.schema.names])
    return table.replace_schema_metadata(None)


GROUP_ROWS = 4_096
FILE_ROWS_MAX = 1_000_000
GROUPS_KEY = b"roamcast.groups"
BOUNDS = ["west", "east", "south", "north", "t_r_low", "t_r_high", "t_d_low", "t_d_high"]
TEXT_STATISTIC_MAX = 32
MILLISECOND = 1_000


class DataFile(msgspec.Struct, frozen=True):
    """A file that was written and is ready to be committed."""

    path: str
    size: int
    rows: int
    partition: dict[str, str]
    stats: str


FILE_SCHEMA = "path string, size long, rows long, partition map<string,string>, stats string"
"""The same as a Spark schema: what a writing task answers."""


def write_table(storage: Storage, table: pa.Table, name: str = "") -> Iterator[DataFile]:
    """Sort placed contexts and write them, a file or more for each division that is dense.

    name: what the files' names begin with, for who has to find them again (`unfinished`).
    """
    if not table.num_rows:
        return
    table = settled(table)
    table = table.take(pa.array(_order(table))).combine_chunks()
    for start, end in runs(table):
        for first in range(start, end, FILE_ROWS_MAX):
            yield _write(storage, table.slice(first, min(FILE_ROWS_MAX, end - first)), name)


def _order(table: pa.Table) -> Array:
    """Return the sort order of the rows; texts are few, so their ranks are sorted instead."""
    keys = [ranks(table[name]) for name in ORDER]
    keys = [key for key in keys if key.min() < key.max()] or keys[-1:]
    order: Array = np.lexsort(keys[::-1])
    return order


def ranks(column: pa.ChunkedArray) -> Array:
    """Return ranks in the order of a column's values; -1 for null."""
    if column.type != pa.string():
        return np.asarray(column.cast(pa.int64()))
    coded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int64)
    ranks[np.asarray(pc.sort_indices(coded.dictionary))] = np.arange(len(ranks))
    places = np.asarray(pc.fill_null(coded.indices, -1))
    found: Array = np.append(ranks, -1)[places]  # -1, no text, finds the last: it comes first
    return found


def write_sorted(storage: Storage, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Write placed contexts that arrive in order; holds one file's rows at a time."""
    held: list[pa.Table] = []
    rows = 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for start, end in runs(table):
            run = table.slice(start, end - start)
            if held and (_partition(held[0]) != _partition(run) or rows >= FILE_ROWS_MAX):
                yield _write(storage, pa.concat_tables(held).combine_chunks())
                held, rows = [], 0
            held.append(run)
            rows += run.num_rows
    if held:
        yield _write(storage, pa.concat_tables(held).combine_chunks())


def runs(table: pa.Table) -> list[tuple[int, int]]:
    """Return the runs of rows that share a partition."""
    if not table.num_rows:
        return []
    changed = np.zeros(max(0, table.num_rows - 1), bool)
    for name in PARTITIONS:
        column = table.column(name).combine_chunks()
        changed |= np.asarray(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    cuts = [0, *(np.flatnonzero(changed) + 1).tolist(), table.num_rows]
    return list(pairwise(cuts))


def _partition(table: pa.Table) -> dict[str, str]:
    return {name: table.column(name)[0].as_py() for name in PARTITIONS}


def _write(storage: Storage, table: pa.Table, name: str = "") -> DataFile:
    partition = _partition(table)
    folder = "/".join(f"{name}={value}" for name, value in partition.items())
    path = f"{folder}/{name}{uuid4().hex}.parquet"
    rows = table.drop_columns([name for name in ORDER if name != "t_r"])
    empty = [field.name for field in rows.schema if rows.column(field.name).null_count == len(rows)]
    lacking = [name for name in empty if ":" in name]
    rows = rows.drop_columns(lacking)
    rows = rows.rename_columns([stored_name(name) for name in rows.schema.names])
    rows = rows.replace_schema_metadata({GROUPS_KEY: group_bounds(rows).tobytes()})
    try:
        with storage.create(path) as sink:
            pq.write_table(
                rows,
                sink,
                row_group_size=GROUP_ROWS,
                compression="snappy",  # decoded faster than zstd, and half as large as nothing
                use_dictionary=[
                    name for name in rows.schema.names if name == "place" or name[:7] == "string:"
                ],
                write_statistics=True,
            )
        size = storage.size(path)
    except OSError as error:
        storage.discard([path])
        raise RoamcastError(
            f"cannot write to the archive at {storage.uri}: {error.strerror or one_line(error)}"
        ) from None
    stats = _statistics(rows)
    stats["nullCount"] |= {stored_name(name): len(rows) for name in lacking}
    return DataFile(path, size, len(rows), partition, json.dumps(stats))


def group_bounds(rows: pa.Table) -> Array:
    """Give for each row group its box and times, as float64 (NaN: no point in it).

    Microseconds are rounded away from the group's inside, so that float64 is wide enough.
    """
    starts = np.arange(0, rows.num_rows, GROUP_ROWS)
    found = np.empty((len(BOUNDS), len(starts)))
    for number, name in ((0, "lon"), (2, "lat")):
        column = rows.column(name).to_numpy()
        found[number] = np.fmin.reduceat(column, starts)
        found[number + 1] = np.fmax.reduceat(column, starts)
    for number, name in ((4, "t_r"), (6, "t_d")):
        moments = times(rows.column(name))
        found[number] = np.nextafter(np.minimum.reduceat(moments, starts), -np.inf)
        found[number + 1] = np.nextafter(np.maximum.reduceat(moments, starts), np.inf)
    return found


def times(column: Any) -> Array:
    """Return a column of moments as numbers; null, for an open context, is infinity."""
    numbers = column.cast(pa.int64())
    return np.asarray(pc.fill_null(numbers, FOREVER) if numbers.null_count else numbers)


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """Summarise a file for the Delta log; a vid is random, so its range says nothing."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        if field.name == "vid" or column.null_count == len(rows):
            continue
        if field.type == STAMP:
            ends = pc.min_max(column.cast(pa.int64()))
            low[field.name] = _stamp(ends["min"].as_py())
            high[field.name] = _stamp(ends["max"].as_py())
        elif field.type == pa.string():
            ends = pc.min_max(column)
            low[field.name] = ends["min"].as_py()[:TEXT_STATISTIC_MAX]
            high[field.name] = _after(ends["max"].as_py())
        elif field.type != pa.bool_():
            ends = pc.min_max(column)
            low[field.name], high[field.name] = ends["min"].as_py(), ends["max"].as_py()
    return {"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls}


def _stamp(instant: int) -> str:
    """Write a moment as Delta does, in whole milliseconds: a reader adds one to the maximum."""
    whole = format_instant(instant // MILLISECOND * MILLISECOND)
    text, _, fraction = whole[:-1].partition(".")
    return f"{text}.{fraction[:3]:0<3}Z"


def _after(text: str) -> str:
    """Shorten a text to one that is not smaller, as Delta's statistics do."""
    if len(text) <= TEXT_STATISTIC_MAX:
        return text
    return text[:TEXT_STATISTIC_MAX] + "\U0010ffff"
