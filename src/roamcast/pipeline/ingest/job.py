"""The Spark jobs of an ingest, each from DataFrames to a DataFrame or to a result."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from roamcast.identity import agent_core as core
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.archive import Run
from roamcast.pipeline.ingest.few_read import number_of
from roamcast.pipeline.ingest.files import Reading, SightingFile, format_of, parquet_rows
from roamcast.pipeline.ingest.layers import KINDS
from roamcast.pipeline.ingest.pack import BUCKET_ROWS, PACKET_SQL, Packer
from roamcast.pipeline.ingest.read import read_sightings
from roamcast.pipeline.ingest.scan import UNSEEN
from roamcast.pipeline.ingest.state import HandlesOf, IngestState
from roamcast.pipeline.ingest.write import COLUMNS, REPORT, REPORT_SQL, ScanAndWrite, WriteTask
from roamcast.pipeline.spark.errors import translated
from roamcast.pipeline.spark.paths import literal, with_colons
from roamcast.pipeline.spark.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from roamcast.pipeline.spark.session import Sessions

BUCKETS_MIN, BUCKETS_MAX = 4, 10_000
FAILED = "the ingest failed, the archive is as before"
ROW_BYTES = 64
"""What a row of text takes at least, in a file; a compressed one takes a tenth of it."""


class Written(msgspec.Struct, frozen=True):
    """What the scan's tasks wrote and counted."""

    counts: dict[str, int]
    columns: tuple[str, ...]
    newest: int
    contexts: tuple[Run, ...]


def parts(
    spark: "SparkSession",
    state: IngestState,
    files: Sequence[SightingFile],
    reading: Reading,
    latest: int,
    unreadable: Sequence[tuple[str, str]],
) -> list["DataFrame"]:
    """Return all rows of a batch: remembered ones, those it reads, and unreadable ones."""
    with translated(FAILED):  # Spark looks for the files already here
        found = remembered(spark, state)
        if files:
            read = read_sightings(spark, files, reading, latest)
            found.append(ranked(read, rows.RANK_SIGHTING, fresh=True))
        if unreadable:
            found.append(dead_files(spark, unreadable))
        return found or [ranked(empty(spark), rows.RANK_SIGHTING, fresh=True)]


def remembered(spark: "SparkSession", state: IngestState) -> list["DataFrame"]:
    """Read people, open intervals and waiting sightings of the last batch."""
    from pyspark.sql.types import StructType

    kinds: Any = StructType.fromDDL(rows.TAKEN_SQL)
    found = []
    for kind, rank in KINDS.items():
        layers: dict[int, list[str]] = {}
        for layer, path in state.layers.files(kind):
            layers.setdefault(layer, []).append(str(path))
        for layer, paths in layers.items():
            schema = StructType([kinds[name] for name in COLUMNS[kind]])
            reader = with_colons(spark.read, paths).schema(schema)
            stored = reader.parquet(*map(literal, paths))
            found.append(ranked(stored, rank, fresh=False, layer=layer))
    return found


def strangers(
    spark: "SparkSession", parts: Sequence["DataFrame"], handles_of: HandlesOf
) -> "DataFrame":
    """Give lines of the register for people of these rows who have none, with their handles."""
    from pyspark.sql import functions as f

    wanted = ("person", "rank")
    every = reduce(lambda one, two: one.unionByName(two), (part.select(*wanted) for part in parts))
    alive = every.where((f.col("rank") != rows.RANK_DEAD) & f.col("person").isNotNull())
    known = f.max((f.col("rank") == rows.RANK_PERSON).cast("int"))
    new = alive.groupBy("person").agg(known.alias("known")).where("known = 0").select("person")
    with translated(FAILED):
        people = sorted(row["person"] for row in new.collect())
    handles = handles_of(people)
    # Never seen before: nothing of theirs is late, and all of it may be filled in.
    told = [
        (name, bytearray(one), core.NEVER, UNSEEN)
        for name, one in zip(people, handles, strict=True)
    ]
    made = spark.createDataFrame(told, "person string, handle binary, time long, file long")
    return ranked(made, rows.RANK_PERSON, fresh=False)


def ranked(taken: "DataFrame", rank: int, *, fresh: bool, layer: int | None = None) -> "DataFrame":
    """Add each row's rank among its person's rows, and the key of its bucket."""
    from pyspark.sql import functions as f

    ranks, sent = f.lit(rank), f.col("person")
    if "reason" in taken.columns:
        dead = f.col("reason").isNotNull()
        ranks = f.when(dead, rows.RANK_DEAD).otherwise(rank)
        # dead letters may have no person, and many: they go where their text sends them
        sent = f.when(dead, f.col("raw")).otherwise(f.col("person"))
    return taken.select(
        *taken.columns,
        ranks.cast("tinyint").alias("rank"),
        f.lit(fresh).alias("fresh"),
        f.lit(layer).cast("tinyint").alias("layer"),
        f.xxhash64(sent).alias("bucket"),
    )


