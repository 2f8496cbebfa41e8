"""A lookup: the distinct vids that historic messages reach, from the archive.

The plan is made here from the table's statistics. A small plan is read in this process; a large one
by Spark tasks, each reading its share of the files itself (decision 0043). The messages travel to
the tasks as one file beside the data, not in a closure, and long answers travel back in files:
Spark's driver would hold them all before anybody could count.
"""

import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import LimitError
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.storage import GoneError, Storage, arrived, travelling
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Needs, Share, Statistics, plan
from roamcast.pipeline.lookup.read import ANSWER, Reader
from roamcast.pipeline.lookup.texts import ranked
from roamcast.pipeline.spark.errors import collected
from roamcast.pipeline.spark.progress import QUIET, Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES_MAX = 1_000_000
ANSWERS_MAX = 20_000_000
"""Distinct pairs of message and vid that one lookup may give."""

PAIRS_HELD = 1_000_000
"""Pairs that are held before repeated ones are dropped for the first time."""

PAIRS_BY_SPARK = 1_000_000
"""Pairs that all tasks together tell Spark's driver, some 50 MB; more go into files."""

DRIVER_ROWS = 500_000
"""Up to so many rows in the files of a plan, a Spark job would only add its own 100 ms."""

DRIVER_ROWS_COLD = 20_000_000
"""The same when Spark would have to be started first, which takes seconds."""

TASK_ROWS = 2_500_000
"""Rows in the files of one task: 20 tasks took twice as long as 4 on two cores, 10M contexts."""

TASKS_MIN, TASKS_MAX = 4, 4_096
BESIDE = -1
"""In the place of a message's number: what follows is the path of a file with answers."""

PLANS_MAX = 5
"""How often a lookup plans again because files it named were compacted and deleted."""


class Lookup:
    """An archive that is queried repeatedly; its statistics are cached between calls."""

    def __init__(
        self,
        archive: str | Path,
        spark: "SparkSession | Callable[[], SparkSession] | None" = None,
        *,
        driver_rows: int | None = None,
        progress: Bar = QUIET,
    ) -> None:
        self.archive = Archive.open(archive)
        self._progress = progress
        self._spark = spark
        cold = spark is None or callable(spark)
        self._driver_rows = driver_rows
        if driver_rows is None:
            self._driver_rows = DRIVER_ROWS_COLD if cold else DRIVER_ROWS
        self._statistics: Statistics | None = None

    def ask(self, messages: Mapping[str, Filter]) -> dict[str, list[str]]:
        """Give for each message, in its order, the distinct vids it reaches, sorted."""
        if len(messages) > MESSAGES_MAX:
            raise LimitError(f"one lookup takes at most {MESSAGES_MAX} messages")
        found = self.pairs(list(messages.values()))
        vids = found["vid"].to_pylist()
        ends = np.searchsorted(np.asarray(found["message"]), np.arange(len(messages)), "right")
        starts = [0, *ends.tolist()]
        return {name: vids[starts[i] : starts[i + 1]] for i, name in enumerate(messages)}

    def pairs(self, messages: list[Filter]) -> pa.Table:
        """Give the distinct pairs (number of the message, vid), sorted."""
        reader = Reader(messages)
        for _ in range(PLANS_MAX):
            shares = self.plan(reader.needs)
            try:
                with closing(self._read(reader, shares)) as answers:
                    return distinct(answers, ANSWERS_MAX)
            except GoneError as error:
                gone = error
                self.archive.check_there(share.path for share in shares)
        raise GoneError(f"{gone}: others kept replacing files, ask again")

    def plan(self, needs: Needs) -> list[Share]:
        """Give the files that can hold a match in the newest snapshot."""
        self.archive.refresh()
        if self._statistics is None or self._statistics.version != self.archive.version:
            self._statistics = Statistics(self.archive)
        return plan(self._statistics, needs)

    def _read(self, reader: Reader, shares: list[Share]) -> Generator[pa.RecordBatch, None, None]:
        rows = sum(share.rows for share in shares)
        self._progress.expect(rows)
        if self._spark is None or rows <= (self._driver_rows or 0):
            counted = self._progress.counted(shares, lambda share: share.rows)
            yield from reader.answers(self.archive.storage, counted)
            return
        if callable(self._spark):
            self._spark, self._driver_rows = self._spark(), DRIVER_ROWS
        storage = self.archive.storage
        if storage.writable:
            yield from _read_on(self._spark, storage, reader, shares)
        else:
            yield from _read_only_on(self._spark, storage, reader, shares)


