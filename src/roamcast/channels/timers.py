"""Which of many things is due? Timers by key, of which only the latest setting counts."""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """At most one time per key; equal times fire in the order they were set."""

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._next = count().__next__

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: Key, time: int) -> None:
        """Fire at a time; an earlier setting of the key is forgotten."""
        if self._times.get(key) != time:
            self._times[key] = time
            heappush(self._heap, (time, self._next(), key))
            if len(self._heap) > 4 * len(self._times) + 64:  # mostly settings of the past
                self._heap = [one for one in self._heap if self._times.get(one[2]) == one[0]]
                heapify(self._heap)

    def sooner(self, key: Key, time: int) -> None:
        """Fire at a time unless the key fires before."""
        known = self._times.get(key)
        if known is None or time < known:
            self.set(key, time)

    def cancel(self, key: Key) -> None:
        """Do not fire."""
        self._times.pop(key, None)

    def deadline(self) -> int | None:
        """Give the earliest time; what was moved or cancelled meanwhile is thrown away here."""
        heap = self._heap
        while heap and self._times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> Iterator[Key]:
        """Take the keys whose time has come, one by one; what is set meanwhile for now, too."""
        while (first := self.deadline()) is not None and first <= now:
            key = heappop(self._heap)[2]
            del self._times[key]
            yield key
