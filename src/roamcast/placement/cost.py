"""The cost of a given placement, and the importance of each filter.

Importance is CBM's I(v) (sections 6.2 and 6.3) for any number of children and any prices. It is
exactly what adding the filter saves, or what removing it loses (decision 0010).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.model.kernels import kernel
from roamcast.placement.problem import Problem
from roamcast.placement.tree import Flags, Floats


@dataclass(frozen=True, eq=False)
class PlacementState:
    """Flows and link weights under a placement, by position.

    `entering[v]` is f(A(v)), the flow into v. `reach[v]` is the weight of links under v down to the
    next filters, Σ z(c) over v's children. `asked[v]` is the same times each child's flow,
    Σ f(c) z(c), and `saved[v]` is what a filter at v saves without its price. It is a sum of
    differences, so that it is exactly 0 where nothing is saved, whatever the flows' rounding.
    """

    filters: Flags
    entering: Floats
    reach: Floats
    asked: Floats
    saved: Floats

    def importance(self, problem: Problem) -> Floats:
        """Return I(v), and -∞ at leaves, where a filter would do nothing."""
        worth = self.saved - problem.price
        worth[problem.tree.size == 1] = -np.inf
        return worth


def stand(problem: Problem, filters: Flags) -> PlacementState:
    """Compute flows and reaches under a placement, in one pass down and one up."""
    tree = problem.tree
    entering, reach, asked, saved = _stand(tree.up, problem.flow, problem.link, filters)
    return PlacementState(filters, entering, reach, asked, saved)


def drop_idle(problem: Problem, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop the filters (ascending positions) that receive nothing that a child does not want.

    With fractional flows the sums of two ways to compute a cost round differently, and a search may
    prefer a filter that saves nothing (0012: a placement has the fewest filters).
    """
    tree = problem.tree
    used = _used(tree.up, tree.size, problem.flow, places)
    kept: NDArray[np.int64] = places[used]
    return kept


def carried(problem: Problem, filters: Iterable[int]) -> Floats:
    """Return the items carried into each vertex, by vertex number; into the root, none."""
    entering = stand(problem, problem.tree.flags(filters)).entering
    by_vertex: Floats = entering[problem.tree.position]
    return by_vertex


def cost(problem: Problem, filters: Iterable[int]) -> float:
    """Return the cost of a placement, given as vertex numbers."""
    return cost_of_flags(problem, problem.tree.flags(filters))


def cost_of_flags(problem: Problem, filters: Flags) -> float:
    """Return the cost of a placement, given as flags by position."""
    return float(_cost(problem.tree.up, problem.flow, problem.link, problem.price, filters))


def importance(problem: Problem, filters: Iterable[int]) -> Floats:
    """Return each vertex's importance under a placement, by vertex number."""
    worth = stand(problem, problem.tree.flags(filters)).importance(problem)
    by_vertex: Floats = worth[problem.tree.position]
    return by_vertex


@kernel
def _stand(up: Any, flow: Any, link: Any, filters: Any) -> Any:
    n = up.size
    entering = np.empty(n)
    reach = np.zeros(n)
    asked = np.zeros(n)
    saved = np.zeros(n)
    entering[0] = flow[0]
    for place in range(1, n):
        above = up[place]
        entering[place] = flow[place] if filters[above] else entering[above]
    for place in range(n - 1, 0, -1):
        above = up[place]
        through = link[place] if filters[place] else link[place] + reach[place]
        reach[above] += through
        asked[above] += through * flow[place]
        saved[above] += through * (entering[above] - flow[place])
    return entering, reach, asked, saved


@kernel
def _used(up: Any, size: Any, flow: Any, places: Any) -> Any:
    used = np.zeros(places.size, dtype=np.bool_)
    over = np.empty(places.size + 1, dtype=np.int64)  # the filters around the one looked at
    top = 0
    for index in range(places.size):
        here = places[index]
        while top > 0 and over[top - 1] + size[over[top - 1]] <= here:
            top -= 1
        entering = flow[0]
        if top > 0:
            walk = here
            while up[walk] != over[top - 1]:
                walk = up[walk]
            entering = flow[walk]
        child = here + 1
        while child < here + size[here] and not used[index]:
            used[index] = flow[child] < entering
            child += size[child]
        if used[index]:  # one that is dropped changes no flow below it
            over[top] = here
            top += 1
    return used


@kernel
def _cost(up: Any, flow: Any, link: Any, price: Any, filters: Any) -> float:
    n = up.size
    entering = np.empty(n)
    entering[0] = flow[0]
    total = price[0] if filters[0] else 0.0
    for place in range(1, n):
        above = up[place]
        entering[place] = flow[place] if filters[above] else entering[above]
        total += link[place] * entering[place]
        if filters[place]:
            total += price[place]
    return total