def empty(spark: "SparkSession") -> "DataFrame":
    """Give no rows at all."""
    return spark.createDataFrame([], rows.TAKEN_SQL)


def dead_files(spark: "SparkSession", unreadable: Sequence[tuple[str, str]]) -> "DataFrame":
    """Give a dead letter for each file that cannot be read at all; `raw` says which."""
    told = [(None, reason, path) for path, reason in unreadable]
    return ranked(
        spark.createDataFrame(told, "person string, reason string, raw string"),
        rows.RANK_DEAD,
        fresh=True,
    )


def write(parts: Sequence["DataFrame"], task: WriteTask, buckets: int) -> Written:
    """Bring each person's rows together in order, scan them, and write the results by kind."""
    from pyspark.sql import functions as f

    with translated(FAILED):
        bucket = f.pmod("bucket", f.lit(buckets)).cast("int")
        # each kind of row is packed by itself: no row carries the empty columns of the others
        packed = [
            part.withColumn("bucket", bucket).mapInArrow(Packer(buckets), PACKET_SQL)
            for part in parts
        ]
        packets = reduce(lambda a, b: a.unionByName(b), packed)
        reports = (
            packets.repartitionById(buckets, "bucket")
            .mapInArrow(ScanAndWrite(task), REPORT_SQL)
            .select(*REPORT.names)
        )
        return taken(reports.toArrow())


def taken(reports: pa.Table) -> Written:
    """Take the files that tasks report, and add up their counts."""
    contexts, counts, columns = [], [], set()
    for row in reports.to_pylist():
        if row["kind"] == rows.CONTEXT:
            contexts.append(Run(row["partition"], row["path"], row["at"], row["rows"]))
        elif row["kind"] == rows.COUNT:
            numbers, seen = rows.counts_of(row)
            counts.append(numbers)
            columns.update(seen)
        else:
            hidden = Path(row["path"])
            hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))
    counted = np.array(counts, dtype=np.int64)
    totals = dict(zip(rows.COUNTED, counted[:, :-1].sum(axis=0).tolist(), strict=True))
    return Written(totals, tuple(sorted(columns)), int(counted[:, -1].max()), tuple(contexts))


def few_sightings(
    spark: "Sessions", files: Sequence[SightingFile], reading: Reading, latest: int
) -> pa.Table:
    """Let Spark read files whose rows are few, into this process, in the columns of `rows.TAKEN`.

    Files are numbered as `few_read` does.
    """
    with translated(FAILED):
        read = read_sightings(session_of(spark), files, reading, latest).toArrow()
    numbers = names(session_of(spark), [file.path for file in files])
    known = {number: number_of(path) for number, path in numbers.items()}
    file = pa.array([known.get(number) for number in read["file"].to_pylist()], pa.int64())
    read = read.set_column(read.schema.get_field_index("file"), "file", file)
    empty = rows.TAKEN.empty_table()
    return pa.concat_tables([empty, read], promote_options="default").select(rows.TAKEN.names)


def expected(files: Sequence[SightingFile], reading: Reading) -> int:
    """Estimate the number of rows of files."""
    return sum(_rows(file, reading) for file in files)


def buckets(files: Sequence[SightingFile], remembered_rows: int, reading: Reading) -> int:
    """Return the number of buckets that keeps each bucket's rows few."""
    count = remembered_rows + expected(files, reading)
    return max(BUCKETS_MIN, min(BUCKETS_MAX, -(-count // BUCKET_ROWS)))


def _rows(file: SightingFile, reading: Reading) -> int:
    """Estimate the number of rows of a file."""
    if format_of(file.path, reading) == "parquet":
        return parquet_rows(file.path)
    packed = file.path.lower().endswith(".gz")
    return file.size // (ROW_BYTES // 10 if packed else ROW_BYTES)


def names(spark: "SparkSession", paths: Sequence[str]) -> dict[int, str]:
    """Say which numbers the rows' files have: Spark's hash of their addresses."""
    from pyspark.sql import functions as f

    spelled = [(path, uri) for path in paths for uri in _spellings(path)]
    table = spark.createDataFrame(spelled, "path string, uri string")
    with translated(FAILED):
        found = table.select("path", f.xxhash64("uri").alias("number")).collect()
    return {row["number"]: row["path"] for row in found}


def _spellings(path: str) -> set[str]:
    """Return a path's possible URIs in Spark: Java does not escape letters of any script."""
    java = "".join(
        quote(c, safe="/$&+,;=:@!*'()~") if ord(c) < 128 or category(c)[0] in "CZ" else c
        for c in path
    )
    return {f"{scheme}{java}" for scheme in ("file:", "file://")}
