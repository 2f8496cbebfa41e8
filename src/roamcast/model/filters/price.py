"""The price of a question, known before it runs: an upper bound on the work it causes.

The unit is a *step*: one term looked at for one context, in compiled code. The bound comes from the
filter's normal form and from counts that an index of the live contexts gives in a few microseconds,
so what is too dear can be refused with its price (docs/queries.md).

A conjunction touches the contexts of its most selective term, a disjunction those of all its
terms together, and never more than there are. What no index answers costs every context. The plan
by which a question runs follows the same numbers, so it cannot cost more than they say.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from roamcast.model.filters import syntax
from roamcast.model.filters.atoms import (
    All,
    Any,
    Atom,
    Box,
    Normal,
    Presence,
    Residual,
    Values,
    conjunctions,
)

FEW: Final = 32
"""Contexts that are as well looked at as counted by another index."""

REFERENCE_STEPS: Final = 64
"""Steps of a term that the reference evaluator decides: about 3 µs against 50 ns."""

SHAPE_STEPS: Final = 8
VERTICES_A_STEP: Final = 64
"""A prepared shape is searched, not walked; its vertices still weigh a little."""

ROWS_MAX: Final = 32
"""Rows of one filter in a compiled set; `matching.filter_set` has the same bound."""

VERTEX_BYTES: Final = 16
LIKE_STEPS: Final = 4
BYTES_A_STEP: Final = 32


class IndexCounts(Protocol):
    """What an index of live contexts knows without looking at them."""

    def __len__(self) -> int:
        """How many contexts there are."""

    def bound(self, atom: Atom) -> int | None:
        """At most how many contexts satisfy a term; None if no index can name them."""


class Price(msgspec.Struct, frozen=True):
    """What a question may cost."""

    terms: int
    """Terms of the normal form; each value of a list counts."""
    unindexed: int
    """Terms that no index answers."""
    contexts: int
    """Contexts that it may touch."""
    steps: int
    """Steps it may take: its terms, and twice the contexts by the steps of all terms.

    Twice, because a page is first looked for in the order of vids, as far as that costs no more
    than the index, and a nearest neighbour first in a window around the point.
    """


def price(normal: Normal, statistics: IndexCounts) -> Price:
    """Return the price of a question over the contexts that the statistics describe."""
    terms = terms_of(normal)
    contexts = touched(normal, statistics)
    work = terms + 2 * contexts * steps(normal)
    return Price(terms, unindexed(normal, statistics), contexts, work)


def unindexed(normal: Normal, statistics: IndexCounts) -> int:
    """Count the terms that no index answers."""
    return sum(statistics.bound(atom) is None for atom in _atoms(normal))


def terms_of(normal: Normal) -> int:
    """Count the terms of a normal form; each value of a list counts."""
    return sum(_size(atom) for atom in _atoms(normal))


def standing(normal: Normal) -> int:
    """Return the steps that a standing filter may cost every update (0095).

    A term that the index answers counts as one in each row of the disjunctive normal form; any
    other by its weight. A filter of too many rows is left to the reference evaluator as a whole.
    """
    rows = conjunctions(normal, ROWS_MAX)
    if rows is None:
        return REFERENCE_STEPS * terms_of(normal)
    return max(1, sum(_size(atom) * weight(atom) for row in rows for atom in row))


def touched(normal: Normal, statistics: IndexCounts) -> int:
    """Return at most how many contexts a plan by index looks at."""
    every = len(statistics)
    found = bound(normal, statistics) if every else 0
    return every if found is None else found


def bound(normal: Normal, statistics: IndexCounts) -> int | None:
    """Return at most how many contexts the chosen index names; None if none can."""
    if isinstance(normal, All):
        return best(normal.parts, statistics)[1]
    if not isinstance(normal, Any):
        return statistics.bound(normal)
    total, limit = 0, len(statistics)
    for part in normal.parts:
        found = bound(part, statistics)
        if found is None or total + found >= limit:
            return None
        total += found
    return total


def best(parts: Sequence[Normal], statistics: IndexCounts) -> tuple[int, int | None]:
    """Return which part of a conjunction names the fewest contexts, and how many.

    Single values first: if one names FEW contexts, the other parts are not asked.
    """
    chosen, least = 0, None
    for at in sorted(range(len(parts)), key=lambda at: _order(parts[at])):
        found = bound(parts[at], statistics)
        if found is not None and (least is None or found < least):
            chosen, least = at, found
            if found <= FEW:
                break
    return chosen, least


def _order(part: Normal) -> int:
    if isinstance(part, Values):
        interval = part.intervals[0]
        return 0 if len(part.intervals) == 1 and interval.low == interval.high else 1
    return 3 if isinstance(part, All | Any) else 2


def steps(normal: Normal) -> int:
    """Return the steps of looking at one context: every term once, at worst."""
    if isinstance(normal, Values):
        return 1
    if isinstance(normal, All | Any):
        return max(1, sum(map(steps, normal.parts)))
    return weight(normal)


def weight(atom: Atom) -> int:
    """Return the steps of one term for one context."""
    if not isinstance(atom, Residual):
        return 1
    match atom.expression:
        case syntax.Like(syntax.Property(), pattern):
            return LIKE_STEPS + len(pattern) // BYTES_A_STEP
        case syntax.Spatial(_, shape):
            return SHAPE_STEPS + len(shape) // (VERTEX_BYTES * VERTICES_A_STEP)
        case syntax.Near():
            return SHAPE_STEPS
        case _:
            return REFERENCE_STEPS


def _size(atom: Atom) -> int:
    return max(1, len(atom.intervals)) if isinstance(atom, Values) else 1


def _atoms(normal: Normal) -> list[Atom]:
    if isinstance(normal, All | Any):
        return [atom for part in normal.parts for atom in _atoms(part)]
    assert isinstance(normal, Values | Presence | Box | Residual)
    return [normal]
