"""The cheapest placement: exact, for any tree and any prices, with or without a limit."""

from dataclasses import dataclass

import numpy as np

from roamcast.errors import LimitError, TreeError
from roamcast.placement._bounds import candidates, paying, survey
from roamcast.placement._limited import solve_limited
from roamcast.placement._sparse import Sparse, cost_of_few, sparse
from roamcast.placement._unlimited import bits_needed, solve_unlimited
from roamcast.placement.cost import cost_of_flags, drop_idle
from roamcast.placement.problem import Problem
from roamcast.placement.tree import Flags, Floats

BOUND_FROM = 1 << 12
"""Vertices that pay × filters from which computing the bound of 0011 costs less than it saves."""

UNLIMITED_MAX = 1 << 31
"""Maximum decisions stored without a limit on filters, a byte each."""


@dataclass(frozen=True)
class Placement:
    """The vertices that filter, ascending, and the resulting cost."""

    filters: tuple[int, ...]
    cost: float


def optimal(problem: Problem, limit: int | None = None) -> Placement:
    """Return the cheapest placement of at most `limit` filters (of any number if none is given).

    Of equally cheap placements, the one with the fewest filters. Remaining ties are broken by
    shapes and flows, by vertex number only between otherwise identical vertices (0012).
    """
    return optimal_from(problem, limit, None)[0]


def optimal_from(
    problem: Problem, limit: int | None, guess: float | None
) -> tuple[Placement, float | None]:
    """Do the same with a guess at the least solo saving; also return the one found."""
    if limit is not None and limit < 0:
        raise TreeError(f"the number of filters is {limit}: it must be at least 0")
    if limit is not None:
        limit = min(limit, problem.tree.vertices)
    most, likely = survey(problem, limit, guess)
    if limit is None or limit >= most:
        folded = sparse(problem, paying(problem))
        return _placement(problem, folded, _unlimited(folded)), None
    least = None
    if limit > 0 and most * (limit + 1) > BOUND_FROM:
        places, least = candidates(problem, limit, most, guess, likely)
    else:
        places = paying(problem)
    folded = sparse(problem, places)
    _, chosen = solve_limited(folded, limit)
    return _placement(problem, folded, chosen), least


def curve(problem: Problem, limit: int | None = None) -> Floats:
    """Return the least cost with at most 0, 1, 2 … filters, up to `limit`, in one run.

    Without a limit it ends where further filters change nothing.
    """
    folded = sparse(problem, paying(problem))
    most = folded.up.size
    costs, _ = solve_limited(folded, most if limit is None else min(limit, most))
    if limit is not None and limit > most:
        costs = np.concatenate((costs, np.full(limit - most, costs[-1])))
    return costs


def worthwhile(costs: Floats, filter_cost: float) -> int:
    """Return the number of filters k with the least cost + filter_cost · k."""
    return int(np.argmin(costs + filter_cost * np.arange(costs.size)))


def filled(problem: Problem, placement: Placement, limit: int) -> Placement:
    """Use all `limit` filters, as far as there are inner vertices, where more cost nothing.

    An optimal placement has as few filters as possible; this adds the rest from the root down.
    """
    flags = problem.tree.flags(placement.filters)
    spare = np.flatnonzero(problem.tree.inner() & ~flags)[: max(0, limit - len(placement.filters))]
    flags[spare] = True
    total = cost_of_flags(problem, flags)
    assert total <= placement.cost or np.any(problem.price > 0)
    return Placement(problem.tree.numbers(np.flatnonzero(flags)), total)


def _unlimited(folded: Sparse) -> Flags:
    needed = bits_needed(folded)
    if needed > UNLIMITED_MAX:
        raise LimitError(
            f"the exact placement among {folded.up.size} vertices that pay keeps {needed}"
            f" decisions; the limit is {UNLIMITED_MAX}: use the heuristic"
        )
    return solve_unlimited(folded)[1]


def _placement(problem: Problem, folded: Sparse, chosen: Flags) -> Placement:
    places = drop_idle(problem, np.sort(folded.place[chosen]))
    # Summed again from the placement itself, so the cost does not inherit the tables' rounding.
    return Placement(problem.tree.numbers(places), cost_of_few(problem, places))
