"""The archive as Spark's format `roamcast`: rows of contexts, read and followed.

`spark.read.format("roamcast").load(archive)` gives the contexts of the newest snapshot, each once,
whatever was compacted. The option `filter` takes CQL2 and is exact: the matching kernel decides, as
in a lookup. Spark 4.3 tells a Python source nothing of the columns that a query uses, so a schema
given by hand, or the option `columns`, says which ones are read. It can push filters, but then a
later query of the same DataFrame reads what the earlier filters left (decision 0115).

`spark.readStream` gives what is appended, commit by commit. An offset is the version of the table.
Compaction, retention and erasure append nothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from roamcast.errors import InputError, MissingError
from roamcast.model.context_arrow import FIXED, check_column, schema
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.storage import GoneError, Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Share, Statistics, plan
from roamcast.pipeline.lookup.read import Reader
from roamcast.pipeline.lookup.run import divided

NAME = "roamcast"
OPTIONS = frozenset({"path", "filter", "columns"})
LOG_NAME = "_delta_log/{:020d}.json"
EVERYTHING = Filter.parse("TRUE")


class ArchiveSource(spark.DataSource):
    """Contexts of an archive."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return NAME

    def schema(self) -> StructType:
        """Give the columns of the newest snapshot, or those that `columns` names."""
        from pyspark.sql.pandas.types import from_arrow_schema

        archive = Archive.open(_path(self.options))
        there = schema(archive.columns())
        chosen = self.options.get("columns")
        if chosen is not None:
            names = [name.strip() for name in chosen.split(",")]
            missing = [name for name in names if name not in there.names]
            if missing:
                raise InputError(f"the archive has no column {missing[0]!r}; it has {there.names}")
            there = pa.schema([there.field(name) for name in names])
        nullable = pa.schema([field.with_nullable(True) for field in there])
        return from_arrow_schema(nullable)

    def reader(self, schema: StructType) -> "ArchiveReader":
        """Make the reader of one query."""
        return ArchiveReader(self.options, _columns(schema))

    def streamReader(self, schema: StructType) -> "CommitReader":  # noqa: N802 - Spark's name
        """Make the reader of one stream."""
        return CommitReader(self.options, _columns(schema))


class Selection:
    """Which columns are wanted of which contexts; travels to the workers."""

    def __init__(self, options: Mapping[str, str], columns: pa.Schema) -> None:
        text = options.get("filter")
        self.storage = Storage(_path(options))
        self.wanted = None if text is None else Filter.parse(text)
        self.columns = columns

    @cached_property
    def reader(self) -> Reader:
        """The filter, compiled."""
        return Reader([EVERYTHING if self.wanted is None else self.wanted])

    def rows(self, shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
        """Read the contexts of some files that match."""
        for share in shares:
            for table in self.reader.rows(self.storage, share, self.columns.names):
                yield from self._shaped(table).to_batches()

    def _shaped(self, table: pa.Table) -> pa.Table:
        """Give exactly the wanted columns; what no context of a file has is null."""
        rows = table.num_rows
        arrays = [
            table.column(field.name) if field.name in table.schema.names
            else pa.chunked_array([pa.nulls(rows, field.type)])
            for field in self.columns
        ]  # fmt: skip
        return pa.table(arrays, schema=self.columns)


class ArchiveReader(spark.DataSourceReader):
    """Reads one snapshot, by tasks of whole files."""

    def __init__(self, options: Mapping[str, str], columns: pa.Schema) -> None:
        self._selection = Selection(options, columns)

    def partitions(self) -> list[spark.InputPartition]:
        """Divide the files that may match over tasks."""
        archive = Archive.open(self._selection.storage.uri)
        shares = plan(Statistics(archive), self._selection.reader.needs)
        return [spark.InputPartition(task) for task in divided(shares)]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of one task."""
        # Spark gives a partition of None where there was none
        return self._selection.rows(partition.value or [])


class CommitReader(spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what commits appended, in their order."""

    def __init__(self, options: Mapping[str, str], columns: pa.Schema) -> None:
        self._selection = Selection(options, columns)
        self._goal: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Begin before the first commit."""
        return {"version": -1}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the newest version; later commits wait for the next run."""
        self._goal = self._newest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        """Return where the next micro-batch ends."""
        newest = self._newest() if self._goal is None else self._goal
        return {"version": max(newest, start["version"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[spark.InputPartition]:
        """Divide the files that were appended after `start` up to `end` over tasks."""
        every = np.arange(self._selection.reader.needs.count, dtype=np.int32)
        shares = [
            Share(path, rows, every)
            for version in range(start["version"] + 1, end["version"] + 1)
            for path, rows in appended(self._selection.storage, version)
        ]
        return [spark.InputPartition(task) for task in divided(shares)]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of one task."""
        return self._selection.rows(partition.value or [])

    def _newest(self) -> int:
        return Archive.open(self._selection.storage.uri).version


def appended(storage: Storage, version: int) -> list[tuple[str, int]]:
    """Name the files that a commit added without replacing others, with their rows."""
    try:
        with storage.open(LOG_NAME.format(version)) as source:
            actions = [json.loads(line) for line in source.read().splitlines()]
    except GoneError:
        raise MissingError(
            f"the log of the archive at {storage.uri} no longer has version {version}: "
            "read the archive once, then follow it with a new checkpoint"
        ) from None
    # rewriting jobs remove files and add others with the same contexts (decision 0042)
    if any("remove" in action for action in actions):
        return []
    added = [action["add"] for action in actions if "add" in action]
    return [(one["path"], json.loads(one["stats"])["numRecords"]) for one in added]


def _path(options: Mapping[str, str]) -> str:
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise InputError(
            f"there is no option {unknown[0]!r}: known are {', '.join(sorted(OPTIONS))}"
        )
    path = options.get("path")
    if not path:
        raise InputError('name the archive: spark.read.format("roamcast").load(archive)')
    return path


def _columns(given: StructType) -> pa.Schema:
    """Check a schema, which may have been given by hand, and turn it into Arrow's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = to_arrow_schema(given, timezone="UTC")
    fixed = {field.name for field in FIXED}
    for field in found:
        if field.name not in fixed and ":" not in field.name:
            raise InputError(
                f"contexts have no column {field.name!r}: attributes are called `kind:name`"
            )
        check_column(field.name, field.type)
    return found


def register(session: Any) -> None:
    """Teach a session the format `roamcast`."""
    session.dataSource.register(ArchiveSource)
