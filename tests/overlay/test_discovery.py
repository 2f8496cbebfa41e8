"""Discovery: rings grow until enough is found, and nodes on a radio field link by themselves."""

from collections.abc import Callable, Sequence

from roamcast.model.addresses import Neighbour
from roamcast.model.machine import Effect, Listen, Multicast, Received, Send
from roamcast.model.wire import Registry
from roamcast.overlay.events import (
    CameByLink,
    NeighbourDown,
    NeighbourFound,
    NeighbourFull,
    NeighbourGone,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    SendOnLink,
)
from roamcast.overlay.links.messages import LINK_MESSAGES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.directory import Directory, NodeEntry
from roamcast.overlay.topology.discovery import (
    DISCOVERY_MESSAGES,
    GROUP,
    QUESTIONS_BURST,
    QUESTIONS_MAX,
    Discovery,
    DiscoverySettings,
    Seek,
    SeekAnswer,
)
from roamcast.sim.host import Boot
from roamcast.sim.radio import RadioField
from roamcast.sim.workloads._overlay_parts import key_pair, overlay_of
from roamcast.sim.workloads.overlay import SETTINGS, BareNode
from roamcast.sim.world import World
from tests.overlay_net import Net, OneNode, beside

KEYS = {name: key_pair(name)[1] for name in "abcdefgh"}
QUICK = DiscoverySettings(ring_us=100_000, rest_us=500_000, hops_max=3, enough=1, by_radio=True)


def search(**more: int) -> Discovery:
    settings = DiscoverySettings(**{"ring_us": 100, "rest_us": 1_000, "by_radio": True, **more})
    made = Discovery("a", addresses=("at-a",), keys=KEYS, settings=settings, draw=lambda: 0.5)
    assert made.receive(OverlayOpened(5_000), 0) == (Listen(GROUP),)
    return made


def rings(made: Discovery, now: int) -> list[Effect]:
    """Let a whole search pass."""
    out: list[Effect] = []
    out += made.advance(now)
    while made.state == "seeking":
        now = made.deadline() or 0
        out += made.advance(now)
    return out


def asked(effects: Sequence[Effect]) -> list[Seek]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Multicast) and isinstance(effect.message, Seek)
    ]


def test_the_ring_grows_until_it_is_as_wide_as_may_be() -> None:
    made = search(hops_max=3)
    assert [(one.number, one.hops) for one in asked(rings(made, 0))] == [
        (5_001, 1),
        (5_002, 2),
        (5_003, 3),
    ]
    assert made.deadline() == 300 + 500 + 500


def test_a_ring_that_finds_enough_is_the_last_and_the_nearest_are_chosen() -> None:
    made = search(enough=2, neighbours_max=1)
    made.advance(0)
    made.receive(Received("x", SeekAnswer("a", 5_001, "c", ("at-c",), 2)), 1)
    made.receive(Received("x", SeekAnswer("a", 5_001, "b", ("at-b",), 1)), 1)
    made.receive(Received("x", SeekAnswer("a", 4_000, "d", ("at-d",), 1)), 1)  # an old question
    made.receive(Received("x", SeekAnswer("a", 5_001, "stranger", ("at-s",), 1)), 1)
    found = [one for one in made.advance(100) if isinstance(one, NeighbourFound)]
    assert found == [NeighbourFound("b", NeighbourSettings(KEYS["b"], ("at-b",)))]


def test_a_neighbour_that_answers_no_more_is_given_up() -> None:
    made = search(enough=1, hops_max=1, misses_max=2)
    made.advance(0)
    made.receive(Received("x", SeekAnswer("a", 5_001, "b", ("at-b",), 1)), 1)
    made.advance(100)
    gone: list[Effect] = []
    for _ in range(2):
        assert not gone
        gone = [one for one in rings(made, made.deadline() or 0) if isinstance(one, NeighbourGone)]
    assert gone == [NeighbourGone("b")]


