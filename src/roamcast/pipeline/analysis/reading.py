"""Contexts and lookups as DataFrames, for whoever has a Spark session.

`contexts` names the files of the newest snapshot to Spark's own Parquet reader, so Spark prunes
columns and pushes filters down as for any table, and no file counts twice after a compaction. With
a CQL2 filter it reads through the format `roamcast`, where the matching kernel decides.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import datasource as source
from pyspark.sql.types import StructType

from roamcast.errors import LimitError
from roamcast.model.context_arrow import FIXED
from roamcast.model.filters import Filter
from roamcast.pipeline.analysis.source import NAME, ArchiveSource
from roamcast.pipeline.archive.layout import PARTITIONS, context_name
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Statistics, plan
from roamcast.pipeline.lookup.read import Reader
from roamcast.pipeline.lookup.run import distinct, divided
from roamcast.pipeline.spark.paths import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKUP = "roamcast_lookup"
PACKED_BYTES_MAX = 16 * 1_048_576
"""Messages travel inside the plan; so many bytes, compressed, are some 500,000 messages."""

TASK_PAIRS_MAX = 2**31
"""Distinct pairs of one task's files; Spark spills what it joins, so only a task is bounded."""


def contexts(
    spark: "SparkSession",
    archive: str | Path,
    *,
    filter: str | None = None,  # noqa: A002 - the name it has everywhere else
    columns: Sequence[str] | None = None,
) -> "DataFrame":
    """Give the contexts of an archive's newest snapshot, or those that satisfy a CQL2 filter.

    columns: which ones, such as `vid`, `t_r` or `string:team`; all by default.
    """
    if filter is not None:
        spark.dataSource.register(ArchiveSource)
        reader = spark.read.format(NAME).option("filter", filter)
        if columns is not None:
            reader = reader.option("columns", ",".join(columns))
        return reader.load(Storage(archive).uri)
    found = _snapshot(spark, Archive.open(archive))
    return found if columns is None else found.select(*(f"`{name}`" for name in columns))


def _snapshot(spark: "SparkSession", archive: Archive) -> "DataFrame":
    """Name a snapshot's files to Spark, whose schema is the table's: no file is opened for it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType as Struct

    stored = Struct.fromJson(msgspec.json.decode(archive.table.schema().to_json()))
    uri = archive.storage.uri
    files = [literal(f"{uri}/{path}") for path in archive.files()["path"].to_pylist()]
    if not files:
        rows = spark.createDataFrame([], stored)
    else:
        # the base path gives the partition columns, by which Spark excludes whole folders
        rows = spark.read.schema(stored).option("basePath", literal(uri)).parquet(*files)
    fixed = [field.name for field in FIXED]
    attributes = sorted(name for name in stored.names if ":" in name)
    return rows.select(
        *(f.col(name) for name in fixed),
        *(f.col(f"`{name}`").alias(context_name(name)) for name in attributes),
        *(f.col(name) for name in PARTITIONS),
    )


def look_up(
    spark: "SparkSession", archive: str | Path, messages: Mapping[str, Filter | str]
) -> "DataFrame":
    """Give whom historic messages reach: a row (id, vid) each, distinct, without a bound on rows.

    The same plan, files and kernel as `roamcast pipeline lookup`, by Spark's workers only.
    """
    asked = {name: one.text if isinstance(one, Filter) else one for name, one in messages.items()}
    for text in asked.values():
        Filter.parse(text)  # a mistake is told here, not by a task
    packed = zlib.compress(msgspec.msgpack.encode(asked))
    if len(packed) > PACKED_BYTES_MAX:
        raise LimitError(f"messages have at most {PACKED_BYTES_MAX} bytes: ask in several lookups")
    spark.dataSource.register(LookupSource)
    reader = spark.read.format(LOOKUP).option("messages", base64.b64encode(packed).decode())
    return reader.load(Storage(archive).uri).select("id", "vid").distinct()


class LookupSource(source.DataSource):
    """Pairs of message and vid; `look_up` makes its options."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return LOOKUP

    def schema(self) -> str:
        """Say the columns."""
        return "id string, vid string"

    def reader(self, schema: StructType) -> "LookupReader":  # noqa: ARG002 - there is only one
        """Make the reader of one query."""
        return LookupReader(self.options["path"], self.options["messages"])


class LookupReader(source.DataSourceReader):
    """Reads the files that may match, by tasks of whole files."""

    def __init__(self, path: str, packed: str) -> None:
        self._storage = Storage(path)
        self._packed = packed

    def partitions(self) -> list[source.InputPartition]:
        """Divide the files that may match over tasks."""
        _, reader = _asked(self._packed)
        shares = plan(Statistics(Archive.open(self._storage.uri)), reader.needs)
        return [source.InputPartition(task) for task in divided(shares)]

    def read(self, partition: source.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of one task."""
        names, reader = _asked(self._packed)
        found = distinct(reader.answers(self._storage, partition.value or []), TASK_PAIRS_MAX)
        ids = names.take(found["message"])
        yield from pa.table({"id": ids, "vid": found["vid"]}).to_batches()


@lru_cache(maxsize=1)  # a worker reads task after task of the same lookup
def _asked(packed: str) -> tuple[pa.Array, Reader]:
    """Unpack and compile messages."""
    found = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(packed)), type=dict[str, str])
    return pa.array(list(found)), Reader([Filter.parse(text) for text in found.values()])
