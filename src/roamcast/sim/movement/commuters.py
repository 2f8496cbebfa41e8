"""CBM's commuters (7.1.4): users move from the left half of the tree to the right, pair by pair.

At time 0 users on the left want each item with probability mean + skew, those on the right with
mean − skew. At time i the left's user i has changed places with the right's user i (the paper
counts from 1): "probabilistically speaking, we model the movement of users from the left to the
right (e.g. from work to home)". After as many steps as there are pairs, all have moved.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from roamcast.errors import LimitError, PlaceError
from roamcast.sim.movement.draws import Floats
from roamcast.sim.movement.moves import Move

CBM_MEAN = 0.3


def commuters(left: Sequence[str], right: Sequence[str], period_us: int) -> Iterator[Move]:
    """Yield everybody's start (left first), then one pair per period that changes places."""
    if len(left) != len(right) or not left:
        raise PlaceError("commuters need as many places on the left as on the right")
    if period_us < 1:
        raise LimitError("a period is above 0")
    return _commute(left, right, period_us)


def _commute(left: Sequence[str], right: Sequence[str], period_us: int) -> Iterator[Move]:
    pairs = len(left)
    for person, place in enumerate([*left, *right]):
        yield Move(0, person, place)
    for pair in range(pairs):
        time_us = (pair + 1) * period_us
        yield Move(time_us, pair, right[pair])
        yield Move(time_us, pairs + pair, left[pair])


def wishes(users: int, step: int, skew: float, mean: float = CBM_MEAN) -> Floats:
    """Return the probability with which each leaf's user wants an item, at time `step`.

    By leaf, not by person: leaf i of the left half has mean + skew before time i + 1 and
    mean − skew from then on, the right half the reverse.
    """
    if users < 2 or users % 2 or not step >= 0:
        raise LimitError("commuters are an even number of users, and time is not negative")
    if not (mean - abs(skew) >= 0 and mean + abs(skew) <= 1):
        raise LimitError("mean ± skew must be probabilities")
    moved = np.arange(users // 2) < step
    left = np.where(moved, mean - skew, mean + skew)
    return np.concatenate([left, 2 * mean - left])
