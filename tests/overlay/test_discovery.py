"""Discovery: rings grow until enough is found, and nodes on a radio field link by themselves."""

from collections.abc import Callable, Sequence

from roamcast.model.addresses import Neighbour
from roamcast.model.machine import Effect, Listen, Multicast, Received, Send
from roamcast.model.wire import Registry
from roamcast.overlay.events import NeighbourFound, NeighbourGone, OverlayOpened
from roamcast.overlay.links.messages import LINK_MESSAGES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.topology.discovery import (
    DISCOVERY_MESSAGES,
    GROUP,
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

KEYS = {name: key_pair(name)[1] for name in "abcdefgh"}
QUICK = DiscoverySettings(ring_us=100_000, rest_us=500_000, hops_max=3, enough=1)


def search(**more: int) -> Discovery:
    settings = DiscoverySettings(**{"ring_us": 100, "rest_us": 1_000, **more})
    made = Discovery("a", address="at-a", keys=KEYS, settings=settings, draw=lambda: 0.5)
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
    made.receive(Received("x", SeekAnswer("a", 5_001, "c", "at-c", 2)), 1)
    made.receive(Received("x", SeekAnswer("a", 5_001, "b", "at-b", 1)), 1)
    made.receive(Received("x", SeekAnswer("a", 4_000, "d", "at-d", 1)), 1)  # an old question
    made.receive(Received("x", SeekAnswer("a", 5_001, "stranger", "at-s", 1)), 1)
    found = [one for one in made.advance(100) if isinstance(one, NeighbourFound)]
    assert found == [NeighbourFound("b", NeighbourSettings(KEYS["b"], ("at-b",)))]


def test_a_neighbour_that_answers_no_more_is_given_up() -> None:
    made = search(enough=1, hops_max=1, misses_max=2)
    made.advance(0)
    made.receive(Received("x", SeekAnswer("a", 5_001, "b", "at-b", 1)), 1)
    made.advance(100)
    gone: list[Effect] = []
    for _ in range(2):
        assert not gone
        gone = [one for one in rings(made, made.deadline() or 0) if isinstance(one, NeighbourGone)]
    assert gone == [NeighbourGone("b")]


def test_a_question_is_answered_once_passed_on_and_its_answers_find_back() -> None:
    made = search()
    effects = made.receive(Received("near", Seek("b", 1, 2)), 0)
    assert effects[0] == Send(Neighbour("near"), SeekAnswer("b", 1, "a", "at-a", 1))
    assert asked(effects) == [Seek("b", 1, 1)]
    assert made.receive(Received("other", Seek("b", 1, 2)), 0) == ()
    back = made.receive(Received("far", SeekAnswer("b", 1, "c", "at-c", 1)), 0)
    assert back == (Send(Neighbour("near"), SeekAnswer("b", 1, "c", "at-c", 2)),)
    assert made.receive(Received("far", SeekAnswer("b", 9, "c", "at-c", 1)), 0) == ()


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
                address=name,
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
