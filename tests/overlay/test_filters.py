"""Filters in the overlay: they count, move and never lose an item, whatever their states."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.overlay.events import (
    CameByLink,
    OverlayOpened,
    SendOnLink,
    TablesTouched,
    TreeChanged,
)
from roamcast.overlay.filters.messages import (
    FilterInstalled,
    FilterOrder,
    FlowReports,
    InstallFilter,
    NodeReport,
    Rank,
)
from roamcast.overlay.filters.part import NodeFilters
from roamcast.overlay.filters.planning import FilterSettings, Survey
from roamcast.overlay.filters.states import FILTER_TABLE, MATCHING, FilterEvent, FilterState
from roamcast.overlay.tables.wants import Wants
from roamcast.overlay.topology.topology import NodeTopology, TopologySettings
from roamcast.placement.batch import ChangeCosts
from roamcast.placement.cost import cost
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import traffic
from roamcast.placement.tree import Tree
from tests.overlay_net import SETTINGS, Net, OneNode, beside

VIEW = "items"
NAMES = ("a", "b", "c", "d", "e", "f", "g")
"""The root's name comes first; a binary tree of seven brokers."""
PARENTS = {"a": "a", "b": "a", "c": "a", "d": "b", "e": "b", "f": "c", "g": "c"}
HERE: dict[str, set[int]] = {}
"""What each node's own clients want."""
QUICK = {"report_us": 200_000, "batch_us": 1_000_000, "patience_us": 300_000}


def tree_net(filters: FilterSettings) -> tuple[Net, dict[str, Wants]]:
    wants = {name: Wants(epoch=1, linger_us=200_000) for name in NAMES}
    settings = msgspec.structs.replace(SETTINGS, filters=filters)
    nodes = []
    for name in NAMES:
        near = [child for child in NAMES if PARENTS[child] == name and child != name]
        near += [PARENTS[name]] if PARENTS[name] != name else []
        nodes.append(OneNode(name, beside(*near), settings=settings, tables=(wants[name],)))
    net = Net(*nodes)
    net.run(3_000_000)
    return net, wants


def subscribe(net: Net, wants: dict[str, Wants], wanted: dict[str, list[int]]) -> None:
    HERE.clear()
    HERE.update({name: set(items) for name, items in wanted.items()})
    for name, items in wanted.items():
        for item in items:
            wants[name].subscribe(f"{name} {item}", VIEW, Filter.parse(f"major = {item}"))
        node = net.nodes[name]
        net._perform(node, node.receive_event(TablesTouched(), net.now))
    net.run(2_000_000)


def publish(
    net: Net, wants: dict[str, Wants], item: int, source: str = "a", key: str = ""
) -> dict[str, int]:
    """Send an item through the tree as its nodes decide; give the links it crossed, by node."""
    thing = (VIEW, Context("item", attributes={"major": item}))
    crossed: dict[str, int] = {}
    waiting: list[tuple[str, str | None]] = [(source, None)]
    while waiting:
        name, came_from = waiting.pop()
        filters = net.nodes[name].overlay.filters
        beyond = wants[name].beyond(thing, came_from)
        if filters.sampled((key or str(item)).encode()):
            here = name in HERE and item in HERE[name]
            filters.count(lambda found=beyond: found, lambda found=here: found, came_from)
        for link in filters.links(lambda found=beyond: found, came_from):
            crossed[link] = crossed.get(link, 0) + 1
            waiting.append((link, name))
    return crossed


def hour(net: Net, wants: dict[str, Wants], items: range) -> int:
    """Publish every item once within a batch; give the number of links they crossed."""
    total = sum(sum(publish(net, wants, item).values()) for item in items)
    net.run(2_500_000)
    return total


def wanted_by(seed: int, items: int = 12) -> dict[str, list[int]]:
    drawn = random.Random(seed)
    return {name: [i for i in range(items) if drawn.random() < 0.3] for name in NAMES}


def right_flow(wanted: dict[str, list[int]]) -> dict[str, int]:
    """Flows of CBM, by brute force: what the root's own clients want crosses no link."""
    below: dict[str, set[int]] = {name: set(wanted[name]) for name in NAMES}
    below["a"] = set()
    for name in reversed(NAMES):
        if PARENTS[name] != name:
            below[PARENTS[name]] |= below[name]
    return {name: len(items) for name, items in below.items()}


