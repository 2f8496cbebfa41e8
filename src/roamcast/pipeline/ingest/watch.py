"""Sightings to contexts as they arrive: a folder watched by Structured Streaming.

The stream carries only the names of new files; each micro-batch of names is one `ingest_batch`, the
same as for a folder once. Spark's checkpoint says which files belong to which micro-batch, the
archive's commit says which of them have happened: a driver killed anywhere continues exactly there.

Time in a stream is the time of its sightings, and Spark starts no micro-batch without a file. So a
thread watches the clock: once nothing has come for as long as heartbeat and lateness together, time
goes on with the clock, and a batch without files ends what is open (decision 0158).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, RoamcastError
from roamcast.model.time import MICROSECONDS
from roamcast.pipeline.ingest.files import (
    SightingFile,
    damage,
    files_inside,
    format_of,
    hidden,
    located,
    stated,
)
from roamcast.pipeline.ingest.read import check_file
from roamcast.pipeline.ingest.run import Clock, IngestSettings, check_settings, ingest_batch
from roamcast.pipeline.ingest.state import IngestState, SightingBatch
from roamcast.pipeline.ingest.streams import StreamedFrom, lines_of
from roamcast.pipeline.spark.errors import translated
from roamcast.pipeline.spark.paths import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_A_BATCH = 1_000
FILE_AGE_MAX = "365000d"
"""Older than the newest by more than this, a file is never offered: Spark's 7 days lose files that
are moved in with their old time. What grows: Spark keeps the name of every file it has offered in
the driver's memory, as it does anyway in its checkpoint and we in `IngestState.done`."""

_LISTED = "path string, modificationTime timestamp, length long, content binary"


class _Checkpoint(msgspec.Struct):
    id: str


@contextmanager
def ingest_watch(
    spark: "SparkSession",
    state: IngestState,
    folder: Path,
    settings: IngestSettings,
    clock: Clock,
    *,
    files_a_batch: int = FILES_A_BATCH,
    every_s: float = 1.0,
    until_idle: bool = False,
    on_batch: Callable[[SightingBatch], None] | None = None,
) -> Iterator[Any]:
    """Watch a folder; gives Spark's query, which runs until the block ends.

    until_idle: end the query once everything that lies there now is worked in. `on_batch` is called
    after every batch.
    """
    check_settings(settings)
    if not folder.is_dir():
        raise InputError("--watch needs a folder", source=str(folder))
    folder = folder.resolve()
    for _ in files_inside(folder, loops=False):
        pass  # Spark would follow a link that leads back for ever
    checkpoint = state.folder / "checkpoint"
    work = _Work(spark, state, folder, settings, clock, checkpoint, on_batch)
    # binaryFile offers each file once; its content is not selected, so it is never read
    names = (
        spark.readStream.format("binaryFile")
        .schema(_LISTED)
        .option("maxFilesPerTrigger", files_a_batch)
        .option("recursiveFileLookup", "true")
        .option("maxFileAge", FILE_AGE_MAX)
        .load(literal(str(folder)))
        .select("path")
    )
    writer = names.writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
    timing: dict[str, Any] = (
        {"availableNow": True} if until_idle else {"processingTime": f"{every_s} seconds"}
    )
    with _running(writer.trigger(**timing), work, every_s, watched=not until_idle) as query:
        yield query


@contextmanager
def ingest_stream(
    spark: "SparkSession",
    state: IngestState,
    address: StreamedFrom,
    settings: IngestSettings,
    clock: Clock,
    *,
    every_s: float = 1.0,
    until_idle: bool = False,
    on_batch: Callable[[SightingBatch], None] | None = None,
) -> Iterator[Any]:
    """Ingest sightings from a broker's stream, a JSON line each; as `ingest_watch` otherwise.

    Numbers of messages lie in Spark's checkpoint, so a micro-batch is the same messages however
    often it is tried; what has happened is what the archive has committed.
    """
    check_settings(settings)
    timing: dict[str, Any] = (
        {"availableNow": True} if until_idle else {"processingTime": f"{every_s} seconds"}
    )
    with lines_of(spark, state, address, until_idle=until_idle) as (lines, name):
        checkpoint = state.folder / f"checkpoint-{name}"
        work = _StreamWork(spark, state, state.folder, settings, clock, checkpoint, on_batch)
        writer = lines.writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
        with _running(writer.trigger(**timing), work, every_s, watched=not until_idle) as query:
            yield query


@contextmanager
def _running(writer: Any, work: "_Work", every_s: float, *, watched: bool) -> Iterator[Any]:
    """Start a query, and beside it the thread that ends what is open when nothing comes."""
    query = writer.start()
    ended = threading.Event()
    watcher = threading.Thread(target=_end_quiet, args=(work, query, ended, every_s), daemon=True)
    if watched:
        watcher.start()
    try:
        yield query
        if work.failed is not None:
            raise work.failed
    finally:
        ended.set()
        query.stop()
        if watcher.is_alive():
            watcher.join()


