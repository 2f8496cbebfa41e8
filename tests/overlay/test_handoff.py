"""Handoff: what a crossing needs stands before it, and losing a message loses no event."""

from collections.abc import Callable
from typing import Any

import pytest

from roamcast.errors import ConflictError, ForbiddenError
from roamcast.model.contexts import Context
from roamcast.model.events import Failed
from roamcast.model.filters.here import by_kind
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.events import (
    AttachConsumer,
    ChangeWanted,
    ConsumerAttached,
    ConsumerGone,
    DetachConsumer,
    ReportPlace,
)
from roamcast.overlay.handoff.handoff import Handoff, HandoffNode
from roamcast.overlay.handoff.messages import Attachment, HandoffMessage
from roamcast.overlay.handoff.settings import HandoffSettings, surroundings
from tests.overlay_net import Net, OneNode, beside

FLOWS = FlowSettings(
    empty_us=50_000, doubt_us=200_000, fetch_us=200_000, wave_us=400_000, buffer_bytes_max=20_000
)
SETTINGS = HandoffSettings(
    still_us=2_000_000,
    lease_us=1_500_000,
    dwell_us=1_000_000,
    sleep_us=3_000_000,
    retry_us=100_000,
    arrived_us=3_000_000,
)
WALK = ["a/1", "a/2", "b/1", "b/2", "b/3", "c/1", "c/2"]
"""A corridor; each place is a neighbour of those beside it."""

AROUND = {
    place: [WALK[at] for at in (number - 1, number + 1) if 0 <= at < len(WALK)]
    for number, place in enumerate(WALK)
}


def node_of(place: str) -> str:
    return place[0]


def corridor(
    settings: HandoffSettings = SETTINGS,
    flows: FlowSettings = FLOWS,
    around: dict[str, list[str]] = AROUND,
) -> Net:
    """Three nodes in a line, each with its part of the corridor."""
    nodes = []
    for name, near in (("a", "b"), ("b", "ac"), ("c", "b")):
        level = by_kind(lambda place: "room" if "/" in place else "wing")
        handoff = HandoffNode(surroundings(name, around, node_of), settings, level)
        nodes.append(OneNode(name, beside(*near), flows=flows, handoff=handoff))
    net = Net(*nodes)
    net.run(3_000_000)
    return net


class Walker:
    """A consumer with its cursor, and a producer whose events it wants."""

    def __init__(self, net: Net, wanted: str = "colour = 'red'") -> None:
        self.net = net
        self.cursor = ConsumerCursor()
        self.seen: list[int] = []
        self.prepared: list[bool] = []
        self.failed: list[Any] = []
        self.wanted = wanted
        self.node = ""
        self.counter = 0
        self.published = 0
        self._read = len(net.out)

    @property
    def attachment(self) -> Attachment:
        return Attachment(1, self.counter)

    def go(self, place: str, *, owner: str = "credential", before_us: int = 0) -> None:
        """Be in a place: report it, or cross."""
        node = node_of(place)
        if node == self.node:
            self.net.give(node, ReportPlace("walker", place))
            return
        self.take()
        previous, self.node = self.node, node
        if previous:
            self.net.give(previous, DetachConsumer("walker", self.attachment))
            self.net.run(before_us)
        self.counter += 1
        self.net.give(
            node,
            AttachConsumer(
                self.counter, "walker", owner, self.attachment, self.wanted, self.cursor.pairs,
                place, previous,
            ),
        )  # fmt: skip

    def take(self) -> None:
        """Take what its node delivers; what the others say is lost with their sessions."""
        for node, effect in self.net.out[self._read :]:
            if isinstance(effect, ConsumerAttached):
                self.prepared.append(effect.prepared)
            if isinstance(effect, Failed):
                self.failed.append(effect.error)
            if node != self.node or getattr(effect, "consumer", "") != "walker":
                continue
            if isinstance(effect, EventsStanding):
                assert not self.cursor.standing(effect)
            elif isinstance(effect, EventsLost):
                self.cursor.lost(effect)
            elif isinstance(effect, EventsDelivered):
                taken = self.cursor.take(effect)
                assert not taken.missing
                self.seen += [event.number for event in taken.events]
        self._read = len(self.net.out)

    def publish(self, count: int = 5, node: str = "c") -> None:
        for _ in range(count):
            self.published += 1
            context = Context("event", place="b/2", attributes={"colour": "red"})
            self.net.give(node, PublishEvent(0, "p", 1, self.published, context))
            self.net.run(5_000)
        self.take()


def virtuals(net: Net) -> dict[str, list[str]]:
    return {name: sorted(node.overlay.handoff.virtuals) for name, node in net.nodes.items()}