@pytest.mark.parametrize(("seed", "limit"), [(1, 1), (2, 2), (3, 3)])
def test_in_a_static_hour_the_links_carry_exactly_what_the_placement_costs(
    seed: int, limit: int
) -> None:
    net, wants = tree_net(FilterSettings(filters=limit, **QUICK))
    wanted = wanted_by(seed)
    subscribe(net, wants, wanted)
    tree = Tree.of([-1 if PARENTS[n] == n else NAMES.index(PARENTS[n]) for n in NAMES])
    flow = right_flow(wanted)
    problem = traffic(tree, np.array([float(flow[name]) for name in NAMES]))
    first = hour(net, wants, range(12))
    assert first == cost(problem, ())  # nobody filters yet: all that is wanted goes everywhere
    hour(net, wants, range(12))
    active = [n for n in NAMES if net.nodes[n].overlay.filters.matches]
    best = optimal(problem, limit)
    assert cost(problem, [NAMES.index(n) for n in active]) == best.cost
    assert len(active) <= limit
    assert hour(net, wants, range(12)) == best.cost
    view = net.nodes["a"].overlay.filters.view().placement
    assert view is not None
    assert (view.traffic, view.best) == (best.cost, best.cost)
    assert view.nowhere == cost(problem, ())
    assert view.one_more == optimal(problem, limit + 1).cost
    assert {row.node: row.flow for row in view.nodes} == flow
    assert net.nodes["b"].overlay.filters.view().placement is None


@pytest.mark.soak
def test_with_one_item_in_ten_sampled_traffic_is_known_within_two_per_cent() -> None:
    items = 60_000
    quick = {**QUICK, "report_us": 50_000}
    net, wants = tree_net(FilterSettings(filters=2, sample=10, **quick))
    subscribe(net, wants, wanted_by(4))
    for _ in range(2):  # the second hour is after the batch of the first
        crossed = sum(
            sum(publish(net, wants, item % 12, key=f"item {item}").values())
            for item in range(items)
        )
        net.run(2_500_000)
    view = net.nodes["a"].overlay.filters.view().placement
    assert view is not None
    assert sum(row.state == "active" for row in view.nodes) == 2
    assert abs(10 * view.traffic / crossed - 1) < 0.02


def test_whatever_the_states_every_item_reaches_those_who_want_it() -> None:
    net, wants = tree_net(FilterSettings(filters=0, **QUICK))
    wanted = wanted_by(5)
    subscribe(net, wants, wanted)
    drawn = random.Random(6)
    for _ in range(40):
        for node in net.nodes.values():
            node.overlay.filters.state = drawn.choice(list(FilterState))
        source = drawn.choice(NAMES)
        for item in range(13):
            reached = {source, *publish(net, wants, item, source)}
            assert {n for n in NAMES if item in wanted[n]} - {source} <= reached
            if not any(item in wanted[n] for n in NAMES if n != source):
                assert reached == {source}  # what nobody wants never leaves


def test_when_wants_move_filters_follow_them_and_the_root_says_why() -> None:
    net, wants = tree_net(FilterSettings(filters=2, **QUICK))
    left = {"d": [1, 2], "e": [3], "f": list(range(12)), "g": list(range(12))}
    subscribe(net, wants, left)
    for _ in range(2):
        hour(net, wants, range(12))
    assert net.nodes["b"].overlay.filters.matches
    for name, items in left.items():
        for item in items:
            wants[name].unsubscribe(f"{name} {item}")
    subscribe(net, wants, {"f": [1, 2], "g": [3], "d": list(range(12)), "e": list(range(12))})
    net.run(1_000_000)
    for _ in range(3):
        hour(net, wants, range(12))
    filters = {name: node.overlay.filters for name, node in net.nodes.items()}
    assert filters["c"].matches
    assert not filters["b"].matches
    steps = [step for name in NAMES for step in net.steps(name) if "migrating" in step]
    assert steps  # the filter moved, it was not made anew
    assert "saves" in filters["a"].reason or "right" in filters["a"].reason
    view = filters["a"].view().placement
    assert view is not None
    rows = {row.node: row for row in view.nodes}
    assert rows["c"].why.startswith("batch ")
    assert "saves" in rows["c"].why
    assert rows["c"].changed_us > 0


