"""Writing the origin log: events that come while publishers wait for the disk share a write."""

from typing import Final

from roamcast.model.machine import Effect, Store, Writes
from roamcast.overlay.flows.log import OriginLog
from roamcast.overlay.flows.messages import BATCH_BYTES, Event

BUSY_US: Final = 3_000
"""Of a log with an event in so many microseconds, or more, writes gather for as long as they may;
of others for less, by the square: a shared sync spares much only where there are many."""

IDLE_US: Final = 1_000_000


class LogWriter:
    """The events that are not on disk yet, and who waits for each."""

    def __init__(self, log: OriginLog, gather_us: int) -> None:
        self._log = log
        self._gather_us = gather_us
        self._tickets: dict[int, list[int]] = {}
        """Numbers → who asked."""
        self._gathered: dict[int, Writes] = {}
        """Numbers that wait for the next write → what to write."""
        self._bytes = 0
        self._written_us = 0
        """When the log was last written."""
        self._pace_us = float(IDLE_US)
        """About the time between two events, by the last writes."""
        self._writing: dict[int, tuple[int, ...]] = {}
        """Store tokens → the numbers that are written."""

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, event: Event, ticket: int, now: int) -> int:
        """Number an event; return when to write it.

        Who is alone with an event need not wait. While others wait for the disk, more will come,
        and share the sync (0430).
        """
        number, self._gathered[number] = self._log.append(event, now)
        self._tickets[number] = [ticket]
        self._bytes += event.size
        if len(self._tickets) == 1 or self._bytes >= BATCH_BYTES:
            return now
        busy = min(BUSY_US / self._pace_us, 1.0)
        return self._written_us + int(self._gather_us * busy**2)

    def join(self, number: int, ticket: int) -> None:
        """Wait for an event that was sent again."""
        self._tickets[number].append(ticket)

    def write(self, token: int, now: int) -> Effect:
        """Write the events that have gathered."""
        self._writing[token] = tuple(self._gathered)
        writes = tuple(one for each in self._gathered.values() for one in each)
        pace_us = min(max(now - self._written_us, 1), IDLE_US) / max(len(self._gathered), 1)
        self._pace_us = (self._pace_us + pace_us) / 2
        self._gathered.clear()
        self._bytes, self._written_us = 0, now
        return Store(token, writes)

    def written(self, token: int) -> list[tuple[int, int]]:
        """Note that a write is on disk; give the numbers and tickets of it."""
        numbers = self._writing.pop(token)
        for number in numbers:
            self._log.written(number)
        return self._answered(numbers)

    def refused(self, token: int) -> list[tuple[int, int]]:
        """Note that the disk refused a write; give the numbers and tickets of it."""
        numbers = self._writing.pop(token)
        for number in numbers:
            self._log.refused(number)
        return self._answered(numbers)

    def _answered(self, numbers: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(number, ticket) for number in numbers for ticket in self._tickets.pop(number)]
