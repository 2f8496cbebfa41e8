"""Links: proved by key, once and in order, bounded; misbehaviour ends one link, with a reason."""

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.reliable.messages import PAYLOAD_BYTES_MAX, Data
from roamcast.errors import LimitError
from roamcast.model.machine import Effect, Received
from roamcast.model.parts import Part
from roamcast.overlay.events import (
    AddNeighbour,
    CameByLink,
    Garbled,
    HangUp,
    NeighbourDown,
    NeighbourFound,
    NeighbourFull,
    NeighbourGone,
    NeighbourReady,
    NeighbourUp,
    RemoveNeighbour,
    SendOnLink,
    WayLost,
)
from roamcast.overlay.links.chunks import CHUNK_BYTES, Assembly, chunks_of
from roamcast.overlay.links.messages import Greeting, LinkFrame, LinkRefusal
from roamcast.overlay.links.proof import signed_text, verify
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.tables.messages import TableReceipt
from roamcast.sim.workloads._overlay_parts import key_pair
from roamcast.sim.workloads.overlay import SETTINGS
from tests.overlay_net import EPOCH, Net, OneNode, beside, pair

SECOND = 1_000_000


class Listener(Part):
    """Notes what a link says and carries."""

    part: ClassVar[str] = "listener"
    inputs: ClassVar = (NeighbourUp, NeighbourDown, NeighbourFull, NeighbourReady, CameByLink)

    def __init__(self) -> None:
        self.events: list[Effect] = []

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        self.events.append(given)
        return ()

    def numbers(self) -> list[int]:
        return [
            event.message.version
            for event in self.events
            if isinstance(event, CameByLink) and isinstance(event.message, TableReceipt)
        ]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, NeighbourDown)]


def listening(name: str, *others: str, **more: Any) -> tuple[OneNode, Listener]:
    listener = Listener()
    return OneNode(name, beside(*others), users=(listener,), **more), listener


def test_two_nodes_that_dial_each_other_link_once() -> None:
    net = pair()
    net.run(SECOND)
    assert net.steps("a").count("up") == net.steps("b").count("up") == 1
    assert net.nodes["a"].overlay.links.up() == ["b"]


def test_one_that_is_not_dialled_is_linked_by_the_other() -> None:
    net = Net(OneNode("a", beside("b", dialled=False)), OneNode("b", beside("a")))
    net.run(SECOND)
    assert net.nodes["a"].overlay.links.up() == ["b"]


@settings(max_examples=8)
@given(st.integers(0, 10_000))
def test_frames_come_once_and_in_order_however_many_are_lost(seed: int) -> None:
    (a, heard_a), (b, heard_b) = listening("a", "b"), listening("b", "a")
    net = Net(a, b, loss=0.2)
    net._draw = random.Random(seed)
    net.run(SECOND)
    for number in range(30):
        for source, far in ((a, "b"), (b, "a")):
            links = source.overlay.links
            if links.up():
                effect = SendOnLink(far, TableReceipt("t", number))
                net._perform(source, source.receive_event(effect, net.now))
    net.run(6 * SECOND)
    for heard in (heard_a, heard_b):
        if len([event for event in heard.events if isinstance(event, NeighbourUp)]) == 1:
            assert heard.numbers() == [*range(30)] or not heard.numbers()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol": 2, "oldest": 2}, "newer protocol"),
        ({"protocol": 0}, "older protocol"),
        ({"clock_us": 61 * SECOND}, "skewed clock"),
        ({"to": "somebody"}, "unknown node"),
        ({"node": "stranger"}, "unknown node"),
        ({"nonce": b"short"}, "garbage: a nonce of another length"),
    ],
)
def test_a_greeting_is_refused_by_name(change: dict[str, Any], reason: str) -> None:
    net = Net(OneNode("a", beside("b", dialled=False)))
    net.run(10_000)
    greeting = Greeting("b", "a", 1, EPOCH, 0, b"n" * 16, b"", False)
    net.give("a", Received("b", msgspec.structs.replace(greeting, **change)))
    assert f"refused: {reason}" in net.steps("a")
    assert not net.nodes["a"].overlay.links.up()


def test_a_newer_node_that_still_speaks_our_version_is_linked() -> None:
    net = Net(OneNode("a", beside("b", dialled=False)))
    net.run(10_000)
    net.give("a", Received("b", Greeting("b", "a", 2, EPOCH, net.now, b"n" * 16, b"", False)))
    assert not [step for step in net.steps("a") if step.startswith("refused")]


