"""The cost of a given placement, and the importance of each filter.

Importance is CBM's I(v) (sections 6.2 and 6.3) for any number of children and any prices. It is
exactly what adding the filter saves, or what removing it loses (decision 0010).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roamcast.model.kernels import kernel
from roamcast.placement.problem import Problem
from roamcast.placement.tree import Flags, Floats


@dataclass(frozen=True, eq=False)
class PlacementState:
    """Flows and link weights under a placement, by position.

    `entering[v]` is f(A(v)), the flow into v. `reach[v]` is the weight of links under v down to the
    next filters, Σ z(c) over v's children. `asked[v]` is the same times each child's flow,
    Σ f(c) z(c).
    """

    filters: Flags
    entering: Floats
    reach: Floats
    asked: Floats

    def importance(self, problem: Problem) -> Floats:
        """Return I(v), and -∞ at leaves, where a filter would do nothing."""
        worth = self.entering * self.reach - self.asked - problem.price
        worth[problem.tree.size == 1] = -np.inf
        return worth


def stand(problem: Problem, filters: Flags) -> PlacementState:
    """Compute flows and reaches under a placement, in one pass down and one up."""
    tree = problem.tree
    entering, reach, asked = _stand(tree.up, problem.flow, problem.link, filters)
    return PlacementState(filters, entering, reach, asked)


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
    entering[0] = flow[0]
    for place in range(1, n):
        above = up[place]
        entering[place] = flow[place] if filters[above] else entering[above]
    for place in range(n - 1, 0, -1):
        above = up[place]
        through = link[place] if filters[place] else link[place] + reach[place]
        reach[above] += through
        asked[above] += through * flow[place]
    return entering, reach, asked


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
