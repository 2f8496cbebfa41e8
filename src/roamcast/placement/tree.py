"""Rooted trees: a list of parents in, a checked pre-order layout out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.errors import LimitError, TreeError
from roamcast.model.kernels import kernel

Floats = NDArray[np.float64]
Places = NDArray[np.int32]
Flags = NDArray[np.bool_]

VERTICES_MAX = 1 << 24
"""About 16 million; the arrays of a tree then take less than 1 GB."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree by vertex number, and the same tree laid out in pre-order.

    In pre-order a subtree is a slice and parents precede children, so no algorithm recurses and
    depth costs nothing. `position` and `order` translate between numbers and pre-order.
    """

    parent: Places  # vertex → parent's number, -1 at the root
    order: Places  # pre-order position → vertex
    position: Places  # vertex → pre-order position
    up: Places  # position → parent's position, -1 at the root
    size: Places  # position → vertices in its subtree, itself included
    leaves: Places  # position → leaves in its subtree, s(v) of CBM section 5

    @staticmethod
    def of(parent: Sequence[int] | NDArray[Any]) -> "Tree":
        """Check the parents and compute the layout; errors name the vertex."""
        checked = _checked(parent)
        order, position, up, size, leaves, reached = _layout(checked)
        if reached < checked.size:
            lost = int(np.flatnonzero(position < 0)[0])
            raise TreeError(f"no root is above vertex {lost}: {_cycle(checked, lost)}")
        return Tree(checked, order, position, up, size, leaves)

    @property
    def vertices(self) -> int:
        """Count the vertices."""
        return int(self.parent.size)

    @property
    def root(self) -> int:
        """Return the root's number."""
        return int(self.order[0])

    def inner(self) -> Flags:
        """Flag, per position, the vertices with children: elsewhere a filter has no effect."""
        found: Flags = self.size > 1
        return found

    def places(self, vertices: Iterable[int]) -> NDArray[np.int64]:
        """Translate vertex numbers to positions; raise for numbers that are not in the tree."""
        given = vertices if isinstance(vertices, np.ndarray) else list(vertices)
        numbers = np.asarray(given, dtype=np.int64)
        wrong = numbers[(numbers < 0) | (numbers >= self.vertices)]
        if wrong.size:
            raise TreeError(f"vertex {wrong[0]} is not in the tree: {self._range()}")
        return self.position[numbers].astype(np.int64)

    def flags(self, filters: Iterable[int]) -> Flags:
        """Flag, by position, the vertices of a placement."""
        marked = np.zeros(self.vertices, dtype=np.bool_)
        marked[self.places(filters)] = True
        return marked

    def numbers(self, positions: NDArray[Any]) -> tuple[int, ...]:
        """Translate positions to vertex numbers, ascending."""
        return tuple(sorted(int(vertex) for vertex in self.order[positions]))

    def _range(self) -> str:
        return f"its vertices are 0 to {self.vertices - 1}"


def _checked(parent: Sequence[int] | NDArray[Any]) -> Places:
    try:
        numbers = np.asarray(parent)
    except (ValueError, OverflowError):
        raise TreeError("parents must be a flat list of vertex numbers") from None
    if numbers.ndim != 1:
        raise TreeError("parents must be a flat list of vertex numbers")
    if numbers.size == 0:
        raise TreeError("the tree has no vertices: at least a root (parent -1) is needed")
    if numbers.size > VERTICES_MAX:
        raise LimitError(f"the tree has {numbers.size} vertices; the limit is {VERTICES_MAX}")
    if numbers.dtype.kind not in "iu":
        wrong = next((v for v, p in enumerate(parent) if not isinstance(p, int | np.integer)), 0)
        raise TreeError(f"the parent of vertex {wrong} is not a vertex number")
    outside = np.flatnonzero((numbers < -1) | (numbers >= numbers.size))
    if outside.size:
        vertex = int(outside[0])
        problem = f"vertex {vertex} has parent {numbers[vertex]}, which is missing from the tree"
        raise TreeError(f"{problem} (0 to {numbers.size - 1}, or -1 for the root)")
    roots = np.flatnonzero(numbers == -1)
    if roots.size > 1:
        raise TreeError(f"vertices {roots[0]} and {roots[1]} are both roots: one must be")
    if roots.size == 0:
        raise TreeError(f"no vertex is the root: {_cycle(numbers, 0)}")
    return numbers.astype(np.int32)


def _cycle(parent: NDArray[Any], start: int) -> str:
    """Walk up from a vertex that never reaches a root; describe the cycle it ends in."""
    seen: dict[int, None] = {}
    vertex = start
    while vertex not in seen:
        seen[vertex] = None
        vertex = int(parent[vertex])
    path = list(seen)
    ring = [*path[path.index(vertex) :], vertex]
    shown = ring if len(ring) <= 8 else [*ring[:7], "…", vertex]
    return "a cycle runs " + " → ".join(map(str, shown))


@kernel
def preorder(first: Any, following: Any, root: int, order: Any) -> int:
    """Fill `order` in pre-order from first-child and next-sibling links; return the count."""
    count = 0
    stack = np.empty(order.size, dtype=np.int32)
    stack[0] = root
    top = 1
    while top > 0:
        top -= 1
        vertex = stack[top]
        order[count] = vertex
        count += 1
        # Push the sibling before the child, so the stack holds at most one sibling per level.
        if following[vertex] >= 0:
            stack[top] = following[vertex]
            top += 1
        if first[vertex] >= 0:
            stack[top] = first[vertex]
            top += 1
    return count


@kernel
def _layout(parent: Any) -> Any:
    n = parent.size
    first = np.full(n, -1, dtype=np.int32)
    following = np.full(n, -1, dtype=np.int32)
    root = -1
    for vertex in range(n - 1, -1, -1):  # backwards, so that siblings are in ascending order
        above = parent[vertex]
        if above < 0:
            root = vertex
        else:
            following[vertex] = first[above]
            first[above] = vertex
    order = np.empty(n, dtype=np.int32)
    reached = preorder(first, following, root, order)
    position = np.full(n, -1, dtype=np.int32)
    for place in range(reached):
        position[order[place]] = place
    up = np.full(n, -1, dtype=np.int32)
    size = np.ones(n, dtype=np.int32)
    leaves = np.zeros(n, dtype=np.int32)
    for place in range(reached - 1, -1, -1):
        if size[place] == 1:
            leaves[place] = 1
        if place > 0:
            above = position[parent[order[place]]]
            up[place] = above
            size[above] += size[place]
            leaves[above] += leaves[place]
    return order, position, up, size, leaves, reached
