"""The optimum with at most k filters: T(v, i, p) of CBM section 4, on the folded tree.

A node's table has a row per value of its entry flow and a column per number of filters, at most
min(k, candidates below it): Tamir's bound, so the work is O(k n) per row instead of O(k² n). Only
tables of open nodes are in memory; for all nodes we store the decisions, two bytes each.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.errors import LimitError
from roamcast.model.kernels import kernel
from roamcast.placement._sparse import Sparse
from roamcast.placement.tree import Floats

DECISIONS_MAX = 1 << 31
"""Maximum splits and choices stored for the traceback: about 4 GB at two bytes each."""


def decisions_needed(folded: Sparse, limit: int) -> tuple[int, int]:
    """Count the splits and filter choices that a solution with at most `limit` filters stores."""
    splits, choices = _sizes(folded.up, folded.rank, folded.count, limit)
    return int(splits[-1]), int(choices[-1])


def solve_limited(folded: Sparse, limit: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the least cost for every number of filters up to `limit`, and the nodes that filter.

    The placement is the cheapest for `limit`. Of equally cheap ones it has the fewest filters,
    then none nearer the root, then more in earlier siblings.
    """
    splits, choices = _sizes(folded.up, folded.rank, folded.count, limit)
    needed = int(splits[-1]) + int(choices[-1])
    if needed > DECISIONS_MAX:
        raise LimitError(
            f"the exact placement of {limit} filters among {folded.up.size} vertices that pay"
            f" keeps {needed} decisions; the limit is {DECISIONS_MAX}: use the heuristic"
        )
    narrow = np.zeros(0, dtype=np.uint16 if limit < 1 << 16 else np.uint32)
    curve, chosen = _solve(
        folded.up,
        folded.plain,
        folded.cut,
        folded.entry,
        folded.rank,
        folded.lower,
        folded.count,
        limit,
        splits,
        choices,
        narrow,
    )
    return folded.fixed + curve, chosen


@kernel
def _sizes(up: Any, rank: Any, count: Any, limit: int) -> Any:
    # Node -1 (above all) is at index `nodes`; it has one row and never filters itself.
    nodes = up.size
    splits = np.zeros(nodes + 1, dtype=np.int64)
    choices = np.zeros(nodes + 1, dtype=np.int64)
    gathered = np.zeros(nodes + 1, dtype=np.int64)
    for node in range(nodes - 1, -1, -1):
        choices[node] = (rank[node] + 1) * (min(limit, count[node]) + 1)
        above = up[node] if up[node] >= 0 else nodes
        rows = rank[above] + 2 if above < nodes else 1
        if gathered[above] > 0:  # the first child merged needs no split: it gets all
            splits[node] = rows * (min(limit, gathered[above] + count[node]) + 1)
        gathered[above] += count[node]
    split_start = np.zeros(nodes + 1, dtype=np.int64)
    choice_start = np.zeros(nodes + 1, dtype=np.int64)
    for node in range(nodes):
        split_start[node + 1] = split_start[node] + splits[node]
        choice_start[node + 1] = choice_start[node] + choices[node]
    return split_start, choice_start


@kernel
def _merge(left: Any, left_width: int, right: Any, right_width: int, into: Any, take: Any) -> None:
    """Min-plus convolution: `into[i]` is the least left[i - j] + right[j], `take[i]` its j.

    Ties go to the larger j: the child merged last is the first among its siblings.
    """
    width = into.size
    for total in range(width):
        into[total] = np.inf
    for j in range(right_width):
        addend = right[j]
        for i in range(min(left_width, width - j)):
            candidate = left[i] + addend
            if candidate <= into[i + j]:
                into[i + j] = candidate
                take[i + j] = j


@kernel
def _finish(
    node: int,
    width: int,
    plain: Any,
    cut: Any,
    entry: Any,
    rank: Any,
    lower: Any,
    sums: Any,
    sums_width: int,
    table: Any,
    choice: Any,
) -> None:
    """Turn sums over a node's children into the node's table; store where it filters."""
    rows = rank[node] + 1
    filtered = sums[rows]
    walk = node
    for row in range(rows - 1, -1, -1):
        without = entry[walk] * plain[node]
        walk = lower[walk]
        for i in range(width):
            cost = without + sums[row, min(i, sums_width - 1)]
            chosen = False
            if i > 0:
                with_filter = cut[node] + filtered[min(i - 1, sums_width - 1)]
                if with_filter < cost:
                    cost = with_filter
                    chosen = True
            table[row, i] = cost
            choice[row * width + i] = chosen