def _read_on(
    spark: "SparkSession", storage: Storage, reader: Reader, shares: list[Share]
) -> Iterator[pa.RecordBatch]:
    """Read the shares in Spark's workers; messages and plan travel as a file."""
    tasks = divided(shares)
    most = (ANSWERS_MAX, PAIRS_BY_SPARK // len(tasks))
    packed = pickle.dumps((reader, tasks, most), protocol=pickle.HIGHEST_PROTOCOL)
    with travelling(storage, packed) as path:

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from run_tasks(storage, path, batches)

        numbers = spark.range(0, len(tasks), 1, len(tasks))
        answers = numbers.mapInArrow(work, "message int, vid string").select("message", "vid")
        told = collected(answers, storage.failed)
        beside = pc.equal(told["message"], BESIDE)
        yield from told.filter(pc.invert(beside)).to_batches()
        for name in told["vid"].filter(beside).to_pylist():
            with storage.open(name) as source:
                yield from pa.ipc.open_stream(source)


def _read_only_on(
    spark: "SparkSession", storage: Storage, reader: Reader, shares: list[Share]
) -> Iterator[pa.RecordBatch]:
    """Read the shares of an archive that nobody here may write to.

    Messages and plan travel in the function itself, and all answers through Spark's driver.
    """
    tasks = divided(shares)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from distinct(
                    reader.answers(storage, tasks[number]), ANSWERS_MAX
                ).to_batches()

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = numbers.mapInArrow(work, "message int, vid string").select("message", "vid")
    yield from collected(found.distinct().limit(ANSWERS_MAX + 1), storage.failed).to_batches()


def run_tasks(
    storage: Storage, path: str, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the tasks of these numbers in a worker; a long answer becomes a file and its path."""
    for batch in numbers:
        reader, tasks, (answers_max, told_max) = arrived(storage, path)
        for number in batch.column(0).to_pylist():
            found = distinct(reader.answers(storage, tasks[number]), answers_max)
            if found.num_rows > told_max:
                name = f"{path}-{uuid4().hex}"
                with storage.create(name) as sink, pa.ipc.new_stream(sink, ANSWER) as stream:
                    stream.write_table(found, max_chunksize=PAIRS_HELD)
                found = pa.table([[BESIDE], [name]], schema=ANSWER)
            yield from found.to_batches()


def divided(shares: list[Share]) -> list[list[Share]]:
    """Distribute the files over tasks evenly and deterministically."""
    rows = sum(share.rows for share in shares)
    count = max(TASKS_MIN, min(TASKS_MAX, -(-rows // TASK_ROWS)))
    tasks: list[list[Share]] = [[] for _ in range(min(count, len(shares)))]
    for number, share in enumerate(sorted(shares, key=lambda s: (-s.rows, s.path))):
        tasks[number % len(tasks)].append(share)
    return tasks


def distinct(batches: Iterable[pa.RecordBatch], limit: int) -> pa.Table:
    """Give each pair once, sorted; repeated ones are dropped often enough to bound the memory."""
    held: list[pa.RecordBatch] = []
    count, room = 0, PAIRS_HELD
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count > room:
            held = _once(held, limit).to_batches()
            count = sum(batch.num_rows for batch in held)
            room = max(PAIRS_HELD, 2 * count)
    return _once(held, limit)


def _once(held: list[pa.RecordBatch], limit: int) -> pa.Table:
    """Sort pairs as numbers: the message and the rank of the vid."""
    found = pa.Table.from_batches(held, schema=ANSWER)
    if not found.num_rows:
        return found
    ranks, vids = ranked(found["vid"].combine_chunks())
    keys = np.asarray(found["message"]).astype(np.int64) << 32
    keys |= ranks
    keys.sort()  # numpy's own unique hashes first, which costs more
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    if len(keys) > limit:
        raise LimitError(
            f"one lookup gives at most {limit} pairs of message and vid: ask with fewer messages"
        )
    messages = pa.array((keys >> 32).astype(np.int32))
    return pa.table([messages, vids.take(pa.array(keys & 0xFFFFFFFF))], schema=ANSWER)


def write_answers(
    answers: Mapping[str, list[str]], out: IO[bytes] | None = None, *, by_node: bool = False
) -> None:
    """Write {"id": …, "vids": […]} a line; by_node: a line for each trusted node that has some."""
    sink = out or sys.stdout.buffer
    encode = msgspec.json.Encoder().encode
    for name, vids in answers.items():
        if not by_node:
            sink.write(encode({"id": name, "vids": vids}) + b"\n")
            continue
        for node, some in nodes(vids).items():
            sink.write(encode({"id": name, "node": node, "vids": some}) + b"\n")
    sink.flush()


def nodes(vids: Iterable[str]) -> dict[str, list[str]]:
    """Divide vids by the trusted node that can resolve them: the part after the last @."""
    found: dict[str, list[str]] = {}
    for vid in vids:
        found.setdefault(vid.rpartition("@")[2] if "@" in vid else "", []).append(vid)
    return dict(sorted(found.items()))
