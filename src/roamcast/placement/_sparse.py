"""The folded tree: the same problem with only the vertices that may filter (candidates).

Between two candidates every link carries the same items in every placement, so whole regions fold
into two sums. The result has one node per candidate. Its entry flow has one value for each distinct
flow that a filter above it can produce: the node's *rows*.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.model.kernels import kernel
from roamcast.placement.problem import Problem
from roamcast.placement.tree import Floats, Places, preorder


@dataclass(frozen=True, eq=False)
class Sparse:
    """Candidates in pre-order; siblings are ordered by shape and flows, not by number (0012)."""

    place: NDArray[np.int64]  # node → position in the tree
    up: Places  # node → node of the nearest candidate above, -1 if none
    plain: Floats  # weight of the links below the node, down to the next candidates
    cut: Floats  # what those links cost if the node filters, its price included
    entry: Floats  # flow into the node if the candidate above filters
    rank: Places  # rows of the node are 0 to rank; row `rank` has the value `entry`
    lower: Places  # node → nearest node above with a smaller rank, -1 if none
    count: Places  # candidates in the node's subtree, itself included
    fixed: float  # cost of the links above all candidates


FEW = 16
"""With at most one candidate in `FEW` vertices, climbing from each beats a pass over all."""


def sparse(problem: Problem, candidates: NDArray[np.int64]) -> Sparse:
    """Fold the tree onto the candidates (ascending positions)."""
    place, up, plain, cut, entry, fixed = _folded(problem, candidates)
    order = _nameless_order(up, plain, cut, entry)
    place, plain, cut, entry = place[order], plain[order], cut[order], entry[order]
    renumbered = np.empty(order.size, dtype=np.int32)
    renumbered[order] = np.arange(order.size, dtype=np.int32)
    above = up[order]
    up = np.where(above < 0, np.int32(-1), renumbered[above]).astype(np.int32)
    rank, lower, count = _rows(up, entry)
    return Sparse(place, up, plain, cut, entry, rank, lower, count, float(fixed))


def cost_of_few(problem: Problem, filters: NDArray[np.int64]) -> float:
    """Return the cost of a placement (ascending positions) without a pass over the whole tree."""
    _, _, _, cut, _, fixed = _folded(problem, filters)
    return float(fixed + cut.sum())


def _folded(problem: Problem, places: NDArray[np.int64]) -> Any:
    tree = problem.tree
    sums = (problem.flow, problem.below, problem.sent, problem.price)
    if places.size * FEW <= tree.vertices:
        climbed, *found = _fold_few(tree.up, tree.size, *sums, places, tree.vertices)
        if climbed <= tree.vertices:
            return found
    return _fold(tree.up, *sums, places)


def _nameless_order(up: Places, plain: Floats, cut: Floats, entry: Floats) -> NDArray[Any]:
    """Order siblings by a hash of all that matters below them, so numbers break no tie (0012)."""
    shape = _shapes(up, plain, cut, entry)
    order: NDArray[Any] = _ordered(up, np.lexsort((shape, up)))
    return order


@kernel
def mix(left: Any, right: Any) -> Any:
    """Mix two 64-bit words into one (the finaliser of splitmix64)."""
    word = left * np.uint64(0x9E3779B97F4A7C15) + right + np.uint64(0x632BE59BD9B4E019)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def _fold_few(
    up: Any, size: Any, flow: Any, below: Any, sent: Any, price: Any, places: Any, climb_max: int
) -> Any:
    """Fold by climbing from each candidate to the next above; give up after `climb_max` steps."""
    nodes = places.size
    node_up = np.empty(nodes, dtype=np.int32)
    plain = np.empty(nodes)
    cut = np.empty(nodes)
    entry = np.empty(nodes)
    stack = np.empty(nodes + 1, dtype=np.int32)
    top = 0
    climbed = 0
    fixed_weight = below[0]
    for node in range(nodes):
        here = places[node]
        while top > 0 and places[stack[top - 1]] + size[places[stack[top - 1]]] <= here:
            top -= 1
        plain[node] = below[here]
        cut[node] = sent[here] + price[here]
        if top == 0:
            node_up[node] = -1
            entry[node] = flow[0]
            fixed_weight -= below[here]
        else:
            over = stack[top - 1]
            walk = here
            while up[walk] != places[over] and climbed <= climb_max:
                walk = up[walk]
                climbed += 1
            node_up[node] = over
            entry[node] = flow[walk]
            plain[over] -= below[here]
            cut[over] -= below[here] * flow[walk]
        stack[top] = node
        top += 1
    return climbed, places, node_up, plain, cut, entry, fixed_weight * flow[0]


@kernel
def _fold(up: Any, flow: Any, below: Any, sent: Any, price: Any, place: Any) -> Any:
    """Fold by one pass over all vertices."""
    n = up.size
    nodes = place.size
    candidates = np.zeros(n, dtype=np.bool_)
    for node in range(nodes):
        candidates[place[node]] = True
    node_up = np.empty(nodes, dtype=np.int32)
    plain = np.empty(nodes)
    cut = np.empty(nodes)
    entry = np.empty(nodes)
    near = np.full(n, -1, dtype=np.int32)  # nearest candidate, the vertex itself included
    tight = np.empty(n)  # flow at the highest vertex below the nearest candidate strictly above
    fixed_weight = below[0]
    node = 0
    for here in range(n):
        above = up[here]
        over = np.int32(-1)
        if here == 0:
            tight[here] = flow[here]
        else:
            over = near[above]
            tight[here] = flow[here] if candidates[above] else tight[above]
        near[here] = over
        if candidates[here]:
            node_up[node] = over
            entry[node] = tight[here]
            plain[node] = below[here]
            cut[node] = sent[here] + price[here]
            if over >= 0:
                plain[over] -= below[here]
                cut[over] -= below[here] * tight[here]
            else:
                fixed_weight -= below[here]
            near[here] = node
            node += 1
    return place, node_up, plain, cut, entry, fixed_weight * flow[0]


@kernel
def _shapes(up: Any, plain: Any, cut: Any, entry: Any) -> Any:
    nodes = up.size
    shape = np.zeros(nodes, dtype=np.uint64)
    plain_bits = plain.view(np.uint64)
    cut_bits = cut.view(np.uint64)
    entry_bits = entry.view(np.uint64)
    for node in range(nodes - 1, -1, -1):
        own = mix(mix(plain_bits[node], cut_bits[node]), mix(entry_bits[node], shape[node]))
        shape[node] = own
        if up[node] >= 0:
            shape[up[node]] += own  # a sum, because it does not depend on the order of children
    return shape


@kernel
def _ordered(up: Any, by_parent: Any) -> Any:
    nodes = up.size
    # One artificial node above all, so that several top nodes are siblings as well.
    first = np.full(nodes + 1, -1, dtype=np.int32)
    following = np.full(nodes + 1, -1, dtype=np.int32)
    for index in range(nodes - 1, -1, -1):
        node = by_parent[index]
        above = up[node] if up[node] >= 0 else nodes
        following[node] = first[above]
        first[above] = node
    order = np.empty(nodes + 1, dtype=np.int32)
    preorder(first, following, nodes, order)
    return order[1:]


@kernel
def _rows(up: Any, entry: Any) -> Any:
    nodes = up.size
    rank = np.zeros(nodes, dtype=np.int32)
    lower = np.full(nodes, -1, dtype=np.int32)
    count = np.ones(nodes, dtype=np.int32)
    for node in range(nodes):
        above = up[node]
        if above >= 0:
            if entry[node] < entry[above]:
                rank[node] = rank[above] + 1
                lower[node] = above
            else:
                rank[node] = rank[above]
                lower[node] = lower[above]
    for node in range(nodes - 1, -1, -1):
        if up[node] >= 0:
            count[up[node]] += count[node]
    return rank, lower, count
