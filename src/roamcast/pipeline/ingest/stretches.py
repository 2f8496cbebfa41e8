"""Which stretch of which file a Spark task reads, and how: sightings, and layers.

The driver looks at sizes and footers only and divides row groups and lines among tasks; a task
opens its files itself, so no row passes through the JVM (decisions 0043, 0480, 0481).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from socket import gethostname

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import MissingError
from roamcast.pipeline.ingest.columns import CHUNK_ROWS, read_columns
from roamcast.pipeline.ingest.files import (
    ROW_BYTES,
    Reading,
    SightingFile,
    expected_rows,
    format_of,
    packed,
    parquet_footer,
)
from roamcast.pipeline.ingest.layers import KINDS, Layers, remembered
from roamcast.pipeline.ingest.lines import read_lines

TASK_ROWS = 500_000
FILE_ROWS = 1_000
"""To open a file takes as long as to read so many rows."""

STRETCH_SQL = "task int, path string, first long, count long, kind string, layer int"


class Stretch(msgspec.Struct, frozen=True):
    """Row groups of a file, or bytes of one with lines, that one task reads.

    count: how many; 0 of a compressed file of lines, which is read to its end. `kind` says what
    the rows are if they are of a layer.
    """

    path: str
    first: int
    count: int
    rows: int
    kind: str = ""
    layer: int = -1


def stretches(files: Iterable[SightingFile], reading: Reading, layers: Layers) -> list[Stretch]:
    """Divide files of sightings, and those of all layers, into stretches."""
    found: list[Stretch] = []
    for file in files:
        whole = Stretch(file.path, 0, 0, expected_rows(file, reading))
        if format_of(file.path, reading) == "parquet":
            found += _divided(whole)
        elif packed(file.path):  # nobody can begin in the middle
            found.append(whole)
        else:
            found += _lines(whole, file.size)
    for kind in KINDS:
        for number, path in layers.files(kind):
            found += _divided(Stretch(str(path), 0, 0, 0, kind, number))
    return found


def _lines(file: Stretch, size: int) -> Iterator[Stretch]:
    """Divide a file of lines by its bytes."""
    most = TASK_ROWS * ROW_BYTES
    for first in range(0, size, most):
        count = min(most, size - first)
        yield msgspec.structs.replace(file, first=first, count=count, rows=count // ROW_BYTES)


def _divided(file: Stretch) -> Iterator[Stretch]:
    """Divide a file at its row groups; one without rows has no stretch."""
    footer = parquet_footer(file.path)
    first, count = 0, 0
    for group in range(footer.num_row_groups):
        count += footer.row_group(group).num_rows
        if count >= TASK_ROWS or (count and group == footer.num_row_groups - 1):
            groups = group + 1 - first
            yield msgspec.structs.replace(file, first=first, count=groups, rows=count)
            first, count = group + 1, 0


def tasks_of(found: Sequence[Stretch]) -> list[tuple[int, str, int, int, str, int]]:
    """Number the task of each stretch: as many as have few rows share one."""
    told, task, filled = [], 0, 0
    for one in found:
        if filled >= TASK_ROWS:
            task, filled = task + 1, 0
        filled += one.rows + FILE_ROWS
        told.append((task, one.path, one.first, one.count, one.kind, one.layer))
    return told


class ReadStretches(msgspec.Struct, frozen=True):
    """Gives the rows of the stretches that arrive in a task, in the columns of `rows.TAKEN`."""

    reading: Reading
    latest: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Read them one after another, a chunk at a time."""
        for batch in batches:
            for row in batch.to_pylist():
                path, first, end = row["path"], row["first"], row["first"] + row["count"]
                if not Path(path).exists():
                    raise MissingError(
                        f"{gethostname()} does not see {path}: Spark's workers need sightings and "
                        "the private folder under the same paths"
                    )
                if row["kind"]:
                    yield from _layer(path, range(first, end), row["kind"], row["layer"])
                elif format_of(path, self.reading) == "parquet":
                    groups = range(first, end)
                    yield from read_columns(path, self.reading, self.latest, groups)
                else:
                    yield from read_lines(path, self.reading, self.latest, first, end or None)


def _layer(path: str, groups: Sequence[int], kind: str, layer: int) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(CHUNK_ROWS, list(groups), use_threads=False):
            yield remembered(pa.Table.from_batches([batch]), KINDS[kind], layer)
