"""Topology: merging has laws, trees are shared, old news is contradicted, the dead forgotten."""

from collections.abc import Sequence

import msgspec
import pytest
import rustworkx as rx
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.model.machine import Effect
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    NeighbourDown,
    NeighbourFull,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    SendOnLink,
    TreeChanged,
)
from roamcast.overlay.topology.items import LinkItem, TopologyTable
from roamcast.overlay.topology.messages import ITEMS_MAX, TopologyItems
from roamcast.overlay.topology.topology import BURST, NUMBER_MAX, NodeTopology, TopologySettings
from roamcast.overlay.topology.trees import branches, path_of, shared_tree, tree_from

NAMES = st.sampled_from("abcdef")
ITEM = st.builds(
    LinkItem, NAMES, NAMES, st.integers(0, 2), st.integers(0, 2), st.booleans()
).filter(lambda item: item.node != item.to)
ITEMS = st.lists(ITEM, max_size=12)
EDGES = st.sets(st.tuples(NAMES, NAMES).filter(lambda ends: ends[0] < ends[1]))


def merged(*parts: Sequence[LinkItem]) -> dict[tuple[str, str], LinkItem]:
    table = TopologyTable(100)
    for part in parts:
        table.merge(part)
    return table.items


@given(ITEMS, ITEMS, ITEMS)
def test_merging_is_commutative_associative_and_idempotent(
    a: list[LinkItem], b: list[LinkItem], c: list[LinkItem]
) -> None:
    assert merged(a, b) == merged(b, a)
    assert merged(list(merged(a, b).values()), c) == merged(a, list(merged(b, c).values()))
    assert merged(a, a) == merged(a)
    assert merged(a, b, c) == merged(a + b + c)


@given(ITEMS)
def test_a_link_counts_while_both_ends_say_so(items: list[LinkItem]) -> None:
    table = TopologyTable(100)
    table.merge(items)
    up = {ends for ends, item in table.items.items() if item.up}
    found = {(node, far) for node, beside in table.graph().items() for far in beside}
    assert found == {ends for ends in up if ends[::-1] in up}


