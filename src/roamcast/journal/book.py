"""The journal in memory: a running digest and the last lines; full blocks go to a sink.

The digest is taken over blocks of fixed length, so it depends on the records alone: not on when
somebody asked for it, nor on how large the segments are.
"""

import hashlib
from collections import deque
from typing import Final, Protocol

import msgspec

from roamcast.model.records import Record, kind_of

Entry = tuple[int, str, Record]
"""(time in µs, host, record)."""

BLOCK_RECORDS: Final = 1024
TAIL_RECORDS_MAX: Final = 256


class RecordSink(Protocol):
    """Receives whole blocks of entries: segments on disk, a list in a test."""

    def add(self, entries: list[Entry]) -> None:
        """Take the next entries, in order."""

    def close(self) -> None:
        """Write out what is still in memory."""


class Journal:
    """An append-only record of what happened, in the order it was written."""

    def __init__(self, sink: RecordSink | None = None) -> None:
        self._sink = sink
        self._block: list[Entry] = []
        self._tail: deque[Entry] = deque(maxlen=TAIL_RECORDS_MAX)
        self._hash = hashlib.blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode
        self._sealed_records = 0

    def write(self, time_us: int, host: str, record: Record) -> None:
        """Append one record."""
        self._block.append((time_us, host, record))
        if len(self._block) == BLOCK_RECORDS:
            self._seal()

    def __len__(self) -> int:
        return self._sealed_records + len(self._block)

    def digest(self) -> str:
        """Give the digest of everything so far."""
        so_far = self._hash.copy()
        so_far.update(self._encode(self._block))
        return so_far.hexdigest()

    def tail(self, count: int) -> list[str]:
        """Give the last lines for a person to read, at most TAIL_RECORDS_MAX of them."""
        held = [*self._tail, *self._block][-min(count, TAIL_RECORDS_MAX) :] if count else []
        return [line_of(entry) for entry in held]

    def close(self) -> None:
        """Hand the last, short block to the sink; the digest does not change."""
        if self._sink is not None:
            self._sink.add(list(self._block))
            self._sink.close()

    def _seal(self) -> None:
        self._hash.update(self._encode(self._block))
        self._tail.extend(self._block[-TAIL_RECORDS_MAX:])
        self._sealed_records += len(self._block)
        if self._sink is not None:
            self._sink.add(self._block)
            self._block = []
        else:
            self._block.clear()


def line_of(entry: Entry) -> str:
    """Write one entry as a line: seconds, host, kind and the fields that are not empty."""
    time_us, host, record = entry
    fields = (
        f"{name}={value}"
        for name, value in msgspec.structs.asdict(record).items()
        if value != "" and name != "body"
    )
    return f"{time_us / 1e6:12.6f} {host:<12} {kind_of(record)} {' '.join(fields)}"
