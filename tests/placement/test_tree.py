"""A tree is checked before anything is computed on it, and laid out without recursion."""

import numpy as np
import pytest
from hypothesis import given

from roamcast.errors import LimitError, TreeError
from roamcast.placement import tree as module
from roamcast.placement.flows import levels
from roamcast.placement.tree import Tree
from tests.strategies_placement import children_of, demands


@given(demands())
def test_a_subtree_is_a_slice_of_the_preorder(demand):
    parent, _wants = demand
    tree = Tree.of(parent)
    children = children_of(parent)

    def below(vertex: int) -> set[int]:
        return {vertex}.union(*(below(child) for child in children[vertex]))

    for vertex in range(len(parent)):
        place = tree.position[vertex]
        inside = tree.order[place : place + tree.size[place]]
        assert set(map(int, inside)) == below(vertex)
        assert tree.leaves[place] == sum(not children[v] for v in below(vertex))
        above = parent[vertex]
        assert tree.up[place] == (-1 if above < 0 else tree.position[above])


@pytest.mark.parametrize(
    ("parent", "said"),
    [
        ([], "no vertices"),
        ([-1, 2, 3, 1], "no root is above vertex 1: a cycle runs 1 → 2 → 3 → 1"),
        ([1, 0], "no vertex is the root: a cycle runs 0 → 1 → 0"),
        ([0], "a cycle runs 0 → 0"),
        ([-1, 0, -1], "vertices 0 and 2 are both roots"),
        ([-1, 0, 9], "vertex 2 has parent 9, which is missing"),
        ([-1, -2], "vertex 1 has parent -2, which is missing"),
        ([-1, 0.5], "parent of vertex 1 is not a vertex number"),
        ([-1, float("nan")], "parent of vertex 1 is not a vertex number"),
        ([-1, None], "parent of vertex 1 is not a vertex number"),
        ([[-1], [0]], "flat list"),
        ([[-1], [0, 1]], "flat list"),
        ([-1, *range(2, 30), 1], "cycle runs 1 → 2 → 3 → 4 → 5 → 6 → 7 → … → 1"),
    ],
)
def test_what_is_no_tree_is_refused_by_name(parent, said):
    with pytest.raises(TreeError, match=said):
        Tree.of(parent)


def test_the_number_of_vertices_has_a_limit(monkeypatch):
    monkeypatch.setattr(module, "VERTICES_MAX", 3)
    assert Tree.of([-1, 0, 0]).vertices == 3
    with pytest.raises(LimitError, match="limit is 3"):
        Tree.of([-1, 0, 0, 0])


def test_a_path_of_a_million_vertices_needs_no_recursion():
    n = 1_000_000
    tree = Tree.of(np.arange(-1, n - 1))
    assert tree.size[0] == n
    assert levels(tree)[-1] == n - 1


def test_a_vertex_that_is_not_in_the_tree_is_named():
    with pytest.raises(TreeError, match="vertex 5 is not in the tree: its vertices are 0 to 2"):
        Tree.of([-1, 0, 0]).flags([1, 5])
