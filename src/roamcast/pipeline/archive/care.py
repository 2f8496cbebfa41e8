"""Jobs that rewrite the archive's files: compaction, and the frame for retention and erasure.

A job reads some files, writes others and commits the exchange. All jobs carry one common
transaction, so two of them that began at the same snapshot cannot both land, and an erased vid
cannot come back with a compaction that had read it before (decision 0042).
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from roamcast.errors import InputError
from roamcast.pipeline.archive.append import files_batch, files_of
from roamcast.pipeline.archive.bounds import Bounds, FileBounds
from roamcast.pipeline.archive.density import to_join
from roamcast.pipeline.archive.files import FILE_SCHEMA, DataFile, read_file, write_table
from roamcast.pipeline.archive.layout import ArchiveSettings, Array, placed
from roamcast.pipeline.archive.storage import GoneError, Storage, arrived, travelling
from roamcast.pipeline.archive.table import ATTEMPTS_MAX, Archive, RefusedError
from roamcast.pipeline.spark.errors import collected
from roamcast.pipeline.spark.progress import QUIET, Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS_TOGETHER = 512
"""Groups of files rewritten by one commit: an interrupted job keeps what it had committed."""

THREADS_MAX = 8
"""Groups rewritten at a time in this process, each up to some hundred megabytes."""

SPARK_BYTES = 256 * 1_048_576
"""Less than that is rewritten here, even if a session is at hand."""

VACUUM_HOURS = 24
"""How long replaced files stay: much longer than any lookup lasts."""

Row = dict[str, Any]


class Workers(msgspec.Struct, frozen=True):
    """A Spark session for a job, and the bytes from which its workers rewrite files."""

    spark: Any
    bytes_min: int

    @staticmethod
    def of(spark: "SparkSession | Workers | None") -> "Workers | None":
        """Give the workers of a session, which take what is too large for this process."""
        if spark is None or isinstance(spark, Workers):
            return spark
        return Workers(spark, SPARK_BYTES)


class ArchiveChange(msgspec.Struct, frozen=True):
    """The change that a job makes to the rows of a file.

    may: say by their bounds which files could be affected; the others are not opened.
    affects: say from the columns `look_at` (None: all) whether the file has to change at all.
    apply: give the contexts to keep.
    """

    may: Callable[[Bounds], Array]
    affects: Callable[[pa.Table], bool]
    apply: Callable[[pa.Table], pa.Table]
    look_at: tuple[str, ...] | None = None


class Rewritten(msgspec.Struct, frozen=True):
    """What a job did: rows it read and left out, files it replaced and wrote."""

    rows_read: int = 0
    rows_dropped: int = 0
    files_replaced: int = 0
    files_written: int = 0

    def __add__(self, other: "Rewritten") -> "Rewritten":
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Rewritten(*(a + b for a, b in zip(mine, theirs, strict=True)))


def compact(
    archive: str | Path, spark: "SparkSession | Workers | None" = None, progress: Bar = QUIET
) -> Rewritten:
    """Join small files and divide their contexts anew, by how many there are (`density`)."""
    return rewrite(Archive.open(archive), None, to_join, spark, progress)


def alone(files: list[Row]) -> list[list[Row]]:
    """Make each file a group of its own."""
    return [[file] for file in files]


def rewrite(
    archive: Archive,
    change: ArchiveChange | None,
    choose: Callable[[list[Row]], list[list[Row]]] = alone,
    spark: "SparkSession | Workers | None" = None,
    progress: Bar = QUIET,
    searched: set[str] | None = None,
) -> Rewritten:
    """Rewrite the chosen groups of files, each once, however often others commit meanwhile.

    change: what happens to each file that it may affect; None: the files of a group are joined.
    searched: takes the paths of the files that were read or written.
    """
    total = Rewritten()
    done: set[str] = set() if searched is None else searched
    attempts = 0
    while attempts < ATTEMPTS_MAX:
        archive.refresh()
        groups = choose(_candidates(archive, change, done))[:GROUPS_TOGETHER]
        if not groups:
            return total
        old = [file for group in groups for file in group]
        progress.expect(sum(file["num_records"] for file in old))
        try:
            new = _rewritten(archive, groups, change, spark, progress)
        except GoneError:  # compacted and deleted meanwhile: look again
            archive.check_there(file["path"] for file in old)
            attempts += 1
            continue
        same = {file.path for file in new} & {file["path"] for file in old}
        done |= same
        old = [file for file in old if file["path"] not in same]
        new = [file for file in new if file.path not in same]
        if not old:
            continue
        now = time.time_ns() // 1_000
        try:
            archive.replace(old, new, now, changed=change is not None)
        except BaseException as error:
            archive.discard(new)
            if not isinstance(error, CommitFailedError):
                raise
            attempts += 1
            continue
        done |= {file.path for file in new}
        read, kept = sum(file["num_records"] for file in old), sum(file.rows for file in new)
        total += Rewritten(read, read - kept, len(old), len(new))
    raise RefusedError("other jobs kept rewriting the archive; try again")


def _candidates(archive: Archive, change: ArchiveChange | None, done: set[str]) -> list[Row]:
    """List the files that the change may affect and that have not been rewritten yet."""
    files = archive.files()
    rows: list[Row] = files.to_pylist()
    may = [True] * len(rows) if change is None else change.may(FileBounds(files)).tolist()
    return [
        row for row, wanted in zip(rows, may, strict=True) if wanted and row["path"] not in done
    ]


def _rewritten(
    archive: Archive,
    groups: list[list[Row]],
    change: ArchiveChange | None,
    spark: "SparkSession | Workers | None",
    progress: Bar,
) -> list[DataFile]:
    """Rewrite the groups here or in Spark's workers; after an error no new file is left behind."""
    storage, settings = archive.storage, archive.settings
    paths = [[str(file["path"]) for file in group] for group in groups]
    size = sum(file["size_bytes"] for group in groups for file in group)
    workers = Workers.of(spark)
    if workers is None or size < workers.bytes_min:
        return _rewritten_here(storage, settings, groups, change, progress)

    from pyspark import cloudpickle

    # An erasure's vids and the paths of many small files are hundreds of megabytes.
    packed = cloudpickle.dumps((settings, paths, change))  # type: ignore[no-untyped-call]
    with travelling(storage, packed) as plan:

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                settings, paths, change = arrived(storage, plan)
                for number in batch.column(0).to_pylist():
                    yield files_batch(rewrite_group(storage, settings, paths[number], change))

        tasks = workers.spark.range(0, len(paths), 1, min(len(paths), 256))
        written_there = tasks.mapInArrow(work, FILE_SCHEMA).select(
            "path", "size", "rows", "partition", "stats"
        )
        return files_of(collected(written_there, storage.failed))


