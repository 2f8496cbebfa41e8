"""Reading logs in order: intervals that chain, gaps that are fetched, events that wait for others.

A reader has one stream for each origin. `taken` is how far its intervals chain, `cursor` how far it
has given events on: between the two lie events that wait for what they need. An interval beyond a
gap waits, within a bound; what finds no room is fetched later.

A flow counts only behind `proven`: up to there it may have been made before this reader's wants
stood on its way (trap 16). What the origin's log itself answers counts always.
"""

from collections import deque
from typing import Final, Protocol

import msgspec

from roamcast.overlay.flows.messages import Event, Events
from roamcast.overlay.flows.vector import ORIGINS_MAX, Position, Vector, covers

PRODUCERS_MAX: Final = 4_096
"""Lives of producers whose numbers are remembered, to drop publications that were sent again."""

NUMBERS_MAX: Final = 4_096
"""So far behind the last one it is known which numbers of a producer came."""


class LogInterval(msgspec.Struct, frozen=True):
    """Everything wanted of one log in (after, upto]."""

    after: Position
    upto: Position
    events: Events = ()

    def beyond(self, start: Position) -> "LogInterval":
        """Give what is left of it after a position."""
        if start <= self.after:
            return self
        events = tuple(one for one in self.events if Position(self.upto.epoch, one[0]) > start)
        return LogInterval(start, self.upto, events)

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return sum(event.size for _, event in self.events)


class NumberedEvent(Protocol):
    """An event, in whatever form, as its producer numbered it."""

    @property
    def producer(self) -> str:
        """Who published it."""
        ...

    @property
    def life(self) -> int:
        """Which life of the producer."""
        ...

    @property
    def number(self) -> int:
        """Its number in that life."""
        ...


class Numbers:
    """The last numbers of each life of a producer, to tell what was sent again elsewhere.

    They come in order, whatever node it publishes at (`needs`), so one that is not above the last
    is a repetition; but one that nobody waited for any more may be late, and is new all the same.
    """

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._had: dict[tuple[str, int], tuple[int, int]] = {}
        """Producers and lives → the last number, and a bit for each number from there down."""
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._had)

    def is_new(self, event: NumberedEvent, *, late: bool = False) -> bool:
        """Note an event; return whether it was not there before. `late`: it may be."""
        key, number = (event.producer, event.life), event.number
        last, had = self._had.pop(key, (number - 1, 0))
        ahead = number - last
        fresh = ahead > 0
        if fresh:
            had = (had << ahead | 1) & _ALL if ahead < NUMBERS_MAX else 1
            last = number
        elif late and -ahead < NUMBERS_MAX and not had >> -ahead & 1:
            fresh, had = True, had | 1 << -ahead
        self._had[key] = last, had
        if len(self._had) > self._producers_max:
            del self._had[next(iter(self._had))]
        return fresh


_ALL: Final = (1 << NUMBERS_MAX) - 1


class _Stream:
    """One origin's log, as one reader reads it."""

    def __init__(self, cursor: Position) -> None:
        self.cursor = cursor
        self.taken = cursor
        self.known = cursor
        self.proven: Position | None = None
        self.line: deque[tuple[int, Event]] = deque()
        self.ahead: list[LogInterval] = []
        self.held_since: int | None = None
        """Since when an event waits for what it needs."""


