"""A streaming data source for Spark: messages from a stream of NATS (`lookup.nats`).

An offset is the number of the last message taken; it lies in the query's checkpoint. The driver
asks the stream how far it is, tasks read their range.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from roamcast.errors import MissingError
from roamcast.pipeline.lookup.nats import StreamAddress, StreamState, read_range, state_of

NAME = "roamcast_messages"
MESSAGES_TOGETHER = 10_000
"""Messages of one micro-batch, at most."""


def options(address: StreamAddress) -> dict[str, str]:
    """Give the options by which Spark hands an address to the source."""
    return msgspec.structs.asdict(address)


class Messages(DataSource):
    """Messages of a stream, a line each."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return NAME

    def schema(self) -> str:
        """Say the columns: as of a text file."""
        return "value string"

    def streamReader(self, schema: StructType) -> "MessageReader":  # noqa: ARG002, N802 - Spark's
        """Make the reader of one query."""
        return MessageReader(self.options)


class MessageReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream by ranges of numbers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._address = StreamAddress(
            given["server"], given["stream"], given["user"], given["password_file"]
        )
        self._goal: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Begin before the oldest message."""
        return _offset(self._state(), 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Bound a micro-batch."""
        return ReadMaxRows(MESSAGES_TOGETHER)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the stream's newest number; later messages wait for the next run."""
        self._goal = self._state().newest

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends."""
        found = self._state()
        if found.created != start["created"]:
            raise MissingError(
                f"the stream {self._address.stream} was made anew and counts from 1 again: "
                "answer it into another --out folder"
            )
        newest = found.newest if self._goal is None else min(self._goal, found.newest)
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, start["number"] + limit.max_rows)
        return _offset(found, max(newest, start["number"]))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Read a micro-batch by one task: it is small."""
        return [InputPartition((start["number"], end["number"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range of messages."""
        after, until = partition.value
        lines = read_range(self._address, after, until)
        # whoever reads them tells what is no text, as of a file's lines
        yield pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.binary()).view(pa.string())})

    def _state(self) -> StreamState:
        return state_of(self._address)


def _offset(state: StreamState, number: int) -> dict[str, Any]:
    return {"created": state.created, "number": number}
