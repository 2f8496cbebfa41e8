"""Timers by key: at most one time per key, and only the latest setting counts.

A machine's timers are `Timer` structs, one class for each kind, and a table from class to handler
says what each kind does. So a kind without a handler is found at once, and no name is taken apart.
"""

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)


# The hash is cached because setting a timer looks its key up several times, on every update.
class Timer(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A kind of timer; the fields of a subclass are the key."""


Kind = TypeVar("Kind", bound=Timer)


class Timers(Generic[Key]):
    """At most one time per key; equal times fire in the order in which they were set."""

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._next = count().__next__

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: Key, time: int) -> None:
        """Fire at a time, and not at an earlier setting of the key."""
        if self._times.get(key) != time:
            self._times[key] = time
            heappush(self._heap, (time, self._next(), key))
            # Moved and cancelled timers stay in the heap until their time: bound their share.
            if len(self._heap) > 4 * len(self._times) + 64:
                self._heap = [
                    entry for entry in self._heap if self._times.get(entry[2]) == entry[0]
                ]
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
        """Give the earliest time; timers that were moved or cancelled are discarded here."""
        heap = self._heap
        while heap and self._times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> Iterator[Key]:
        """Take the keys that are due, one by one, including those set meanwhile for now."""
        while (first := self.deadline()) is not None and first <= now:
            key = heappop(self._heap)[2]
            del self._times[key]
            yield key


class TimerTable(Timers[Timer]):
    """The timers of one machine and the handler of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[type[Timer], Callable[[Any], None]] = {}

    def handle(self, kind: type[Kind], handler: Callable[[Kind], None]) -> None:
        """Declare what a kind of timer does; a later declaration replaces an earlier one."""
        self._handlers[kind] = handler

    def fire(self, now: int) -> None:
        """Run the handler of every timer that is due; a kind without one is our own mistake."""
        for timer in self.due(now):
            handler = self._handlers.get(type(timer))
            assert handler is not None, f"no handler for {timer!r}"
            handler(timer)
