"""`ByBytes`: a cache that is bounded by what its values weigh, not by how many there are.

Filters are read in a thread beside the loop, so it takes a lock.
"""

from collections import OrderedDict
from threading import Lock
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES: Final = 256
"""What an entry weighs beside its value: its key, and its place in the table."""


class ByBytes(Generic[K, V]):
    """Values by key; the least recently used go first when the bytes exceed the bound."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: K) -> V | None:
        """Give a value, and count it as used."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep a value; one that is larger than the bound is not kept."""
        size = size_bytes + ENTRY_BYTES
        with self._lock:
            if key in self._held:
                self.bytes -= self._held.pop(key)[1]
            if size > self._bytes_max:
                return
            self._held[key] = (value, size)
            self.bytes += size
            while self.bytes > self._bytes_max:
                self.bytes -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self.bytes = 0
