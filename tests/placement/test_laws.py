"""Laws that hold for every tree: order in k, optimum and heuristics, names, full demand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.placement import optimal as optimal_module
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.heuristic import greedy, settle, step
from roamcast.placement.optimal import curve, optimal
from roamcast.placement.problem import delay, traffic
from roamcast.placement.tree import Tree
from tests.strategies_placement import (
    demands,
    inner_of,
    problems,
    renamed,
    shape_of,
    wanted_below,
)


@given(problems())
def test_cost_never_rises_with_the_number_of_filters(problem):
    costs = curve(problem)
    assert costs[0] == problem.unfiltered
    assert all(later <= earlier for earlier, later in pairwise(costs))


@given(problems(), st.integers(0, 8))
def test_the_optimum_is_never_worse_than_a_heuristic(problem, limit):
    for most in (limit, None):
        best = optimal(problem, most).cost
        assert best <= settle(problem, most).cost <= greedy(problem, most).cost


@given(problems(), st.integers(0, 8))
def test_greedy_saves_at_least_63_percent_of_the_optimum_when_filters_are_free(problem, limit):
    """1 - 1/e of the best, as for every monotone submodular function (Nemhauser et al. 1978)."""
    tree = problem.tree
    free = traffic(tree, problem.flow[tree.position])
    best = free.unfiltered - optimal(free, limit).cost
    assert free.unfiltered - greedy(free, limit).cost >= 0.632 * best


@given(demands(), st.integers(0, 8), st.sampled_from(["traffic", "delay"]), st.data())
def test_renaming_vertices_changes_nothing_but_names(demand, limit, kind, data):
    parent, wants = demand
    names = data.draw(st.permutations(range(len(parent))))
    placed = []
    for shape, wanted in ((parent, wants), renamed(parent, names, wants)):
        tree = Tree.of(shape)
        flow = flows(tree, LeafWants.of(tree, wanted))
        problem = traffic(tree, flow) if kind == "traffic" else delay(tree, flow, 2)
        below = wanted_below(shape, wanted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optimal_module, "BOUND_FROM", data.draw(st.just(limit % 2 * 10**9)))
            found = [optimal(problem, limit), optimal(problem), settle(problem, limit)]
        forms = []
        for placement in found:
            marks = [(len(below[v]), v in placement.filters) for v in range(len(shape))]
            forms.append((placement.cost, shape_of(shape, marks)))
        placed.append(forms)
    assert placed[0] == placed[1]


@given(demands(), st.integers(0, 8), st.data())
def test_one_heuristic_step_sees_no_names(demand, limit, data):
    parent, wants = demand
    names = data.draw(st.permutations(range(len(parent))))
    filters = [v for v in inner_of(parent) if data.draw(st.booleans())][:limit]
    forms = []
    for shape, wanted, start in (
        (parent, wants, filters),
        (*renamed(parent, names, wants), [names[v] for v in filters]),
    ):
        tree = Tree.of(shape)
        problem = traffic(tree, flows(tree, LeafWants.of(tree, wanted)))
        after = step(problem, start, max(limit, len(start)))[0]
        below = wanted_below(shape, wanted)
        marks = [(len(below[v]), v in start, v in after.filters) for v in range(len(shape))]
        forms.append((after.cost, shape_of(shape, marks)))
    assert forms[0] == forms[1]


@given(demands(), st.integers(0, 8))
def test_when_everyone_wants_everything_filters_save_nothing(demand, limit):
    parent, wants = demand
    tree = Tree.of(parent)
    all_items = {leaf: [0, 1, 2, 3] for leaf in wants}
    problem = traffic(tree, flows(tree, LeafWants.of(tree, all_items)))
    found = optimal(problem, limit)
    assert (found.filters, found.cost) == ((), problem.unfiltered)


@given(problems(), st.integers(0, 8))
def test_the_same_question_gets_the_same_answer(problem, limit):
    assert optimal(problem, limit) == optimal(problem, limit)
    assert settle(problem, limit) == settle(problem, limit)
