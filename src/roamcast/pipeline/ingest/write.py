"""Where the scan's rows go: files of the private folder, by kind.

A task writes under names of its own and reports them; the driver takes what the tasks that counted
have reported. A task that runs twice, or dies halfway, leaves files that nobody reads.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import MissingError, RoamcastError
from roamcast.model.context_arrow import STAMP
from roamcast.pipeline.archive.files import ranks, runs
from roamcast.pipeline.archive.layout import PARTITIONS, ArchiveSettings, placed
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.layers import GROUP_ROWS
from roamcast.pipeline.ingest.pack import BUCKET_ROWS_MAX, unpacked
from roamcast.pipeline.ingest.scan import Scanner, ScanTask
from roamcast.pipeline.spark.memory import give_back

REPORT_SQL = (
    "kind string, path string, at int, rows long, partition string, numbers binary, texts string"
)
REPORT = pa.schema(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("at", pa.int32()),
        ("rows", pa.int64()),
        ("partition", pa.string()),
        ("numbers", pa.binary()),
        ("texts", pa.string()),
    ]
)
_SIGHTING = ("person", "time", "source", "place", "lon", "lat", "attributes", "file")
COLUMNS = {
    rows.PERSON: ("person", "handle", "time", "file"),
    rows.OPEN: ("person", "time", "numbers", "texts"),
    rows.PENDING: _SIGHTING,
    rows.DEAD: (*_SIGHTING, "reason", "raw"),
}
"""The columns that a kind's files have."""

CONTEXTS_TOGETHER = 262_144
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class WriteTask(msgspec.Struct, frozen=True):
    """What a task does; `target` is the batch's folder, `archive` how the archive is laid out."""

    scan: ScanTask
    target: str
    archive: ArchiveSettings
    rows_max: int = BUCKET_ROWS_MAX


class ScanAndWrite:
    """`mapInArrow`'s function after the shuffle: a bucket's packets in, what was written out."""

    def __init__(self, task: WriteTask) -> None:
        self.task = task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Scan one bucket and write the results."""
        yield self.written(unpacked(batches, self.task.rows_max))
        give_back()

    def written(self, taken: pa.Table) -> pa.RecordBatch:
        """Scan sorted rows and write the results; give what was written."""
        reports: list[dict[str, Any]] = []
        check_shared(self.task.target)
        try:
            with _Files(self.task) as files:
                for batch in Scanner(self.task.scan)(iter(taken.to_batches())):
                    files.take(batch)
            reports = files.reports
        except OSError as error:
            raise RoamcastError(
                f"cannot write to {self.task.target}: {error.strerror or error}"
            ) from None
        return pa.RecordBatch.from_pylist(reports, schema=REPORT)


def check_shared(folder: str) -> None:
    """Raise unless a task sees a folder of the private one; made here, it would hold names."""
    if not Path(folder).is_dir():
        raise MissingError(
            f"{gethostname()} does not see {folder}: Spark's workers need the private folder "
            "under the same path"
        )


class _Files:
    """The files of one task, opened when the first row of their kind comes."""

    def __init__(self, task: WriteTask) -> None:
        self.reports: list[dict[str, Any]] = []
        self._task = task
        self._name = uuid4().hex
        self._writers: dict[str, Any] = {}
        self._held: list[pa.RecordBatch] = []
        self._numbers = 0

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        for writer in self._writers.values():
            writer.close()

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows of one kind."""
        if not batch.num_rows:
            return
        kind = batch.column("kind")[0].as_py()
        if kind == rows.COUNT:
            (row,) = batch.select(["numbers", "texts"]).to_pylist()
            self.reports.append({"kind": kind, **row})
        elif kind == rows.CONTEXT:
            self._held.append(_placed(batch, self._task.archive))
            if sum(part.num_rows for part in self._held) >= CONTEXTS_TOGETHER:
                self._flush()
        else:
            chosen = batch.select(COLUMNS[kind])
            self._writer(kind, chosen.schema).write_batch(chosen, row_group_size=GROUP_ROWS)

    def _writer(self, kind: str, schema: pa.Schema) -> Any:
        if kind not in self._writers:
            folder = Path(self._task.target) / "rows" / f"kind={kind}"
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # hidden from whoever reads the folder, until the driver gives it its name
            path = folder / f".{self._name}.parquet"
            self._writers[kind] = pq.ParquetWriter(path, schema, compression="zstd")
            self.reports.append({"kind": kind, "path": str(path)})
        return self._writers[kind]

    def _flush(self) -> None:
        """Write contexts, those of one partition of the archive together."""
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        self._held = []
        order = np.lexsort([ranks(table[name]) for name in reversed(PARTITIONS)])
        table = table.take(pa.array(order)).combine_chunks()
        folder = Path(self._task.target) / "contexts"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{self._name}-{self._numbers}.arrow"
        self._numbers += 1
        with pa.ipc.new_file(str(path), table.schema, options=_OPTIONS) as writer:
            for at, (start, end) in enumerate(runs(table)):
                run = table.slice(start, end - start)
                writer.write_table(run)
                where = "/".join(run[name][0].as_py() for name in PARTITIONS)
                self.reports.append(
                    {
                        "kind": rows.CONTEXT,
                        "path": str(path),
                        "at": at,
                        "rows": run.num_rows,
                        "partition": where,
                    }
                )


def _placed(batch: pa.RecordBatch, settings: ArchiveSettings) -> pa.RecordBatch:
    """Give contexts in the archive's columns, with where they lie, attributes still as text."""
    moments = [batch.column(name).cast(STAMP) for name in ("time", "t_d")]
    names = ("vid", "place", "lon", "lat", "t_r", "t_d", "attributes")
    arrays = [
        *(batch.column(name) for name in names[:4]), *moments, batch.column("attributes")
    ]  # fmt: skip
    return placed(pa.RecordBatch.from_arrays(arrays, names), settings)