def test_a_question_is_answered_once_passed_on_and_its_answers_find_back() -> None:
    made = search()
    effects = made.receive(Received("near", Seek("b", 1, 2)), 0)
    assert effects[0] == Send(Neighbour("near"), SeekAnswer("b", 1, "a", ("at-a",), 1))
    assert asked(effects) == [Seek("b", 1, 1)]
    assert made.receive(Received("other", Seek("b", 1, 2)), 0) == ()
    back = made.receive(Received("far", SeekAnswer("b", 1, "c", ("at-c",), 1)), 0)
    assert back == (Send(Neighbour("near"), SeekAnswer("b", 1, "c", ("at-c",), 2)),)
    assert made.receive(Received("far", SeekAnswer("b", 9, "c", ("at-c",), 1)), 0) == ()


def test_remembered_questions_are_bounded() -> None:
    made = search()
    for number in range(QUESTIONS_MAX + 1):
        made.receive(Received("near", Seek("b", number, 1)), 0)
    assert made.occupancy()["questions"] == (QUESTIONS_MAX, QUESTIONS_MAX)


def test_nodes_on_a_field_find_each_other_and_follow_one_that_moves() -> None:
    world = World(1, Registry((*LINK_MESSAGES, *DISCOVERY_MESSAGES)))
    field = RadioField(100.0)
    world.network.reach = field.hops

    def factory(name: str) -> Callable[[Boot], BareNode]:
        def make(boot: Boot) -> BareNode:
            node = OverlayNode(
                name,
                key_pair(name)[0],
                {},
                boot.generator.random,
                lambda: boot.generator.randbytes(16),
                SETTINGS,
                addresses=(name,),
                keys=KEYS,
                discovery=QUICK,
            )
            return BareNode(node, epoch=1_000, now=boot.now, load=boot.disk.load)

        return make

    for number, name in enumerate("abcd"):
        host = world.add_host(name, factory(name))
        field.move(host, 90.0 * number, 0.0)
    world.kernel.run(5_000_000, 1_000_000)

    def graph(name: str) -> dict[str, tuple[str, ...]]:
        overlay = overlay_of(world.hosts[name])
        assert overlay is not None
        return overlay.topology.graph()

    assert graph("a") == {"a": ("b",), "b": ("a", "c"), "c": ("b", "d"), "d": ("c",)}
    field.move(world.hosts["d"], 0.0, 90.0)  # away from c, close to a
    world.kernel.run(15_000_000, 1_000_000)
    for name in "abcd":
        assert graph(name) == {"a": ("b", "d"), "b": ("a", "c"), "c": ("b",), "d": ("a",)}


def by_links(**more: int) -> Discovery:
    """Give the search of a node that has one configured neighbour, b."""
    settings = DiscoverySettings(**{"ring_us": 100, "rest_us": 1_000, **more})
    made = Discovery(
        "a",
        addresses=("at-a",),
        keys=KEYS,
        settings=settings,
        draw=lambda: 0.5,
        configured=("b",),
        may_dial=lambda url: url != "evil",
    )
    made.receive(OverlayOpened(5_000), 0)
    made.receive(NeighbourUp("b", 1, 0), 0)
    return made


def test_neighbours_are_asked_for_their_neighbours_while_links_are_lacking() -> None:
    made = by_links(enough=2)
    assert made.deadline() == 200
    assert made.advance(200) == [SendOnLink("b", Seek("a", 5_001, 1))]
    made.receive(CameByLink("b", SeekAnswer("a", 5_001, "b", ("at-b",), 1)), 201)  # linked already
    assert made.advance(300) == [SendOnLink("b", Seek("a", 5_002, 2))]
    made.receive(CameByLink("b", SeekAnswer("a", 5_002, "c", ("evil",), 2)), 301)
    made.receive(CameByLink("b", SeekAnswer("a", 5_002, "d", ("at-d", "at-d2"), 2)), 301)
    found = [one for one in made.advance(400) if isinstance(one, NeighbourFound)]
    assert found == [NeighbourFound("d", NeighbourSettings(KEYS["d"], ("at-d", "at-d2")))]
    made.receive(NeighbourUp("d", 1, 0), 500)
    due = made.deadline()
    assert due == 400 + 500 + 500
    assert made.advance(due) == []  # two links are enough


