"""Which Spark jobs does an ingest run? Each a function from DataFrames to DataFrames, or a run."""

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from roamcast.errors import RoamcastError
from roamcast.model import context_arrow
from roamcast.pipeline import ingest_rows as rows
from roamcast.pipeline.ingest_scan import Scanner, ScanTask
from roamcast.pipeline.ingest_state import IngestState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 64 << 20


def contexts(spark: "SparkSession", folder: Path, columns: Sequence[str]) -> "DataFrame":
    """Give a batch's contexts in the archive's columns, attributes with their types."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    kinds = [(column, context_arrow.KINDS[column.partition(":")[0]]) for column in columns]
    # a struct needs a field, also when no context has an attribute
    spoken = from_arrow_schema(pa.schema(kinds or [("string:none", pa.string())]))
    stored = spark.read.schema(rows.GIVEN_SQL.rpartition(",")[0]).parquet(str(folder))
    return stored.withColumn("spoken", f.from_json("attributes", spoken)).select(
        *("vid", "place", "lon", "lat"),
        f.timestamp_micros("time").alias("t_r"),
        f.timestamp_micros("t_d").alias("t_d"),
        *(f.col(f"spoken.`{column.replace('`', '``')}`").alias(column) for column in columns),
    )


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


def write(parts: Sequence["DataFrame"], task: ScanTask, target: Path, partitions: int) -> None:
    """Bring each person's rows together in order, scan them, write what comes out by kind."""
    from pyspark.sql import functions as f

    together = reduce(lambda a, b: a.unionByName(b), parts)
    # dead letters may have no person, and many: they go where their text sends them
    spread = f.xxhash64(f.when(f.col("reason").isNull(), f.col("person")).otherwise(f.col("raw")))
    scanned = (
        together.repartition(partitions, spread)
        .sortWithinPartitions(*rows.SORTED_BY)
        .mapInArrow(Scanner(task), rows.GIVEN_SQL)
    )
    scanned.write.partitionBy("kind").mode("overwrite").parquet(str(target))


def partitions(spark: "SparkSession", size: int) -> int:
    """Give as many tasks as keep each one's sort small."""
    least = int(spark.conf.get("spark.sql.shuffle.partitions") or 4)
    return max(least, min(10_000, size // PARTITION_BYTES))


def counted(target: Path) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Add up what the tasks counted."""
    table = ds.dataset(target / f"kind={rows.COUNT}", format="parquet").to_table()
    told = [rows.counts_of(row) for row in table.to_pylist()]
    numbers = np.array([counts for counts, _ in told], dtype=np.int64)
    totals = numbers[:, :-1].sum(axis=0).tolist()
    columns = sorted({column for _, seen in told for column in seen})
    return dict(zip(rows.COUNTED, totals, strict=True)), tuple(columns), int(numbers[:, -1].max())


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
