"""`ByBytes`: a cache that is bounded by what its values weigh, not by how many there are.

Filters are read in a thread beside the loop, so it takes a lock. `remembering` makes a function
remember what it gave that way, as `functools.lru_cache` does by number.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from typing import Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T", str, bytes)
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


class Remembering(Generic[T, V]):
    """A function of one text, or bytes, that remembers what it gave last."""

    def __init__(self, make: Callable[[T], V], bytes_max: int, each: int) -> None:
        update_wrapper(self, make)
        self._make: Callable[[T], V] = make
        self._each = each
        self.held: Final[ByBytes[T, V]] = ByBytes(bytes_max)

    def __call__(self, key: T) -> V:
        """Give what the function gives, or gave."""
        found = self.held.get(key)
        if found is None:
            found = self._make(key)
            self.held.put(key, found, self._each * len(key))
        return found

    def cache_clear(self) -> None:
        """Forget everything; named as `lru_cache` names it."""
        self.held.clear()


def remembering(bytes_max: int, each: int) -> Callable[[Callable[[T], V]], Remembering[T, V]]:
    """Remember at most so many bytes of what a function gives; `each`: bytes a letter or byte."""

    def remember(make: Callable[[T], V]) -> Remembering[T, V]:
        return Remembering(make, bytes_max, each)

    return remember