def test_a_found_neighbour_that_is_never_linked_is_given_up_and_comes_last_next_time() -> None:
    made = by_links(enough=2, hops_max=1, misses_max=1)
    chosen = []
    for now in (200, 2_000, 4_000):
        made.advance(now)
        for name in "cd":
            answer = SeekAnswer("a", made._number, name, (f"at-{name}",), 1)
            made.receive(CameByLink("b", answer), now + 1)
        found = [one for one in made.advance(now + 100) if isinstance(one, NeighbourFound)]
        chosen += [one.node for one in found]
    assert chosen == ["c", "d", "c"]


def test_a_question_goes_to_all_links_but_its_own_and_full_ones() -> None:
    made = by_links()
    for name in "cd":
        made.receive(NeighbourUp(name, 1, 0), 0)
    made.receive(NeighbourFull("d"), 0)
    answer = SendOnLink("c", SeekAnswer("x", 1, "a", ("at-a",), 1))
    assert made.receive(CameByLink("c", Seek("x", 1, 2)), 0) == [
        answer,
        SendOnLink("b", Seek("x", 1, 1)),
    ]
    made.receive(NeighbourReady("d"), 0)
    made.receive(NeighbourDown("b", "gone"), 0)
    passed = made.receive(CameByLink("c", Seek("x", 2, 2)), 0)
    assert passed[1:] == [SendOnLink("d", Seek("x", 2, 1))]


def test_a_link_that_asks_too_much_is_not_passed_on() -> None:
    made = by_links()
    made.receive(NeighbourUp("c", 1, 0), 0)
    for number in range(QUESTIONS_BURST):
        assert made.receive(CameByLink("c", Seek("x", number, 2)), 0)
    assert not made.receive(CameByLink("c", Seek("x", QUESTIONS_BURST, 2)), 0)
    assert made.receive(CameByLink("b", Seek("x", QUESTIONS_BURST, 2)), 0)
    assert made.receive(CameByLink("c", Seek("x", QUESTIONS_BURST + 1, 2)), 1_000_000)


def chain(*names: str) -> Net:
    """Nodes in a row that may all link with each other, and seek two links."""
    search = DiscoverySettings(ring_us=100_000, rest_us=500_000)
    nodes = []
    for left, name, right in zip(("", *names), names, (*names[1:], ""), strict=False):
        near = beside(*(one for one in (left, right) if one))
        more = {"addresses": (name,), "keys": KEYS, "discovery": search}
        directory = Directory()
        directory.put("own", NodeEntry(name, f"http://{name}"))
        nodes.append(OneNode(name, near, tables=(directory,), **more))
    return Net(*nodes)


def test_the_ends_of_a_row_find_more_links_and_outlive_its_middle() -> None:
    net = chain(*"abcde")
    net.run(3_000_000)
    graph = net.nodes["c"].overlay.topology.graph()
    assert all(len(near) >= 2 for near in graph.values()), graph
    links = {link.node: link for link in net.nodes["a"].overlay.links.view()}
    assert not links["b"].found
    assert [link.node for link in links.values() if link.found] == ["c"]
    del net.nodes["b"], net.nodes["c"]
    net.run(12_000_000)
    graph = net.nodes["a"].overlay.topology.graph()
    alive = {name: graph[name] for name in net.nodes}
    assert alive == {"a": ("d", "e"), "d": ("a", "e"), "e": ("a", "d")}
    assert "c" not in net.nodes["a"].overlay.links.neighbours  # given up
    assert "b" in net.nodes["a"].overlay.links.neighbours  # configured: awaited for ever


def test_a_known_node_may_call_unasked_and_others_are_refused() -> None:
    more = {"keys": {"a": KEYS["a"]}}
    net = Net(
        OneNode("a", beside("hub")),
        OneNode("b", beside("hub")),
        OneNode("hub", {}, **more),
    )
    net.run(3_000_000)
    hub = net.nodes["hub"].overlay.links
    assert hub.up() == ["a"]
    assert hub.neighbours == ["a"]
    assert "refused: unknown node" in net.steps("hub")


def test_a_caller_with_a_known_name_and_a_wrong_key_leaves_nothing_behind() -> None:
    liar = OneNode("a", beside("hub"), sign=key_pair("b")[0])
    net = Net(liar, OneNode("hub", {}, keys={"a": KEYS["a"]}))
    net.run(20_000_000)
    assert net.nodes["hub"].overlay.links.neighbours == []
    assert "refused: wrong key" in net.steps("hub")
