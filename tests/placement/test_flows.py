"""f(v) is the number of distinct items that anyone below v wants."""

import numpy as np
import pytest
from hypothesis import given

from roamcast.errors import LimitError, TreeError
from roamcast.placement import flows as module
from roamcast.placement.flows import LeafWants, checked_flows, flows
from roamcast.placement.tree import Tree
from tests.strategies_placement import demands, wanted_below


@given(demands())
def test_flows_are_sizes_of_unions(demand):
    parent, wants = demand
    tree = Tree.of(parent)
    assert list(flows(tree, LeafWants.of(tree, wants))) == [
        len(items) for items in wanted_below(parent, wants)
    ]


def test_many_items_are_taken_in_several_passes(monkeypatch):
    generator = np.random.default_rng(1)
    tree = Tree.of([-1, *[(vertex - 1) // 2 for vertex in range(1, 127)]])
    wanted = generator.random((64, 1000)) < 0.1
    subscriptions = LeafWants.of_table(tree, range(63, 127), wanted)
    at_once = flows(tree, subscriptions)
    assert at_once[0] == np.count_nonzero(wanted.any(axis=0))
    assert at_once[1] == np.count_nonzero(wanted[:32].any(axis=0))
    monkeypatch.setattr(module, "UNION_BYTES_MAX", 7 * 8 * 3)
    assert np.array_equal(flows(tree, subscriptions), at_once)


def test_a_table_and_lists_say_the_same():
    tree = Tree.of([-1, 0, 0, 0])
    table = np.array([[True, False, True], [False, False, False], [False, True, True]])
    by_table = flows(tree, LeafWants.of_table(tree, [3, 1, 2], table))
    by_lists = flows(tree, LeafWants.of(tree, {3: [0, 2], 1: [], 2: [1, 2]}))
    assert np.array_equal(by_table, by_lists)


def test_an_item_named_twice_is_wanted_once_and_any_number_names_an_item():
    tree = Tree.of([-1, 0])
    wants = {1: [7, 7, -3, 2**62]}
    assert list(flows(tree, LeafWants.of(tree, wants))) == [3, 3]


@pytest.mark.parametrize(
    ("wants", "said"),
    [
        ({0: [1]}, "vertex 0 is not a leaf"),
        ({9: [1]}, "vertex 9 is not in the tree"),
        ({1: [2**70]}, "an item is not a whole number"),
        ({1: ["a"]}, "an item is not a whole number"),
    ],
)
def test_wrong_wants_are_refused_by_name(wants, said):
    with pytest.raises(TreeError, match=said):
        LeafWants.of(Tree.of([-1, 0, 0]), wants)


def test_items_and_subscriptions_have_limits(monkeypatch):
    tree = Tree.of([-1, 0, 0])
    monkeypatch.setattr(module, "ITEMS_MAX", 2)
    LeafWants.of(tree, {1: [1, 2], 2: [1]})
    with pytest.raises(LimitError, match="3 distinct items"):
        LeafWants.of(tree, {1: [1, 2], 2: [3]})
    monkeypatch.setattr(module, "WANTS_MAX", 3)
    LeafWants.of(tree, {1: [1, 2], 2: [1]})
    with pytest.raises(LimitError, match="4 subscriptions"):
        LeafWants.of(tree, {1: [1, 2], 2: [1, 2]})


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ([3, 1], "2 flows for 3 vertices"),
        ([3, 1, float("nan")], "flow of vertex 2 is nan"),
        ([3, -1, 1], "flow of vertex 1 is -1"),
        ([3, float("inf"), 1], "flow of vertex 1 is inf"),
        ([3, 1, 4], "vertex 2 has flow 4, more than its parent 0 with 3"),
    ],
)
def test_wrong_flows_are_refused_by_name(flow, said):
    with pytest.raises(TreeError, match=said):
        checked_flows(Tree.of([-1, 0, 0]), flow)


def test_flows_may_be_rates():
    assert list(checked_flows(Tree.of([-1, 0]), [2.5, 0.25])) == [2.5, 0.25]


def test_items_far_apart_and_close_together_are_numbered_alike(monkeypatch):
    tree = Tree.of([-1, 0, 0])
    wants = {1: [9, 4, 4, 30], 2: [4, 17]}
    by_table = LeafWants.of(tree, wants)
    monkeypatch.setattr(module, "SPREAD_MAX", 0)
    by_sorting = LeafWants.of(tree, wants)
    assert by_table.items == by_sorting.items == 4
    assert list(by_table.item) == list(by_sorting.item) == [1, 0, 0, 3, 0, 2]
