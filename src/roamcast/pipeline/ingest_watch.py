"""How do sightings become contexts while they come? A folder watched by Structured Streaming.

The stream carries only the names of new files; each micro-batch of names is one `ingest_batch`,
the same as for a folder once. Spark's checkpoint says which files belong to which micro-batch, the
archive's commit says which of them have happened: a driver killed anywhere goes on exactly there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from roamcast.errors import InputError, RoamcastError
from roamcast.pipeline.ingest import Clock, IngestSettings, check_settings, ingest_batch
from roamcast.pipeline.ingest_files import SightingFile, format_of, stated
from roamcast.pipeline.ingest_read import shape_of
from roamcast.pipeline.ingest_state import Batch, IngestState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_A_BATCH = 1_000
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
    told: Callable[[Batch], None] | None = None,
) -> Iterator[Any]:
    """Watch a folder; gives Spark's query, which runs until the block ends.

    until_idle: end the query once everything that lies there now is worked in. `told` is called
    after every batch.
    """
    check_settings(settings)
    if not folder.is_dir():
        raise InputError("--watch needs a folder", source=str(folder))
    checkpoint = state.folder / "checkpoint"
    work = _Work(spark, state, settings, clock, checkpoint, told)
    # binaryFile offers each file once; its content is not selected, so it is never read
    names = (
        spark.readStream.format("binaryFile")
        .schema(_LISTED)
        .option("maxFilesPerTrigger", files_a_batch)
        .option("recursiveFileLookup", "true")
        .load(str(folder.resolve()))
        .select("path")
    )
    writer = names.writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
    timing: dict[str, Any] = (
        {"availableNow": True} if until_idle else {"processingTime": f"{every_s} seconds"}
    )
    query = writer.trigger(**timing).start()
    try:
        yield query
    finally:
        query.stop()


def wait(query: Any) -> None:
    """Wait until a query ends; what went wrong in it becomes one clear line."""
    from pyspark.errors import PySparkException

    try:
        query.awaitTermination()
    except PySparkException as error:
        lines = str(error).splitlines()
        ours = [line for line in lines if line.startswith("roamcast.")]
        reason = ours[-1].partition(": ")[2] if ours else lines[0]
        raise RoamcastError(f"the watch ended: {reason[:300]}") from None


class _Work:
    """What happens to a micro-batch of file names."""

    def __init__(
        self,
        spark: "SparkSession",
        state: IngestState,
        settings: IngestSettings,
        clock: Clock,
        checkpoint: Path,
        told: Callable[[Batch], None] | None,
    ) -> None:
        self.spark = spark
        self.state = state
        self.settings = settings
        self.clock = clock
        self.checkpoint = checkpoint
        self.told = told

    def __call__(self, names: "DataFrame", number: int) -> None:
        stream = (self._stream(), number)
        done = self.state.last.stream
        if done is not None and done[0] == stream[0] and number <= done[1]:
            return  # it was committed, and the driver died before Spark took note
        files, unreadable = self._sorted_out(names)
        batch = ingest_batch(
            self.spark,
            self.state,
            files,
            self.settings,
            self.clock(),
            finish=False,
            stream=stream,
            unreadable=unreadable,
        )
        if self.told is not None:
            self.told(batch)

    def _stream(self) -> str:
        """Name the checkpoint: another one counts its micro-batches from 0 again."""
        text = (self.checkpoint / "metadata").read_bytes()
        return msgspec.json.decode(text, type=_Checkpoint).id

    def _sorted_out(self, names: "DataFrame") -> tuple[list[SightingFile], list[tuple[str, str]]]:
        """Choose the files to read; one that cannot be read is a dead letter, and others go on."""
        files, unreadable = [], []
        for row in sorted(names.collect()):
            path = unquote(row["path"]).removeprefix("file://").removeprefix("file:")
            if format_of(path, self.settings.reading) is None:
                continue
            try:
                file = stated(path)
                if file in self.state.done:
                    continue
                shape_of(file, self.settings.reading)
            except InputError as error:
                unreadable.append((path, error.problem))
                continue
            files.append(file)
        return files, unreadable
