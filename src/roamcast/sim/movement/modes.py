"""Movement modes: AMS's transition matrices between destinations.

For the place where a person is, a mode gives the probability of each next destination. `Matrix` is
the general form. With 1,000 people and 600 places, that would be 1,000 large matrices of the same
structure; `Office` and `Gather` have that structure and compute rows on request.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.errors import LimitError, PlaceError

STATES_MAX = 4096
"""Maximum states of a dense matrix: 128 MB."""

Row = dict[int, float]
"""Destination → probability; missing means 0."""


class MovementMode(Protocol):
    """A transition matrix for each person; places by number."""

    def goal(self, person: int, here: int, unit: float, /) -> int:
        """Choose the next destination with a number drawn from [0, 1)."""

    def row(self, person: int, here: int, /) -> Row:
        """Return the probabilities from which `goal` chooses."""


class Matrix:
    """The paper's general form: a row of probabilities per place, the same for all people."""

    def __init__(self, places: Sequence[int], rows: npt.ArrayLike) -> None:
        matrix = np.asarray(rows, dtype=np.float64)
        if len(places) > STATES_MAX:
            raise LimitError(f"a mode has at most {STATES_MAX} places")
        if matrix.shape != (len(places), len(places)):
            raise PlaceError("a mode has a row and a column for each of its places")
        if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
            raise PlaceError("a mode's probabilities are numbers of at least 0")
        if not np.allclose(matrix.sum(axis=1), 1.0):
            raise PlaceError("each row of a mode sums to 1")
        self._places = list(places)
        self._at = {place: index for index, place in enumerate(places)}
        self._matrix = matrix
        self._sums = [np.cumsum(row).tolist() for row in matrix]
        # The last destination with a positive probability gets what rounding leaves.
        self._last = [int(np.flatnonzero(row)[-1]) for row in matrix]

    def goal(self, _person: int, here: int, unit: float, /) -> int:
        """Choose by the row of `here`."""
        index = self._index(here)
        chosen = bisect_right(self._sums[index], unit)
        return self._places[min(chosen, self._last[index])]

    def row(self, _person: int, here: int, /) -> Row:
        """Return the row of `here`."""
        row = self._matrix[self._index(here)].tolist()
        return {place: p for place, p in zip(self._places, row, strict=True) if p}

    def _index(self, here: int) -> int:
        index = self._at.get(here)
        if index is None:
            raise PlaceError(f"place number {here} is not in this mode's matrix")
        return index


class DestinationPool(msgspec.Struct, frozen=True):
    """Destinations with weights, shared by many people."""

    places: tuple[int, ...]
    weights: tuple[float, ...]


class Office:
    """From every place: probability `stay` for one's own office, the rest over one's pool."""

    def __init__(
        self,
        offices: Sequence[int],
        pools: Sequence[DestinationPool],
        pool_of: Sequence[int] | None = None,
        stay: float = 0.8,
    ) -> None:
        if not 0 <= stay <= 1:
            raise PlaceError("the probability of the office lies between 0 and 1")
        self.stay = stay
        self.offices = list(offices)
        self._pool_of = list(pool_of) if pool_of is not None else [0] * len(self.offices)
        self._pools = list(pools)
        self._sums = [[0.0, *np.cumsum(pool.weights).tolist()] for pool in pools]
        self._at = [{place: i for i, place in enumerate(pool.places)} for pool in pools]
        for pool in pools:
            if len(pool.places) < 2 or len(set(pool.places)) < len(pool.places):
                raise PlaceError("a pool has two or more distinct places")
            if len(pool.weights) != len(pool.places) or min(pool.weights) <= 0:
                raise PlaceError("a pool has a weight above 0 for each of its places")

    def goal(self, person: int, _here: int, unit: float, /) -> int:
        """Choose the office, or somewhere in the pool."""
        office = self.offices[person]
        if unit < self.stay:
            return office
        which = self._pool_of[person]
        sums, pool = self._sums[which], self._pools[which]
        total, own = sums[-1], self._at[which].get(office)
        rest = (unit - self.stay) / (1.0 - self.stay)
        if own is None:
            aim = rest * total
        else:
            # Skip the office's own interval of the pool.
            aim = rest * (total - (sums[own + 1] - sums[own]))
            if aim >= sums[own]:
                aim += sums[own + 1] - sums[own]
        chosen = min(bisect_right(sums, aim) - 1, len(pool.places) - 1)
        if chosen == own:  # only by rounding, at the end of the pool
            chosen = own - 1 if own == len(pool.places) - 1 else own + 1
        return pool.places[chosen]

    def row(self, person: int, _here: int, /) -> Row:
        """Return the row, the same for every place."""
        office, pool = self.offices[person], self._pools[self._pool_of[person]]
        others = {
            place: weight
            for place, weight in zip(pool.places, pool.weights, strict=True)
            if place != office
        }
        total = sum(others.values())
        scaled = {place: (1 - self.stay) * weight / total for place, weight in others.items()}
        return {office: self.stay, **scaled}


class Gather:
    """Everybody goes to one place: a column of ones."""

    def __init__(self, place: int) -> None:
        self._place = place

    def goal(self, _person: int, _here: int, _unit: float, /) -> int:
        """Choose the one place."""
        return self._place

    def row(self, _person: int, _here: int, /) -> Row:
        """Return the row: the one place."""
        return {self._place: 1.0}
