"""The optimum with any number of filters: one cost and one count per node and row.

CBM's D(v, F, p) (section 5), on the folded tree and for any prices. Of equally cheap placements the
one with the fewest filters wins, then the one without a filter nearer the root.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.model.kernels import kernel
from roamcast.placement._sparse import Sparse


def solve_unlimited(folded: Sparse, toll: float = 0.0) -> tuple[float, NDArray[np.bool_]]:
    """Return the least cost with a `toll` per filter, tolls included, and the nodes that filter."""
    cost, chosen = _solve(
        folded.up, folded.plain, folded.cut, folded.entry, folded.rank, folded.lower, toll
    )
    return folded.fixed + float(cost), chosen


def bits_needed(folded: Sparse) -> int:
    """Count the decisions that `solve_unlimited` stores, a byte each."""
    return int(folded.rank.astype(np.int64).sum()) + folded.up.size


@kernel
def _solve(up: Any, plain: Any, cut: Any, entry: Any, rank: Any, lower: Any, toll: float) -> Any:
    nodes = up.size
    offset = np.zeros(nodes + 1, dtype=np.int64)
    for node in range(nodes):
        offset[node + 1] = offset[node] + rank[node] + 1
    filtering = np.zeros(offset[nodes], dtype=np.bool_)
    widest = rank.max() if nodes > 0 else 0
    # Partial sums over children are on a stack, a frame per open node: a cell per row, then one
    # for the case that the node filters.
    costs = np.zeros(1024 + 2 * (widest + 2))
    counts = np.zeros(costs.size, dtype=np.int64)
    frame = np.full(nodes, -1, dtype=np.int64)
    row_cost = np.zeros(widest + 2)
    row_count = np.zeros(widest + 2, dtype=np.int64)
    top = 0
    total = 0.0
    for node in range(nodes - 1, -1, -1):
        rows = rank[node] + 1
        base = frame[node]
        if base >= 0:
            top = base
        with_cost = cut[node] + toll
        with_count = 1
        if base >= 0:
            with_cost += costs[base + rows]
            with_count += counts[base + rows]
        walk = node
        for row in range(rows - 1, -1, -1):
            without_cost = entry[walk] * plain[node]
            without_count = 0
            walk = lower[walk]
            if base >= 0:
                without_cost += costs[base + row]
                without_count += counts[base + row]
            better = with_cost < without_cost or (
                with_cost == without_cost and with_count < without_count
            )
            filtering[offset[node] + row] = better
            row_cost[row] = with_cost if better else without_cost
            row_count[row] = with_count if better else without_count
        above = up[node]
        if above < 0:
            total += row_cost[0]
            continue
        above_rows = rank[above] + 1
        if frame[above] < 0:
            frame[above] = top
            if top + above_rows + 1 > costs.size:
                costs = np.concatenate((costs, np.zeros(costs.size + above_rows + 1)))
                counts = np.concatenate((counts, np.zeros(costs.size, dtype=np.int64)))
            costs[top : top + above_rows + 1] = 0.0
            counts[top : top + above_rows + 1] = 0
            top += above_rows + 1
        base = frame[above]
        for row in range(above_rows):
            costs[base + row] += row_cost[row]
            counts[base + row] += row_count[row]
        costs[base + above_rows] += row_cost[rank[node]]
        counts[base + above_rows] += row_count[rank[node]]
    return total, _trace(up, rank, offset, filtering)


@kernel
def _trace(up: Any, rank: Any, offset: Any, filtering: Any) -> Any:
    nodes = up.size
    chosen = np.zeros(nodes, dtype=np.bool_)
    row_of = np.zeros(nodes, dtype=np.int32)
    for node in range(nodes):
        above = up[node]
        if above >= 0:
            row_of[node] = rank[node] if chosen[above] else row_of[above]
        chosen[node] = filtering[offset[node] + row_of[node]]
    return chosen
