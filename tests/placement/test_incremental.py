"""After a few changes the placement is as good as one computed from the start."""

import random

import numpy as np
import pytest

from roamcast.errors import LimitError, TreeError
from roamcast.placement import incremental as module
from roamcast.placement import optimal as optimal_module
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.incremental import Replanner
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import combined, traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import random_parents, random_wants


def _weighted(tree, flow):
    return combined(tree, flow, traffic_weight=1, delay_weight=2, filter_delay=3, filter_cost=1)


@pytest.mark.parametrize("objective", [traffic, _weighted])
@pytest.mark.parametrize("kind", ["binary", "any", "path", "star"])
def test_changes_lead_to_the_optimum_of_a_fresh_start(kind, objective, monkeypatch):
    monkeypatch.setattr(optimal_module, "BOUND_FROM", 50)
    source = random.Random(kind)
    for limit in (1, 4, None):
        parent = random_parents(source, 120, kind)
        tree = Tree.of(parent)
        wants = random_wants(source, parent, 200, 0.02)
        table = np.array([[item in wants[leaf] for item in range(200)] for leaf in wants])
        start = LeafWants.of_table(tree, wants, table)
        replanner = Replanner(tree, start, limit, objective)
        for _ in range(6):
            changed = source.sample(sorted(wants), min(len(wants), 3))
            fresh = {leaf: source.sample(range(200), source.randint(0, 9)) for leaf in changed}
            wants.update(fresh)
            found = replanner.change(fresh)
            flow = flows(tree, LeafWants.of(tree, wants))
            again = objective(tree, flow)
            assert np.array_equal(replanner.flow, flow)
            assert np.array_equal(replanner.problem.solo, again.solo)
            assert found.cost == optimal(again, limit).cost
            assert found == replanner.placement


def test_the_starting_flows_are_those_of_the_subscriptions():
    source = random.Random(3)
    parent = random_parents(source, 60, "any")
    tree = Tree.of(parent)
    subscriptions = LeafWants.of(tree, random_wants(source, parent, 130, 0.1))
    assert np.array_equal(Replanner(tree, subscriptions, 3).flow, flows(tree, subscriptions))


@pytest.mark.parametrize("item", [0, 1, 64])
def test_one_item_more_is_counted_up_to_the_root(item):
    tree = Tree.of([-1, 0, 1, 0])
    replanner = Replanner(tree, LeafWants.of(tree, {2: range(65), 3: []}), 1)
    replanner.change({2: []})
    replanner.change({2: [item]})
    assert replanner.flow.tolist() == [1, 1, 1, 0]


def test_nothing_changed_changes_nothing():
    tree = Tree.of([-1, 0, 0, 1, 1])
    replanner = Replanner(tree, LeafWants.of(tree, {2: [0], 3: [1], 4: [2]}), 1)
    before = replanner.placement
    assert replanner.change({}) == before


@pytest.mark.parametrize(
    ("wants", "said"),
    [
        ({1: [0]}, "vertex 1 is not a leaf"),
        ({7: [0]}, "vertex 7 is not in the tree"),
        ({2: [3]}, "not among the 3 known"),
        ({2: [-1]}, "not among the 3 known"),
    ],
)
def test_wrong_changes_are_refused_and_change_nothing(wants, said):
    tree = Tree.of([-1, 0, 0, 1, 1])
    replanner = Replanner(tree, LeafWants.of(tree, {2: [0], 3: [1], 4: [2]}), 1)
    before = replanner.flow.copy()
    with pytest.raises(TreeError, match=said):
        replanner.change(wants)
    assert np.array_equal(replanner.flow, before)


def test_the_unions_kept_have_a_limit(monkeypatch):
    tree = Tree.of([-1, 0, 0])
    subscriptions = LeafWants.of(tree, {1: [0], 2: [1]})
    monkeypatch.setattr(module, "BITMAP_BYTES_MAX", 3 * 8)
    Replanner(tree, subscriptions, 1)
    monkeypatch.setattr(module, "BITMAP_BYTES_MAX", 3 * 8 - 1)
    with pytest.raises(LimitError, match="take 24 bytes; the limit is 23"):
        Replanner(tree, subscriptions, 1)
