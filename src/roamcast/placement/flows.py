"""How many items does each subtree want? f(v) of CBM section 3.2, as unions of item sets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.errors import LimitError, TreeError
from roamcast.model.kernels import count_bits, kernel
from roamcast.placement.tree import Floats, Tree

ITEMS_MAX = 1 << 20
"""Distinct items that anybody wants: the unions then take at most 128 KiB a level."""

WANTS_MAX = 1 << 31
"""Subscriptions (one leaf, one item) in all."""

SPREAD_MAX = 1 << 24
"""Largest difference between item names for which a table numbers them instead of sorting."""

UNION_BYTES_MAX = 1 << 26
"""Memory for unions at one time; items beyond it are taken in several passes."""


@dataclass(frozen=True, eq=False)
class Subscriptions:
    """Which leaf wants which items: the items of vertex v are `item[start[v]:start[v + 1]]`."""

    start: NDArray[np.int64]
    item: NDArray[np.int32]
    items: int  # items are numbered from 0 to items - 1

    @staticmethod
    def of(tree: Tree, wants: Mapping[int, Sequence[int]]) -> "Subscriptions":
        """Number the items that anyone wants and check that leaves want them."""
        vertices = sorted(wants)
        _only_leaves(tree, vertices)
        counts = np.zeros(tree.vertices + 1, dtype=np.int64)
        lists = [wants[vertex] for vertex in vertices]
        counts[np.asarray(vertices, dtype=np.int64) + 1] = [len(items) for items in lists]
        total = int(counts.sum())
        if total > WANTS_MAX:
            raise LimitError(f"{total} subscriptions; the limit is {WANTS_MAX}")
        try:
            named = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=total)
        except (TypeError, ValueError, OverflowError):
            raise TreeError("an item is not a whole number of at most 64 bits") from None
        items, numbered = _numbered(named)
        if items > ITEMS_MAX:
            raise LimitError(f"{items} distinct items are wanted; the limit is {ITEMS_MAX}")
        return Subscriptions(np.cumsum(counts), numbered.astype(np.int32), items)

    @staticmethod
    def of_table(tree: Tree, leaves: Iterable[int], wanted: NDArray[np.bool_]) -> "Subscriptions":
        """Take a table of truth values: a row per leaf, a column per item."""
        numbers = list(leaves)
        _only_leaves(tree, numbers)
        assert wanted.shape[0] == len(numbers)
        counts = np.zeros(tree.vertices + 1, dtype=np.int64)
        counts[np.asarray(numbers, dtype=np.int64) + 1] = wanted.sum(axis=1)
        by_vertex = np.argsort(np.asarray(numbers), kind="stable")
        item = np.nonzero(wanted[by_vertex])[1].astype(np.int32)
        return Subscriptions(np.cumsum(counts), item, wanted.shape[1])


def _numbered(named: NDArray[np.int64]) -> tuple[int, NDArray[Any]]:
    """Number what is named from 0 on, in ascending order; count the different names."""
    low, high = (int(named.min()), int(named.max())) if named.size else (0, 0)
    if high - low >= SPREAD_MAX:
        known, numbered = np.unique(named, return_inverse=True)
        return int(known.size), numbered
    seen = np.zeros(high - low + 1, dtype=np.bool_)  # names close together: no need to sort
    seen[named - low] = True
    number = np.cumsum(seen) - 1
    return int(seen.sum()), number[named - low]


def _only_leaves(tree: Tree, vertices: list[int]) -> None:
    places = tree.places(vertices)
    inner = np.flatnonzero(tree.size[places] > 1)
    if inner.size:
        vertex = vertices[int(inner[0])]
        raise TreeError(f"vertex {vertex} is no leaf: only leaves want items (hang one under it)")


def flows(tree: Tree, subscriptions: Subscriptions) -> Floats:
    """Count per vertex the distinct items its subtree wants.

    One union per level is alive at a time, so memory is depth × items / 8 bytes, and no more than
    `UNION_BYTES_MAX`: beyond it the items are taken in several passes.
    """
    words = max(1, -(-subscriptions.items // 64))
    depth = levels(tree)
    words_once = max(1, min(words, UNION_BYTES_MAX // (8 * int(depth.max() + 1))))
    count = np.zeros(tree.vertices, dtype=np.int64)
    for start in range(0, words, words_once):
        width = min(words_once, words - start)
        _add_unions(tree.order, depth, subscriptions.start, subscriptions.item, start, width, count)
    return count[tree.position].astype(np.float64)


def checked_flows(tree: Tree, flow: Any) -> Floats:
    """Take flows that are given: one per vertex, and no subtree wants more than its parent's."""
    given = np.asarray(flow, dtype=np.float64)
    if given.shape != (tree.vertices,):
        raise TreeError(f"there are {given.size} flows for {tree.vertices} vertices")
    wrong = np.flatnonzero(~np.isfinite(given) | (given < 0))
    if wrong.size:
        vertex = int(wrong[0])
        raise TreeError(f"the flow of vertex {vertex} is {given[vertex]}: it must be finite, ≥ 0")
    above = np.where(tree.parent < 0, np.arange(tree.vertices), tree.parent)
    larger = np.flatnonzero(given > given[above])
    if larger.size:
        vertex = int(larger[0])
        parent = int(tree.parent[vertex])
        problem = f"vertex {vertex} has flow {given[vertex]:g}, more than its parent {parent}"
        raise TreeError(f"{problem} with {given[parent]:g}: what a subtree wants, its parent wants")
    return given


def levels(tree: Tree) -> NDArray[np.int32]:
    """Give each position's depth below the root."""
    found: NDArray[np.int32] = _levels(tree.up)
    return found


@kernel
def _levels(up: Any) -> Any:
    depth = np.zeros(up.size, dtype=np.int32)
    for place in range(1, up.size):
        depth[place] = depth[up[place]] + 1
    return depth


@kernel
def _add_unions(
    order: Any, depth: Any, start: Any, item: Any, first_word: int, words: int, count: Any
) -> None:
    # In reverse pre-order a vertex comes right after its whole subtree, so one union per level is
    # enough: the vertex takes its level's, counts it, hands it to the level above and clears it.
    # Words are indexed by unsigned numbers: checking whether a signed index counts from the end
    # keeps the compiler from using wide registers. Counts are unsigned for Numba's sums as well.
    union = np.zeros((depth.max() + 1) * words, dtype=np.uint64)
    one = np.uint64(1)
    width = np.uint64(words)
    first_item = first_word * 64
    last_item = first_item + words * 64
    for place in range(order.size - 1, -1, -1):
        vertex = order[place]
        own = np.uint64(depth[place]) * width
        for entry in range(start[vertex], start[vertex + 1]):
            wanted = item[entry]
            if first_item <= wanted < last_item:
                bit = np.uint64(wanted - first_item)
                union[own + (bit >> np.uint64(6))] |= one << (bit & np.uint64(63))
        found = np.uint64(0)
        if depth[place] > 0:
            above = own - width
            for word in range(width):
                bits = union[own + word]
                found += count_bits(bits)
                union[above + word] |= bits
                union[own + word] = np.uint64(0)
        else:
            for word in range(width):
                found += count_bits(union[own + word])
        count[place] += found
