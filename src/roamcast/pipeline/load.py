"""Ready-made contexts into the archive: CONTEXTS.jsonl, checked, with their vids unchanged.

A small file is read in this process. A large one is cut into stretches of bytes, and each of
Spark's workers reads some of them twice: once to check every line and to learn which attributes
there are, once to write.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from roamcast.errors import InputError, LimitError, MissingError, RoamcastError
from roamcast.matching.files import LINE_BYTES_MAX, read_contexts
from roamcast.model.context_arrow import columns_of, schema, to_arrow
from roamcast.model.contexts import Context, decode
from roamcast.pipeline.archive.append import Appended, append
from roamcast.pipeline.archive.layout import ArchiveSettings, check_count
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.spark.errors import collected
from roamcast.pipeline.spark.progress import QUIET, Bar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE_BYTES = 128 * 1_048_576
"""Up to this size a file is read here: Spark would take as long to start."""

STRETCH_BYTES = 16 * 1_048_576
TOGETHER = 16_384


def load(
    contexts: Path,
    archive: str | Path,
    *,
    settings: ArchiveSettings | None = None,
    transaction: tuple[str, int] | None = None,
    spark: "Callable[[], SparkSession] | None" = None,
    here_bytes: int = HERE_BYTES,
    progress: Bar = QUIET,
) -> Appended:
    """Append the contexts of a file of GeoJSON Features; all of them, or none if one is bad."""
    try:
        size = contexts.stat().st_size
    except OSError as error:
        raise MissingError(f"{contexts}: {error.strerror}") from None
    if spark is None or size <= here_bytes:
        table = _table(read_contexts(contexts), progress)
        return append(table, archive, transaction=transaction, settings=settings)
    found = _read_there(spark(), contexts.resolve(), size, Storage(archive))
    return append(found, archive, transaction=transaction, settings=settings)


def _table(contexts: Iterable[Context], progress: Bar) -> pa.Table:
    batches = []
    remaining = iter(contexts)
    names: set[str] = set()
    while some := list(islice(remaining, TOGETHER)):
        names.update(columns_of(some))
        check_count(names)  # before a table of so many columns is made
        batches.append(to_arrow(some))
        progress.step(len(some))
    if not batches:
        return schema([]).empty_table()
    target = schema(names)
    parts = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(parts, promote_options="default").select(target.names)


def _read_there(spark: "SparkSession", path: Path, size: int, storage: Storage) -> "DataFrame":
    stretches = spark.range(0, size, STRETCH_BYTES, -(-size // STRETCH_BYTES))

    def learn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns: dict[str, None] = {}
        for batch in batches:
            for start in batch.column(0).to_pylist():
                columns |= columns_of(read_stretch(path, start, start + STRETCH_BYTES))
        yield pa.RecordBatch.from_pydict({"column": list(columns)}, pa.schema([_COLUMN]))

    found = stretches.mapInArrow(learn, "column string").select("column").distinct()
    target = schema(check_count(collected(found, storage.failed)["column"].to_pylist()))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in batch.column(0).to_pylist():
                some = read_stretch(path, start, start + STRETCH_BYTES)
                while part := list(islice(some, TOGETHER)):
                    yield to_arrow(part, target)

    from pyspark.sql.pandas.types import from_arrow_schema

    rows = stretches.mapInArrow(read, from_arrow_schema(target))
    return rows.select(*(f"`{name}`" for name in target.names))


_COLUMN = pa.field("column", pa.string())


def read_stretch(path: Path, start: int, end: int) -> Iterator[Context]:
    """Read the lines that begin in a stretch of a file; a bad one is told with its line."""
    try:
        with path.open("rb") as file:
            if start:
                file.seek(start - 1)
                file.readline()  # the rest of a line that began before
            while (at := file.tell()) < end and (line := file.readline(LINE_BYTES_MAX + 1)):
                try:
                    if len(line) > LINE_BYTES_MAX:
                        raise LimitError(f"a line has at most {LINE_BYTES_MAX} bytes")
                    if line.strip():
                        yield decode(line)
                except InputError as error:
                    raise error.located(str(path), _line(path, at)) from None
    except OSError as error:
        raise RoamcastError(f"{path}: {error.strerror}") from None


def _line(path: Path, at: int) -> int:
    """Count the lines up to a position; only done to tell where a line is bad."""
    count = 1
    with path.open("rb") as file:
        while at > 0 and (part := file.read(min(at, 1_048_576))):
            count += part.count(b"\n")
            at -= len(part)
    return count
