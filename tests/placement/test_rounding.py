"""Flows that are no whole numbers, and flows beyond what a double holds."""

import random
from fractions import Fraction

import numpy as np
import pytest

from roamcast.errors import TreeError
from roamcast.placement.flows import checked_flows
from roamcast.placement.heuristic import greedy, settle
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import Problem, combined, delay, traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import placements, random_parents

KINDS = ("binary", "any", "path", "star")


def exact_cost(problem: Problem, filters: tuple[int, ...]) -> Fraction:
    """The cost of a placement in rational numbers, link by link down from the root."""
    tree = problem.tree
    total = Fraction(0)
    entering: dict[int, Fraction] = {}
    for place, vertex in enumerate(int(v) for v in tree.order):
        above = int(tree.parent[vertex])
        flow = Fraction(problem.flow[place])
        entering[vertex] = flow if above < 0 or above in filters else entering[above]
        if above >= 0:
            total += Fraction(problem.link[place]) * entering[vertex]
        if vertex in filters:
            total += Fraction(problem.price[place])
    return total


def random_problem(source: random.Random, number: int) -> tuple[list[int], Problem]:
    """A tree whose flows are tenths and thirds of others, and often the same as above."""
    parent = random_parents(source, source.randint(2, 9), KINDS[number % 4])
    tree = Tree.of(parent)
    flow = np.empty(len(parent))
    for vertex in tree.order:
        above = parent[vertex]
        if above < 0:
            flow[vertex] = source.choice([0.7, 1.1, 0.1 + 0.2, 1 / 3, 4.35])
        else:
            flow[vertex] = flow[above] * source.choice([1, 1, 0.1, 1 / 3, 0.7, 0.999])
    weights = {
        "traffic_weight": source.choice([1, 0.1, 1 / 3]),
        "delay_weight": source.choice([0, 0.3]),
    }
    return parent, combined(tree, checked_flows(tree, flow), **weights)


def test_no_filter_is_placed_that_saves_nothing() -> None:
    source = random.Random(13)
    for number in range(400):
        parent, problem = random_problem(source, number)
        limit = source.choice([None, 1, 2, 3])
        tried = {chosen: exact_cost(problem, chosen) for chosen in placements(parent, limit)}
        least = min(tried.values())
        for found in (optimal(problem, limit), greedy(problem, limit), settle(problem, limit)):
            for vertex in found.filters:
                without = tuple(other for other in found.filters if other != vertex)
                assert tried[without] > tried[found.filters], (parent, problem.flow, found, vertex)
        best = optimal(problem, limit)
        assert float(tried[best.filters]) == pytest.approx(float(least), rel=1e-12)


@pytest.mark.parametrize("flow", [1e308, 1.7e308])
def test_a_cost_beyond_a_double_is_an_error(flow: float) -> None:
    tree = Tree.of([-1, 0, 0, 1, 1])
    flows = checked_flows(tree, [flow, flow, 1.0, 1.0, 1.0])
    for make in (traffic, lambda t, f: delay(t, f, 1.0)):
        with pytest.raises(TreeError, match="more than a double holds"):
            make(tree, flows)
    with pytest.raises(TreeError, match="more than a double holds"):
        combined(tree, checked_flows(tree, [2.0] * 5), traffic_weight=1, filter_cost=1e308)
    with pytest.raises(TreeError, match="more than a double holds"):
        combined(tree, checked_flows(tree, [2.0] * 5), delay_weight=1e300, link_delay=1e300)
    assert (
        optimal(traffic(tree, checked_flows(tree, [1e300, 1e300, 1.0, 1.0, 1.0])), 1).cost < 1e301
    )


def test_of_equally_good_filters_the_one_farther_from_the_root_is_placed() -> None:
    tree = Tree.of([-1, 0, 0, 2, 2])
    problem = traffic(tree, checked_flows(tree, [2.0, 1.0, 2.0, 1.0, 2.0]))
    assert optimal(problem, 1).filters == (2,)
    assert optimal(problem, 2).filters == (0, 2)
    two = Tree.of([-1, 0, 0, 1, 1, 2, 2])
    more_below = traffic(two, checked_flows(two, [2.0, 2.0, 2.0, 1.0, 2.0, 1.0, 2.0]))
    assert len(optimal(more_below, 1).filters) == 1
    assert optimal(more_below, 1).filters != (0,)