def test_a_clock_at_the_bound_is_accepted() -> None:
    net = Net(OneNode("a", beside("b", dialled=False)))
    net.run(10_000)
    clock = net.now + SETTINGS.links.skew_us_max
    net.give("a", Received("b", Greeting("b", "a", 1, EPOCH, clock, b"n" * 16, b"", False)))
    assert not [step for step in net.steps("a") if step.startswith("refused")]


def test_a_wrong_key_is_refused_and_never_linked() -> None:
    forged = OneNode("b", beside("a"), sign=key_pair("mallory")[0])
    net = Net(OneNode("a", beside("b")), forged)
    net.run(2 * SECOND)
    assert "refused: wrong key" in net.steps("a")
    assert not net.nodes["a"].overlay.links.up()


def test_who_is_refused_for_its_key_is_told_why_on_its_own_side() -> None:
    forged = OneNode("b", beside("a"), sign=key_pair("mallory")[0])
    net = Net(OneNode("a", beside("b")), forged)
    net.run(4 * SECOND)
    (link,) = net.nodes["b"].overlay.links.view()
    assert "refused: wrong key" in " ".join((link.reason, *net.steps("b")))


def test_a_refusal_that_anybody_may_send_does_not_end_a_link() -> None:
    net = pair()
    net.run(SECOND)
    net.give("a", Received("b", LinkRefusal("b", "wrong key")))
    net.run(4 * SECOND)
    assert net.nodes["a"].overlay.links.up() == ["b"]
    assert not [step for step in net.steps("a") if step.startswith("down")]


def test_the_newest_epoch_of_a_node_wins_and_an_older_one_is_refused() -> None:
    net = pair()
    net.run(SECOND)
    newer = OneNode("b", beside("a"), epoch=EPOCH + 1_000, now=net.now)
    older = net.nodes["b"]
    net.nodes["b"] = newer
    net.run(SECOND)
    assert "down: newer epoch" in net.steps("a")
    net.nodes["b"] = older
    net.run(4 * SECOND)
    assert "refused: older epoch" in net.steps("a")


def test_an_epoch_is_newer_than_the_last_one_on_disk_though_the_clock_was_set_back() -> None:
    net = Net(OneNode("a", {}))
    net.run(10_000)
    again = OneNode("a", {}, epoch=EPOCH - 500_000, disk=net.nodes["a"].disk)
    assert again.overlay.links.epoch > EPOCH


def test_a_node_says_nothing_before_its_epoch_is_on_disk() -> None:
    net = pair()
    net.nodes["a"].refuses = True
    net.run(SECOND)
    assert not [to for source, to, _ in net.frames if source == "a"]
    net.nodes["a"].refuses = False
    net.run(2 * SECOND)
    assert net.nodes["a"].overlay.links.up() == ["b"]


def test_old_greetings_and_frames_bring_no_session_back() -> None:
    net = pair()
    net.run(SECOND)
    old = [frame for frame in net.frames if frame[0] == "b"]
    for name, other in (("a", "b"), ("b", "a")):
        net.give(name, WayLost(other, "reset"))
    net.run(2 * SECOND)
    ups = net.steps("a").count("up")
    session = net.nodes["a"].overlay.links._neighbours["b"].session
    for source, to, message in old:
        net.give(to, Received(source, message))
        net.run(10_000)
    net.run(SECOND)
    assert net.steps("a").count("up") == ups
    assert net.nodes["a"].overlay.links._neighbours["b"].session is session


def test_a_silent_neighbour_is_down_and_comes_back() -> None:
    net = pair()
    net.run(SECOND)
    net.cut = {("a", "b"), ("b", "a")}
    net.run(3 * SECOND)
    assert "down: silent" in net.steps("a")
    net.cut = set()
    net.run(3 * SECOND)
    assert net.nodes["a"].overlay.links.up() == ["b"]


def session_of(net: Net, name: str, other: str) -> int:
    found = net.nodes[name].overlay.links._neighbours[other].session
    assert found is not None
    return found.session