def _end_quiet(work: "_Work", query: Any, ended: threading.Event, every_s: float) -> None:
    while not ended.wait(every_s):
        try:
            work.end_quiet()
        except Exception as error:  # noqa: BLE001 - the query's own thread tells it
            work.failed = error
            query.stop()
            return


def wait(query: Any) -> None:
    """Wait until a query ends; turn its error into one line."""
    with translated("the watch ended"):
        query.awaitTermination()


class _Work:
    """The function that Spark runs for each micro-batch of file names."""

    def __init__(
        self,
        spark: "SparkSession",
        state: IngestState,
        folder: Path,
        settings: IngestSettings,
        clock: Clock,
        checkpoint: Path,
        on_batch: Callable[[SightingBatch], None] | None,
    ) -> None:
        self.spark = spark
        self.state = state
        self.folder = folder
        self.settings = settings
        self.clock = clock
        self.checkpoint = checkpoint
        self.on_batch = on_batch
        self.failed: Exception | None = None
        self._one_at_a_time = threading.Lock()
        self._quiet_since = clock()

    def __call__(self, names: "DataFrame", number: int) -> None:
        with self._one_at_a_time:
            self._micro_batch(names, number)
            self._quiet_since = self.clock()

    def end_quiet(self) -> SightingBatch | None:
        """End what is open if nothing has come for as long as heartbeat and lateness."""
        patience = self.settings.agent.heartbeat_s + self.settings.late_s
        with self._one_at_a_time:
            counts = self.state.last.counts
            quiet = self.clock() - self._quiet_since
            if not (counts.get("open") or counts.get("pending")):
                return None
            if quiet <= round(patience * MICROSECONDS):
                return None
            batch = ingest_batch(
                self.spark,
                self.state,
                [],
                self.settings,
                self.clock(),
                finish=False,
                quiet=quiet,
            )
            self._quiet_since = self.clock()
        if self.on_batch is not None:
            self.on_batch(batch)
        return batch

    def _micro_batch(self, names: "DataFrame", number: int) -> None:
        stream = (self._stream(), number)
        done = self.state.last.stream
        if done is not None and done[0] == stream[0] and number <= done[1]:
            return  # it was committed, and the driver died before Spark took note
        files, unreadable = self._sorted_out(names)
        try:
            batch = self._ingested(files, unreadable, stream)
        except RoamcastError:
            # only now is it worth reading every file to its end: one that is cut stops no other
            reading = self.settings.reading
            reasons = {file.path: damage(file.path, reading) for file in files}
            found = [(path, reason) for path, reason in reasons.items() if reason is not None]
            if not found:
                raise
            sound = [file for file in files if reasons[file.path] is None]
            batch = self._ingested(sound, unreadable + found, stream)
        if self.on_batch is not None:
            self.on_batch(batch)

    def _ingested(
        self,
        files: list[SightingFile],
        unreadable: list[tuple[str, str]],
        stream: tuple[str, int],
    ) -> SightingBatch:
        return ingest_batch(
            self.spark,
            self.state,
            files,
            self.settings,
            self.clock(),
            finish=False,
            stream=stream,
            unreadable=unreadable,
        )

    def _stream(self) -> str:
        """Name the checkpoint: another one counts its micro-batches from 0 again."""
        text = (self.checkpoint / "metadata").read_bytes()
        return msgspec.json.decode(text, type=_Checkpoint).id

    def _sorted_out(self, names: "DataFrame") -> tuple[list[SightingFile], list[tuple[str, str]]]:
        """Choose the files to read; one that cannot be read is a dead letter, and others go on."""
        files: dict[str, SightingFile] = {}
        unreadable: dict[str, str] = {}
        reading = self.settings.reading
        # Spark offers a file several times if a name beside it looks like a pattern
        for text in {row["path"] for row in names.collect()}:
            # Hadoop writes a path as it is: nothing in it is quoted
            named = Path(text.removeprefix("file://").removeprefix("file:"))
            if format_of(str(named), reading) is None:
                continue
            if any(map(hidden, named.relative_to(self.folder).parts)):
                continue
            path = str(located(named, reading))
            try:
                file = stated(path)
                check_file(file, reading)
            except InputError as error:
                unreadable[path] = error.problem
                continue
            if file not in self.state.done:
                files[path] = file
        return [files[path] for path in sorted(files)], sorted(unreadable.items())


class _StreamWork(_Work):
    """The function that Spark runs for each micro-batch of lines from a stream."""

    def _sorted_out(self, names: "DataFrame") -> tuple[list[SightingFile], list[tuple[str, str]]]:
        """Write the lines into a file of their own, which is then ingested as any other.

        The file is in the private folder, since lines name people, and goes with its batch.
        """
        from pyspark.sql import functions as f

        folder = self.state.new_given()
        # bytes that are no text cannot be given to Python as they are
        lines = names.select(f.make_valid_utf8("value").alias("line")).toArrow()["line"].to_pylist()
        path = folder / f"{self.state.last.number + 1:08d}.jsonl"
        text = "".join(" ".join(line.splitlines()) + "\n" for line in lines)
        path.write_text(text, encoding="utf-8")
        return ([stated(str(path))] if lines else []), []
