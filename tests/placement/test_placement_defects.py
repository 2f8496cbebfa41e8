"""Planted defects of the bound, passes, idle filters, ties and overflow, each by its name."""

import functools
import inspect
import random
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from roamcast.errors import TreeError
from roamcast.placement import _bounds, _sparse, heuristic
from roamcast.placement import flows as flows_module
from roamcast.placement import optimal as module
from roamcast.placement import problem as problem_module
from roamcast.placement.flows import LeafWants, checked_flows
from roamcast.placement.heuristic import step
from roamcast.placement.optimal import curve, optimal
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Tree
from tests.placement.test_rounding import exact_cost, random_problem
from tests.planting import refuted
from tests.strategies_placement import (
    random_parents,
    random_wants,
    renamed,
    shape_of,
    wanted_below,
)


@functools.cache  # not while tests are collected: every worker would make them
def bent() -> list[tuple[Problem, list[int], Any]]:
    """Trees whose curve is not convex, and the numbers of filters around each bend."""
    source = random.Random(49_156)
    found = []
    while len(found) < 60:
        parent = random_parents(source, source.randint(15, 45), source.choice(["any", "binary"]))
        wants = random_wants(source, parent, 20, source.choice([0.15, 0.3, 0.5]))
        tree = Tree.of(parent)
        problem = traffic(tree, flows_module.flows(tree, LeafWants.of(tree, wants)))
        costs = curve(problem)
        gains = costs[:-1] - costs[1:]
        bends = [k + 1 for k in range(len(gains) - 1) if gains[k] < gains[k + 1]]
        if bends:
            found.append((problem, sorted({n for k in bends for n in (k, k + 1)} - {0}), costs))
    return found


def check_bound() -> None:
    """With the bound always on, and few vertices looked at first, the optimum is the optimum."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BOUND_FROM", 0)
        patch.setattr(_bounds, "NODES_FIRST", -6)
        for problem, limits, costs in bent():
            for limit in limits:
                assert optimal(problem, limit).cost == costs[limit]


def check_passes() -> None:
    """Flows in one to four passes are what sets of items say."""
    source = random.Random(3)
    for number in range(12):
        parent = random_parents(source, 14, "any")
        wants = random_wants(source, parent, 64 * 3 + 7, 0.05)
        tree = Tree.of(parent)
        expected = [float(len(items)) for items in wanted_below(parent, wants)]
        levels = int(flows_module.levels(tree).max()) + 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flows_module, "UNION_BYTES_MAX", 8 * levels * (1 + number % 4))
            assert list(flows_module.flows(tree, LeafWants.of(tree, wants))) == expected


def check_idle() -> None:
    """No filter can be taken away for nothing."""
    source = random.Random(13)
    for number in range(200):
        _, problem = random_problem(source, number)
        chosen = optimal(problem).filters
        for vertex in chosen:
            without = tuple(other for other in chosen if other != vertex)
            assert exact_cost(problem, without) > exact_cost(problem, chosen)


def check_ties() -> None:
    """What is chosen does not depend on how vertices are numbered."""
    source = random.Random(12)
    for _ in range(150):
        kind = source.choice(["any", "binary"])
        parent = random_parents(source, source.randint(8, 22), kind)
        wants = random_wants(source, parent, 2, 0.5)  # few items, so that much is equal
        names = source.sample(range(len(parent)), len(parent))
        forms = []
        for shape, wanted in ((parent, wants), renamed(parent, names, wants)):
            tree = Tree.of(shape)
            problem = traffic(tree, flows_module.flows(tree, LeafWants.of(tree, wanted)))
            below = wanted_below(shape, wanted)
            chosen = [optimal(problem, limit).filters for limit in (1, 2, 3)]
            chosen.append(step(problem, (), 3, 3)[0].filters)
            marks = [(len(below[v]), *(v in one for one in chosen)) for v in range(len(shape))]
            forms.append(shape_of(shape, marks))
        assert forms[0] == forms[1]


def check_overflow() -> None:
    """A flow that costs more than a double holds is refused."""
    tree = Tree.of([-1, 0, 0, 1, 1])
    with pytest.raises(TreeError):
        traffic(tree, checked_flows(tree, [1e308, 1e308, 1.0, 1.0, 1.0]))


SEARCH = _bounds._Search
DEFECTS: dict[str, tuple[Any, str, str, str, Callable[[], None]]] = {
    "the gap between bound and best known is forgotten": (
        SEARCH, "least", "toll - max(0.0, over) - slack", "toll - slack", check_bound),
    "half of the gap is forgotten": (
        SEARCH, "least", "max(0.0, over)", "max(0.0, over) / 2", check_bound),
    "the last toll bounds as well as the best": (
        SEARCH, "least", "least = max(least, toll", "least = max(toll, toll", check_bound),
    "the second pass begins where the first did": (
        flows_module, "flows", "subscriptions.item, start, width", "subscriptions.item, 0, width",
        check_passes),
    "the last pass is as wide as the others": (
        flows_module, "flows", "range(0, words, words_once)", "range(0, words - 1, words_once)",
        check_passes),
    "a pass is skipped": (
        flows_module, "flows", "range(0, words, words_once)", "range(0, words, 2 * words_once)",
        check_passes),
    "filters that save nothing stay": (
        module, "_placement", "drop_idle(problem, np.sort(folded.place[chosen]))",
        "np.sort(folded.place[chosen])", check_idle),
    "of equal moves the lower number is made": (
        heuristic, "_first", "equal.size > 1", "equal.size > 10**9", check_ties),
    "siblings are ordered by their numbers": (
        _sparse, "_nameless_order", "_shapes(up, plain, cut, entry)", "np.arange(up.size)",
        check_ties),
    "a flow of 1e308 makes costs infinite": (
        problem_module, "_problem", "not math.isfinite(dearest)", "False", check_overflow),
}  # fmt: skip


CHECKS = (check_bound, check_passes, check_idle, check_ties, check_overflow)


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_defect_a_check_finds_nothing(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("name", DEFECTS)
def test_a_check_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, old, new, check = DEFECTS[name]
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert source.count(old) == 1, f"{function} has changed: plant {old!r} anew"
    made: dict[str, Any] = {}
    # In the module's own namespace, so that limits a check sets are seen.
    exec(source.replace(old, new), vars(inspect.getmodule(owner)), made)
    monkeypatch.setattr(owner, function, made[function])
    with refuted():
        check()
