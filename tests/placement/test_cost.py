"""What a placement costs is what happens when every item is sent, and importance is exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import TreeError
from roamcast.placement.cost import carried, cost, importance
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.problem import combined, delay, traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import (
    EXAMPLE_PARENT,
    EXAMPLE_WANTS,
    demands,
    inner_of,
    problems,
    send_everything,
    sent_delay,
    sent_traffic,
)


@given(demands(), st.data())
def test_costs_equal_sending_every_item_down_the_tree(demand, data):
    parent, wants = demand
    tree = Tree.of(parent)
    flow = flows(tree, LeafWants.of(tree, wants))
    filters = [vertex for vertex in inner_of(parent) if data.draw(st.booleans())]
    assert cost(traffic(tree, flow), filters) == sent_traffic(parent, wants, filters)
    assert cost(delay(tree, flow, 3, 2), filters) == sent_delay(parent, wants, filters, 3, 2)
    each = send_everything(parent, wants, filters)
    found = carried(traffic(tree, flow), filters)
    assert {vertex: found[vertex] for vertex in each} == each


@given(demands(), st.data())
def test_a_combined_cost_is_the_weighted_sum(demand, data):
    parent, wants = demand
    tree = Tree.of(parent)
    flow = flows(tree, LeafWants.of(tree, wants))
    inner = inner_of(parent)
    filters = [vertex for vertex in inner if data.draw(st.booleans())]
    now = [vertex for vertex in inner if data.draw(st.booleans())]
    both = combined(
        tree,
        flow,
        traffic_weight=2,
        delay_weight=3,
        filter_delay=4,
        link_delay=5,
        filter_cost=6,
        move_cost=7,
        current=now,
    )
    expected = 2 * sent_traffic(parent, wants, filters) + 3 * sent_delay(
        parent, wants, filters, 4, 5
    )
    expected += 6 * len(filters) + 7 * len(set(filters) - set(now))
    assert cost(both, filters) == expected


@given(problems(), st.data())
def test_importance_is_exactly_what_one_filter_changes(problem, data):
    inner = inner_of([int(p) for p in problem.tree.parent])
    filters = {vertex for vertex in inner if data.draw(st.booleans())}
    before = cost(problem, filters)
    worth = importance(problem, filters)
    for vertex in inner:
        changed = before - cost(problem, filters ^ {vertex})
        assert changed == (-worth[vertex] if vertex in filters else worth[vertex])


@given(problems(), st.data())
def test_a_filter_is_worth_no_more_among_more_filters(problem, data):
    """Savings are submodular: what the bound and the lazy greedy rest on (decision 0010)."""
    inner = inner_of([int(p) for p in problem.tree.parent])
    fewer = {vertex for vertex in inner if data.draw(st.booleans())}
    more = fewer | {vertex for vertex in inner if data.draw(st.booleans())}
    few, many = importance(problem, fewer), importance(problem, more)
    assert all(many[vertex] <= few[vertex] for vertex in inner if vertex not in more)
    assert all(
        few[vertex] <= problem.solo[problem.tree.position[vertex]] for vertex in set(inner) - fewer
    )


def test_the_worked_example_of_figure_1_costs_120_63_and_50():
    tree = Tree.of(EXAMPLE_PARENT)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, EXAMPLE_WANTS)))
    assert problem.unfiltered == 120
    assert cost(problem, inner_of(EXAMPLE_PARENT)) == 50
    assert cost(problem, [1, 5, 6]) == 63
    got = carried(problem, [1, 5, 6])
    must_filter = [leaf for leaf, items in EXAMPLE_WANTS.items() if got[leaf] > len(items)]
    assert must_filter == [7, 8, 9, 10]  # A to D, as the paper says


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"filter_delay": float("nan")}, "the filter delay is nan"),
        ({"link_delay": -1.0}, "the link delay is -1.0"),
        ({"traffic_weight": float("inf")}, "the traffic weight is inf"),
        ({"move_cost": -0.5}, "the cost per move is -0.5"),
    ],
)
def test_prices_that_are_no_prices_are_refused(setting, said):
    tree = Tree.of([-1, 0])
    with pytest.raises(TreeError, match=said):
        combined(tree, flows(tree, LeafWants.of(tree, {})), **setting)
