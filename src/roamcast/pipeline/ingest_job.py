"""Which Spark jobs does an ingest run? Each a function from DataFrames to DataFrames, or a run."""

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from roamcast.errors import RoamcastError
from roamcast.pipeline import ingest_rows as rows
from roamcast.pipeline.ingest_archive import Run
from roamcast.pipeline.ingest_files import Reading, SightingFile, format_of, parquet_rows
from roamcast.pipeline.ingest_pack import BUCKET_ROWS, PACKET_SQL, Packer
from roamcast.pipeline.ingest_state import IngestState
from roamcast.pipeline.ingest_write import TOLD_SQL, ScanAndWrite, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS_MIN, BUCKETS_MAX = 4, 10_000
ROW_BYTES = 64
"""What a row of text takes at least, in a file; a compressed one takes a tenth of it."""


class Written(msgspec.Struct, frozen=True):
    """What the scan's tasks wrote and counted."""

    counts: dict[str, int]
    columns: tuple[str, ...]
    newest: int
    contexts: tuple[Run, ...]


def remembered(spark: "SparkSession", state: IngestState) -> list["DataFrame"]:
    """Read people, open intervals and waiting sightings of the last batch."""
    ranks = {
        rows.PERSON: rows.RANK_PERSON,
        rows.OPEN: rows.RANK_OPEN,
        rows.PENDING: rows.RANK_SIGHTING,
    }
    found = []
    for kind, rank in ranks.items():
        folder = state.rows(state.last.number, kind)
        if folder is not None:
            stored = spark.read.schema(rows.TAKEN_SQL).parquet(str(folder))
            found.append(ranked(stored, rank, fresh=False))
    return found


def ranked(taken: "DataFrame", rank: int, *, fresh: bool) -> "DataFrame":
    """Give rows all columns of the scan, with their rank among the rows of one person."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    reason = f.col("reason").isNotNull()
    wide: Any = StructType.fromDDL(rows.TAKEN_SQL)
    return taken.select(
        *(
            f.col(field.name)
            if field.name in taken.columns
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in wide
        ),
        f.when(reason, rows.RANK_DEAD).otherwise(rank).cast("tinyint").alias("rank"),
        f.lit(fresh).alias("fresh"),
    )


def empty(spark: "SparkSession") -> "DataFrame":
    """Give no rows at all."""
    return spark.createDataFrame([], rows.TAKEN_SQL)


def dead_files(spark: "SparkSession", unreadable: Sequence[tuple[str, str]]) -> "DataFrame":
    """Give a dead letter for each file that cannot be read at all; `raw` says which."""
    told = spark.createDataFrame(
        [(reason, path) for path, reason in unreadable], "reason string, raw string"
    )
    return ranked(told, rows.RANK_DEAD, fresh=True)


def write(parts: Sequence["DataFrame"], task: WriteTask, buckets: int) -> Written:
    """Bring each person's rows together in order, scan them, write what comes out by kind."""
    from pyspark.sql import functions as f

    together = reduce(lambda a, b: a.unionByName(b), parts)
    # dead letters may have no person, and many: they go where their text sends them
    spread = f.xxhash64(f.when(f.col("reason").isNull(), f.col("person")).otherwise(f.col("raw")))
    bucket = f.pmod(spread, f.lit(buckets)).cast("int").alias("bucket")
    packets = together.select("*", bucket).mapInArrow(Packer(buckets), PACKET_SQL)
    told = (
        packets.repartitionById(buckets, "bucket")
        .mapInArrow(ScanAndWrite(task), TOLD_SQL)
        .select("kind", "path", "at", "rows", "partition", "numbers", "texts")
    )
    return _taken(told.toArrow())


def _taken(told: pa.Table) -> Written:
    """Take the files that were told, add up the counts."""
    contexts, counts, columns = [], [], set()
    for row in told.to_pylist():
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


def buckets(files: Sequence[SightingFile], remembered_rows: int, reading: Reading) -> int:
    """Give as many buckets of people as keep each one's rows few."""
    expected = remembered_rows + sum(_rows(file, reading) for file in files)
    return max(BUCKETS_MIN, min(BUCKETS_MAX, -(-expected // BUCKET_ROWS)))


def _rows(file: SightingFile, reading: Reading) -> int:
    """Guess how many rows a file has."""
    if format_of(file.path, reading) == "parquet":
        return parquet_rows(file.path)
    packed = file.path.lower().endswith(".gz")
    return file.size // (ROW_BYTES // 10 if packed else ROW_BYTES)


def names(spark: "SparkSession", paths: Sequence[str]) -> dict[int, str]:
    """Say which numbers the rows' files have: Spark's hash of their addresses."""
    from pyspark.sql import functions as f

    spelled = [(path, uri) for path in paths for uri in _spellings(path)]
    table = spark.createDataFrame(spelled, "path string, uri string")
    found = table.select("path", f.xxhash64("uri").alias("number")).collect()
    return {row["number"]: row["path"] for row in found}


def _spellings(path: str) -> set[str]:
    """Give a path's addresses as Spark may write them: Java leaves letters of all scripts alone."""
    java = "".join(quote(c, safe="/$&+,;=:@!*'()~") if ord(c) < 128 else c for c in path)
    return {f"{scheme}{spelled}" for scheme in ("file:", "file://") for spelled in (java, path)}


def run(work: Callable[[], Any]) -> Any:
    """Run a Spark job; an error in it becomes one clear line."""
    from pyspark.errors import PySparkException

    try:
        return work()
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if "Caused by:" in line or "roamcast.errors." in line]
        told = (causes or lines or [type(error).__name__])[-1].removeprefix("Caused by: ")
        raise RoamcastError(f"the ingest failed, the archive is as before: {told[:300]}") from None