def three() -> tuple[Net, Listener]:
    """A hub with a bad neighbour and a good one."""
    hub, listener = listening("hub", "bad", "good")
    net = Net(hub, OneNode("bad", beside("hub")), OneNode("good", beside("hub")))
    net.run(SECOND)
    assert sorted(hub.overlay.links.up()) == ["bad", "good"]
    return net, listener


def hostile(net: Net, message: Any) -> None:
    net.give("hub", Received("bad", message))


def test_garbage_inside_a_frame_ends_the_link_and_nobody_else_notices() -> None:
    net, listener = three()
    sender = net.nodes["bad"].overlay.links._neighbours["hub"].session
    assert sender is not None
    number = sender._sender.last + 1
    hostile(net, LinkFrame(session_of(net, "hub", "bad"), 0, Data("bad", 1, number, b"\x01junk")))
    assert listener.reasons() == ["garbage: malformed"]
    assert net.nodes["hub"].overlay.links.up() == ["good"]
    assert any(isinstance(effect, HangUp) for _, effect in net.out)


def test_an_unreadable_frame_ends_the_link_and_a_stranger_is_hung_up_on() -> None:
    net, listener = three()
    net.give("hub", Garbled("bad", "truncated"))
    assert listener.reasons() == ["garbage: truncated"]
    assert net.give("hub", Garbled("stranger", "oversized")) == [HangUp("stranger", "oversized")]


def test_a_lost_connection_ends_its_link_and_no_other() -> None:
    net, listener = three()
    assert net.give("hub", WayLost("stranger", "reset")) == []
    net.give("hub", WayLost("bad", "reset"))
    assert listener.reasons() == ["connection lost: reset"]
    assert net.nodes["hub"].overlay.links.up() == ["good"]


def test_a_refusal_counts_only_from_where_the_neighbour_is_dialled() -> None:
    net = Net(OneNode("a", beside("b")))
    net.run(10_000)
    refusal = LinkRefusal("b", "busy")
    assert net.give("a", Received("elsewhere", refusal)) == []
    net.give("a", Received("b", refusal))
    assert net.steps("a")[-1] == "gave up: refused: busy"


def test_what_is_meant_for_one_that_is_not_linked_goes_nowhere() -> None:
    net = Net(OneNode("a", beside("b")))
    net.run(10_000)
    for node in ("b", "stranger"):
        given = SendOnLink(node, TableReceipt("t", 1))
        assert net.nodes["a"].receive_event(given, net.now) == []


def test_all_that_may_be_under_way_may_wait_behind_a_gap() -> None:
    channel = LinkSettings().channel
    assert channel.ahead_messages_max >= channel.buffer_messages_max
    assert channel.ahead_bytes_max >= channel.buffer_bytes_max >= PAYLOAD_BYTES_MAX


def test_a_flood_ends_the_link_at_the_bound() -> None:
    net, listener = three()
    frame = LinkFrame(session_of(net, "hub", "bad"), 0)
    room = int(net.nodes["hub"].overlay.links._neighbours["bad"].frames)
    for _ in range(room - 1):
        hostile(net, frame)
    assert not listener.reasons()
    for _ in range(3):
        hostile(net, frame)
    assert listener.reasons() == ["flood: more frames than the limit"]
    assert net.nodes["hub"].overlay.links.up() == ["good"]


def test_a_neighbour_that_acknowledges_nothing_is_stalled() -> None:
    (a, listener), (b, _) = listening("a", "b"), listening("b", "a")
    net = Net(a, b)
    net.run(SECOND)
    net._perform(a, a.receive_event(SendOnLink("b", TableReceipt("t", 1)), net.now))
    session = session_of(net, "a", "b")
    net.cut = {("a", "b")}
    for _ in range(35):  # it lives, and confirms nothing
        net.run(100_000)
        if a.overlay.links.up():
            net.give("a", Received("b", LinkFrame(session, 0)))
    assert listener.reasons()[0] == "stalled"


def test_the_delay_before_the_next_try_grows() -> None:
    net = Net(OneNode("a", beside("b")))
    waits = []
    for tries in range(1, 8):
        while net.steps("a").count("gave up: no answer") < tries:
            net.run(10_000)
        waits.append((net.nodes["a"].deadline() or 0) - net.now)
    settings = SETTINGS.links
    for tries, wait in enumerate(waits):
        most = min(settings.retry_us << tries, settings.retry_us_max)
        assert most // 2 - 10_000 <= wait <= most