def test_a_new_root_learns_the_placement_from_reports_and_goes_on_above_it() -> None:
    net, wants = tree_net(FilterSettings(filters=2, **QUICK))
    wanted = wanted_by(3)
    subscribe(net, wants, wanted)
    for _ in range(2):
        hour(net, wants, range(12))
    before = {n: node.overlay.filters.state for n, node in net.nodes.items()}
    number = max(node.overlay.filters.rank for node in net.nodes.values()).number
    assert number > 0
    old = net.nodes["a"]
    near = beside("b", "c")
    table = wants["a"] = Wants(epoch=2, linger_us=200_000)
    again = OneNode("a", near, epoch=2_000_000, now=net.now, settings=msgspec.structs.replace(
        SETTINGS, filters=old.overlay.filters.settings), tables=(table,))  # fmt: skip
    net.nodes["a"] = again
    net.run(6_000_000)
    for _ in range(3):
        hour(net, wants, range(12))
    after = {n: node.overlay.filters.state for n, node in net.nodes.items() if n != "a"}
    assert again.overlay.filters.matches == (before["a"] in MATCHING)
    assert sum(state in MATCHING for state in after.values()) + again.overlay.filters.matches <= 2
    assert max(node.overlay.filters.rank for node in net.nodes.values()).number >= number


def test_two_roots_after_a_partition_become_one_and_no_item_is_lost() -> None:
    net, wants = tree_net(FilterSettings(filters=1, **QUICK))
    wanted = wanted_by(7)
    subscribe(net, wants, wanted)
    for _ in range(2):
        hour(net, wants, range(12))
    net.cut = {("a", "b"), ("b", "a")}
    net.run(8_000_000)
    filters = {name: node.overlay.filters for name, node in net.nodes.items()}
    assert (filters["d"].root, filters["f"].root) == ("b", "a")
    for item in range(12):
        publish(net, wants, item, "d")
        publish(net, wants, item)
    net.run(2_500_000)  # each half may match at one node
    net.cut.clear()
    net.run(8_000_000)
    for _ in range(4):
        for item in range(12):
            reached = {"a", *publish(net, wants, item)}
            assert {name for name in NAMES if item in wanted[name]} <= reached
        net.run(2_500_000)
    assert {one.root for one in filters.values()} == {"a"}
    assert sum(one.matches for one in filters.values()) <= 1


# --- one filter by hand ---------------------------------------------------------------------------


class Hand:
    """The filter of node `m` below `a`, with `t` below it, driven by hand."""

    def __init__(self, filters: Any = 3, **settings: Any) -> None:
        self.topology = NodeTopology("m", TopologySettings())
        self.topology.tree = {"a": "a", "m": "a", "t": "m"}
        self.topology._hops = {"a": "a", "t": "t"}
        self.topology.links = {"a": None, "t": None}
        given = {**QUICK, **settings}
        self.filters = NodeFilters(self.topology, FilterSettings(filters=filters, **given), now=0)
        self.filters.receive(OverlayOpened(7), 0)

    def give(self, message: Any, link: str = "a", now: int = 0) -> list[Any]:
        return list(self.filters.receive(CameByLink(link, message), now))

    def order(self, kind: Any, number: int = 1, target: str = "m") -> list[Any]:
        return self.give(FilterOrder(Rank(number, "a"), "m", kind, target))


def test_a_filter_that_migrates_matches_until_the_other_one_does() -> None:
    hand = Hand()
    hand.order("activate")
    sent = hand.order("migrate", 2, "t")
    assert SendOnLink("t", InstallFilter(Rank(2, "a"), "t", "m")) in sent
    assert hand.filters.state is FilterState.MIGRATING
    assert hand.filters.matches
    hand.give(FilterInstalled(Rank(1, "a"), "m", "t"), "t")  # of an older batch
    assert hand.filters.matches
    hand.give(FilterInstalled(Rank(2, "a"), "m", "t"), "t")
    assert hand.filters.state is FilterState.ABSENT


@pytest.mark.parametrize("kinds", [("migrate", "spawn"), ("spawn", "migrate")])
def test_a_filter_that_migrates_and_spawns_matches_until_it_is_where_it_migrates(
    kinds: tuple[str, str],
) -> None:
    hand = Hand()
    hand.topology.tree |= {"u": "m"}
    hand.topology._hops |= {"u": "u"}
    hand.topology.links |= {"u": None}
    targets = {"migrate": "t", "spawn": "u"}
    hand.order("activate")
    for kind in kinds:
        hand.order(kind, 2, targets[kind])
    hand.give(FilterInstalled(Rank(2, "a"), "m", "u"), "u")
    assert hand.filters.state is FilterState.MIGRATING
    hand.give(FilterInstalled(Rank(2, "a"), "m", "t"), "t")
    assert hand.filters.state is FilterState.ABSENT


