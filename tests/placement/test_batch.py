"""A batch: subscriptions changed, filters told. Applied, the signals give the new placement."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import TreeError
from roamcast.placement.batch import (
    ChangeCosts,
    Filters,
    Signal,
    apply,
    next_batch,
    signals,
)
from roamcast.placement.cost import cost
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import demands, inner_of, random_wants


@given(demands(), st.data())
def test_signals_applied_to_the_old_placement_give_the_new_one(demand, data):
    parent, _ = demand
    inner = inner_of(parent)
    state = [data.draw(st.sampled_from(["active", "passive", "none"])) for _ in inner]
    current = Filters.of(
        [v for v, s in zip(inner, state, strict=True) if s == "active"],
        [v for v, s in zip(inner, state, strict=True) if s == "passive"],
    )
    wanted = [v for v in inner if data.draw(st.booleans())]
    sent = signals(Tree.of(parent), current, wanted)
    after = apply(current, sent)
    assert after.active == frozenset(wanted)
    assert not after.active & after.passive
    # Code moves only when it must: idle filters are woken, every other one comes from a spare one.
    kinds = [signal.kind for signal in sent]
    missing, spare = set(wanted) - current.active, current.active - set(wanted)
    assert kinds.count("activate") == len(missing & current.passive)
    assert kinds.count("migrate") == min(len(spare), len(missing - current.passive))
    assert "spawn" not in kinds or "passivate" not in kinds


@given(demands(), st.data())
def test_a_batch_reports_what_it_costs(demand, data):
    parent, before = demand
    tree = Tree.of(parent)
    source = random.Random(data.draw(st.integers(0, 99)))
    after = random_wants(source, parent, 6, 0.4)
    inner = inner_of(parent)
    current = Filters.of(v for v in inner if data.draw(st.booleans()))
    limit = data.draw(st.integers(len(current.active), 9))
    moves = data.draw(st.sampled_from([None, 0, 1, 2]))
    batch = next_batch(
        tree,
        LeafWants.of(tree, before),
        flows(tree, LeafWants.of(tree, after)),  # footnote 2: flows alone are enough
        current,
        limit=limit,
        moves=moves,
        costs=ChangeCosts(migrate=10, spawn=100, activate=1),
    )
    old = traffic(tree, flows(tree, LeafWants.of(tree, before)))
    new = traffic(tree, flows(tree, LeafWants.of(tree, after)))
    assert batch.cost_before == cost(old, current.active)
    assert batch.cost_unmoved == cost(new, current.active)
    assert batch.cost == cost(new, batch.filters.active) <= batch.cost_unmoved
    assert batch.filters == apply(current, batch.signals)
    assert len(batch.filters.active) <= limit
    if moves is None:
        assert batch.cost == optimal(new, limit).cost
    else:
        assert len(batch.filters.active ^ current.active) <= 2 * moves
    kinds = [signal.kind for signal in batch.signals]
    weights = {"migrate": 10, "spawn": 100, "activate": 1, "passivate": 0}
    assert batch.change_cost == sum(weights[kind] for kind in kinds)


def test_filters_migrate_to_where_their_ways_meet_lowest():
    tree = Tree.of([-1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6])
    sent = signals(tree, Filters.of([3, 5]), [4, 6])
    assert sent == (Signal("migrate", 3, 4), Signal("migrate", 5, 6))


def test_the_nearest_filter_above_spawns_and_the_source_always_can():
    tree = Tree.of([-1, 0, 0, 1, 1, 3])
    assert signals(tree, Filters.of([1]), [1, 3]) == (Signal("spawn", 1, 3),)
    assert signals(tree, Filters.of([]), [3]) == (Signal("spawn", 0, 3),)
    assert signals(tree, Filters.of([]), [0]) == (Signal("spawn", 0, 0),)


def test_idle_filters_wake_up_where_they_are():
    tree = Tree.of([-1, 0, 0, 1, 2])
    current = Filters.of([1], [2])
    sent = signals(tree, current, [2])
    assert sent == (Signal("activate", 2, 2), Signal("passivate", 1, 1))
    assert apply(current, sent) == Filters.of([2], [1])


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        (Signal("migrate", 4, 1), "vertex 4 has no active filter to migrate"),
        (Signal("passivate", 2, 2), "vertex 2 has no active filter to passivate"),
        (Signal("activate", 3, 3), "vertex 3 has no passive filter to activate"),
    ],
)
def test_a_signal_that_cannot_be_obeyed_is_an_error(signal, said):
    with pytest.raises(TreeError, match=said):
        apply(Filters.of([1], [2]), [signal])


def test_a_filter_is_not_active_and_passive():
    with pytest.raises(TreeError, match="vertex 2 is given as active and as passive"):
        Filters.of([1, 2], [2])


def test_signals_name_vertices_of_the_tree_only():
    with pytest.raises(TreeError, match="vertex 9 is not in the tree"):
        signals(Tree.of([-1, 0]), Filters.of([9]), [0])


def test_many_filters_move_in_a_large_tree():
    tree = Tree.of([-1, *[(vertex - 1) // 2 for vertex in range(1, 4095)]])
    generator = np.random.default_rng(1)
    old = generator.choice(2047, 500, replace=False)
    new = generator.choice(2047, 600, replace=False)
    current = Filters.of(map(int, old))
    assert apply(current, signals(tree, current, map(int, new))).active == set(map(int, new))
