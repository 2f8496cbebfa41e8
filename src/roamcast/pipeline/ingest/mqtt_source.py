"""A streaming data source for Spark: lines received from MQTT (`ingest.mqtt`).

An offset is the number of the last line taken; it lies in the query's checkpoint.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from roamcast.pipeline.ingest.mqtt import TOGETHER_MAX, Spool

NAME = "roamcast_mqtt"


class SpooledMessages(DataSource):
    """Received lines, as a text file's."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return NAME

    def schema(self) -> str:
        """Say the columns."""
        return "value string"

    def streamReader(self, schema: StructType) -> "SpoolReader":  # noqa: ARG002, N802 - Spark's
        """Make the reader of one query."""
        return SpoolReader(self.options)


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads received lines by ranges of their numbers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._spool = Spool(Path(given["folder"]))
        self._goal: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Begin before the first line."""
        return {"number": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the newest number; later lines wait for the next run."""
        self._goal = self._spool.newest

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        """Return where the next micro-batch ends."""
        newest = self._spool.newest if self._goal is None else self._goal
        return {"number": max(start["number"], min(newest, start["number"] + TOGETHER_MAX))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Read a micro-batch by one task: it is small."""
        return [InputPartition((start["number"], end["number"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range of lines."""
        lines = self._spool.read(*partition.value)
        yield pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.binary()).view(pa.string())})

    def commit(self, end: dict[str, int]) -> None:
        """Delete what no micro-batch reads again."""
        self._spool.drop(end["number"])