def test_a_filter_whose_target_does_not_answer_asks_again_and_stays() -> None:
    hand = Hand(tries_max=2)
    hand.order("activate")
    hand.order("migrate", 2, "t")
    asked = []
    for _ in range(5):
        now = hand.filters.deadline()
        if now is None:
            break
        asked += hand.filters.advance(now)
    assert len([one for one in asked if isinstance(one, SendOnLink) and one.node == "t"]) == 1
    assert hand.filters.state is FilterState.ACTIVE
    assert hand.filters.occupancy()["filters on their way"][0] == 0


def test_the_newer_batch_wins() -> None:
    hand = Hand()
    hand.order("activate", 5)
    hand.order("passivate", 4)
    assert hand.filters.matches
    hand.order("migrate", 6, "t")
    hand.order("activate", 7)
    assert hand.filters.state is FilterState.ACTIVE
    hand.give(FilterInstalled(Rank(6, "a"), "m", "t"), "t")
    assert hand.filters.state is FilterState.ACTIVE
    assert hand.give(InstallFilter(Rank(6, "z"), "m", "t"), "t") == []
    assert Rank(3, "a") < Rank(3, "b") < Rank(4, "a")


def test_a_batch_of_a_former_life_of_the_root_is_void() -> None:
    hand = Hand()
    hand.order("activate")
    hand.order("migrate", 2, "t")
    hand.order("passivate", 2)
    assert hand.filters.state is FilterState.PASSIVE
    hand.give(FilterInstalled(Rank(2, "a"), "m", "t"), "t")
    assert hand.filters.state is FilterState.PASSIVE


def test_who_plans_no_more_ceases_to_match_until_it_is_told() -> None:
    hand = Hand()
    hand.order("activate")
    hand.filters.receive(TreeChanged(("a",)), 0)  # m was its own root when it started
    assert hand.filters.state is FilterState.PASSIVE
    hand.order("activate", 2)
    hand.filters.receive(TreeChanged(("a",)), 0)
    assert hand.filters.state is FilterState.ACTIVE
    everywhere = Hand(filters="all")
    everywhere.filters.receive(TreeChanged(("a",)), 0)
    assert everywhere.filters.matches


def test_the_source_spawns_without_a_filter_of_its_own() -> None:
    hand = Hand()
    sent = hand.order("spawn", 1, "t")
    assert SendOnLink("t", InstallFilter(Rank(1, "a"), "t", "m")) in sent
    assert hand.filters.state is FilterState.ABSENT
    hand.give(FilterInstalled(Rank(1, "a"), "m", "t"), "t")
    assert hand.filters.state is FilterState.ABSENT


def test_own_clients_count_below_the_root_and_not_at_it() -> None:
    hand = Hand()
    hand.filters.count(list, lambda: True, came_from="a")
    assert hand.filters._own().wanted == 1
    hand.filters.count(lambda: ["t"], lambda: False, came_from="a")
    hand.filters.count(
        lambda: ["a"], lambda: True, came_from="t"
    )  # from below: crosses no link of ours
    hand.filters.count(lambda: ["a"], lambda: False, came_from="a")
    assert hand.filters._own().wanted == 2
    hand.topology.tree = {"m": "m", "t": "m"}
    hand.filters.count(list, lambda: True, came_from=None)
    assert hand.filters._own().wanted == 2
    hand.filters.count(lambda: ["t"], lambda: True, came_from=None)
    assert hand.filters._own().wanted == 3


def test_garbage_ends_the_link_and_strangers_reports_are_passed_over() -> None:
    hand = Hand(nodes_max=2)
    garbage = FilterOrder(Rank(2**60, "a"), "m", "activate", "m")
    assert type(hand.give(garbage)[0]).__name__ == "CutLink"
    report = NodeReport("t", 1, 1, 5, FilterState.ACTIVE, Rank(2**60, "a"))
    assert type(hand.give(FlowReports((report,)), "t")[0]).__name__ == "CutLink"
    good = NodeReport("t", 1, 1, 5, FilterState.ACTIVE, Rank())
    assert hand.give(FlowReports((good,)), "a") == []  # `t` does not lie beyond `a`
    assert hand.filters.occupancy()["reports"][0] == 0
    assert hand.give(FlowReports((good,)), "t") == []
    assert hand.filters.occupancy()["reports"][0] == 1
    hand.topology._hops |= {"u": "t", "v": "t"}
    more = tuple(NodeReport(n, 1, 1, 5, FilterState.ACTIVE, Rank()) for n in ("u", "v"))
    assert type(hand.give(FlowReports(more), "t")[0]).__name__ == "CutLink"
    assert hand.filters.occupancy()["reports"] == (2, 2)


