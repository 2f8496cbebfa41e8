"""What is held for a consumer that is not there: bounded, and its log knows the rest (trap 17)."""

from collections import deque

import msgspec

from roamcast.overlay.flows.messages import Events
from roamcast.overlay.flows.vector import Position, Vector


class HeldDelivery(msgspec.Struct, frozen=True):
    """One delivery that nobody took yet."""

    origin: str
    upto: Position
    events: Events
    at_us: int

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return sum(event.size for _, event in self.events)


class Buffer:
    """Deliveries in order. What is too old or too much goes at the head, and the start moves."""

    def __init__(self, start: Vector, *, bytes_max: int, age_us: int) -> None:
        self.start = dict(start)
        """Everything after these positions is held."""
        self.bytes = 0
        self._held: deque[HeldDelivery] = deque()
        self._bytes_max = bytes_max
        self._age_us = age_us

    def add(self, origin: str, after: Position, upto: Position, events: Events, now: int) -> None:
        """Hold a delivery."""
        self.start.setdefault(origin, after)
        if events:
            self._held.append(HeldDelivery(origin, upto, events, now))
            self.bytes += self._held[-1].size
        self.trim(now)

    def trim(self, now: int) -> None:
        """Drop the head while there is too much, or it is too old."""
        while self._held and (
            self.bytes > self._bytes_max or self._held[0].at_us + self._age_us <= now
        ):
            gone = self._held.popleft()
            self.bytes -= gone.size
            self.start[gone.origin] = max(self.start[gone.origin], gone.upto)

    def lost(self, origin: str, upto: Position) -> None:
        """Move over what a log no longer had."""
        self.start[origin] = max(self.start.get(origin, upto), upto)

    def holds(self, vector: Vector) -> bool:
        """Return whether a consumer that has come so far misses nothing by this buffer."""
        return all(at >= self.start[one] for one, at in vector.items() if one in self.start)

    def deliveries(self) -> list[HeldDelivery]:
        """Give all that is held, in order."""
        return list(self._held)