@kernel
def _solve(
    up: Any,
    plain: Any,
    cut: Any,
    entry: Any,
    rank: Any,
    lower: Any,
    count: Any,
    limit: int,
    split_start: Any,
    choice_start: Any,
    narrow: Any,
) -> Any:
    nodes = up.size
    split = np.zeros(split_start[nodes], dtype=narrow.dtype)
    choice = np.zeros(choice_start[nodes], dtype=np.bool_)
    rank_max = 0
    for node in range(nodes):
        rank_max = max(rank_max, rank[node])
    width_max = min(limit, nodes) + 1
    table = np.zeros((rank_max + 1, width_max))
    merged = np.zeros((rank_max + 2, width_max))
    nothing = np.zeros((rank_max + 2, 1))
    stack = np.zeros(4096 + (rank_max + 2) * width_max)
    frame = np.full(nodes + 1, -1, dtype=np.int64)
    frame_width = np.zeros(nodes + 1, dtype=np.int64)
    gathered = np.zeros(nodes + 1, dtype=np.int64)
    top = 0
    for node in range(nodes - 1, -1, -1):
        rows = rank[node] + 1
        width = min(limit, count[node]) + 1
        if frame[node] >= 0:
            top = frame[node]
            sums_width = frame_width[node]
            cells = stack[top : top + (rows + 1) * sums_width]
            sums = cells.reshape((rows + 1, sums_width))
        else:
            sums_width = 1
            sums = nothing[: rows + 1]
        kept = choice[choice_start[node] : choice_start[node + 1]]
        _finish(node, width, plain, cut, entry, rank, lower, sums, sums_width, table, kept)
        above = up[node] if up[node] >= 0 else nodes
        above_rows = rank[above] + 2 if above < nodes else 1
        base = frame[above]
        new_width = min(limit, gathered[above] + count[node]) + 1
        for row in range(above_rows):
            # The last row is for a parent that filters: the child then receives its own entry flow.
            own_row = rank[node] if above < nodes and row == above_rows - 1 else row
            if base < 0:
                merged[row, :new_width] = table[own_row, :new_width]
            else:
                old_width = frame_width[above]
                old = stack[base + row * old_width : base + (row + 1) * old_width]
                at = split_start[node] + row * new_width
                take = split[at : at + new_width]
                _merge(old, old_width, table[own_row], width, merged[row, :new_width], take)
        if base < 0:
            base = top
            frame[above] = base
        needed = base + above_rows * new_width
        if needed > stack.size:
            stack = np.concatenate((stack, np.zeros(needed)))
        for row in range(above_rows):
            at = base + row * new_width
            stack[at : at + new_width] = merged[row, :new_width]
        frame_width[above] = new_width
        gathered[above] += count[node]
        top = needed
    if nodes == 0:
        return np.zeros(1), np.zeros(0, dtype=np.bool_)
    curve = stack[frame[nodes] : frame[nodes] + frame_width[nodes]].copy()
    return curve, _trace(up, rank, count, limit, split_start, split, choice_start, choice, curve)


@kernel
def _trace(
    up: Any,
    rank: Any,
    count: Any,
    limit: int,
    split_start: Any,
    split: Any,
    choice_start: Any,
    choice: Any,
    curve: Any,
) -> Any:
    nodes = up.size
    fewest = curve.size - 1
    while fewest > 0 and curve[fewest - 1] == curve[fewest]:
        fewest -= 1
    chosen = np.zeros(nodes, dtype=np.bool_)
    row_of = np.zeros(nodes, dtype=np.int32)
    left = np.zeros(nodes + 1, dtype=np.int64)  # filters not yet assigned to a child
    unseen = np.zeros(nodes + 1, dtype=np.int64)  # candidates below children not yet visited
    left[nodes] = fewest
    unseen[nodes] = 0
    for node in range(nodes):
        if up[node] < 0:
            unseen[nodes] += count[node]
    for node in range(nodes):  # pre-order: children in the reverse of the order of merging
        above = up[node] if up[node] >= 0 else nodes
        width = min(limit, unseen[above]) + 1
        given = min(left[above], width - 1)
        if above < nodes:
            row_of[node] = rank[node] if chosen[above] else row_of[above]
        if unseen[above] > count[node]:
            row = 0
            if above < nodes:
                row = rank[above] + 1 if chosen[above] else row_of[above]
            given = np.int64(split[split_start[node] + row * width + given])
        left[above] -= given
        unseen[above] -= count[node]
        own_width = min(limit, count[node]) + 1
        given = min(given, own_width - 1)
        chosen[node] = choice[choice_start[node] + row_of[node] * own_width + given]
        left[node] = given - 1 if chosen[node] else given
        unseen[node] = count[node] - 1
    return chosen
