"""The paper's moves: one a batch, exactly as good as they say, and only if they help."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import TreeError
from roamcast.placement import heuristic as module
from roamcast.placement.cost import cost, importance
from roamcast.placement.flows import LeafWants, checked_flows, flows
from roamcast.placement.heuristic import best_move, greedy, settle, step
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import delay, traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import inner_of, problems, random_parents, random_wants


def _random_problems(count: int, seed: int):
    source = random.Random(seed)
    for _ in range(count):
        parent = random_parents(source, source.randint(2, 14), "any")
        tree = Tree.of(parent)
        wants = random_wants(source, parent, 8, 0.3)
        flow = flows(tree, LeafWants.of(tree, wants))
        inner = inner_of(parent)
        filters = sorted(source.sample(inner, source.randint(0, len(inner))))
        yield parent, traffic(tree, flow), filters
        yield parent, delay(tree, flow, source.choice([0, 1, 3])), filters


@given(problems(), st.data())
def test_a_move_saves_exactly_what_it_says(problem, data):
    parent = [int(above) for above in problem.tree.parent]
    filters = {vertex for vertex in inner_of(parent) if data.draw(st.booleans())}
    limit = data.draw(st.sampled_from([None, len(filters), len(filters) + 1]))
    move = best_move(problem, filters, limit)
    after, made = step(problem, filters, limit)
    if move is None:
        assert not made
        assert after.filters == tuple(sorted(filters))
    else:
        moved = (filters - {move.source}) | ({move.target} - {None})
        assert after.filters == tuple(sorted(moved))
        assert cost(problem, filters) - after.cost == move.saved > 0
        assert limit is None or len(moved) <= max(limit, len(filters))


def test_a_batch_follows_the_order_of_section_6_1():
    """Importance flip first; only if it would not help, parent-child flip; else nothing."""
    seen = set()
    for parent, problem, filters in _random_problems(400, seed=61):
        limit = len(filters)
        move = best_move(problem, filters, limit)
        now = cost(problem, filters)
        worth = importance(problem, filters)
        others = [v for v in inner_of(parent) if v not in filters]
        flips = [0.0]
        if filters and others:
            least = min(worth[v] for v in filters)
            most = max(worth[v] for v in others)
            flips += [
                now - cost(problem, (set(filters) - {u}) | {v})
                for u, v in itertools.product(filters, others)
                if worth[u] == least and worth[v] == most
            ]
        removals = [-worth[v] for v in filters]
        pairs = [0.0]
        for child in inner_of(parent):
            above = parent[child]
            if above >= 0 and (child in filters) != (above in filters):
                pairs.append(now - cost(problem, set(filters) ^ {child, above}))
        kind = move.kind if move else "none"
        seen.add(kind)
        if kind == "importance flip":
            assert move.saved in flips
            assert move.saved >= max([0.0, *removals])
        elif kind == "remove":
            assert move.saved == max(removals)
        elif kind == "parent-child flip":
            assert min(flips) <= 0 >= max([0.0, *removals])
            assert move.saved == max(pairs)
            assert move.source in filters
            assert move.target not in filters
        elif kind == "none":
            assert max(pairs) <= 0
            assert min(flips) <= 0
    assert seen == {"importance flip", "parent-child flip", "remove", "none"}


def test_the_delay_heuristic_places_and_removes_filters():
    tree = Tree.of([-1, 0, 0, 1, 1, 2, 2])
    flow = checked_flows(tree, [9, 5, 5, 1, 5, 1, 5])
    cheap, dear = delay(tree, flow, 0.1), delay(tree, flow, 1000)
    assert best_move(cheap, []).kind == "place"
    assert best_move(dear, [0, 1]).kind == "remove"
    assert settle(dear).filters == ()
    assert settle(cheap).filters == optimal(cheap).filters == (0, 1, 2)


def test_several_moves_a_batch_are_single_moves_in_a_row():
    for _parent, problem, filters in _random_problems(50, seed=8):
        one_by_one = tuple(filters)
        for _ in range(3):
            one_by_one = step(problem, one_by_one, len(filters))[0].filters
        assert step(problem, filters, len(filters), moves=3)[0].filters == one_by_one
        assert step(problem, filters, len(filters), moves=0)[1] == []


def test_greedy_places_the_most_important_again_and_again():
    for _parent, problem, _filters in _random_problems(60, seed=4):
        chosen: list[int] = []
        for limit in range(1, 6):
            worth = importance(problem, chosen)
            best = worth[[v for v in range(worth.size) if v not in chosen]].max(initial=-np.inf)
            found = greedy(problem, limit)
            if best <= 0:
                assert len(found.filters) == len(chosen)
                break
            assert found.cost == cost(problem, chosen) - best
            assert set(chosen) < set(found.filters)
            chosen = list(found.filters)


def test_settling_ends_after_a_bounded_number_of_moves(monkeypatch):
    monkeypatch.setattr(module, "STEPS_MAX", 0)
    for _parent, problem, _filters in _random_problems(20, seed=5):
        assert settle(problem, 3) == greedy(problem, 3)


def test_what_cannot_be_asked_is_refused():
    tree = Tree.of([-1, 0, 0])
    problem = traffic(tree, checked_flows(tree, [2, 1, 1]))
    with pytest.raises(TreeError, match="2 filters are placed; the limit is 1"):
        step(problem, [0, 1], 1)
    with pytest.raises(TreeError, match="number of moves is -1"):
        step(problem, [], 1, moves=-1)
    with pytest.raises(TreeError, match="number of filters is -2"):
        greedy(problem, -2)