class LogReader:
    """The logs of all origins, for one set of wants."""

    def __init__(
        self, *, bytes_max: int, hold_us: int, given_up: dict[str, None] | None = None
    ) -> None:
        """`given_up`: origins that were waited for in vain, as all readers of a home know them."""
        self.streams: dict[str, _Stream] = {}
        self.bytes = 0
        self.look: dict[str, None] = {}
        """Origins of which something may be missing."""
        self._busy: dict[str, None] = {}
        """Origins of which something may be given on."""
        self._bytes_max = bytes_max
        self._hold_us = hold_us
        self._given_up = {} if given_up is None else given_up

    @property
    def vector(self) -> dict[str, Position]:
        """How far it has come."""
        return {origin: stream.cursor for origin, stream in self.streams.items()}

    def begin(self, origin: str, cursor: Position) -> None:
        """Read an origin's log from a position on."""
        stream = self.streams.get(origin)
        if stream is not None:
            self.bytes -= _held(stream)
        self.streams[origin] = _Stream(cursor)
        self._touch(origin)

    def _touch(self, origin: str) -> None:
        self.look[origin] = self._busy[origin] = None

    def doubt(self) -> None:
        """Trust no flow until wants are known to stand again."""
        for stream in self.streams.values():
            stream.proven = None
            self.bytes -= sum(one.size for one in stream.ahead)
            stream.ahead.clear()

    def prove(self, origin: str, start: Position) -> None:
        """Trust flows behind a position: wants stand on all the way."""
        stream = self.streams[origin]
        stream.proven = start
        stream.known = max(stream.known, start)
        self._touch(origin)

    def reaches(self, origin: str, upto: Position) -> None:
        """Note that a log reaches at least so far."""
        stream = self.streams.get(origin)
        if stream is not None and upto > stream.known:
            stream.known = upto
            self._touch(origin)

    def take(self, origin: str, interval: LogInterval, *, proven: bool = False) -> None:
        """Take an interval; `proven`: the log itself gave it, by this reader's own filters."""
        stream = self.streams.get(origin)
        if stream is None:
            return
        self._touch(origin)
        stream.known = max(stream.known, interval.upto)
        if not proven:
            if stream.proven is None:
                return
            interval = interval.beyond(stream.proven)
        interval = interval.beyond(stream.taken)
        if interval.upto <= stream.taken or interval.upto < interval.after:
            return
        chains = interval.after <= stream.taken
        if not (chains and not stream.line) and self.bytes + interval.size > self._bytes_max:
            return  # no room: it is fetched again; but what goes on at once needs none
        if not chains:
            stream.ahead.append(interval)
            stream.ahead.sort(key=lambda one: one.after)
            self.bytes += interval.size
            return
        self._given_up.pop(origin, None)
        self._chain(stream, interval)
        while stream.ahead and stream.ahead[0].after <= stream.taken:
            waited = stream.ahead.pop(0)
            self.bytes -= waited.size
            rest = waited.beyond(stream.taken)
            if rest.upto > stream.taken:
                self._chain(stream, rest)

    def _chain(self, stream: _Stream, interval: LogInterval) -> None:
        stream.line.extend(interval.events)
        stream.taken = interval.upto
        self.bytes += interval.size

    def skip(self, origin: str, upto: Position) -> LogInterval | None:
        """Move over what the log no longer has; give what is lost, if it is."""
        stream = self.streams[origin]
        if upto <= stream.taken or stream.line:
            return None
        lost = LogInterval(stream.taken, upto)
        self.bytes -= _held(stream)
        proven = stream.proven
        known = max(stream.known, upto)
        self.streams[origin] = stream = _Stream(upto)
        stream.proven, stream.known = proven, known
        self._touch(origin)
        return lost

    def missing(self, origin: str) -> tuple[Position, Position] | None:
        """Say which interval to fetch next; None if nothing is missing, or there is no room."""
        stream = self.streams[origin]
        if self.bytes >= self._bytes_max:
            if stream.line:
                self.look[origin] = None
                return None
            # What lies beyond the gap must not keep the gap from being filled.
            self.bytes -= sum(one.size for one in stream.ahead)
            stream.ahead.clear()
        if stream.ahead:
            return stream.taken, stream.ahead[0].after
        return (stream.taken, stream.known) if stream.known > stream.taken else None

    def release(self, now: int) -> list[tuple[str, LogInterval]]:
        """Give what may be given on, in an order in which everything that is needed comes first."""
        out: list[tuple[str, LogInterval]] = []
        vector = self.vector if self._busy else {}
        again = True
        while again:
            again = False
            for origin in list(self._busy):
                stream = self.streams[origin]
                found = self._ready(stream, vector, now)
                if not stream.line:
                    del self._busy[origin]
                if found is not None:
                    vector[origin] = found.upto
                    out.append((origin, found))
                    again = True
        return out

    def _ready(self, stream: _Stream, vector: Vector, now: int) -> LogInterval | None:
        ready: list[tuple[int, Event]] = []
        after = stream.cursor
        while stream.line:
            number, event = stream.line[0]
            lacking = self._lacking(vector, event)
            if lacking:
                if stream.held_since is None:
                    stream.held_since = now
                if now < stream.held_since + self._hold_us:
                    break
                self._given_up.update(dict.fromkeys(lacking))
                while len(self._given_up) > ORIGINS_MAX:
                    del self._given_up[next(iter(self._given_up))]
            stream.held_since = None
            stream.line.popleft()
            self.bytes -= event.size
            ready.append((number, event))
        stream.cursor = stream.taken
        if stream.line:
            stream.cursor = max(after, Position(stream.taken.epoch, stream.line[0][0] - 1))
        if stream.cursor == after and not ready:
            return None
        return LogInterval(after, stream.cursor, tuple(ready))

    def _lacking(self, vector: Vector, event: Event) -> list[str]:
        """Name the origins that an event waits for: once in vain, and no more until they speak."""
        if covers(vector, event.needs):
            return []
        return [
            origin
            for origin, at in event.needs
            if origin not in self._given_up and not covers(vector, ((origin, at),))
        ]

    def deadline(self) -> int | None:
        """When an event has waited long enough for what it needs."""
        times = [one.held_since for one in self.streams.values() if one.held_since is not None]
        return min(times) + self._hold_us if times else None


def _held(stream: _Stream) -> int:
    line = sum(event.size for _, event in stream.line)
    return line + sum(interval.size for interval in stream.ahead)
