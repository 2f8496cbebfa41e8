"""Vectors: how far a consumer has come in the log of each origin.

A pure value. Merging is commutative, associative and idempotent. Positions are compared within one
origin only: an epoch names a life of that origin's log, and a newer log begins above any older.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from roamcast.model.wire import Count
from roamcast.overlay.links.messages import NodeName

ORIGINS_MAX: Final = 10_000
"""Origins of one vector."""


LIFE_NUMBERS: Final = 2**30
"""Each life of a node gives numbers from the next multiple on, or from a later one (0431)."""


class Position(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A place in an origin's log: everything up to this number."""

    epoch: Count
    number: Count


Vector = Mapping[str, Position]
"""Origins → positions."""

Pairs = tuple[tuple[NodeName, Position], ...]
"""A vector as it travels."""


def published(position: Position) -> bool:
    """Return whether a log that reaches so far has, or had, an event (0431)."""
    return position.number % LIFE_NUMBERS > 0


def numbers_between(after: Position, upto: Position) -> int | None:
    """Give how many numbers lie in (after, upto]; None if not all are of one life of the node."""
    one_life = after.number // LIFE_NUMBERS == upto.number // LIFE_NUMBERS
    known = one_life and after.epoch == upto.epoch and after <= upto
    return upto.number - after.number if known else None


def merge(*vectors: Vector) -> dict[str, Position]:
    """Give the furthest position of each origin."""
    found: dict[str, Position] = {}
    for vector in vectors:
        for origin, position in vector.items():
            if origin not in found or position > found[origin]:
                found[origin] = position
    return found


def covers(vector: Vector, needs: Iterable[tuple[str, Position]]) -> bool:
    """Return whether a vector has come at least as far as each of these."""
    return all(origin in vector and vector[origin] >= at for origin, at in needs)


def pairs(vector: Vector) -> Pairs:
    """Give a vector as it travels: in the order of its origins."""
    return tuple(sorted(vector.items()))
