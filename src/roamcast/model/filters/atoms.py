"""The normal form of a filter: atoms joined by All and Any, without NOT.

An atom is *true* or *not true* of a context. Unknown counts as not true, which is exact because
nothing is negated (docs/filters.md). Matching, covering, expiration and the canonical text all work
on this form. Nodes remember their hash: normalising looks each of them up once for every level
above it. They are arrays in MessagePack: that is how filters are stored (decision 0145). A tree has
no cycles, so the collector of garbage need not look at the nodes of a hundred thousand filters.
"""

from collections.abc import Iterable

import msgspec

from roamcast.model.filters.syntax import Expression
from roamcast.model.filters.values import Intervals, Kind

T_R = "t_r"
T_D = "t_d"
"""Pseudo-properties: the context's begin and end. Reserved, so no attribute has these names."""


class Values(msgspec.Struct, frozen=True, cache_hash=True, tag="values", array_like=True, gc=False):
    """The property is of this kind and its value is in the set.

    A string that parses as an RFC 3339 timestamp is an instant as well (decision 0004). `place` and
    `vid` are strings; t_r and t_d are instants, with t_d = FOREVER while the context is open.
    """

    property: str
    kind: Kind
    intervals: Intervals


class Presence(msgspec.Struct, frozen=True, tag="presence", array_like=True, gc=False):
    """The property has a value, or has none (IS NOT NULL, IS NULL)."""

    property: str
    present: bool


class Box(msgspec.Struct, frozen=True, tag="box", array_like=True, gc=False):
    """The context has a point, and it lies in the box or on its border."""

    west: float
    south: float
    east: float
    north: float


class Residual(
    msgspec.Struct, frozen=True, cache_hash=True, tag="residual", array_like=True, gc=False
):
    """Any other predicate: true if the reference evaluator returns exactly `wanted` for it.

    `envelope`, if set, contains every point for which that is possible.
    """

    expression: Expression
    wanted: bool
    envelope: Box | None = None


Atom = Values | Presence | Box | Residual


class All(msgspec.Struct, frozen=True, cache_hash=True, tag="all", array_like=True, gc=False):
    """True if every part is; with no part, always."""

    parts: "tuple[Normal, ...]"


class Any(msgspec.Struct, frozen=True, cache_hash=True, tag="any", array_like=True, gc=False):
    """True if some part is; with no part, never."""

    parts: "tuple[Normal, ...]"


Normal = Atom | All | Any
Conjunction = tuple[Atom, ...]

_JOINED = frozenset({All, Any})

TRUE = All(())
FALSE = Any(())


def conjunctions(normal: Normal, limit: int) -> list[Conjunction] | None:
    """Return the disjunctive normal form; None if it has more than `limit` conjunctions."""
    if isinstance(normal, Any):
        found: list[Conjunction] = []
        for part in normal.parts:
            inner = conjunctions(part, limit - len(found))
            if inner is None:
                return None
            found += inner
        return found if len(found) <= limit else None
    if isinstance(normal, All):
        if limit >= 1 and _JOINED.isdisjoint(map(type, normal.parts)):
            return [normal.parts]  # type: ignore[list-item] # all of them are atoms
        return _product((conjunctions(part, limit) for part in normal.parts), limit)
    return [(normal,)] if limit >= 1 else None


def _product(factors: Iterable[list[Conjunction] | None], limit: int) -> list[Conjunction] | None:
    total: list[Conjunction] = [()]
    common: list[Atom] = []  # atoms of every conjunction, joined once: each join is a copy
    for factor in factors:
        if factor is None or len(total) * len(factor) > limit:
            return None
        if len(factor) == 1:
            common += factor[0]
        else:
            total = [left + right for left in total for right in factor]
    if limit < 1:
        return None
    shared = tuple(common)
    return [left + shared for left in total]
