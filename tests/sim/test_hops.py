"""Casts counted in compiled code, against the plain algorithms and against distances in a graph."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import rustworkx as rx
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.pipeline.sweep import check, run_task
from roamcast.sim.hops import reference
from roamcast.sim.hops import routers as hop_routers
from roamcast.sim.hops.counting import POLICIES, count_hops, list_hops
from roamcast.sim.hops.experiment import future_run, historic_run, machine_run
from roamcast.sim.hops.future import count_future
from roamcast.sim.hops.reference import ANSWER, ASK, RESOLVE, Hop, historic_hops
from roamcast.sim.hops.routers import (
    CONTEXTS_MAX,
    HistoricCast,
    Routers,
    Setting,
    draw_cast,
    draw_routers,
    line_routers,
)
from roamcast.sim.topology.graph import tree

SMALL = Setting(routers=200, access=140, trusted=12, alpha=5, contexts_per_access=4)


def setting(seed: int, edge: float = 0.4, given: Setting = SMALL) -> tuple[Routers, HistoricCast]:
    generator = np.random.default_rng(seed)
    routers = draw_routers(given, generator)
    return routers, draw_cast(routers, edge, generator)


def by_hand(
    parents: Sequence[int], access: Sequence[int], trusted: int, contexts: Sequence[int]
) -> Routers:
    """Routers in the target, each context with a vid of its own and one trusted node for all."""
    count = len(parents)
    nodes = np.array(sorted(contexts), np.int64)
    numbers = np.arange(len(nodes))
    return Routers(
        tree(np.array(parents), np.full((count, 2), 0.5)),
        np.array(access, np.int64),
        np.searchsorted(nodes, np.arange(count + 1)),
        np.full(len(nodes), trusted),
        numbers,
        numbers,
    )


EVERYWHERE = HistoricCast(0, 0.0, 0.0, 1.0)


# The plain algorithms


def links(hops: list[Hop], phase: int) -> list[tuple[int, int]]:
    return sorted((hop.source, hop.target) for hop in hops if hop.phase == phase)


def test_a_subtree_answers_over_each_link_once_and_its_branching_point_resolves() -> None:
    #  0 - 1 - 2 - 4      1 branches; 4 lies behind 2, which only forwards
    #       \- 3          the trusted node is 0
    routers = by_hand([-1, 0, 1, 1, 2], [3, 4], 0, [3, 4, 4])
    hops = historic_hops(routers, EVERYWHERE, POLICIES["FBTH"])
    assert links(hops, ASK) == [(0, 1), (1, 2), (1, 3), (2, 4)]
    assert links(hops, ANSWER) == [(2, 1), (3, 1), (4, 2)]
    assert links(hops, RESOLVE) == [(1, 0)]
    (sent,) = [hop for hop in hops if hop.phase == RESOLVE]
    assert (sent.receivers, sent.vids) == (frozenset({0}), frozenset({0, 1, 2}))


def test_with_too_few_branching_points_an_access_node_resolves_itself() -> None:
    routers = by_hand([-1, 0, 1, 1, 2], [3, 4], 0, [3, 4, 4])
    hops = historic_hops(routers, EVERYWHERE, POLICIES["BTH2"])
    assert links(hops, ANSWER) == []
    assert links(hops, RESOLVE) == [(1, 0), (1, 0), (2, 1), (3, 1), (4, 2)]
    assert Counter(hops) == Counter(historic_hops(routers, EVERYWHERE, POLICIES["NH"]))


def test_an_access_node_above_the_branching_point_resolves_itself_too() -> None:
    routers = by_hand([-1, 0, 1, 1], [0, 1, 2, 3], 3, [0, 1, 2, 3])
    hops = historic_hops(routers, EVERYWHERE, POLICIES["FBTH"])
    assert links(hops, ANSWER) == [(2, 1), (3, 1)]
    assert links(hops, RESOLVE) == [(0, 1), (1, 3), (1, 3)]


def test_an_empty_answer_is_sent_and_nothing_is_resolved_for_it() -> None:
    routers = by_hand([-1, 0, 0], [1, 2], 0, [])
    hops = historic_hops(routers, EVERYWHERE, POLICIES["FBTH"])
    assert links(hops, ANSWER) == [(1, 0), (2, 0)]
    assert links(hops, RESOLVE) == []


def test_a_cast_to_nobody_is_not_sent() -> None:
    routers = by_hand([-1, 0, 0], [], 0, [])
    for branching in POLICIES.values():
        assert historic_hops(routers, EVERYWHERE, branching) == []
        assert list_hops(routers, EVERYWHERE, branching).tolist() == []


# Compiled against plain


def rows(hops: list[Hop]) -> Counter[tuple[int, ...]]:
    return Counter(
        (hop.phase, hop.source, hop.target, len(hop.receivers), len(hop.vids)) for hop in hops
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_compiled_counting_is_the_plain_one_message_for_message(policy: str, seed: int) -> None:
    branching = POLICIES[policy]
    for edge in (0.15, 0.5, 1.0):
        routers, cast = setting(seed, edge)
        plain = historic_hops(routers, cast, branching)
        assert Counter(map(tuple, list_hops(routers, cast, branching).tolist())) == rows(plain)
        counts = count_hops(routers, cast, branching)
        phases = Counter(hop.phase for hop in plain)
        assert (counts.asks, counts.answers, counts.resolves) == (phases[0], phases[1], phases[2])
        assert counts.answer_vids == sum(len(hop.vids) for hop in plain if hop.phase == ANSWER)
        resolved = [hop for hop in plain if hop.phase == RESOLVE]
        assert counts.receivers == sum(len(hop.receivers) for hop in resolved)
        assert counts.vids == sum(len(hop.vids) for hop in resolved)
        assert counts.receivers_max == max((len(hop.receivers) for hop in resolved), default=0)
        assert counts.vids_max == max((len(hop.vids) for hop in resolved), default=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 6), st.floats(0.05, 1.0))
def test_they_agree_on_small_trees_of_any_shape(
    seed: int, count: int, branching: int, edge: float
) -> None:
    generator = np.random.default_rng(seed)
    sizes = Setting(
        routers=count,
        access=max(1, count * 2 // 3),
        trusted=-(-count // 3) if count > 5 else 0,
        alpha=float(generator.choice([0.5, 3, 30])),
        contexts_per_access=2 if count > 15 else 0,
    )
    if sizes.trusted < 5:  # no Zipf law has 80 % on 20 % of so few
        sizes = sizes._replace(trusted=min(count, 5), contexts_per_access=0)
        if count < 5:
            return
    routers = draw_routers(sizes, generator)
    cast = draw_cast(routers, edge, generator)
    plain = historic_hops(routers, cast, branching)
    assert Counter(map(tuple, list_hops(routers, cast, branching).tolist())) == rows(plain)


@pytest.mark.parametrize("policy", POLICIES)
def test_delays_are_sums_of_distances_in_the_graph(policy: str) -> None:
    branching = POLICIES[policy]
    routers, cast = setting(7)
    far = rx.distance_matrix(routers.topology.graph())
    addressed = routers.addressed(cast).tolist()
    collector = {node: collecting(routers, cast, node, branching) for node in addressed}
    delays, unwaited, last, first = 0.0, 0.0, 0.0, {}
    for node in addressed:
        at = collector[node]
        group = [other for other in addressed if collector[other] == at]
        ready = max(far[cast.origin, other] + far[other, at] for other in group)
        for context in range(routers.starts[node], routers.starts[node + 1]):
            onward = far[at, routers.trusted[context]]
            delays += ready + onward
            last = max(last, ready + onward)
            unwaited += far[cast.origin, node] + far[node, at] + onward
            person = routers.people[context]
            first[person] = min(first.get(person, np.inf), ready + onward)
    counts = count_hops(routers, cast, branching)
    assert (counts.delay, counts.delay_unwaited, counts.delay_last) == (delays, unwaited, last)
    assert (counts.people, counts.delay_first) == (len(first), sum(first.values()))


def collecting(routers: Routers, cast: HistoricCast, node: int, branching: int) -> int:
    """Find the n-th branching point on the path from the origin, by the messages that were sent."""
    forwards = Counter(
        hop.source for hop in historic_hops(routers, cast, branching) if hop.phase == ASK
    )
    path = (
        list(rx.dijkstra_shortest_paths(routers.topology.graph(), cast.origin, node)[node])
        if (node != cast.origin)
        else [node]
    )
    points = [at for at in path if forwards[at] > 1]
    return points[branching - 1] if 0 < branching <= len(points) else node


def test_collecting_at_no_branching_point_is_the_naive_policy() -> None:
    routers, cast = setting(3)
    assert count_hops(routers, cast, 200) == count_hops(routers, cast, POLICIES["NH"])


def test_whoever_collects_further_down_answers_less_and_resolves_more() -> None:
    for seed in range(5):
        routers, cast = setting(seed)
        counts = [count_hops(routers, cast, number) for number in (1, 2, 3, 4, 200)]
        assert [c.answers for c in counts] == sorted((c.answers for c in counts), reverse=True)
        assert [c.resolves for c in counts] == sorted(c.resolves for c in counts)
        assert len({c.asks for c in counts}) == 1


# Future casts


@pytest.mark.parametrize("seed", range(5))
def test_a_future_cast_is_forwarded_on_the_paths_to_those_who_match(seed: int) -> None:
    routers, cast = setting(seed)
    addressed = routers.addressed(cast)
    matched = np.random.default_rng(seed).random(len(addressed)) < 0.3
    counts = count_future(routers, cast, matched)
    all_links, links = (
        paths(routers, cast.origin, goals.tolist()) for goals in (addressed, addressed[matched])
    )
    assert (counts.links_at_once, counts.links) == (len(all_links), len(links))
    assert (counts.networks, counts.reached) == (len(addressed), int(matched.sum()))
    # Cached where the cast has come and may be needed: at an addressed network, or for a link.
    having = {cast.origin} | {node for link in links for node in link}
    waiting = {source for source, _ in all_links - links} | set(addressed.tolist())
    assert counts.copies == len(having & waiting)
    assert counts.copies_at_once == len(addressed)


def paths(routers: Routers, origin: int, goals: list[int]) -> set[tuple[int, int]]:
    found = rx.dijkstra_shortest_paths(routers.topology.graph(), origin)
    return {
        link
        for goal in goals
        if goal != origin
        for link in zip(list(found[goal])[:-1], list(found[goal])[1:], strict=True)
    }


def test_in_a_row_of_routers_one_match_at_the_end_spares_nothing() -> None:
    routers = line_routers(Setting(routers=50, access=50), np.random.default_rng(0))
    cast = HistoricCast(0, 0.0, 0.0, 1.0)
    matched = np.arange(50) == 49
    counts = count_future(routers, cast, matched)
    assert (counts.links, counts.links_at_once, counts.reached) == (49, 49, 1)


# Bounds and sweeps


def test_the_number_of_contexts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONTEXTS_MAX >= 7_000 * 100
    monkeypatch.setattr(hop_routers, "CONTEXTS_MAX", 560)
    draw_routers(SMALL, np.random.default_rng(0))
    with pytest.raises(LimitError):
        draw_routers(SMALL._replace(contexts_per_access=4.1), np.random.default_rng(0))


@pytest.mark.parametrize("edge", [0.0, -0.1, 1.1])
def test_a_target_lies_in_the_unit_square(edge: float) -> None:
    routers, _ = setting(0)
    with pytest.raises(LimitError):
        draw_cast(routers, edge, np.random.default_rng(0))


MACHINE = {"routers": 200, "access": 140, "trusted": 12}
TASK = {"routers": 200, "access": 140, "trusted": 12, "casts": 2}


def test_runs_are_tasks_of_a_sweep() -> None:
    name = "roamcast.sim.hops.experiment"
    check(f"{name}:historic_run", [{"edge": 0.1, **TASK}], 10)
    check(f"{name}:future_run", [{"edge": 0.1, "share": 0.3, "contexts": 1, **TASK}], 10)
    found = list(run_task(historic_run, msgspec.json.encode({"edge": 0.3, **TASK}), 1))
    assert [row["error"] for row in found] == [None] * len(POLICIES)


def test_a_run_depends_on_its_parameters_and_its_seed_alone() -> None:
    once, again = (historic_run(0.3, 5, **TASK) for _ in range(2))
    assert once == again
    assert once != historic_run(0.3, 6, **TASK)
    assert [row["policy"] for row in once] == list(POLICIES)
    assert len({row["asks"] for row in once}) == 1  # the same casts under each policy
    assert {row["different"] for row in machine_run(0.3, 5, **MACHINE)} == {0}
    future = future_run(0.3, 0.3, 1, 5, **TASK)
    assert future == future_run(0.3, 0.3, 1, 5, **TASK)
    assert future["reached"] <= future["networks"]
    assert reference.PHASES == ("ask", "answer", "resolve")
