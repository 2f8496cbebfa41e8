"""Tables of the temporal relations: each is one formula over the ends of two time spans.

The reference evaluator applies the formulas to numbers. The normal form reads the same tables as
sets of t_r and t_d, so the two cannot diverge.
"""

from functools import lru_cache
from typing import Any
from typing import Literal as Choice

from roamcast.model.filters.syntax import TimePredicate
from roamcast.model.time import FOREVER

Bound = tuple[Choice["t_r", "t_d"], Choice["<", "<=", ">", ">=", "="], int]
"""A comparison of an end of the lifetime with an instant."""

# TCC figure 4, with the errata: `excludes` is a disjunction, `during` is its formula. Each
# predicate is a disjunction of conjunctions over the interval [a, b] and the tolerance z.
FORMULAS: dict[str, list[list[tuple[Any, Any, str]]]] = {
    "before": [[("t_d", "<", "a")]],
    "after": [[("t_r", ">", "b")]],
    "starts_only": [[("t_r", ">=", "a"), ("t_r", "<=", "b"), ("t_d", ">=", "b")]],
    "ends_only": [[("t_r", "<=", "a"), ("t_d", ">=", "a"), ("t_d", "<=", "b")]],
    "start_by": [[("t_r", ">=", "a"), ("t_r", "<=", "b")]],
    "end_by": [[("t_d", ">=", "a"), ("t_d", "<=", "b")]],
    "overlaps": [[("t_r", "<=", "b"), ("t_d", ">=", "a")]],
    "excludes": [[("t_d", "<", "a")], [("t_r", ">", "b")]],
    "equals": [
        [("t_r", ">=", "a-z"), ("t_r", "<=", "a+z"), ("t_d", ">=", "b-z"), ("t_d", "<=", "b+z")]
    ],
    "during": [[("t_r", ">=", "a"), ("t_d", "<=", "b")]],
    "contains": [[("t_r", "<=", "a"), ("t_d", ">=", "b")]],
}

# CQL2's relations (OGC 21-065r2, clause 7.9) of [s, e] to [a, b], as `cql2` evaluates them.
RELATIONS: dict[str, list[list[tuple[str, str, str]]]] = {
    "t_after": [[("s", ">", "b")]],
    "t_before": [[("e", "<", "a")]],
    "t_contains": [[("s", "<", "a"), ("e", ">", "b")]],
    "t_disjoint": [[("e", "<", "a")], [("s", ">", "b")]],
    "t_during": [[("s", ">", "a"), ("e", "<", "b")]],
    "t_equals": [[("s", "=", "a"), ("e", "=", "b")]],
    "t_finishedby": [[("s", "<", "a"), ("e", "=", "b")]],
    "t_finishes": [[("s", ">", "a"), ("e", "=", "b")]],
    "t_intersects": [[("s", "<=", "b"), ("e", ">=", "a")]],
    "t_meets": [[("e", "=", "a")]],
    "t_metby": [[("s", "=", "b")]],
    "t_overlappedby": [[("s", ">", "a"), ("s", "<", "b"), ("e", ">", "b")]],
    "t_overlaps": [[("s", "<", "a"), ("e", ">", "a"), ("e", "<", "b")]],
    "t_startedby": [[("s", "=", "a"), ("e", ">", "b")]],
    "t_starts": [[("s", "=", "a"), ("e", "<", "b")]],
}

SPELLINGS = {
    "t_finishedby": "t_finishedBy",
    "t_metby": "t_metBy",
    "t_overlappedby": "t_overlappedBy",
    "t_startedby": "t_startedBy",
}
"""The standard's spelling of names that are not all lower case."""


@lru_cache(maxsize=4096)  # the same predicate is evaluated for context after context
def formula(predicate: TimePredicate) -> tuple[tuple[Bound, ...], ...]:
    """Return a TCC predicate as a disjunction of conjunctions of bounds."""
    a, b, z = predicate.span.start, predicate.span.end, predicate.tolerance
    moment = {
        "a": a,
        "b": b,
        "a-z": _shift(a, -z),
        "a+z": _shift(a, z),
        "b-z": _shift(b, -z),
        "b+z": _shift(b, z),
    }
    return tuple(
        tuple((end, op, moment[bound]) for end, op, bound in together)
        for together in FORMULAS[predicate.name]
    )


def compare(left: int, op: str, right: int) -> bool:
    """Compare two instants."""
    match op:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case _:
            return left == right


def related(op: str, left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Return whether one of CQL2's relations holds between two time spans."""
    moment = {"s": left[0], "e": left[1], "a": right[0], "b": right[1]}
    return any(
        all(compare(moment[x], comparator, moment[y]) for x, comparator, y in together)
        for together in RELATIONS[op]
    )


def lived(predicate: TimePredicate, t_r: int, t_d: int) -> bool:
    """Return whether a lifetime satisfies a TCC predicate; t_d is FOREVER while it is open."""
    for together in formula(predicate):
        for end, op, bound in together:
            if not compare(t_r if end == "t_r" else t_d, op, bound):
                break
        else:
            return True
    return False


def _shift(moment: int, by: int) -> int:
    """Shift an instant; an unbounded end stays unbounded."""
    if moment in (FOREVER, -FOREVER - 1):
        return moment
    return max(-FOREVER - 1, min(FOREVER, moment + by))