def test_a_virtual_consumer_stands_before_its_consumer_comes() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/1")
    net.run(500_000)
    assert virtuals(net) == {"a": [], "b": [], "c": []}
    walker.go("a/2")
    net.run(500_000)
    assert virtuals(net) == {"a": [], "b": ["walker"], "c": []}
    walker.publish()
    walker.go("b/1")
    walker.take()
    assert walker.prepared == [False, True]
    walker.publish()
    net.run(500_000)
    walker.take()
    assert walker.seen == list(range(1, 11))


def test_events_published_while_between_two_nodes_are_there_on_arrival() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    walker.publish(3)
    walker.take()
    net.give("a", DetachConsumer("walker", walker.attachment))
    walker.publish(4)
    net.run(100_000)
    walker.node = "a"
    walker.go("b/1")
    walker.take()  # at once, without another message from anywhere
    assert walker.seen == list(range(1, 8))


def test_the_old_home_gives_it_up_and_is_there_if_it_comes_right_back() -> None:
    net = corridor()
    walker = Walker(net)
    for place in ("a/2", "b/1", "a/2", "b/1", "a/2"):
        walker.go(place)
        net.run(300_000)
        walker.publish(3)
    assert walker.prepared == [False, True, True, True, True]
    net.run(300_000)
    walker.take()
    assert walker.seen == list(range(1, 16))
    gone = [effect.to for _, effect in net.out if isinstance(effect, ConsumerGone)]
    assert gone[:4] == ["b", "a", "b", "a"]


def test_everything_is_cancelled_inside() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    walker.go("a/1")
    net.run(500_000)
    assert virtuals(net) == {"a": [], "b": [], "c": []}
    assert not net.nodes["b"].overlay.flows.home.consumers


def test_whoever_rests_at_a_border_is_not_prepared_for_until_it_moves() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    net.run(2_000_000)  # T
    assert virtuals(net)["b"] == []
    net.give("a", ReportPlace("walker", "a/2"))
    net.run(500_000)
    assert virtuals(net)["b"] == []
    walker.go("a/1")
    walker.go("a/2")
    net.run(500_000)
    assert virtuals(net)["b"] == ["walker"]


def test_a_crossing_without_a_virtual_consumer_is_a_normal_handoff() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/1")
    net.run(500_000)
    walker.publish()
    net.run(100_000)
    walker.go("c/1")
    walker.publish()
    net.run(1_000_000)
    walker.take()
    assert walker.prepared == [False, False]
    assert walker.seen == list(range(1, 11))
    net.run(5_000_000)
    assert not net.nodes["a"].overlay.flows.home.consumers


def test_a_lease_ends_what_a_dead_home_prepared() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    assert virtuals(net)["b"] == ["walker"]
    del net.nodes["a"]
    net.run(3_000_000)
    assert virtuals(net)["b"] == []
    assert not net.nodes["b"].overlay.flows.home.consumers


def test_a_new_wish_reaches_who_prepares() -> None:
    net = corridor()
    walker = Walker(net, "colour = 'blue'")
    walker.go("a/2")
    net.run(500_000)
    walker.wanted = "colour = 'red'"
    net.give("a", ChangeWanted(9, "walker", walker.wanted))
    net.run(500_000)
    walker.publish()
    walker.go("b/1")
    walker.publish()
    net.run(300_000)
    walker.take()
    assert walker.prepared == [False, True]
    assert walker.seen == list(range(1, 11))


def test_another_credential_does_not_get_a_virtual_consumer() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    thief = Walker(net)
    thief.counter = 7
    thief.go("b/1", owner="thief")
    thief.take()
    assert [type(error) for error in thief.failed] == [ForbiddenError]
    assert virtuals(net)["b"] == ["walker"]
    walker.go("b/1")
    walker.publish()
    net.run(300_000)
    walker.take()
    assert walker.seen == [1, 2, 3, 4, 5]


def test_the_lower_attachment_loses() -> None:
    net = corridor()
    walker = Walker(net)
    walker.go("a/2")
    walker.counter = 5
    walker.go("b/1")
    net.run(500_000)
    late = Walker(net)
    late.counter = 1
    late.go("b/1")
    late.take()
    assert [type(error) for error in late.failed] == [ConflictError]
    assert not net.nodes["a"].overlay.handoff.locals


def test_here_is_rewritten_for_the_entry_and_narrowed_on_arrival() -> None:
    net = corridor()
    walker = Walker(net, "within(place, here('wing')) AND colour = 'red'")
    walker.go("a/2")
    net.run(500_000)
    wants = net.nodes["b"].overlay.flows.home.consumers["walker"].wanted
    assert "'b'" in wants.text
    walker.publish(3)  # they lie in b
    assert walker.seen == []
    walker.go("b/1")
    walker.publish(3)
    net.run(300_000)
    walker.take()
    assert walker.prepared == [False, True]
    assert walker.seen == [1, 2, 3, 4, 5, 6][-len(walker.seen) :]
    assert walker.seen[-3:] == [4, 5, 6]