def graph_of(edges: set[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    both = edges | {(b, a) for a, b in edges}
    return {node: tuple(sorted(b for a, b in both if a == node)) for node, _ in both}


@given(EDGES)
def test_trees_have_shortest_paths_and_every_node_finds_the_same_shared_one(
    edges: set[tuple[str, str]],
) -> None:
    graph = graph_of(edges)
    names = sorted(graph)
    other = rx.PyGraph()
    other.add_nodes_from(names)
    other.add_edges_from([(names.index(a), names.index(b), 1) for a, b in edges])
    for source in names:
        tree = tree_from(graph, source)
        right = rx.dijkstra_shortest_path_lengths(other, names.index(source), lambda _: 1.0)
        lengths = {names[number]: length for number, length in right.items()}
        assert {node: len(path_of(tree, node)) - 1 for node in tree if node != source} == lengths
        shared = shared_tree(graph, source)
        assert shared.keys() == tree.keys()
        assert all(shared_tree(graph, member) == shared for member in tree)
        hops = branches(shared, source)
        assert hops.keys() == shared.keys() - {source}
        for target, hop in hops.items():
            on_the_way = branches(shared, hop).get(target, target)
            assert hop == target or on_the_way != source
    assert path_of({"a": "a"}, "z") == []


def test_items_are_bounded() -> None:
    table = TopologyTable(2)
    table.merge([LinkItem("a", "b", 1, 1, True), LinkItem("b", "a", 1, 1, True)])
    with pytest.raises(LimitError):
        table.merge([LinkItem("c", "a", 1, 1, True)])
    assert len(table.items) == 2


class Alone:
    """One topology, driven by hand."""

    def __init__(self, **settings: int) -> None:
        self.topology = NodeTopology("m", TopologySettings(**settings))
        self.now = 0
        self.topology.receive(OverlayOpened(7), 0)

    def give(self, event: Effect) -> Sequence[Effect]:
        return self.topology.receive(event, self.now)

    def learn(self, *items: LinkItem) -> Sequence[Effect]:
        return self.give(CameByLink("a", TopologyItems(items)))

    def wait(self, duration_us: int = 100_000) -> list[Effect]:
        self.now += duration_us
        return [*self.topology.advance(self.now)]

    def link(self, *names: str) -> list[Effect]:
        for name in names:
            self.give(NeighbourUp(name, 1, 0))
            self.learn(LinkItem(name, "m", 1, 1, True))
        return self.wait()


def items_to(effects: Sequence[Effect], link: str) -> list[LinkItem]:
    return [
        item
        for effect in effects
        if isinstance(effect, SendOnLink) and effect.node == link
        for item in effect.message.items
    ]


def test_a_new_link_is_told_everything_and_later_only_changes() -> None:
    alone = Alone()
    alone.link("a")
    effects = alone.link("b")
    assert {item.ends for item in items_to(effects, "b")} == {
        ("m", "a"),
        ("a", "m"),
        ("m", "b"),
        ("b", "m"),
    }
    alone.learn(LinkItem("a", "z", 1, 2, True))
    effects = alone.wait()
    assert [item.ends for item in items_to(effects, "b")] == [("a", "z")]
    assert items_to(effects, "a") == []
    alone.learn(LinkItem("a", "z", 1, 2, True), LinkItem("a", "z", 1, 1, False))
    assert items_to(alone.wait(), "b") == []


def test_own_items_of_an_earlier_life_are_contradicted() -> None:
    alone = Alone()
    alone.link("a")
    alone.learn(LinkItem("m", "gone", 6, 9, True), LinkItem("m", "a", 9, 3, False))
    told = {item.ends: item for item in items_to(alone.wait(), "a")}
    assert not told["m", "gone"].up
    assert told["m", "a"].up
    assert told["m", "a"].rank > (9, 3, False)


def test_the_tree_is_computed_once_for_many_changes_and_told_when_it_changes() -> None:
    alone = Alone()
    alone.link("a")
    for number in range(20):
        far = f"f{number}"
        alone.learn(LinkItem("a", far, 1, number + 2, True), LinkItem(far, "a", 1, 1, True))
    changes = [effect for effect in alone.wait() if isinstance(effect, TreeChanged)]
    assert changes == [TreeChanged(("a",))]
    assert alone.topology.hop("f19") == "a"
    assert len(alone.topology.tree_of("f0")) == 22
    alone.give(NeighbourDown("a", "silent"))
    assert TreeChanged(()) in alone.wait()
    assert alone.topology.hop("f19") is None


def test_nodes_out_of_reach_and_dead_ends_are_forgotten() -> None:
    alone = Alone(forget_us=1_000_000)
    alone.link("a")
    alone.learn(LinkItem("x", "y", 1, 1, True), LinkItem("a", "old", 1, 5, False))
    alone.wait()
    assert len(alone.topology.table.items) == 4
    alone.wait(1_100_000)
    assert {*alone.topology.table.items} == {("m", "a"), ("a", "m")}


def test_each_dead_end_is_forgotten_in_its_own_time() -> None:
    alone = Alone(forget_us=1_000_000)
    alone.link("a")
    alone.learn(LinkItem("a", "first", 1, 5, False))
    alone.wait()
    alone.learn(LinkItem("a", "second", 1, 6, False))
    alone.wait()
    items = alone.topology.table.items
    alone.wait(899_999)
    assert ("a", "first") in items
    alone.wait(1)
    assert ("a", "first") not in items
    alone.wait(99_999)
    assert ("a", "second") in items
    alone.wait(1)
    assert {*items} == {("m", "a"), ("a", "m")}


@pytest.mark.parametrize(
    "item", [LinkItem("x", "x", 1, 1, True), LinkItem("x", "y", 1, NUMBER_MAX + 1, True)]
)
def test_an_item_of_no_link_ends_the_link_it_came_by(item: LinkItem) -> None:
    alone = Alone()
    alone.link("a")
    assert alone.learn(item) == (CutLink("a", "garbage: an item of no link"),)
    assert item.ends not in alone.topology.table.items


def test_a_topology_of_too_many_items_ends_the_link_and_changes_nothing() -> None:
    alone = Alone(items_max=3)
    alone.link("a")
    more = [LinkItem("a", f"f{number}", 1, 1, True) for number in range(2)]
    (cut,) = alone.learn(*more)
    assert isinstance(cut, CutLink)
    assert len(alone.topology.table.items) == 2


def test_a_full_link_is_told_nothing_until_it_is_ready() -> None:
    alone = Alone()
    alone.link("a", "b")
    alone.give(NeighbourFull("b"))
    alone.learn(LinkItem("a", "z", 1, 2, True))
    assert items_to(alone.wait(), "b") == []
    assert not alone.topology.idle()
    alone.give(NeighbourReady("b"))
    assert [item.ends for item in items_to(alone.wait(), "b")] == [("a", "z")]
    assert alone.topology.idle()


@settings(max_examples=5)
@given(st.integers(1, 3))
def test_a_large_topology_is_told_in_bursts(times: int) -> None:
    alone = Alone()
    alone.link("a")
    count = times * ITEMS_MAX * BURST // 2
    items = [LinkItem("a", f"f{number}", 1, 1, True) for number in range(count)]
    for at in range(0, count, ITEMS_MAX):
        alone.learn(*items[at : at + ITEMS_MAX])
    alone.wait()
    alone.give(NeighbourUp("b", 1, 0))
    told: list[LinkItem] = []
    while not alone.topology.idle():
        burst = [effect for effect in alone.wait() if isinstance(effect, SendOnLink)]
        assert len(burst) <= 2 * BURST
        for effect in burst:
            assert len(msgspec.msgpack.encode(effect.message)) < 60_000
        told += items_to(burst, "b")
    assert len(told) == count + 3