def _rewritten_here(
    storage: Storage,
    settings: ArchiveSettings,
    groups: list[list[Row]],
    change: ArchiveChange | None,
    progress: Bar,
) -> list[DataFile]:
    """Rewrite the groups in threads: Parquet is read and written without Python's lock."""
    written: list[DataFile] = []

    def work(group: list[Row]) -> None:
        paths = [str(file["path"]) for file in group]
        for file in rewrite_group(storage, settings, paths, change):
            written.append(file)  # noqa: PERF402 - what came before an error is in the list
        progress.step(sum(file["num_records"] for file in group))

    known = {str(file["path"]) for group in groups for file in group}
    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1)) as threads:
        tasks = [threads.submit(work, group) for group in groups]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            storage.discard(file.path for file in written if file.path not in known)
            raise
    return written


def rewrite_group(
    storage: Storage, settings: ArchiveSettings, paths: list[str], change: ArchiveChange | None
) -> Iterator[DataFile]:
    """Read files together and write the rows that remain.

    A file that the change does not affect is not written: it comes back under its own path.
    """
    parts = []
    for path in paths:
        if change is not None:
            look = read_file(storage, path, change.look_at)
            if not change.affects(look):
                yield DataFile(path, 0, 0, {}, "")
                continue
        table = read_file(storage, path)
        parts.append(table if change is None else change.apply(table))
    table = pa.concat_tables(parts, promote_options="default") if parts else None
    if table is not None and table.num_rows:
        batches = [placed(batch, settings) for batch in table.combine_chunks().to_batches()]
        yield from write_table(storage, pa.Table.from_batches(batches))


def vacuum(
    archive: str | Path,
    *,
    hours: int = VACUUM_HOURS,
    dry_run: bool = False,
    spark: "SparkSession | None" = None,
) -> list[str]:
    """Delete files that no snapshot of the last hours names; give their paths.

    Files of a writer that crashed are found, too, and after a day what travelled to tasks of a
    driver that was killed. A lookup that was planned before a file was deleted plans again, so the
    hours need only be longer than an append takes. With `spark` its workers delete them: where
    each deletion is a request to a store, many of them take long one after another.
    """
    if hours < 0:
        raise InputError("hours cannot be negative")
    target = Archive.open(archive)
    found: list[str] = target.table.vacuum(
        retention_hours=hours,
        dry_run=dry_run or spark is not None,
        enforce_retention_duration=False,
        full=True,
    )
    before = time.time_ns() - max(hours, VACUUM_HOURS) * 3_600 * 10**9
    left = [path for path, written in target.storage.travelling().items() if written < before]
    every = sorted([*found, *left])
    if not dry_run:
        if spark is None:
            target.storage.discard(left)
        else:
            _discard_there(target.storage, every, spark)
    return every


def _discard_there(storage: Storage, paths: list[str], spark: "SparkSession") -> None:
    """Let Spark's workers delete files."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            storage.discard(batch.column(0).to_pylist())
            yield batch

    if paths:
        tasks = spark.createDataFrame([(path,) for path in paths], "path string")
        collected(tasks.mapInArrow(work, "path string"), storage.failed)
