"""A batch's contexts on their way into the archive: read by partition, sorted and written.

The scan's tasks report which contexts of which partition lie where. The task that writes a
partition reads just those, so nothing is shuffled again. A small batch is written in the driver.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from roamcast import files
from roamcast.errors import RoamcastError
from roamcast.identity.sealing import agent_secrets
from roamcast.model import context_arrow
from roamcast.model.context_arrow import SEALING_COLUMN
from roamcast.model.kinds import KINDS
from roamcast.pipeline.archive.append import files_batch, files_of, keep
from roamcast.pipeline.archive.files import FILE_SCHEMA, DataFile, write_table
from roamcast.pipeline.archive.layout import PLACING
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.spark.errors import collected
from roamcast.pipeline.spark.memory import give_back
from roamcast.pipeline.spark.session import session_of

if TYPE_CHECKING:
    from roamcast.pipeline.spark.session import Sessions

HERE_ROWS = 100_000
"""Up to so many contexts a Spark job would only add its own time."""

TASK_ROWS = 250_000
"""Contexts that one task holds, sorts and writes, also of one partition (decisions 0480, 0482)."""
_RUN_SQL = "task int, path string, at int"


class Run(msgspec.Struct, frozen=True):
    """Contexts of one partition that lie together in a file."""

    partition: str
    path: str
    at: int
    rows: int


class ArchiveWriter(msgspec.Struct, frozen=True):
    """Where contexts go, which attributes they have, how their files' names begin."""

    storage: Storage
    columns: Sequence[str]
    name: str
    secret: bytes = b""
    """The user agent's secret behind the keys of vids; without one they have none (0221)."""


def write_contexts(
    spark: "Sessions", writer: ArchiveWriter, found: Iterable[Run]
) -> list[DataFile]:
    """Write a batch's contexts into files of the archive, not yet committed."""
    tasks, storage = divided(found), writer.storage
    if sum(run.rows for task in tasks for run in task) <= HERE_ROWS:
        told = [[(run.path, run.at) for run in task] for task in tasks]
        return keep(storage, (file for task in told for file in _written(writer, task)))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield files_batch(write_runs(writer, batches))
        give_back()

    listed = [(number, run.path, run.at) for number, task in enumerate(tasks) for run in task]
    plan = session_of(spark).createDataFrame(listed, _RUN_SQL).repartitionById(len(tasks), "task")
    written = plan.mapInArrow(work, FILE_SCHEMA).select(
        "path", "size", "rows", "partition", "stats"
    )
    return files_of(collected(written, storage.failed))


def divided(found: Iterable[Run]) -> list[list[Run]]:
    """Assign each partition to one task, as far as one task may have its rows."""
    tasks: list[list[Run]] = []
    rows = 0
    last = None
    for run in sorted(found, key=lambda run: (run.partition, run.path, run.at)):
        full = rows + run.rows > TASK_ROWS if run.partition == last else rows >= TASK_ROWS
        if full or not tasks:
            tasks.append([])
            rows = 0
        tasks[-1].append(run)
        rows += run.rows
        last = run.partition
    return tasks


def write_runs(writer: ArchiveWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Write the partitions of the tasks that arrive here: usually one."""
    tasks: dict[int, list[tuple[str, int]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            tasks.setdefault(row["task"], []).append((row["path"], row["at"]))
    for task in tasks.values():
        yield from _written(writer, task)


def _written(writer: ArchiveWriter, task: Iterable[tuple[str, int]]) -> Iterator[DataFile]:
    parts = []
    for path, runs in groupby(sorted(task), key=itemgetter(0)):
        with pa.memory_map(path) as source:
            file = pa.ipc.open_file(source)
            parts += [file.get_batch(at) for _, at in runs]
    table = pa.Table.from_batches(parts).combine_chunks()
    spoken = attribute_columns(table["attributes"], writer.columns)
    if writer.secret:
        spoken[SEALING_COLUMN] = sealing_keys(table["vid"].to_pylist(), writer.secret)
    schema = pa.schema([*context_arrow.schema(writer.columns), *PLACING])
    arrays = {name: table[name] for name in table.schema.names} | spoken
    contexts = pa.table([arrays[name] for name in schema.names], schema=schema)
    yield from write_table(writer.storage, contexts, writer.name)


def sealing_keys(vids: Iterable[str], secret: bytes) -> pa.Array:
    """Give the public key of each vid: casts are sealed to it, the user agent opens them."""
    keys = (agent_secrets(secret, vid).sealing for vid in vids)
    return pa.array([urlsafe_b64encode(key).decode() for key in keys], pa.string())


def settle_files(storage: Storage, written: Iterable[DataFile]) -> None:
    """Sync a local archive's files before a commit names them; an object store does so itself."""
    if storage.local:
        files.sync_named(Path(storage.uri), (file.path for file in written))


def settle_commits(target: Archive, since: int) -> None:
    """Sync a local archive's commits from a version on, because what they replace is deleted."""
    if target.storage.local:
        versions = range(since, target.version + 1)
        names = (f"_delta_log/{version:020d}.json" for version in versions)
        files.sync_named(Path(target.storage.uri), names)


def discard_unfinished(writer: ArchiveWriter) -> None:
    """Delete the uncommitted files of a batch: on a full disk every file counts."""
    try:
        committed = set(Archive.open(writer.storage.uri).files()["path"].to_pylist())
    except RoamcastError:
        return  # nobody can say what is committed: better leave all
    own = (p for p in writer.storage.files() if p.rpartition("/")[2].startswith(writer.name))
    writer.storage.discard(path for path in own if path not in committed)


def attribute_columns(texts: pa.ChunkedArray, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Parse attributes into typed columns; each distinct text is parsed once."""
    if not columns:
        return {}
    encoded = texts.combine_chunks().dictionary_encode()
    said = [msgspec.json.decode(text) for text in encoded.dictionary.to_pylist()]
    found = {}
    for column in columns:
        values = [one.get(column) for one in said]
        found[column] = _typed(column, values).take(encoded.indices)
    return found


def _typed(column: str, values: list[Any]) -> pa.Array:
    kind = KINDS[column.partition(":")[0]]
    scalars = [None if value is None else kind.scalar(kind.read(value)) for value in values]
    return context_arrow.array_of(scalars, context_arrow.TYPES[kind.name])
