"""Appending contexts to the archive: one atomic commit per batch, each batch exactly once.

The archive is a Delta table of contexts in the columns of `model.context_arrow`. Readers see all of
a batch or nothing of it. `load` and `ingest` both append through this module.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from roamcast.pipeline.archive.files import FILE_SCHEMA, DataFile, write_sorted, write_table
from roamcast.pipeline.archive.layout import (
    ORDER,
    PARTITIONS,
    PLACING,
    ArchiveSettings,
    check_schema,
    placed,
)
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.spark.errors import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK_ROWS = 1_000_000
"""Rows sorted together in the driver; more go into several files per partition."""


class Appended(msgspec.Struct, frozen=True):
    """What an append did; `committed` is False if this batch had been committed before."""

    rows: int
    files: int
    committed: bool
    version: int


def append(
    contexts: "DataFrame | pa.Table | pa.RecordBatch",
    archive: str | Path,
    *,
    transaction: tuple[str, int] | None = None,
    settings: ArchiveSettings | None = None,
    after: int | None = None,
) -> Appended:
    """Append contexts in the columns of `model.context_arrow.schema` to the archive.

    contexts: a Spark DataFrame (written by executors), or Arrow data (written here). Columns:
        vid, place, lon, lat, t_r, t_d (null while it lasts) and attributes as `kind:name`. New
        attributes become new columns of the archive. Cells and days are computed here.
    archive: its folder or URI; made if it does not exist.
    transaction: (application, batch): the commit happens only if no batch with this or a higher
        number was committed by this application before, so a batch that is repeated after a
        crash lands once. Derive the application's name from the checkpoint.
    settings: for a new archive; an existing one must agree.
    after: the application's batch before this one, 0 for the first; if the archive has another,
        somebody else feeds it under this name, and the batch is refused.

    Nothing is visible before the commit, and after an error the archive is as it was before.
    """
    target = Archive.make(archive, settings)
    if transaction is not None:
        done = target.last_batch(transaction[0])
        if after is None and done is not None and done >= transaction[1]:
            return Appended(0, 0, False, target.version)
    if isinstance(contexts, pa.Table | pa.RecordBatch):
        schema = check_schema(contexts.schema)
        files = keep(target.storage, _write_here(contexts, schema, target))
    else:
        schema = check_schema(_arrow_schema(contexts))
        files = _write_there(contexts, schema, target)
    return commit(target, files, schema.names, transaction, after)


def commit(
    target: Archive,
    files: list[DataFile],
    columns: Iterable[str],
    transaction: tuple[str, int] | None,
    after: int | None = None,
) -> Appended:
    """Commit written files to the archive; delete them if the commit does not land."""
    try:
        target.add_columns(name for name in columns if ":" in name)
        landed = target.append(files, transaction, after) if files or transaction else True
    except BaseException:
        target.discard(files)
        raise
    if not landed:
        target.discard(files)
        return Appended(0, 0, False, target.version)
    return Appended(sum(file.rows for file in files), len(files), True, target.version)


def _write_here(
    contexts: pa.Table | pa.RecordBatch, schema: pa.Schema, target: Archive
) -> Iterator[DataFile]:
    for start in range(0, contexts.num_rows, CHUNK_ROWS):
        part = contexts.slice(start, CHUNK_ROWS).select(schema.names)
        for_sorting = pa.Table.from_batches(
            [placed(batch, target.settings) for batch in pa.table(part).to_batches()]
        )
        yield from write_table(target.storage, for_sorting)


def keep(storage: Storage, files: Iterator[DataFile]) -> list[DataFile]:
    """Write all files, or delete those that were written."""
    written: list[DataFile] = []
    try:
        written.extend(files)  # what came before an error stays in the list
    except BaseException:
        storage.discard(file.path for file in written)
        raise
    return written


def _write_there(contexts: "DataFrame", schema: pa.Schema, target: Archive) -> list[DataFile]:
    """Place, sort and write the rows in Spark's executors; return the files they wrote."""
    storage, settings = target.storage, target.settings

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield placed(batch.select(schema.names), settings)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield files_batch(write_sorted(storage, batches))

    from pyspark.sql.pandas.types import from_arrow_schema

    placing = from_arrow_schema(pa.schema([*schema, *PLACING]))
    written = (
        contexts.mapInArrow(place, placing)
        .repartition(*PARTITIONS)
        .sortWithinPartitions(*ORDER)
        .mapInArrow(write, FILE_SCHEMA)
        .select("path", "size", "rows", "partition", "stats")
    )
    return files_of(collected(written, storage.failed))


_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("partition", pa.map_(pa.string(), pa.string())),
        ("stats", pa.string()),
    ]
)


def files_batch(files: Iterable[DataFile]) -> pa.RecordBatch:
    """Encode written files as the Arrow batch that a task returns."""
    rows = [
        {**msgspec.structs.asdict(file), "partition": list(file.partition.items())}
        for file in files
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_FILES)


def files_of(table: pa.Table) -> list[DataFile]:
    """Decode the written files from what tasks returned."""
    return [
        DataFile(row["path"], row["size"], row["rows"], dict(row["partition"]), row["stats"])
        for row in table.to_pylist()
    ]


def _arrow_schema(contexts: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([(f.name, f.type) for f in to_arrow_schema(contexts.schema, timezone="UTC")])
