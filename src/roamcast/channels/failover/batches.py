"""Writes of parts in batches: one is on its way to the disks, the next one gathers (0430)."""

from collections import deque
from typing import Final

import msgspec

from roamcast.model.machine import ENTRY_BYTES, Entry, Writes

BATCH_WRITES: Final = 4_096
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Of what has gathered, so much goes to the disk together, and one write more."""


class WriteRequest(msgspec.Struct, frozen=True):
    """A part's write."""

    part: str
    token: int
    writes: Writes

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(len(key) + len(value or b"") + ENTRY_BYTES for key, value in self.writes)


class WriteBatch(msgspec.Struct):
    """Writes on their way together: whose they are, and from which change on they are safe."""

    token: int
    requests: list[WriteRequest]
    entries: tuple[Entry, ...]
    change: int = 0
    """Its place in the order of changes once it is on the local disk; 0 until then."""

    @property
    def writes(self) -> Writes:
        """What goes to the local disk."""
        return tuple((entry.key, entry.value) for entry in self.entries)


class WriteBatches:
    """All writes that are not answered."""

    def __init__(self) -> None:
        self.under_way: WriteBatch | None = None
        self._gathered: deque[WriteRequest] = deque()

    def __len__(self) -> int:
        return len(self._gathered) + (self.under_way is not None and len(self.under_way.requests))

    def add(self, request: WriteRequest) -> None:
        """Take a write into the next batch."""
        self._gathered.append(request)

    @property
    def is_due(self) -> bool:
        """Whether a batch can begin."""
        return bool(self._gathered) and self.under_way is None

    def begin(self, token: int, stamp: int) -> WriteBatch:
        """Begin the next batch; of several writes to a key the latest counts."""
        assert self.is_due
        requests: list[WriteRequest] = []
        writes: dict[str, bytes | None] = {}
        size = 0
        while self._gathered and size < BATCH_BYTES and len(writes) < BATCH_WRITES:
            request = self._gathered.popleft()
            requests.append(request)
            writes.update(request.writes)
            size += request.size
        entries = tuple(Entry(key, value, stamp) for key, value in writes.items())
        self.under_way = WriteBatch(token, requests, entries)
        return self.under_way

    def end(self) -> list[WriteRequest]:
        """End the batch that is under way; give those whose it was."""
        assert self.under_way is not None
        requests, self.under_way = self.under_way.requests, None
        return requests
