"""The Spark jobs of an ingest, each from DataFrames to a DataFrame or to a result."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import category
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.identity import agent_core as core
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.archive import Run
from roamcast.pipeline.ingest.files import (
    Reading,
    SightingFile,
    format_of,
    number_of,
    parquet_footer,
)
from roamcast.pipeline.ingest.pack import BUCKET_ROWS, PACKET_SQL, Packer
from roamcast.pipeline.ingest.read import read_sightings
from roamcast.pipeline.ingest.scan import UNSEEN
from roamcast.pipeline.ingest.state import HandlesOf, IngestState
from roamcast.pipeline.ingest.stretches import STRETCH_SQL, ReadStretches, stretches, tasks_of
from roamcast.pipeline.ingest.write import REPORT, REPORT_SQL, ScanAndWrite, WriteTask
from roamcast.pipeline.spark.errors import translated
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


class RowSource(msgspec.Struct, frozen=True):
    """Rows of a batch: a DataFrame, and how a task makes tables of `rows.TAKEN` of its batches."""

    frame: "DataFrame"
    tables: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]]


def parts(
    spark: "SparkSession",
    state: IngestState,
    files: Sequence[SightingFile],
    reading: Reading,
    latest: int,
    unreadable: Sequence[tuple[str, str]],
) -> list[RowSource]:
    """Return all rows of a batch: remembered ones, those it reads, and unreadable ones."""
    stored = [file.path for file in files if format_of(file.path, reading) == "parquet"]
    lines = [file for file in files if file.path not in set(stored)]
    found = []
    with translated(FAILED):  # Spark looks for the files already here
        told = tasks_of(stretches(stored, state.layers))
        if told:
            plan = spark.createDataFrame(told, STRETCH_SQL).repartitionById(told[-1][0] + 1, "task")
            found.append(RowSource(plan, ReadStretches(reading, latest)))
        if lines:
            read = read_sightings(spark, lines, reading, latest)
            found.append(RowSource(ranked(read, rows.RANK_SIGHTING, fresh=True), as_taken))
        if unreadable:
            found.append(RowSource(dead_files(spark, unreadable), as_taken))
        return found or [RowSource(ranked(empty(spark), rows.RANK_SIGHTING, fresh=True), as_taken)]


def as_taken(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Give rows that Spark has read in the columns of `rows.TAKEN`."""
    return (rows.taken(pa.Table.from_batches([batch])) for batch in batches)


class Through(msgspec.Struct, frozen=True):
    """`mapInArrow`'s function: makes tables of a part's batches, and batches of these."""

    tables: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]]
    given: Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on one partition."""
        return self.given(self.tables(batches))


PEOPLE_SQL = "person string, known boolean"


def people_of(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Name the people of rows that are alive, and say whether a row is their line."""
    for table in tables:
        alive = table.filter(pc.not_equal(table["rank"], rows.RANK_DEAD))
        known = pc.equal(alive["rank"], rows.RANK_PERSON)
        told = pa.table({"person": alive["person"].cast(pa.string()), "known": known})
        yield from told.group_by(["person", "known"]).aggregate([]).to_batches()


def strangers(
    spark: "SparkSession", parts: Sequence[RowSource], handles_of: HandlesOf
) -> RowSource:
    """Give lines of the register for people of these rows who have none, with their handles."""
    from pyspark.sql import functions as f

    named = [part.frame.mapInArrow(Through(part.tables, people_of), PEOPLE_SQL) for part in parts]
    every = reduce(lambda one, two: one.unionByName(two), named).where("person is not null")
    new = every.groupBy("person").agg(f.max("known").alias("known")).where("not known")
    with translated(FAILED):
        people = sorted(row["person"] for row in new.select("person").collect())
    handles = handles_of(people)
    # Never seen before: nothing of theirs is late, and all of it may be filled in.
    told = [
        (name, bytearray(one), core.NEVER, UNSEEN)
        for name, one in zip(people, handles, strict=True)
    ]
    made = spark.createDataFrame(told, "person string, handle binary, time long, file long")
    return RowSource(ranked(made, rows.RANK_PERSON, fresh=False), as_taken)


def ranked(taken: "DataFrame", rank: int, *, fresh: bool) -> "DataFrame":
    """Add each row's rank among its person's rows."""
    from pyspark.sql import functions as f

    ranks = f.lit(rank)
    if "reason" in taken.columns:
        ranks = f.when(f.col("reason").isNotNull(), rows.RANK_DEAD).otherwise(rank)
    return taken.select(
        *taken.columns, ranks.cast("tinyint").alias("rank"), f.lit(fresh).alias("fresh")
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


def write(parts: Sequence[RowSource], task: WriteTask, buckets: int) -> Written:
    """Bring each person's rows together in order, scan them, and write the results by kind."""
    with translated(FAILED):
        packed = [
            part.frame.mapInArrow(Through(part.tables, Packer(buckets)), PACKET_SQL)
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
        sightings = read_sightings(session_of(spark), files, reading, latest)
        read = ranked(sightings, rows.RANK_SIGHTING, fresh=True).toArrow()
    numbers = names(session_of(spark), files, reading)
    known = {number: number_of(path) for number, path in numbers.items()}
    file = pa.array([known.get(number) for number in read["file"].to_pylist()], pa.int64())
    return rows.taken(read.set_column(read.schema.get_field_index("file"), "file", file))


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
        return int(parquet_footer(file.path).num_rows)
    packed = file.path.lower().endswith(".gz")
    return file.size // (ROW_BYTES // 10 if packed else ROW_BYTES)


def names(spark: "SparkSession", files: Sequence[SightingFile], reading: Reading) -> dict[int, str]:
    """Say which numbers the rows' files have: of lines it is Spark's hash of their addresses."""
    from pyspark.sql import functions as f

    stored = [file.path for file in files if format_of(file.path, reading) == "parquet"]
    numbers = {number_of(path): path for path in stored}
    lines = sorted({file.path for file in files} - set(stored))
    if lines:
        spelled = [(path, uri) for path in lines for uri in _spellings(path)]
        table = spark.createDataFrame(spelled, "path string, uri string")
        with translated(FAILED):
            found = table.select("path", f.xxhash64("uri").alias("number")).collect()
        numbers |= {row["number"]: row["path"] for row in found}
    return numbers


def _spellings(path: str) -> set[str]:
    """Return a path's possible URIs in Spark: Java does not escape letters of any script."""
    java = "".join(
        quote(c, safe="/$&+,;=:@!*'()~") if ord(c) < 128 or category(c)[0] in "CZ" else c
        for c in path
    )
    return {f"{scheme}{java}" for scheme in ("file:", "file://")}
