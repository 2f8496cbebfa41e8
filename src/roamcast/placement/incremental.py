"""The cheapest placement after a few subscriptions changed (decision 0014).

Stores every subtree's union as a bitmap, updates those above the changed leaves, and searches again
with the last threshold as a first guess. The result is an optimum of the new flows, as if computed
from scratch, because the bound that skips most of the search is exact (decision 0011).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.errors import LimitError, TreeError
from roamcast.model.kernels import count_bits, kernel
from roamcast.placement.flows import LeafWants
from roamcast.placement.optimal import Placement, optimal_from
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Floats, Tree

BITMAP_BYTES_MAX = 1 << 32
"""Maximum memory for unions, 4 GB: eight million vertices with 4,096 items."""


class Replanner:
    """A tree whose subscriptions change in small steps, with its optimal placement after each."""

    def __init__(
        self,
        tree: Tree,
        subscriptions: LeafWants,
        limit: int | None,
        objective: Callable[[Tree, Floats], Problem] = traffic,
    ) -> None:
        words = max(1, -(-subscriptions.items // 64))
        if tree.vertices * words * 8 > BITMAP_BYTES_MAX:
            raise LimitError(
                f"unions of {subscriptions.items} items at {tree.vertices} vertices take"
                f" {tree.vertices * words * 8} bytes; the limit is {BITMAP_BYTES_MAX}"
            )
        self.tree = tree
        self.items = subscriptions.items
        self.limit = limit
        self._union = np.zeros(tree.vertices * words, dtype=np.uint64)
        self._words = words
        everywhere = np.arange(tree.vertices, dtype=np.int64)
        start = subscriptions.start
        _set_leaves(self._union, words, tree.position, everywhere, start, subscriptions.item)
        flow = np.zeros(tree.vertices)
        _unite(tree.up, self._union, words, flow)
        self._problem = objective(tree, flow[tree.position])
        self._stamp = np.zeros(tree.vertices, dtype=np.bool_)
        self._guess: float | None = None
        self.placement, self._guess = optimal_from(self._problem, limit, None)

    @property
    def problem(self) -> Problem:
        """Return the current problem; every `change` updates it in place."""
        return self._problem

    @property
    def flow(self) -> Floats:
        """Return the current flows, by vertex number."""
        by_vertex: Floats = self._problem.flow[self.tree.position]
        return by_vertex

    def change(self, wants: Mapping[int, Iterable[int]]) -> Placement:
        """Replace the items (by number) that some leaves want, and place filters again."""
        leaves = np.fromiter(sorted(wants), dtype=np.int64)
        start = np.zeros(leaves.size + 1, dtype=np.int64)
        wanted = [np.fromiter(wants[int(leaf)], dtype=np.int64) for leaf in leaves]
        start[1:] = np.cumsum([items.size for items in wanted])
        item = np.concatenate([np.zeros(0, dtype=np.int64), *wanted])
        return self.change_many(leaves, start, item)

    def change_many(
        self, leaves: NDArray[np.int64], start: NDArray[np.int64], item: NDArray[Any]
    ) -> Placement:
        """Do the same with arrays: leaf `leaves[i]` wants `item[start[i]:start[i + 1]]`."""
        tree = self.tree
        places = tree.places(leaves)
        inner = leaves[tree.size[places] > 1]
        if inner.size:
            raise TreeError(f"vertex {inner[0]} is not a leaf: only leaves want items")
        if item.size and not 0 <= int(item.min()) <= int(item.max()) < self.items:
            raise TreeError(f"an item is not among the {self.items} known: 0 to {self.items - 1}")
        self._union.reshape(-1, self._words)[places] = 0
        _set_leaves(self._union, self._words, tree.position, leaves, start, item)
        problem = self._problem
        _renew(
            tree.up,
            tree.size,
            self._union,
            self._words,
            self._stamp,
            places,
            problem.flow,
            problem.link,
            problem.below,
            problem.sent,
            problem.price,
            problem.solo,
        )
        self.placement, self._guess = optimal_from(problem, self.limit, self._guess)
        return self.placement


# Word indices are unsigned: a signed index might count from the end, and Numba's check for that
# prevents vectorisation, at nine times the cost. Counts are unsigned as well, because signed plus
# unsigned is a float in Numba (decision 0014).


@kernel
def _set_leaves(union: Any, words: int, position: Any, leaves: Any, start: Any, item: Any) -> None:
    one = np.uint64(1)
    for index in range(leaves.size):
        own = np.uint64(position[leaves[index]]) * np.uint64(words)
        for entry in range(start[index], start[index + 1]):
            wanted = np.uint64(item[entry])
            union[own + (wanted >> np.uint64(6))] |= one << (wanted & np.uint64(63))


@kernel
def _count(union: Any, place: int, words: int) -> Any:
    found = np.uint64(0)
    start = np.uint64(place) * np.uint64(words)
    for word in range(start, start + np.uint64(words)):
        found += count_bits(union[word])
    return found


@kernel
def _unite(up: Any, union: Any, words: int, flow: Any) -> None:
    for place in range(up.size - 1, -1, -1):
        flow[place] = _count(union, place, words)
        if place > 0:
            own = np.uint64(place) * np.uint64(words)
            above = np.uint64(up[place]) * np.uint64(words)
            for word in range(np.uint64(words)):
                union[above + word] |= union[own + word]


@kernel
def _renew(
    up: Any,
    size: Any,
    union: Any,
    words: int,
    stamp: Any,
    places: Any,
    flow: Any,
    link: Any,
    below: Any,
    sent: Any,
    price: Any,
    solo: Any,
) -> None:
    """Update unions, flows and solo savings above changed leaves, as far up as they change."""
    for place in places:
        stamp[place] = True
    at_root = flow[0]
    for place in range(up.size - 1, -1, -1):  # scanning all stamps is cheaper than sorting
        if not stamp[place]:
            continue
        stamp[place] = False
        if size[place] == 1:
            flow[place] = _count(union, place, words)
            changed = True
        else:
            changed = _unite_children(place, size, union, words, flow)
            total = 0.0
            child = place + 1
            while child < place + size[place]:
                total += (link[child] + below[child]) * flow[child]
                child += size[child]
            sent[place] = total
            solo[place] = at_root * below[place] - total - price[place]
        if changed and place > 0:
            stamp[up[place]] = True
    if flow[0] != at_root:
        for place in range(up.size):
            if size[place] > 1:
                solo[place] = flow[0] * below[place] - sent[place] - price[place]


@kernel
def _unite_children(place: int, size: Any, union: Any, words: int, flow: Any) -> bool:
    """Recompute the union of the children's items and its count; return whether it changed."""
    first = place + 1
    second = first + size[first]
    end = place + size[place]
    last = second if second < end else first
    own = np.uint64(place) * np.uint64(words)
    one = np.uint64(first) * np.uint64(words)
    other = np.uint64(last) * np.uint64(words)
    differing = np.uint64(0)
    found = np.uint64(0)
    if last + size[last] == end:  # one child or two: no loop over children per word
        for word in range(np.uint64(words)):
            united = union[one + word] | union[other + word]
            differing |= united ^ union[own + word]
            found += count_bits(united)
            union[own + word] = united
    else:
        fresh = union[first * words : (first + 1) * words].copy()
        child = second
        while child < end:
            other = np.uint64(child) * np.uint64(words)
            for word in range(np.uint64(words)):
                fresh[word] |= union[other + word]
            child += size[child]
        for word in range(np.uint64(words)):
            differing |= fresh[word] ^ union[own + word]
            found += count_bits(fresh[word])
            union[own + word] = fresh[word]
    flow[place] = found
    return bool(differing != 0)
