"""The Spark jobs of an ingest, each from DataFrames to a DataFrame or to a result."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.identity import agent_core as core
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.archive import Run
from roamcast.pipeline.ingest.files import Reading, SightingFile, expected_rows
from roamcast.pipeline.ingest.pack import BUCKET_ROWS, PACKET_SQL, Packer, opened
from roamcast.pipeline.ingest.scan import UNSEEN
from roamcast.pipeline.ingest.state import HandlesOf, IngestState
from roamcast.pipeline.ingest.stretches import STRETCH_SQL, ReadStretches, stretches, tasks_of
from roamcast.pipeline.ingest.write import REPORT, REPORT_SQL, ScanAndWrite, WriteTask
from roamcast.pipeline.spark.errors import translated
from roamcast.pipeline.spark.memory import give_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS_MIN, BUCKETS_MAX = 4, 10_000
FAILED = "the ingest failed, the archive is as before"


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
    found = []
    told = tasks_of(stretches(files, reading, state.layers))
    if told:
        plan = spark.createDataFrame(told, STRETCH_SQL).repartitionById(told[-1][0] + 1, "task")
        found.append(RowSource(plan, ReadStretches(reading, latest)))
    if unreadable or not found:
        found.append(RowSource(dead_files(spark, unreadable), as_taken))
    return found


def as_taken(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Give rows that Spark has read in the columns of `rows.TAKEN`."""
    return (rows.taken(pa.Table.from_batches([batch])) for batch in batches)


class Through(msgspec.Struct, frozen=True):
    """`mapInArrow`'s function: makes tables of a part's batches, and batches of these."""

    tables: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]]
    given: Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on one partition."""
        yield from self.given(self.tables(batches))
        give_back()


PEOPLE_SQL = "person string, known boolean"


def people_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Name the people of packets' rows that are alive, and say whether a row is their line."""
    for batch in batches:
        for packet in batch["packet"]:
            table = opened(packet, ["person", "rank"])
            alive = table.filter(pc.not_equal(table["rank"], rows.RANK_DEAD))
            known = pc.equal(alive["rank"], rows.RANK_PERSON)
            told = pa.table({"person": alive["person"].cast(pa.string()), "known": known})
            yield from told.group_by(["person", "known"]).aggregate([]).to_batches()


def strangers(spark: "SparkSession", packets: "DataFrame", handles_of: HandlesOf) -> RowSource:
    """Give lines of the register for people of these rows who have none, with their handles."""
    from pyspark.sql import functions as f

    every = packets.mapInArrow(people_of, PEOPLE_SQL).where("person is not null")
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

    return taken.select(
        *taken.columns, f.lit(rank).cast("tinyint").alias("rank"), f.lit(fresh).alias("fresh")
    )


def dead_files(spark: "SparkSession", unreadable: Sequence[tuple[str, str]]) -> "DataFrame":
    """Give a dead letter for each file that cannot be read at all; `raw` says which."""
    told = [(None, reason, path) for path, reason in unreadable]
    return ranked(
        spark.createDataFrame(told, "person string, reason string, raw string"),
        rows.RANK_DEAD,
        fresh=True,
    )


def packets_of(parts: Sequence[RowSource], buckets: int) -> "DataFrame":
    """Pack the rows of a batch by bucket."""
    packed = [
        part.frame.mapInArrow(Through(part.tables, Packer(buckets)), PACKET_SQL) for part in parts
    ]
    return reduce(lambda a, b: a.unionByName(b), packed)


@contextmanager
def on_disks(packets: "DataFrame") -> "Iterator[DataFrame]":
    """Leave packets on Spark's disks once they are made: files are then read once."""
    from pyspark.storagelevel import StorageLevel

    held = packets.persist(StorageLevel.DISK_ONLY)
    try:
        yield held
    finally:
        held.unpersist()


def write(packets: "DataFrame", task: WriteTask, buckets: int) -> Written:
    """Bring each person's rows together in order, scan them, and write the results by kind."""
    with translated(FAILED):
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


def expected(files: Sequence[SightingFile], reading: Reading) -> int:
    """Estimate the number of rows of files."""
    return sum(expected_rows(file, reading) for file in files)


def buckets(files: Sequence[SightingFile], remembered_rows: int, reading: Reading) -> int:
    """Return the number of buckets that keeps each bucket's rows few."""
    count = remembered_rows + expected(files, reading)
    return max(BUCKETS_MIN, min(BUCKETS_MAX, -(-count // BUCKET_ROWS)))
