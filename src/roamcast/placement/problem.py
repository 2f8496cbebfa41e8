"""The objective: the cost of a link per item and the price of a filter, in two arrays.

A placement P costs  Σ over links into x of  link(x) · items carried  +  Σ over v in P of price(v).
CBM's traffic is link = 1, price = 0 (section 4); its delay is link = c·s(x), price = F·s(v)
(section 5), where s is the number of leaves below. Weighted sums of both, a cost per filter and a
cost per move are other values of the same arrays, so every algorithm here handles them (0010).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roamcast.errors import TreeError
from roamcast.model.kernels import kernel
from roamcast.placement.tree import Floats, Tree


@dataclass(frozen=True, eq=False)
class Problem:
    """A tree, its flows and its prices, all by pre-order position.

    `below[v]` is the weight of all links under v, `sent[v]` their cost if v alone filtered.
    `solo[v]` is what v saves as the only filter. Savings are submodular (decision 0010), so no
    filter ever saves more than its `solo`.
    """

    tree: Tree
    flow: Floats
    link: Floats
    price: Floats
    below: Floats
    sent: Floats
    solo: Floats

    @property
    def unfiltered(self) -> float:
        """Return the cost without any filter: every wanted item on every link."""
        return float(self.flow[0] * self.below[0])


def traffic(tree: Tree, flow: Floats) -> Problem:
    """Count one unit per item and link (CBM section 4)."""
    ones = np.ones(tree.vertices)
    return _problem(tree, flow, ones, np.zeros(tree.vertices))


def delay(tree: Tree, flow: Floats, filter_delay: float, link_delay: float = 1.0) -> Problem:
    """Sum, over the leaves, the delay of everything on the path to them (CBM section 5)."""
    return combined(tree, flow, delay_weight=1.0, filter_delay=filter_delay, link_delay=link_delay)


def combined(
    tree: Tree,
    flow: Floats,
    *,
    traffic_weight: float = 0.0,
    delay_weight: float = 0.0,
    filter_delay: float = 0.0,
    link_delay: float = 1.0,
    filter_cost: float = 0.0,
    move_cost: float = 0.0,
    current: Iterable[int] = (),
) -> Problem:
    """Weigh traffic and delay together, with a cost per filter and per filter newly placed.

    `move_cost` is paid for every vertex that filters and is not among the `current` filters.
    """
    numbers = {
        "the traffic weight": traffic_weight,
        "the delay weight": delay_weight,
        "the filter delay": filter_delay,
        "the link delay": link_delay,
        "the cost per filter": filter_cost,
        "the cost per move": move_cost,
    }
    for name, value in numbers.items():
        if not math.isfinite(value) or value < 0:
            raise TreeError(f"{name} is {value}: it must be a finite number, at least 0")
    leaves = tree.leaves.astype(np.float64)
    with np.errstate(over="ignore"):  # `_problem` looks at the sums
        link = traffic_weight + delay_weight * link_delay * leaves
        price = delay_weight * filter_delay * leaves + filter_cost
        if move_cost:
            price = price + np.where(tree.flags(current), 0.0, move_cost)
    return _problem(tree, flow, link, price)


def _problem(tree: Tree, flow: Floats, link: Floats, price: Floats) -> Problem:
    flow = np.ascontiguousarray(flow[tree.order], dtype=np.float64)
    link = np.ascontiguousarray(link, dtype=np.float64)
    link[0] = 0.0  # no link of the tree enters the root
    below, sent, saved = _sums(tree.up, flow, link)
    with np.errstate(over="ignore"):
        dearest = float(flow[0]) * float(below[0]) + float(price.sum())
    if not math.isfinite(dearest):  # every cost is at most this; the root's flow is the largest
        raise TreeError(
            f"flows up to {flow[0]:g} and these weights cost more than a double holds: scale them"
        )
    solo = np.where(tree.size > 1, saved - price, -np.inf)
    return Problem(tree, flow, link, price, below, sent, solo)


@kernel
def _sums(up: Any, flow: Any, link: Any) -> Any:
    n = up.size
    below = np.zeros(n)
    sent = np.zeros(n)
    saved = np.zeros(n)  # of differences: exactly 0 where a filter alone saves nothing
    for place in range(n - 1, 0, -1):
        above = up[place]
        through = link[place] + below[place]
        below[above] += through
        sent[above] += through * flow[place]
        saved[above] += through * (flow[0] - flow[place])
    return below, sent, saved
