"""The compiled search of `tradeoff`: the best older node for each new one."""

import math
from typing import Any

import numpy as np

from roamcast.model.kernels import kernel

_NONE = -1
_FAR = 2_000_000_000
_SLACK = 1e-9
"""Margin for rounding: without it a bound rounded up could exclude the winner (decision 0033)."""


@kernel
def attach_by_pyramid(points: Any, alpha: float, levels: int) -> Any:
    """Return each node's parent; the first node's is -1."""
    nodes = len(points)
    parents = np.full(nodes, _NONE, np.int64)
    hops = np.zeros(nodes, np.int64)
    # Level k is a grid of 2^k × 2^k cells; all levels follow each other in one array.
    starts = np.zeros(levels + 2, np.int64)
    for level in range(levels + 1):
        starts[level + 1] = starts[level] + (1 << (2 * level))
    least = np.full(starts[levels + 1], _FAR, np.int64)
    heads = np.full(1 << (2 * levels), _NONE, np.int64)
    following = np.full(nodes, _NONE, np.int64)
    stack_cell = np.empty((4 * (levels + 1), 3), np.int64)
    stack_bound = np.empty(4 * (levels + 1), np.float64)
    for node in range(nodes):
        x, y = points[node, 0], points[node, 1]
        if node > 0:
            parents[node] = _best(
                x,
                y,
                alpha,
                points,
                hops,
                levels,
                starts,
                least,
                heads,
                following,
                stack_cell,
                stack_bound,
            )
            hops[node] = hops[parents[node]] + 1
        _insert(node, x, y, hops[node], levels, starts, least, heads, following)
    return parents


@kernel
def _cell(x: float, level: int) -> int:
    return min(int(x * (1 << level)), (1 << level) - 1)


@kernel
def _insert(
    node: int,
    x: float,
    y: float,
    hop: int,
    levels: int,
    starts: Any,
    least: Any,
    heads: Any,
    following: Any,
) -> None:
    for level in range(levels + 1):
        at = starts[level] + (_cell(y, level) << level) + _cell(x, level)
        if hop < least[at]:
            least[at] = hop
    cell = (_cell(y, levels) << levels) + _cell(x, levels)
    following[node] = heads[cell]
    heads[cell] = node


@kernel
def _bound(x: float, y: float, column: int, row: int, level: int, alpha: float, hop: int) -> float:
    size = 1.0 / (1 << level)
    dx = max(column * size - x, x - (column + 1) * size, 0.0)
    dy = max(row * size - y, y - (row + 1) * size, 0.0)
    return alpha * math.sqrt(dx * dx + dy * dy) + hop


@kernel
def _best(
    x: float,
    y: float,
    alpha: float,
    points: Any,
    hops: Any,
    levels: int,
    starts: Any,
    least: Any,
    heads: Any,
    following: Any,
    stack_cell: Any,
    stack_bound: Any,
) -> int:
    """Search depth first, the most promising quarter first."""
    best, best_cost = _NONE, math.inf
    stack_cell[0, 0], stack_cell[0, 1], stack_cell[0, 2] = 0, 0, 0
    stack_bound[0] = least[0]
    height = 1
    while height > 0:
        height -= 1
        if stack_bound[height] > best_cost + _SLACK:
            continue
        level, column, row = stack_cell[height, 0], stack_cell[height, 1], stack_cell[height, 2]
        if level == levels:
            other = heads[(row << levels) + column]
            while other != _NONE:
                dx, dy = points[other, 0] - x, points[other, 1] - y
                cost = alpha * math.sqrt(dx * dx + dy * dy) + hops[other]
                if cost < best_cost or (cost == best_cost and other < best):
                    best, best_cost = other, cost
                other = following[other]
            continue
        base = height
        for quarter in range(4):
            next_column = 2 * column + (quarter & 1)
            next_row = 2 * row + (quarter >> 1)
            at = starts[level + 1] + (next_row << (level + 1)) + next_column
            if least[at] == _FAR:
                continue
            bound = _bound(x, y, next_column, next_row, level + 1, alpha, least[at])
            if bound > best_cost + _SLACK:
                continue
            # Keep the stack sorted so that the smallest bound is popped first.
            slot = height
            while slot > base and stack_bound[slot - 1] < bound:
                stack_bound[slot] = stack_bound[slot - 1]
                stack_cell[slot, 0] = stack_cell[slot - 1, 0]
                stack_cell[slot, 1] = stack_cell[slot - 1, 1]
                stack_cell[slot, 2] = stack_cell[slot - 1, 2]
                slot -= 1
            stack_bound[slot] = bound
            stack_cell[slot, 0] = level + 1
            stack_cell[slot, 1] = next_column
            stack_cell[slot, 2] = next_row
            height += 1
    return best
