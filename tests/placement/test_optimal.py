"""The optimum equals exhaustive search; ties, limits and large trees behave."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import LimitError, TreeError
from roamcast.placement import _bounds, _limited, _sparse
from roamcast.placement import optimal as module
from roamcast.placement._bounds import paying
from roamcast.placement._sparse import sparse
from roamcast.placement._unlimited import solve_unlimited
from roamcast.placement.cost import cost
from roamcast.placement.flows import LeafWants, checked_flows, flows
from roamcast.placement.optimal import Placement, curve, filled, optimal, worthwhile
from roamcast.placement.problem import Problem, combined, delay, traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import (
    EXAMPLE_PARENT,
    EXAMPLE_WANTS,
    placements,
    problems,
    random_parents,
    random_wants,
    sent_delay,
    sent_traffic,
)

KINDS = ("binary", "any", "path", "star")


def _least(problem: Problem, limit: int | None = None) -> tuple[float, int]:
    """The least cost by trying everything, and the fewest filters that reach it."""
    parent = [int(above) for above in problem.tree.parent]
    return min((cost(problem, chosen), len(chosen)) for chosen in placements(parent, limit))


@pytest.mark.slow
def test_the_optimum_equals_exhaustive_search_on_300_trees():
    source = random.Random(618)
    for number in range(300):
        parent = random_parents(source, source.randint(1, 12), KINDS[number % 4])
        wants = random_wants(source, parent, source.randint(0, 9), source.choice([0.1, 0.3, 0.6]))
        tree = Tree.of(parent)
        flow = flows(tree, LeafWants.of(tree, wants))
        limit = source.randint(0, len(parent) + 1)
        found = optimal(traffic(tree, flow), limit)
        tried = {
            chosen: sent_traffic(parent, wants, chosen) for chosen in placements(parent, limit)
        }
        assert found.cost == min(tried.values()) == tried[found.filters]
        filter_delay, link_delay = source.choice([0, 1, 2.5, 7]), source.choice([1, 2])
        found = optimal(delay(tree, flow, filter_delay, link_delay))
        tried = {
            chosen: sent_delay(parent, wants, chosen, filter_delay, link_delay)
            for chosen in placements(parent)
        }
        assert found.cost == min(tried.values()) == tried[found.filters]


@given(problems(), st.integers(0, 12))
def test_the_optimum_is_least_and_uses_the_fewest_filters(problem, limit):
    for most in (limit, None):
        found = optimal(problem, most)
        assert (found.cost, len(found.filters)) == _least(problem, most)
        assert found.cost == cost(problem, found.filters)


@given(problems(), st.integers(1, 12))
def test_the_bound_never_drops_a_vertex_of_the_optimum(problem, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BOUND_FROM", 0)
        bounded = optimal(problem, limit)
    assert (bounded.cost, len(bounded.filters)) == _least(problem, limit)


def test_the_bound_changes_no_cost_on_larger_trees(monkeypatch):
    generator = np.random.default_rng(5)
    source = random.Random(5)
    for kind in KINDS:
        parent = random_parents(source, 600, kind)
        tree = Tree.of(parent)
        leaves = [v for v in range(600) if v not in set(parent)]
        wanted = generator.random((len(leaves), 100)) < 0.02
        problem = traffic(tree, flows(tree, LeafWants.of_table(tree, leaves, wanted)))
        for limit in (1, 2, 5, 17, 60):
            monkeypatch.setattr(module, "BOUND_FROM", 1 << 62)
            whole = optimal(problem, limit)
            monkeypatch.setattr(module, "BOUND_FROM", 0)
            bounded = optimal(problem, limit)
            assert (bounded.cost, len(bounded.filters)) == (whole.cost, len(whole.filters))


@given(problems())
def test_the_curve_gives_every_number_of_filters_in_one_run(problem):
    costs = curve(problem)
    assert [optimal(problem, limit).cost for limit in range(costs.size)] == list(costs)
    longer = curve(problem, costs.size + 3)
    assert list(longer) == [*costs, *[costs[-1]] * 4]
    assert list(curve(problem, 1)) == list(longer[:2])


@given(problems(), st.integers(0, 8))
def test_filters_stop_where_the_next_stops_paying(problem, price):
    costs = curve(problem)
    chosen = worthwhile(costs, price)
    totals = [value + price * count for count, value in enumerate(costs)]
    assert totals[chosen] == min(totals)


def test_a_price_per_filter_chooses_the_number_the_curve_chooses():
    tree = Tree.of(EXAMPLE_PARENT)
    flow = flows(tree, LeafWants.of(tree, EXAMPLE_WANTS))
    costs = curve(traffic(tree, flow))
    for price in (0, 1, 2, 4, 8, 16):
        priced = optimal(combined(tree, flow, traffic_weight=1, filter_cost=price))
        assert len(priced.filters) == worthwhile(costs, price)
        assert priced.cost == costs[len(priced.filters)] + price * len(priced.filters)


def test_a_price_per_move_keeps_filters_where_they_are():
    tree = Tree.of(EXAMPLE_PARENT)
    flow = flows(tree, LeafWants.of(tree, EXAMPLE_WANTS))
    free = optimal(combined(tree, flow, traffic_weight=1, move_cost=0, current=[2, 3, 4]), 3)
    dear = optimal(combined(tree, flow, traffic_weight=1, move_cost=99, current=[2, 3, 4]), 3)
    assert free.filters == (1, 5, 6)
    assert set(dear.filters) <= {2, 3, 4}


def test_the_worked_example_places_three_filters_for_63():
    tree = Tree.of(EXAMPLE_PARENT)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, EXAMPLE_WANTS)))
    assert optimal(problem, 3) == Placement((1, 5, 6), 63)
    assert optimal(problem).cost == 50


def test_all_filters_are_used_when_asked():
    tree = Tree.of(EXAMPLE_PARENT)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, {leaf: [1] for leaf in range(7, 16)})))
    assert optimal(problem, 4) == Placement((), 15)
    assert filled(problem, optimal(problem, 4), 4) == Placement((0, 1, 3, 4), 15)
    assert filled(problem, optimal(problem, 4), 99).filters == (0, 1, 2, 3, 4, 5, 6)


def test_a_limit_beyond_the_tree_is_no_limit_and_one_below_zero_is_refused():
    tree = Tree.of(EXAMPLE_PARENT)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, EXAMPLE_WANTS)))
    assert optimal(problem, 10**9) == optimal(problem)
    with pytest.raises(TreeError, match="number of filters is -1"):
        optimal(problem, -1)


@pytest.mark.parametrize("parent", [[-1], [-1, 0], [-1, 0, 1]])
def test_a_tree_without_branches_needs_no_filter(parent):
    tree = Tree.of(parent)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, {len(parent) - 1: [1, 2]})))
    assert optimal(problem, 5) == Placement((), 2 * (len(parent) - 1))


def test_what_nobody_wants_costs_nothing():
    tree = Tree.of(EXAMPLE_PARENT)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, {})))
    assert optimal(problem, 3) == Placement((), 0)
    assert optimal(delay(tree, flows(tree, LeafWants.of(tree, {})), 5)) == Placement((), 0)


def test_a_vertex_with_a_million_children_is_one_filter():
    n = 1_000_001
    tree = Tree.of(np.concatenate(([-1], np.zeros(n - 1, dtype=np.int64))))
    flow = np.ones(n)
    flow[0] = 10
    assert optimal(traffic(tree, flow), 1) == Placement((0,), n - 1)
    assert optimal(traffic(tree, flow), 0) == Placement((), 10 * (n - 1))


@pytest.mark.slow
def test_a_path_of_a_million_vertices_is_solved_without_recursion():
    n = 1_000_000
    tree = Tree.of(np.arange(-1, n - 1))
    flow = np.floor(np.linspace(20, 1, n))
    found = optimal(traffic(tree, flow), 3)
    # Between filters everything flows on: 20 levels of flow, cut three times.
    starts = [int(np.flatnonzero(flow == level)[0]) for level in range(1, 20)]
    assert len(found.filters) == 3
    assert all(vertex + 1 in starts for vertex in found.filters)
    assert optimal(traffic(tree, flow)).cost == flow[1:].sum()


def test_decisions_have_a_limit(monkeypatch):
    generator = np.random.default_rng(2)
    tree = Tree.of([-1, *[(vertex - 1) // 2 for vertex in range(1, 127)]])
    wanted = generator.random((64, 64)) < 0.1
    problem = traffic(tree, flows(tree, LeafWants.of_table(tree, range(63, 127), wanted)))
    folded = module.sparse(problem, module.paying(problem))
    needed = sum(_limited.decisions_needed(folded, 5))
    monkeypatch.setattr(_limited, "DECISIONS_MAX", needed)
    expected = optimal(problem, 5)
    monkeypatch.setattr(_limited, "DECISIONS_MAX", needed - 1)
    with pytest.raises(LimitError, match=f"keeps {needed} decisions; the limit is {needed - 1}"):
        optimal(problem, 5)
    monkeypatch.setattr(module, "UNLIMITED_MAX", 3)
    with pytest.raises(LimitError, match="use the heuristic"):
        optimal(problem)
    assert len(expected.filters) == 5


def test_flows_that_are_rates_are_placed_by_the_same_rules():
    tree = Tree.of([-1, 0, 0, 1, 1])
    problem = traffic(tree, checked_flows(tree, [1.5, 1.5, 0.25, 0.5, 1.0]))
    for limit in range(3):
        assert optimal(problem, limit).cost == pytest.approx(_least(problem, limit)[0])


def test_a_long_way_up_from_many_candidates_is_folded_by_one_walk(monkeypatch):
    # A handle of 1,000 vertices that want everything, 20 forks at its end, one leaf at the root:
    # climbing from every fork to the root would take 20,000 steps, so it is given up.
    length, forks = 1000, 20
    parent = [-1, *range(length)]
    flow = [3.0] * (length + 1)
    for _ in range(forks):
        fork = len(parent)
        parent += [length, fork, fork]
        flow += [3.0, 1.0, 2.0]
    parent.append(0)
    flow.append(1.0)
    tree = Tree.of(parent)
    problem = traffic(tree, checked_flows(tree, flow))
    assert module.paying(problem).size == forks + 1
    given_up = optimal(problem, 5)
    monkeypatch.setattr(_sparse, "FEW", 1 << 62)
    assert optimal(problem, 5) == given_up
    assert problem.unfiltered - given_up.cost == 5 * 3  # a fork saves 3, the root only 2


def test_a_bound_that_costs_too_much_is_not_looked_for(monkeypatch):
    generator = np.random.default_rng(9)
    tree = Tree.of([-1, *[(vertex - 1) // 2 for vertex in range(1, 1023)]])
    wanted = generator.random((512, 64)) < 0.05
    problem = traffic(tree, flows(tree, LeafWants.of_table(tree, range(511, 1023), wanted)))
    expected = optimal(problem, 20)
    monkeypatch.setattr(_bounds, "DECISIONS_MAX", 0)
    assert optimal(problem, 20).cost == expected.cost


def test_the_bound_holds_for_flows_that_are_rates(monkeypatch):
    generator = np.random.default_rng(11)
    source = random.Random(11)
    for kind in KINDS:
        parent = random_parents(source, 300, kind)
        tree = Tree.of(parent)
        flow = np.empty(300)
        for vertex in tree.order:
            above = parent[vertex]
            flow[vertex] = 1.0 if above < 0 else flow[above] * (1 - 0.3 * generator.random())
        problem = delay(tree, checked_flows(tree, flow), 0.01)
        for limit in (1, 3, 20):
            monkeypatch.setattr(module, "BOUND_FROM", 1 << 62)
            whole = optimal(problem, limit).cost
            monkeypatch.setattr(module, "BOUND_FROM", 0)
            assert optimal(problem, limit).cost == pytest.approx(whole, rel=1e-12)


def test_a_later_filter_may_save_more_than_the_one_before():
    """The curve is not convex, so a toll alone cannot find every k (decision 0011)."""
    parent = [5, 18, 5, 16, 14, 9, 2, 13, 10, 10, 15, 17, 17, 8, 15, -1, 11, 8, 6]
    wants = {
        0: [5, 9, 12, 16, 17, 18],
        1: [3, 4, 8, 12, 15],
        3: [2, 3, 8, 9, 13, 14, 15],
        4: [0, 1, 5, 7, 9, 13, 14, 17, 18],
        7: [1, 4, 9, 10, 11, 14, 18, 19],
        12: [9, 11, 13, 15, 18, 19],
    }
    tree = Tree.of(parent)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, wants)))
    assert list(curve(problem, 5)) == [342, 231, 206, 178, 160, 147]
    assert sent_traffic(parent, wants, optimal(problem, 3).filters) == 178


def test_of_equally_cheap_placements_the_one_with_the_fewest_filters_is_chosen():
    source = random.Random(41)
    for _ in range(150):
        parent = random_parents(source, source.randint(3, 9), "any")
        tree = Tree.of(parent)
        flow = np.empty(len(parent))
        for vertex in tree.order:
            above = parent[vertex]
            flow[vertex] = 4 if above < 0 else source.randint(0, int(flow[above]))
        problem = traffic(tree, flow)
        toll = float(source.choice([0, 1, 2]))
        paid = {
            chosen: cost(problem, chosen) + toll * len(chosen)
            for chosen in placements(parent, None)
        }
        least = min(paid.values())
        found, nodes = solve_unlimited(sparse(problem, paying(problem)), toll)
        assert found == least
        assert np.count_nonzero(nodes) == min(len(c) for c in paid if paid[c] == least)
