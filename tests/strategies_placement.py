"""Trees, subscriptions, and the slow, obvious ways to compute what `placement` computes."""

import itertools
import random
from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.problem import Problem, combined, delay, traffic
from roamcast.placement.tree import Tree

Wants = dict[int, list[int]]

# A tree with the numbers of CBM's figure 1 (its own is lost from the scan): 9 recipients A to I at
# vertices 7 to 15, 15 links, 8 items; 120 units without filters, 50 with all, 63 with the best 3.
EXAMPLE_PARENT = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6]
EXAMPLE_WANTS: Wants = {
    7: [1, 3],
    8: [2],
    9: [7],
    10: [2, 5],
    11: [4, 7],
    12: [1, 2, 6],
    13: [5, 7, 8],
    14: [1, 3, 6],
    15: [3, 4],
}


def children_of(parent: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in parent]
    for vertex, above in enumerate(parent):
        if above >= 0:
            found[above].append(vertex)
    return found


def inner_of(parent: list[int]) -> list[int]:
    return sorted({above for above in parent if above >= 0})


def wanted_below(parent: list[int], wants: Wants) -> list[set[int]]:
    """The items each subtree wants, leaf by leaf and ancestor by ancestor."""
    below: list[set[int]] = [set() for _ in parent]
    for leaf, items in wants.items():
        vertex = leaf
        while vertex >= 0:
            below[vertex] |= set(items)
            vertex = parent[vertex]
    return below


def send_everything(parent: list[int], wants: Wants, filters: Iterable[int]) -> dict[int, int]:
    """Send every wanted item down the tree, one by one; count them on the link into each vertex.

    Knows nothing of flows: a vertex with a filter asks, for each child, whether anyone below wants
    this item; one without passes the item to all its children.
    """
    children = children_of(parent)
    below = wanted_below(parent, wants)
    root = parent.index(-1)
    filtering = set(filters)
    carried = {vertex: 0 for vertex in range(len(parent)) if vertex != root}
    for item in sorted(below[root]):
        holding = [root]
        while holding:
            vertex = holding.pop()
            for child in children[vertex]:
                if vertex not in filtering or item in below[child]:
                    carried[child] += 1
                    holding.append(child)
    return carried


def sent_traffic(parent: list[int], wants: Wants, filters: Iterable[int]) -> int:
    return sum(send_everything(parent, wants, filters).values())


def sent_delay(
    parent: list[int], wants: Wants, filters: Iterable[int], filter_delay: float, link_delay: float
) -> float:
    """Add up, leaf by leaf, the links and the filters on the way to it (CBM section 5)."""
    filtering = set(filters)
    carried = send_everything(parent, wants, filtering)
    total = 0.0
    for leaf in range(len(parent)):
        if leaf in parent:
            continue
        vertex = leaf
        while parent[vertex] >= 0:
            total += link_delay * carried[vertex]
            vertex = parent[vertex]
            total += filter_delay if vertex in filtering else 0.0
    return total


def placements(parent: list[int], limit: int | None = None) -> Iterator[tuple[int, ...]]:
    inner = inner_of(parent)
    most = len(inner) if limit is None else min(limit, len(inner))
    for count in range(most + 1):
        yield from itertools.combinations(inner, count)


def random_parents(source: random.Random, vertices: int, kind: str) -> list[int]:
    """A tree of some kind with its vertices named at random."""
    if kind == "binary":
        shape, free = [-1], [0, 0]
        while len(shape) < vertices:
            above = free.pop(source.randrange(len(free)))
            free += [len(shape)] * 2
            shape.append(above)
    elif kind == "path":
        shape = [-1, *range(vertices - 1)]
    elif kind == "star":
        shape = [-1] + [0] * (vertices - 1)
    else:
        shape = [-1] + [source.randrange(vertex) for vertex in range(1, vertices)]
    return renamed(shape, source.sample(range(vertices), vertices))[0]


def renamed(
    parent: list[int], names: list[int], wants: Wants | None = None
) -> tuple[list[int], Wants]:
    """The same tree where vertex v is called names[v]."""
    fresh = [-1] * len(parent)
    for vertex, above in enumerate(parent):
        fresh[names[vertex]] = -1 if above < 0 else names[above]
    return fresh, {names[vertex]: items for vertex, items in (wants or {}).items()}


def random_wants(source: random.Random, parent: list[int], items: int, chance: float) -> Wants:
    above = set(parent)
    leaves = [vertex for vertex in range(len(parent)) if vertex not in above]
    return {v: [i for i in range(items) if source.random() < chance] for v in leaves}


def shape_of(parent: list[int], mark: list[object]) -> object:
    """A form that two marked trees share if and only if they differ in names alone."""
    children = children_of(parent)

    def form(vertex: int) -> tuple[str, ...]:
        below = sorted(form(child) for child in children[vertex])
        return (repr(mark[vertex]), repr(below))

    return form(parent.index(-1))


def flow_of(parent: list[int], wants: Wants) -> tuple[Tree, list[float]]:
    tree = Tree.of(parent)
    return tree, list(flows(tree, LeafWants.of(tree, wants)))


@st.composite
def demands(draw: st.DrawFn, vertices_max: int = 11) -> tuple[list[int], Wants]:
    """A small tree with names in any order, and what its leaves want."""
    vertices = draw(st.integers(1, vertices_max))
    shape = [-1] + [draw(st.integers(0, vertex - 1)) for vertex in range(1, vertices)]
    parent, _ = renamed(shape, draw(st.permutations(range(vertices))))
    above = set(parent)
    wants = {
        vertex: draw(st.lists(st.integers(0, 5), max_size=4))
        for vertex in range(vertices)
        if vertex not in above
    }
    return parent, wants


@st.composite
def problems(draw: st.DrawFn, vertices_max: int = 11) -> Problem:
    """A small problem with any of the objectives."""
    parent, wants = draw(demands(vertices_max))
    tree = Tree.of(parent)
    flow = flows(tree, LeafWants.of(tree, wants))
    kind = draw(st.sampled_from(["traffic", "delay", "combined"]))
    whole = st.integers(0, 6)
    if kind == "traffic":
        return traffic(tree, flow)
    if kind == "delay":
        return delay(tree, flow, draw(whole), draw(st.integers(1, 3)))
    return combined(
        tree,
        flow,
        traffic_weight=draw(whole),
        delay_weight=draw(whole),
        filter_delay=draw(whole),
        filter_cost=draw(whole),
        move_cost=draw(whole),
        current=[vertex for vertex in inner_of(parent) if draw(st.booleans())],
    )
