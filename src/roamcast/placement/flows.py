"""Flows: the number of distinct items that each subtree wants, f(v) of CBM section 3.2."""

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
"""Maximum distinct items; a union then takes at most 128 KiB per level."""

WANTS_MAX = 1 << 31
"""Maximum (leaf, item) pairs."""

SPREAD_MAX = 1 << 24
"""Largest range of item names that is numbered by a table instead of sorting."""

UNION_BYTES_MAX = 1 << 26
"""Memory for unions; more items are processed in several passes."""


@dataclass(frozen=True, eq=False)
class LeafWants:
    """The items that each leaf wants: those of vertex v are `item[start[v]:start[v + 1]]`."""

    start: NDArray[np.int64]
    item: NDArray[np.int32]
    items: int  # items are numbered from 0 to items - 1

    @staticmethod
    def of(tree: Tree, wants: Mapping[int, Sequence[int]]) -> "LeafWants":
        """Number the wanted items; check that only leaves want any."""
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
        return LeafWants(np.cumsum(counts), numbered.astype(np.int32), items)

    @staticmethod
    def of_table(tree: Tree, leaves: Iterable[int], wanted: NDArray[np.bool_]) -> "LeafWants":
        """Convert a table of booleans: a row per leaf, a column per item."""
        numbers = list(leaves)
        _only_leaves(tree, numbers)
        assert wanted.shape[0] == len(numbers)
        counts = np.zeros(tree.vertices + 1, dtype=np.int64)
        counts[np.asarray(numbers, dtype=np.int64) + 1] = wanted.sum(axis=1)
        by_vertex = np.argsort(np.asarray(numbers), kind="stable")
        item = np.nonzero(wanted[by_vertex])[1].astype(np.int32)
        return LeafWants(np.cumsum(counts), item, wanted.shape[1])


def _numbered(named: NDArray[np.int64]) -> tuple[int, NDArray[Any]]:
    """Number the distinct names from 0 in ascending order; return the numbers and their count."""
    low, high = (int(named.min()), int(named.max())) if named.size else (0, 0)
    if high - low >= SPREAD_MAX:
        known, numbered = np.unique(named, return_inverse=True)
        return int(known.size), numbered
    seen = np.zeros(high - low + 1, dtype=np.bool_)  # a small range: faster than sorting
    seen[named - low] = True
    number = np.cumsum(seen) - 1
    return int(seen.sum()), number[named - low]


def _only_leaves(tree: Tree, vertices: list[int]) -> None:
    places = tree.places(vertices)
    inner = np.flatnonzero(tree.size[places] > 1)
    if inner.size:
        vertex = vertices[int(inner[0])]
        raise TreeError(
            f"vertex {vertex} is not a leaf: only leaves want items (add a leaf under it)"
        )


def flows(tree: Tree, subscriptions: LeafWants) -> Floats:
    """Count per vertex the distinct items its subtree wants.

    One union per level is in memory at a time: depth × items / 8 bytes, at most `UNION_BYTES_MAX`.
    Beyond that the items are processed in several passes.
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
    """Check given flows: one per vertex, none larger than its parent's (decision 0013)."""
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
        raise TreeError(
            f"{problem} with {given[parent]:g}: a parent wants all that its subtrees want"
        )
    return given


def levels(tree: Tree) -> NDArray[np.int32]:
    """Return each position's depth below the root."""
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
    # enough: the vertex counts its level's union, adds it to the level above and clears it.
    # Word indices are unsigned, because Numba does not vectorise loops over signed ones; counts are
    # unsigned, because signed plus unsigned is a float in Numba (decision 0014).
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
