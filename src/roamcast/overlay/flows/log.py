"""The log of one origin: what its producers publish, numbered and on disk, within bounds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from roamcast.channels.failover.epochs import SEATS_MAX
from roamcast.model.machine import Writes
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.flows.messages import BATCH_BYTES, Event, Flow
from roamcast.overlay.flows.vector import LIFE_NUMBERS, Position

PREFIX: Final = "flows/"
HEAD: Final = PREFIX + "head"
ENTRY: Final = PREFIX + "log/"
PIECE_BYTES: Final = 400_000
"""A large event is several values, for the store bounds them."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """Which log this is, and up to where it was trimmed."""

    epoch: int
    trimmed: int


class _Logged(msgspec.Struct, frozen=True, array_like=True):
    """An event on disk, with the time of its write by this node's clock."""

    at_us: int
    event: Event


class OriginLog:
    """Events by number. Only what is on disk is released, in the order of the numbers."""

    def __init__(self, *, age_us_max: int, bytes_max: int) -> None:
        self.epoch = 0
        self.upto = 0
        """Everything up to here is on disk, or was refused by it."""
        self.trimmed = 0
        """Nothing up to here is left."""
        self.bytes = 0
        self._last = 0
        self._age_us_max = age_us_max
        self._bytes_max = bytes_max
        self._entries: dict[int, _Logged] = {}
        self._open: dict[int, None] = {}
        """Numbers that wait for the disk."""
        self._leftover: dict[str, None] = {}
        """Keys of what was trimmed that may still be on disk."""
        self._adopted: dict[int, dict[str, bytes]] = {}
        self._numbers: dict[str, dict[tuple[int, int], int]] = {}
        """Producers → (life, number) → where it is in the log."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def position(self) -> Position:
        """How far the log reaches."""
        return Position(self.epoch, self.upto)

    def restore(self, stored: Mapping[str, bytes]) -> None:
        """Take up what is on disk."""
        if HEAD in stored:
            head = msgspec.msgpack.decode(stored[HEAD], type=_Head)
            self.epoch, self.trimmed = head.epoch, head.trimmed
        pieces: dict[int, list[bytes]] = {}
        for key in sorted(stored):
            if key.startswith(ENTRY):
                pieces.setdefault(int(key[len(ENTRY) :].partition("/")[0]), []).append(stored[key])
        self._last = self.trimmed
        for number, parts in sorted(pieces.items()):
            if number <= self.trimmed:  # the disk refused to delete it
                self._leftover.update((_key(number, one), None) for one in range(len(parts)))
                continue
            self._put(number, msgspec.msgpack.decode(b"".join(parts), type=_Logged))
            self._last = number
        self.upto = self._last

    def adopt(self, key: str, value: bytes) -> None:
        """Take up what another host of this node had on its disk."""
        if key == HEAD:
            head = msgspec.msgpack.decode(value, type=_Head)
            self.epoch, self.trimmed = head.epoch, max(self.trimmed, head.trimmed)
            return
        number = int(key[len(ENTRY) :].partition("/")[0])
        if number in self._entries or number <= self.trimmed:
            return
        pieces = self._adopted.setdefault(number, {})
        pieces[key] = value
        try:
            logged = msgspec.msgpack.decode(
                b"".join(pieces[one] for one in sorted(pieces)), type=_Logged
            )
        except msgspec.DecodeError:
            return  # the rest of it follows
        del self._adopted[number]
        self._put(number, logged)
        self._entries = dict(sorted(self._entries.items()))
        self._last = max(self._last, number)

    def begin(self, epoch: int) -> Writes:
        """Open the log in a life of its node: what to write before anybody hears of it.

        A log that is there goes on far ahead, for its last life may have been on another host that
        gave numbers of which this disk knows nothing (0431).
        """
        if not self.epoch:
            return ((HEAD, msgspec.msgpack.encode(_Head(epoch, 0))),)
        seconds = (epoch - self.epoch) // (SEATS_MAX * MICROSECONDS)
        life = max(self._last // LIFE_NUMBERS + 1, seconds)
        # A log that never had an event begins at the multiple itself: homes measure by that.
        self._last = self.upto = life * LIFE_NUMBERS + (self._last % LIFE_NUMBERS > 0)
        return ()

    def known(self, event: Event) -> int | None:
        """Say where a publication that was sent again is in the log."""
        return self._numbers.get(event.producer, {}).get((event.life, event.number))

    def released(self, number: int) -> bool:
        """Whether an event is on disk."""
        return number not in self._open

    def append(self, event: Event, now: int) -> tuple[int, Writes]:
        """Give an event its number; say what to write."""
        self._last += 1
        logged = _Logged(now, event)
        self._put(self._last, logged)
        self._open[self._last] = None
        whole = msgspec.msgpack.encode(logged)
        return self._last, _pieces(self._last, whole)

    def written(self, number: int) -> None:
        """Note that a number is on disk."""
        del self._open[number]

    def refused(self, number: int) -> None:
        """Note that the disk refused a number: it stays empty for ever."""
        del self._open[number]
        self._drop(number)

    def read(self, after: int, upto: int, wanted: Callable[[Event], bool]) -> Flow:
        """Give the first events in (after, upto] that are wanted, about as many as fit a batch."""
        start = max(self._vouched(after), self.trimmed)
        end = max(min(upto, self.upto), start)
        found: list[tuple[int, Event]] = []
        size = 0
        for number, event in self._between(start, end):
            if wanted(event):
                if found and size + event.size > BATCH_BYTES:
                    return Flow("", self.epoch, start, number - 1, tuple(found))
                found.append((number, event))
                size += event.size
        return Flow("", self.epoch, start, end, tuple(found))

    def _vouched(self, after: int) -> int:
        """Give a position up to which nothing is known to be missing, from this one on.

        Numbers beyond the last one of an earlier life were given by a host whose disk this is not:
        whoever had some of them may have missed others.
        """
        life = after // LIFE_NUMBERS
        if life >= self._last // LIFE_NUMBERS:
            return after
        begins, ends = life * LIFE_NUMBERS, (life + 1) * LIFE_NUMBERS
        own = (one for one in reversed(self._entries) if begins < one < ends)
        if after <= max(next(own, 0), begins + 1, self.trimmed):
            return after
        following = next((one for one in self._entries if one >= ends), self._last)
        return following // LIFE_NUMBERS * LIFE_NUMBERS

    def trim(self, now: int) -> Writes:
        """Forget what is too old, or too much; say what to write."""
        gone: list[int] = []
        bytes_left = self.bytes
        for number, logged in self._entries.items():  # in the order of their numbers
            old = logged.at_us + self._age_us_max <= now
            if number > self.upto or (not old and bytes_left <= self._bytes_max):
                break
            gone.append(number)
            bytes_left -= logged.event.size
        for number in gone:
            count = len(_pieces(number, msgspec.msgpack.encode(self._entries[number])))
            self._leftover.update((_key(number, piece), None) for piece in range(count))
            self._drop(number)
            self.trimmed = number
        if not self._leftover:
            return ()
        return (*((key, None) for key in self._leftover), self._head(self.trimmed))

    def forgotten(self, writes: Writes) -> None:
        """Note that what was trimmed is gone from the disk."""
        for key, _ in writes:
            self._leftover.pop(key, None)

    def oldest_us(self) -> int | None:
        """When the first event is too old."""
        first = next(iter(self._entries.values()), None)
        return None if first is None else first.at_us + self._age_us_max

    def _between(self, after: int, upto: int) -> Iterator[tuple[int, Event]]:
        if upto - after < len(self._entries):
            numbers = (number for number in range(after + 1, upto + 1) if number in self._entries)
        else:
            numbers = (number for number in self._entries if after < number <= upto)
        return ((number, self._entries[number].event) for number in numbers)

    def release(self) -> Flow | None:
        """Give what can go on since the last time: all that is on disk before what is not."""
        first_open = next(iter(self._open), self._last + 1)
        # Up to an event that is there: a restart may give a refused number at the end again.
        upto = next((one for one in reversed(self._entries) if one < first_open), 0)
        if upto <= self.upto:
            return None
        after, self.upto = self.upto, upto
        return Flow("", self.epoch, after, upto, tuple(self._between(after, upto)))

    def _put(self, number: int, logged: _Logged) -> None:
        event = logged.event
        self._entries[number] = logged
        self._numbers.setdefault(event.producer, {})[event.life, event.number] = number
        self.bytes += event.size

    def _drop(self, number: int) -> None:
        event = self._entries.pop(number).event
        self.bytes -= event.size
        numbers = self._numbers[event.producer]
        numbers.pop((event.life, event.number), None)
        if not numbers:
            del self._numbers[event.producer]

    def _head(self, trimmed: int) -> tuple[str, bytes]:
        return HEAD, msgspec.msgpack.encode(_Head(self.epoch, trimmed))


def _key(number: int, piece: int) -> str:
    return f"{ENTRY}{number:019}/{piece:02}"


def _pieces(number: int, whole: bytes) -> Writes:
    return tuple(
        (_key(number, piece), whole[at : at + PIECE_BYTES])
        for piece, at in enumerate(range(0, len(whole), PIECE_BYTES))
    )