def test_a_cut_neighbour_is_not_listened_to_for_a_while() -> None:
    net, _ = three()
    net.give("hub", Garbled("bad", "truncated"))
    until = net.nodes["hub"].overlay.links._neighbours["bad"].shunned_until
    assert until > net.now
    hostile(net, Greeting("bad", "hub", 1, EPOCH, net.now, b"n" * 16, b"", False))
    net.now = until
    net.run(3 * SECOND)
    assert sorted(net.nodes["hub"].overlay.links.up()) == ["bad", "good"]


def test_a_full_queue_asks_for_a_pause_then_cuts_the_link() -> None:
    (a, listener), (b, _) = listening("a", "b"), listening("b", "a")
    net = Net(a, b)
    net.run(SECOND)
    window = SETTINGS.links.channel.buffer_messages_max
    bound = SETTINGS.links.queue_messages_max

    def send() -> None:
        net._perform(a, a.receive_event(SendOnLink("b", TableReceipt("t", 1)), net.now))

    net.cut = {("a", "b")}
    for _ in range(window + bound // 2):
        send()
    assert not any(isinstance(event, NeighbourFull) for event in listener.events)
    send()
    assert isinstance(listener.events[-1], NeighbourFull)
    for _ in range(bound // 2 - 1):
        send()
    assert a.overlay.links.up() == ["b"]
    assert a.overlay.links.occupancy()["queue messages"] == (bound, bound)
    send()
    assert listener.reasons() == ["queue full"]


def test_a_full_link_that_drains_is_ready_again() -> None:
    (a, listener), (b, heard) = listening("a", "b"), listening("b", "a")
    net = Net(a, b)
    net.run(SECOND)
    for number in range(60):
        net._perform(a, a.receive_event(SendOnLink("b", TableReceipt("t", number)), net.now))
    net.run(2 * SECOND)
    kinds = [type(event) for event in listener.events]
    assert kinds.index(NeighbourFull) < kinds.index(NeighbourReady)
    assert heard.numbers() == [*range(60)]
    assert a.overlay.links.idle()


def test_neighbours_come_and_go_by_input_up_to_the_bound() -> None:
    few = msgspec.structs.replace(
        SETTINGS, links=msgspec.structs.replace(SETTINGS.links, neighbours_max=1)
    )
    net = Net(OneNode("a", {}, settings=few), OneNode("b", beside("a")))
    net.run(100_000)
    net.give("a", AddNeighbour("b", NeighbourSettings(key_pair("b")[1])))
    with pytest.raises(LimitError):
        net.give("a", AddNeighbour("c", NeighbourSettings(b"")))
    net.run(3 * SECOND)
    assert net.nodes["a"].overlay.links.up() == ["b"]
    net.give("a", RemoveNeighbour("b"))
    assert "down: removed" in net.steps("a")
    net.run(SECOND)
    assert not net.nodes["a"].overlay.links.up()


def test_only_a_neighbour_that_was_found_and_behaved_is_let_go() -> None:
    net = Net(OneNode("a", beside("configured")))
    for name in ("found", "unruly"):
        net.give("a", NeighbourFound(name, NeighbourSettings(key_pair(name)[1])))
    links = net.nodes["a"].overlay.links
    links._neighbours["unruly"].shunned_until = 1
    for name in ("stranger", "configured", "found", "unruly"):
        net.give("a", NeighbourGone(name))
    assert links.neighbours == ["configured", "unruly"]


@given(st.binary(max_size=40), st.binary(max_size=80))
def test_only_the_right_signature_verifies(key: bytes, signature: bytes) -> None:
    text = signed_text(Greeting("a", "b", 1, 1, 1, b"n", b"e", False, signature[:64]))
    assert not verify(key, signature, text)
    sign, public = key_pair("a")
    assert verify(public, sign(text), text)


@given(st.binary(max_size=3 * CHUNK_BYTES))
def test_chunks_join_to_the_same_bytes(data: bytes) -> None:
    assembly = Assembly(3 * CHUNK_BYTES)
    joined = [assembly.add(chunk, last) for chunk, last in chunks_of(data)]
    assert joined[-1] == data
    assert not any(joined[:-1])


def test_chunks_beyond_the_bound_are_refused() -> None:
    assembly = Assembly(10)
    assert assembly.add(b"0123456789", False) is None
    with pytest.raises(LimitError):
        assembly.add(b"x", True)
