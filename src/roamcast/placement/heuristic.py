"""The heuristic of CBM section 6: the best single move, in linear time, for any tree and prices.

A batch makes at most one move, in the paper's order: importance first, then parent and child. The
paper's flip keeps the number of filters. With prices, it may also pay to add or remove a filter, so
adding the most important vertex and removing the least important filter compete with the flip, and
the move that saves most is made. All savings here are exact.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.errors import TreeError
from roamcast.model.kernels import kernel
from roamcast.placement._bounds import paying
from roamcast.placement._greedy import add_greedily
from roamcast.placement._sparse import sparse
from roamcast.placement._ties import keys
from roamcast.placement.cost import PlacementState, cost_of_flags, drop_idle, stand
from roamcast.placement.optimal import Placement
from roamcast.placement.problem import Problem
from roamcast.placement.tree import Flags, Floats

STEPS_MAX = 10_000
"""Maximum moves of `settle`. Every move lowers the cost, so it ends, but trees can be large."""


@dataclass(frozen=True)
class FilterMove:
    """One move of a batch: from a vertex, to a vertex, or both; and what it saves."""

    kind: str  # "place", "remove", "importance flip" or "parent-child flip"
    source: int | None
    target: int | None
    saved: float


def best_move(
    problem: Problem, filters: Iterable[int], limit: int | None = None
) -> FilterMove | None:
    """Return the heuristic's move for this batch, None if no move helps. O(n)."""
    flags = problem.tree.flags(filters)
    found = _best_move(problem, flags, limit)
    if found is None:
        return None
    kind, source, target, saved = found
    order = problem.tree.order
    return FilterMove(
        kind,
        None if source < 0 else int(order[source]),
        None if target < 0 else int(order[target]),
        saved,
    )


def step(
    problem: Problem, filters: Iterable[int], limit: int | None = None, moves: int = 1
) -> tuple[Placement, list[FilterMove]]:
    """Make up to `moves` moves of one batch, as long as each helps."""
    if moves < 0:
        raise TreeError(f"the number of moves is {moves}: it must be at least 0")
    now = {int(vertex) for vertex in filters}
    if limit is not None and len(now) > limit:
        raise TreeError(f"{len(now)} filters are placed; the limit is {limit}")
    made: list[FilterMove] = []
    while len(made) < moves:
        move = best_move(problem, sorted(now), limit)
        if move is None:
            break
        now -= {move.source}
        if move.target is not None:
            now.add(move.target)
        made.append(move)
    return Placement(tuple(sorted(now)), cost_of_flags(problem, problem.tree.flags(now))), made


def greedy(problem: Problem, limit: int | None = None) -> Placement:
    """Add the most important vertex repeatedly, until none pays or `limit` is reached."""
    if limit is not None and limit < 0:
        raise TreeError(f"the number of filters is {limit}: it must be at least 0")
    folded = sparse(problem, paying(problem))
    nodes = folded.up.size
    none = np.zeros(nodes, dtype=np.bool_)
    chosen, _ = add_greedily(folded, none, nodes if limit is None else min(limit, nodes))
    flags = np.zeros(problem.tree.vertices, dtype=np.bool_)
    flags[drop_idle(problem, np.sort(folded.place[chosen]))] = True
    return Placement(problem.tree.numbers(np.flatnonzero(flags)), cost_of_flags(problem, flags))


def settle(problem: Problem, limit: int | None = None) -> Placement:
    """Place greedily in an empty tree, then make the heuristic's moves until none helps."""
    return step(problem, greedy(problem, limit).filters, limit, STEPS_MAX)[0]


def _best_move(
    problem: Problem, filters: Flags, limit: int | None
) -> tuple[str, int, int, float] | None:
    standing = stand(problem, filters)
    worth = standing.importance(problem)
    inner = problem.tree.inner()
    count = int(np.count_nonzero(filters))
    target = _first(problem, filters, np.where(filters | ~inner, -np.inf, worth))
    source = _first(problem, filters, np.where(filters, -worth, -np.inf))
    options: list[tuple[str, int, int, float]] = []
    if target >= 0 and (limit is None or count < limit):
        options.append(("place", -1, target, float(worth[target])))
    if source >= 0:
        options.append(("remove", source, -1, float(-worth[source])))
    if source >= 0 and target >= 0:
        saved = _flip_saving(problem, standing, worth, source, target)
        options.append(("importance flip", source, target, saved))
    if options:
        best = max(options, key=lambda option: option[3])
        if best[3] > 0:
            return best
    return _parent_child(problem, standing, worth)


def _first(problem: Problem, filters: Flags, value: Floats) -> int:
    """Return the position of the largest value, ties broken by `_ties.keys`; -1 if none."""
    place = int(np.argmax(value))
    if value[place] == -np.inf:
        return -1
    equal = np.flatnonzero(value == value[place])
    if equal.size > 1:
        place = int(equal[np.argmin(keys(problem, filters)[equal])])
    return place


def _flip_saving(
    problem: Problem, standing: PlacementState, worth: Floats, source: int, target: int
) -> float:
    """Return the exact saving of moving a filter from `source` to `target`."""
    tree = problem.tree
    gained = float(
        _worth_without(
            tree.up,
            problem.flow,
            problem.price,
            standing.filters,
            standing.entering,
            standing.reach,
            standing.asked,
            source,
            target,
        )
    )
    return gained - float(worth[source])


def _parent_child(
    problem: Problem, standing: PlacementState, worth: Floats
) -> tuple[str, int, int, float] | None:
    tree = problem.tree
    saved = _parent_child_savings(
        tree.up,
        tree.size,
        problem.flow,
        problem.price,
        standing.filters,
        standing.entering,
        standing.reach,
        standing.asked,
        worth,
    )
    child = _first(problem, standing.filters, saved)
    if child < 0 or saved[child] <= 0:
        return None
    parent = int(tree.up[child])
    source, target = (child, parent) if standing.filters[child] else (parent, child)
    return "parent-child flip", source, target, float(saved[child])


@kernel
def _worth_without(
    up: Any,
    flow: Any,
    price: Any,
    filters: Any,
    entering: Any,
    reach: Any,
    asked: Any,
    source: int,
    target: int,
) -> Any:
    """Return the worth of a filter at `target` once the one at `source` is gone."""
    flowing = entering[target]
    below = target
    above = up[target]
    while above >= 0 and not filters[above]:
        below = above
        above = up[above]
    if above == source:  # items that the source filtered out now arrive at the target
        flowing = entering[source]
    gained = flowing * reach[target] - asked[target] - price[target]
    below = source
    above = up[source]
    while above >= 0 and above != target and not filters[above]:
        below = above
        above = up[above]
    if above == target:  # the target takes over the source's links
        gained += (flowing - flow[below]) * reach[source]
    return gained


@kernel
def _parent_child_savings(
    up: Any,
    size: Any,
    flow: Any,
    price: Any,
    filters: Any,
    entering: Any,
    reach: Any,
    asked: Any,
    worth: Any,
) -> NDArray[np.float64]:
    """Return, per vertex, the saving of moving a filter between it and its parent; O(1) each."""
    saved = np.full(up.size, -np.inf)
    for child in range(1, up.size):
        if size[child] == 1:
            continue
        parent = up[child]
        if filters[parent] and not filters[child]:
            gained = entering[parent] * reach[child] - asked[child] - price[child]
            saved[child] = gained - worth[parent]
        elif filters[child] and not filters[parent]:
            gained = worth[parent] + (entering[parent] - flow[child]) * reach[child]
            saved[child] = gained - worth[child]
    return saved
