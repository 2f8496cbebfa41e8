"""Lazy greedy placement: repeatedly add the most important filter.

Importance only falls as filters are added (savings are submodular, decision 0010), so an outdated
value is an upper bound: only the few largest need to be computed again to find the next filter.
"""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.model.kernels import kernel
from roamcast.placement._sparse import Sparse
from roamcast.placement.tree import Flags, Floats


def add_greedily(folded: Sparse, start: Flags, more: int) -> tuple[NDArray[np.int64], Floats]:
    """Add up to `more` filters to `start`, each the most important left; stop when none pays.

    Returns the nodes in order of placement and what each saved. Ties go to the lower node. Nodes
    are ordered independently of vertex numbers, so renumbering does not change the result (0012).
    """
    order, gains = _add(folded.up, folded.plain, folded.cut, folded.entry, start.copy(), more)
    return order, gains


@kernel
def _stand(up: Any, plain: Any, cut: Any, entry: Any, filters: Any) -> Any:
    nodes = up.size
    reach = plain.copy()
    asked = cut.copy()
    for node in range(nodes - 1, -1, -1):
        if up[node] >= 0 and not filters[node]:
            reach[up[node]] += reach[node]
            asked[up[node]] += reach[node] * entry[node]
    entering = entry.copy()
    for node in range(nodes):
        if up[node] >= 0 and not filters[up[node]]:
            entering[node] = entering[up[node]]
    return entering, reach, asked


@kernel
def _worth(up: Any, entry: Any, filters: Any, reach: Any, asked: Any, node: int) -> Any:
    below = node
    above = up[node]
    while above >= 0 and not filters[above]:
        below = above
        above = up[above]
    return entry[below] * reach[node] - asked[node]


@kernel
def _add(up: Any, plain: Any, cut: Any, entry: Any, filters: Any, more: int) -> Any:
    entering, reach, asked = _stand(up, plain, cut, entry, filters)
    heap = [(0.0, 0) for _ in range(0)]
    for node in range(up.size):
        worth = entering[node] * reach[node] - asked[node]
        if worth > 0.0 and not filters[node]:
            heap.append((-worth, node))
    heapq.heapify(heap)
    order = np.empty(min(more, len(heap)), dtype=np.int64)
    gains = np.empty(order.size)
    placed = 0
    while placed < order.size and len(heap) > 0:
        old, node = heap[0]
        now = _worth(up, entry, filters, reach, asked, node)
        if now <= 0.0:
            heapq.heappop(heap)
            continue
        if -now != old:
            heapq.heapreplace(heap, (-now, node))
            continue
        heapq.heappop(heap)
        order[placed] = node
        gains[placed] = now
        placed += 1
        # Links below this filter no longer count for those above it, up to the next filter.
        filters[node] = True
        lost = reach[node]
        below = node
        above = up[node]
        while above >= 0:
            reach[above] -= lost
            asked[above] -= lost * entry[below]
            if filters[above]:
                break
            below = above
            above = up[above]
    return order[:placed], gains[:placed]
