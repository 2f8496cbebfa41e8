"""What is a filter made of, once every NOT is gone? Atoms, joined by All and Any.

An atom is *true* or *not true* of a context: in this form unknown counts as not true, which is
exact because nothing is negated any more (docs/filters.md). Matching, covering, expiration and
the canonical text all work on this form.
"""

from collections.abc import Iterable

import msgspec

from roamcast.model.filters.syntax import Expression
from roamcast.model.filters.values import Intervals, Kind

T_R = "t_r"
T_D = "t_d"
"""Pseudo-properties: when the context began and ended; reserved, so no attribute has the name."""


class Values(msgspec.Struct, frozen=True, tag="values"):
    """The property is of this kind and its value is in the set.

    A string that reads as an RFC 3339 timestamp counts as an instant too, as in `cql2`.
    `place` and `vid` are strings; t_r and t_d instants, with t_d = FOREVER while it lasts.
    """

    property: str
    kind: Kind
    intervals: Intervals


class Presence(msgspec.Struct, frozen=True, tag="presence"):
    """The property has a value, or has none (IS NOT NULL, IS NULL)."""

    property: str
    present: bool


class Box(msgspec.Struct, frozen=True, tag="box"):
    """The context has a point, and it lies in the box or on its border."""

    west: float
    south: float
    east: float
    north: float


class Residual(msgspec.Struct, frozen=True, tag="residual"):
    """Anything else: the reference evaluator gives exactly `wanted` for the expression.

    `envelope`, where there is one, holds every point for which that can be so.
    """

    expression: Expression
    wanted: bool
    envelope: Box | None = None


Atom = Values | Presence | Box | Residual


class All(msgspec.Struct, frozen=True, tag="all"):
    """True if every part is; with no part, always."""

    parts: "tuple[Normal, ...]"


class Any(msgspec.Struct, frozen=True, tag="any"):
    """True if some part is; with no part, never."""

    parts: "tuple[Normal, ...]"


Normal = Atom | All | Any
Conjunction = tuple[Atom, ...]

TRUE = All(())
FALSE = Any(())


def conjunctions(normal: Normal, limit: int) -> list[Conjunction] | None:
    """Take a filter apart into conjunctions of which one must hold; None if more than `limit`."""
    if isinstance(normal, Any):
        found: list[Conjunction] = []
        for part in normal.parts:
            inner = conjunctions(part, limit - len(found))
            if inner is None:
                return None
            found += inner
        return found if len(found) <= limit else None
    if isinstance(normal, All):
        return _product((conjunctions(part, limit) for part in normal.parts), limit)
    return [(normal,)] if limit >= 1 else None


def _product(factors: Iterable[list[Conjunction] | None], limit: int) -> list[Conjunction] | None:
    total: list[Conjunction] = [()]
    for factor in factors:
        if factor is None or len(total) * len(factor) > limit:
            return None
        total = [left + right for left in total for right in factor]
    return total
