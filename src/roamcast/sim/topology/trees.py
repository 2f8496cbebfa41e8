"""Dissemination trees: complete ones (CBM section 7) and random ones."""

import heapq

import numpy as np

from roamcast.errors import LimitError
from roamcast.sim.topology.graph import NODES_MAX, Ints, Topology, check_size, tree


def complete_tree(arity: int, depth: int) -> Topology:
    """Return the tree whose inner vertices have `arity` children and whose leaves are at `depth`.

    CBM's experiments use `complete_tree(2, 6)`: 127 vertices, 64 users at the leaves. Vertices are
    numbered level by level; the children of v are `arity * v + 1 … arity * v + arity`.
    """
    if arity < 1 or depth < 0:
        raise LimitError("a complete tree has an arity of at least 1 and a depth of at least 0")
    nodes, level = 0, 1
    for _ in range(depth + 1):
        nodes, level = nodes + level, level * arity
        if nodes > NODES_MAX:
            raise LimitError(f"a topology has 1 to {NODES_MAX} nodes")
    parents = (np.arange(nodes, dtype=np.int64) - 1) // arity
    parents[0] = -1
    return tree(parents)


def recursive_tree(
    nodes: int, generator: np.random.Generator, children_max: int | None = None
) -> Topology:
    """Return a tree where each new node joins an older one, chosen uniformly.

    With `children_max`, only nodes with fewer children are eligible.
    """
    check_size(nodes)
    if children_max is None:
        parents = np.full(nodes, -1, dtype=np.int64)
        parents[1:] = generator.integers(0, np.arange(1, nodes))
        return tree(parents)
    if children_max < 1:
        raise LimitError("a node needs room for at least one child")
    parents = np.full(nodes, -1, dtype=np.int64)
    eligible = [0]
    children = [0] * nodes
    draws = generator.random(nodes)
    for node in range(1, nodes):
        at = int(draws[node] * len(eligible))
        parent = eligible[at]
        parents[node] = parent
        children[parent] += 1
        if children[parent] == children_max:
            eligible[at] = eligible[-1]
            eligible.pop()
        eligible.append(node)
    return tree(parents)


def uniform_tree(nodes: int, generator: np.random.Generator) -> Topology:
    """Return one of the n^(n-2) labelled trees, chosen uniformly (Prüfer's bijection).

    Nodes are then renumbered breadth first from the root, so that parents come before children.
    """
    check_size(nodes)
    if nodes <= 2:
        return tree(np.arange(-1, nodes - 1, dtype=np.int64))
    code = generator.integers(0, nodes, size=nodes - 2)
    return tree(_rooted(nodes, links_of_code(code)))


def links_of_code(code: Ints) -> list[tuple[int, int]]:
    """Decode a Prüfer sequence into the links of its tree."""
    nodes = len(code) + 2
    missing = np.bincount(code, minlength=nodes) + 1
    leaves = np.flatnonzero(missing == 1).tolist()
    heapq.heapify(leaves)
    links = []
    for inner in code.tolist():
        links.append((heapq.heappop(leaves), inner))
        missing[inner] -= 1
        if missing[inner] == 1:
            heapq.heappush(leaves, inner)
    links.append((heapq.heappop(leaves), heapq.heappop(leaves)))
    return links


def _rooted(nodes: int, links: list[tuple[int, int]]) -> Ints:
    joined = Topology(nodes, links)
    order = [0]
    place = {0: 0}
    parents = [-1]
    for node in order:
        for other in joined.neighbours(node).tolist():
            if other not in place:
                place[other] = len(order)
                parents.append(place[node])
                order.append(other)
    return np.array(parents, dtype=np.int64)