# --- planning -------------------------------------------------------------------------------------


def reports(tree: dict[str, str], active: set[str] = frozenset()) -> dict[str, NodeReport]:  # type: ignore[assignment]
    return {
        name: NodeReport(
            name, 1, 1, 0, FilterState.ACTIVE if name in active else FilterState.ABSENT, Rank()
        )
        for name in tree
    }


TREES = st.lists(st.integers(0, 100), min_size=1, max_size=9).map(
    lambda draws: (
        {"n00": "n00"} | {f"n{i + 1:02}": f"n{draw % (i + 1):02}" for i, draw in enumerate(draws)}
    )
)


@given(TREES, st.lists(st.integers(0, 50), min_size=10, max_size=10), st.integers(0, 4), st.data())
def test_orders_lead_to_a_best_placement_whatever_nodes_claim(
    tree: dict[str, str], flows: list[int], limit: int, data: st.DataObject
) -> None:
    claimed = dict(zip(tree, map(float, flows), strict=False))
    silent = data.draw(st.sets(st.sampled_from(sorted(tree)), max_size=2)) - {"n00"}
    told = {name: report for name, report in reports(tree).items() if name not in silent}
    survey = Survey(
        tree, told, {n: f for n, f in claimed.items() if n in told}, FilterSettings(limit)
    )
    for name in tree:
        above = survey.names.index(tree[name])
        assert survey.flow[survey.names.index(name)] <= survey.flow[above]
    orders, _ = survey.orders(Rank(1, "n00"))
    active = {order.target for order in orders}
    assert not active & silent
    assert len(active) <= limit
    if not silent:
        problem = traffic(survey.tree, survey.flow)
        assert (
            cost(problem, [survey.names.index(n) for n in active]) == optimal(problem, limit).cost
        )


def test_a_change_that_costs_more_than_it_saves_is_not_made() -> None:
    tree = {"a": "a", "b": "a", "c": "a"}
    flows = {"a": 10.0, "b": 10.0, "c": 2.0}
    cheap = FilterSettings(1, costs=ChangeCosts(spawn=7.0))
    dear = FilterSettings(1, costs=ChangeCosts(spawn=8.0))
    assert Survey(tree, reports(tree), flows, cheap).orders(Rank(1, "a"))[0]
    orders, why = Survey(tree, reports(tree), flows, dear).orders(Rank(1, "a"))
    assert orders == ()
    assert "save 8 items and cost 8" in why


def test_more_filters_than_the_limit_are_switched_off() -> None:
    tree = {"a": "a", "b": "a", "c": "b"}
    flows = {"a": 10.0, "b": 5.0, "c": 5.0}
    survey = Survey(tree, reports(tree, {"a", "b"}), flows, FilterSettings(1))
    orders, why = survey.orders(Rank(1, "a"))
    assert [(order.kind, order.to) for order in orders] == [("passivate", "b")]
    assert why == "fits the limit"


def test_k_beyond_the_tree_and_paying_filters_give_the_trivial_answers() -> None:
    tree = {"a": "a", "b": "a", "c": "b", "d": "b"}
    flows = {"a": 10.0, "b": 10.0, "c": 1.0, "d": 1.0}
    many = Survey(tree, reports(tree), flows, FilterSettings(1_000)).orders(Rank(1, "a"))[0]
    paying = FilterSettings("paying", filter_cost=100.0)
    assert {order.target for order in many} == {"b"}
    assert Survey(tree, reports(tree), flows, paying).orders(Rank(1, "a"))[0] == ()
    every = Survey(tree, reports(tree), flows, FilterSettings("all")).orders(Rank(1, "a"))[0]
    assert {order.to for order in every} == set(tree)


def test_every_state_and_event_of_the_table_is_of_the_paper() -> None:
    assert {state for state, _ in FILTER_TABLE} == set(FilterState)
    assert {event for _, event in FILTER_TABLE} == set(FilterEvent)