def test_who_moves_along_a_border_is_prepared_for_at_its_next_entry() -> None:
    net = corridor(around={"a/1": ["b/1"], "a/2": ["b/2"], "b/1": ["a/1"], "b/2": ["a/2"]})
    walker = Walker(net, "within(place, here('room'))")
    wanted = net.nodes["b"].overlay.flows.home.consumers
    for place in ("1", "2"):
        walker.go(f"a/{place}")
        net.run(SETTINGS.lease_us // 6)  # before a lease is renewed
        assert f"'b/{place}'" in wanted["walker"].wanted.text


def test_nothing_is_idle_until_the_next_node_stands() -> None:
    net = corridor()
    handoff = net.nodes["a"].overlay.handoff
    assert handoff.idle()
    Walker(net).go("a/2")
    assert not handoff.idle()
    net.run(500_000)
    assert handoff.idle()


def test_a_buffer_that_is_full_moves_its_start_and_the_log_has_the_rest() -> None:
    net = corridor(flows=FlowSettings(empty_us=50_000, fetch_us=200_000, buffer_bytes_max=1_000))
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    net.give("a", DetachConsumer("walker", walker.attachment))
    walker.publish(30)
    held = net.nodes["b"].overlay.flows.home.consumers["walker"].buffer
    assert held is not None
    assert held.bytes <= 1_000
    walker.node = "a"
    walker.go("b/1")
    net.run(500_000)
    walker.take()
    assert walker.seen == list(range(1, 31))


def test_what_has_been_held_for_long_is_not_lost_on_arrival() -> None:
    net = corridor(flows=FlowSettings(empty_us=50_000, fetch_us=200_000, buffer_age_us=300_000))
    walker = Walker(net)
    walker.go("a/2")
    net.run(500_000)
    net.give("a", DetachConsumer("walker", walker.attachment))
    walker.publish()
    net.run(400_000)
    walker.node = "a"
    walker.go("b/1")
    net.run(500_000)
    walker.take()
    assert walker.prepared == [False, True]
    assert walker.seen == [1, 2, 3, 4, 5]


class Tamper:
    """Does something to one handoff message, by its number in the order of arrival."""

    def __init__(self, net: Net, what: str, number: int) -> None:
        self.net = net
        self.what = what
        self.number = number
        self.count = 0
        self.late: list[tuple[int, str, HandoffMessage]] = []

    def came(self, real: Callable[..., Any], part: Handoff, message: Any, now: int) -> list[Any]:
        if message.to != part.node:
            return list(real(part, message, now))
        self.count += 1
        if self.count != self.number:
            return list(real(part, message, now))
        if self.what == "drop":
            return []
        if self.what == "double":
            return [*real(part, message, now), *real(part, message, now)]
        self.late.append((now + 700_000, part.node, message))
        return []

    def catch_up(self) -> None:
        for late in [one for one in self.late if one[0] <= self.net.now]:
            self.late.remove(late)
            node = self.net.nodes[late[1]]
            part = node.overlay.handoff
            effects = node.perform(part, part._came(late[2], self.net.now), self.net.now)
            self.net._perform(node, effects)


def story(net: Net, tamper: Tamper | None = None) -> Walker:
    """To and fro over two borders, with a new wish at one of them and a rest at another."""
    walker = Walker(net)
    for place in ("a/1", "a/2", "b/1", "b/2", "b/3", "c/1", "b/3", "b/2", "b/1", "a/2"):
        walker.go(place, before_us=10_000)
        if place == "b/3":
            walker.wanted = (
                "colour = 'red' AND true" if "true" not in walker.wanted else walker.wanted
            )
            net.give("b", ChangeWanted(99, "walker", walker.wanted))
        for _ in range(3):
            net.run(60_000)
            walker.publish(1)
            if tamper is not None:
                tamper.catch_up()
    net.run(6_000_000)
    if tamper is not None:
        tamper.catch_up()
    net.run(3_000_000)
    walker.take()
    return walker


def test_the_whole_story_without_a_fault_is_prepared_everywhere() -> None:
    net = corridor()
    walker = story(net)
    assert walker.seen == list(range(1, walker.published + 1))
    assert walker.prepared == [False, True, True, True, True]


def tampered(what: str, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell the story again and again, each time with another message dropped, doubled or late."""
    real = Handoff._came
    tamper = Tamper(corridor(), what, 0)
    monkeypatch.setattr(
        Handoff, "_came", lambda self, message, now: tamper.came(real, self, message, now)
    )
    story(tamper.net, tamper)
    messages = tamper.count
    assert messages > 20
    for number in range(1, messages + 1, stride):
        tamper = Tamper(corridor(), what, number)
        walker = story(tamper.net, tamper)
        assert walker.seen == list(range(1, walker.published + 1)), number
        assert len(walker.prepared) == 5


@pytest.mark.parametrize("what", ["drop", "double", "delay"])
def test_losing_a_message_loses_no_event(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(what, 12, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["drop", "double", "delay"])
def test_losing_any_message_loses_no_event(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(what, 1, monkeypatch)
