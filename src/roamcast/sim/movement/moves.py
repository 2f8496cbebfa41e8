"""Moves, and the feed through which a driver pulls them."""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Point = tuple[float, float]


class Move(NamedTuple):
    """From `time_us` on, `person` is at this place or at this point (metres or WGS84)."""

    time_us: int
    person: int
    place: str | None
    point: Point | None = None


class MoveFeed:
    """A stream of moves with a deadline, pulled one move at a time; it reads one move ahead."""

    def __init__(self, moves: Iterable[Move]) -> None:
        self._moves = iter(moves)
        self._next = next(self._moves, None)

    def deadline(self) -> int | None:
        """Return the time of the next move, or None when there are no more."""
        return None if self._next is None else self._next.time_us

    def pull(self) -> Move:
        """Return the next move; `deadline` must not be None."""
        move = self._next
        assert move is not None, "no move is left"
        self._next = next(self._moves, None)
        return move

    def until(self, end_us: int) -> Iterator[Move]:
        """Yield the moves up to and including a moment."""
        while self._next is not None and self._next.time_us <= end_us:
            yield self.pull()


def merged(*streams: Iterable[Move]) -> Iterator[Move]:
    """Interleave streams by time, then person; each must be in time order, persons distinct."""
    return heapq.merge(*streams, key=lambda move: (move.time_us, move.person))
