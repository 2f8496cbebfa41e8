"""Handoff: what a crossing needs stands before it, and losing a message loses no event."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from roamcast.errors import ConflictError, ForbiddenError
from roamcast.model.contexts import Context
from roamcast.model.events import Failed
from roamcast.model.filters.here import by_kind
from roamcast.overlay.events import CameByLink, WayLost
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
    VirtualStanding,
)
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.events import (
    AttachConsumer,
    ChangeWanted,
    ConsumerAttached,
    ConsumerGone,
    DetachConsumer,
    PrepareNext,
    ReportPlace,
)
from roamcast.overlay.handoff.handoff import Handoff, HandoffNode
from roamcast.overlay.handoff.messages import (
    HANDOFF_MESSAGES,
    Attachment,
    HandoffCancel,
    StepNumber,
)
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
        self.answered: set[int] = set()
        """The attachments that were answered."""
        self.failed: list[Any] = []
        self.wanted = wanted
        self.node = self.previous = ""
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
        self.previous = previous
        if previous in self.net.nodes:
            self.net.give(previous, DetachConsumer("walker", self.attachment))
            self.net.run(before_us)
        self.counter += 1
        self._attach(place, previous, owner)

    def _attach(self, place: str, previous: str, owner: str = "credential") -> None:
        self.net.give(
            node_of(place),
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
                self.answered.add(effect.ticket)
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

    def go_on(self, place: str) -> None:
        """Come again if its node did not answer."""
        self.take()
        if self.counter not in self.answered:
            self.counter += 1
            self._attach(place, "" if self.previous == node_of(place) else self.previous)

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


def test_the_lower_attachment_loses_also_where_nobody_has_heard_of_the_higher() -> None:
    net = corridor()
    walker = Walker(net)
    walker.counter = 5
    walker.go("a/1")
    net.run(500_000)
    lower = Attachment(1, 2)
    net.give("b", AttachConsumer(2, "walker", "credential", lower, "true", (), "b/1", "a"))
    net.run(500_000)
    served = {name: [*node.overlay.handoff.locals] for name, node in net.nodes.items()}
    assert served == {"a": ["walker"], "b": [], "c": []}
    assert [one.to for who, one in net.out if isinstance(one, ConsumerGone) and who == "b"] == ["a"]
    walker.publish(3)
    net.run(300_000)
    walker.take()
    assert walker.seen == [1, 2, 3]
    net.run(5_000_000)
    assert virtuals(net) == {"a": [], "b": [], "c": []}


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
    """Does something to one message of the story, by its number in the order of arrival.

    Messages are what nodes say to each other, and what the consumer says to its own node, which the
    paper calls Register and Subscribe.
    """

    def __init__(self, net: Net, what: str = "", number: int = 0) -> None:
        self.net = net
        self.what = what
        self.number = number
        self.kinds: list[type] = []
        self.late: list[tuple[int, Handoff, Any]] = []

    def receive(self, real: Callable[..., Any], part: Handoff, given: Any, now: int) -> list[Any]:
        if isinstance(given, CameByLink):
            counts = given.message.to == part.node
            self.kinds += [type(given.message)] * counts
        else:
            counts = not isinstance(given, VirtualStanding)  # no message: flows say it
            self.kinds += [type(given)] * counts
        if not counts or len(self.kinds) != self.number:
            return list(real(part, given, now))
        if self.what == "drop":
            return []
        if self.what == "double":
            return [*real(part, given, now), *real(part, given, now)]
        self.late.append((now + 700_000, part, given))
        return []

    def catch_up(self) -> None:
        for late in [one for one in self.late if one[0] <= self.net.now]:
            self.late.remove(late)
            _, part, given = late
            node = self.net.nodes[part.node]
            self.net._perform(
                node, node.perform(part, part.receive(given, self.net.now), self.net.now)
            )


PLACES = ("a/1", "a/2", "b/1", "b/2", "b/3", "c/1", "b/3", "b/2", "b/1", "a/2")


def story(net: Net, tamper: Tamper | None = None) -> Walker:
    """To and fro over two borders, with a new wish at one of them and a rest at another."""
    walker = Walker(net)
    for place in PLACES:
        walker.go(place, before_us=10_000)
        net.run(30_000)
        walker.go_on(place)
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
    walker.go_on(PLACES[-1])
    net.run(500_000)
    walker.take()
    return walker


def test_the_whole_story_without_a_fault_is_prepared_everywhere() -> None:
    net = corridor()
    walker = story(net)
    assert walker.seen == list(range(1, walker.published + 1))
    assert walker.prepared == [False, True, True, True, True]


SAID = {*HANDOFF_MESSAGES, AttachConsumer, ReportPlace, ChangeWanted, DetachConsumer}


def tampered(what: str, monkeypatch: pytest.MonkeyPatch, *, all_of_them: bool = False) -> None:
    """Tell the story again and again, each time with another message dropped, doubled or late."""
    real = Handoff.receive
    tamper = Tamper(corridor())
    monkeypatch.setattr(
        Handoff, "receive", lambda self, given, now: tamper.receive(real, self, given, now)
    )
    story(tamper.net, tamper)
    kinds = tamper.kinds
    assert set(kinds) == SAID, "the story has every message of A1 and A2"
    assert {*Handoff.inputs} - {VirtualStanding, PrepareNext} < SAID, "and all that consumers say"
    ends = {
        at for kind in SAID for at in (kinds.index(kind), len(kinds) - 1 - kinds[::-1].index(kind))
    }
    for number in range(len(kinds)) if all_of_them else sorted(ends):
        net = corridor()
        tamper = Tamper(net, what, number + 1)
        walker = story(net, tamper)
        about = (number, kinds[number])
        assert walker.seen == list(range(1, walker.published + 1)), about
        assert virtuals(net) == {"a": [], "b": [], "c": []}, about
        served = {name: [*node.overlay.handoff.locals] for name, node in net.nodes.items()}
        assert served == {"a": ["walker"], "b": [], "c": []}, about


@pytest.mark.parametrize("what", ["drop", "double", "delay"])
def test_losing_a_message_of_each_kind_loses_no_event(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last of each kind."""
    tampered(what, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["drop", "double", "delay"])
def test_losing_any_message_loses_no_event(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(what, monkeypatch, all_of_them=True)


class Crossing:
    """Cross from a to b while c publishes; one of them dies after so many handoff messages."""

    def __init__(self, kill: str = "", after: int = -1) -> None:
        nodes = []
        for name, near in (("a", "bc"), ("b", "ac"), ("c", "ab")):
            handoff = HandoffNode(surroundings(name, AROUND, node_of), SETTINGS)
            nodes.append(OneNode(name, beside(*near), flows=FLOWS, handoff=handoff))
        self.net = Net(*nodes)
        self.net.run(3_000_000)
        self.walker = Walker(self.net)
        self.said: list[str] = []
        self._kill, self._after = kill, after
        for name in "ab":
            part = self.net.nodes[name].overlay.handoff
            part._send = partial(self._send, part._send)  # type: ignore[method-assign]

    def _send(self, real: Callable[[Any], Any], message: Any) -> Any:
        self.said.append(type(message).__name__)
        return real(message)

    def _run(self, duration_us: int) -> None:
        for _ in range(duration_us // 1_000):
            self.net.run(1_000)
            if self._kill in self.net.nodes and len(self.said) > self._after:
                del self.net.nodes[self._kill]
                for other in self.net.nodes:
                    self.net.give(other, WayLost(self._kill, "closed"))

    def walk(self) -> None:
        """Whoever walks goes where somebody answers."""
        net, walker = self.net, self.walker
        for place in ("a/1", "a/2", "b/1"):
            if node_of(place) in net.nodes:
                walker.go(place, before_us=1_000)
            for _ in range(10):
                self._run(20_000)
                walker.publish(1)
        self._run(1_000_000)
        walker.take()
        if walker.node not in net.nodes or walker.counter not in walker.answered:
            walker.node = ""
            walker.go("a/1" if "a" in net.nodes else "b/1")
            self._run(2_000_000)
        walker.publish(3)
        self._run(4_000_000)  # leases and dwell times are over
        walker.take()

    def check(self) -> None:
        """Nothing is lost, and nothing is held for somebody who will not come."""
        about = self._kill, self._after, self.said
        assert self.walker.seen == list(range(1, self.walker.published + 1)), about
        assert not any(virtuals(self.net).values()), about


def test_either_end_may_die_after_any_message_of_a_crossing() -> None:
    """Trap 20."""
    calm = Crossing()
    calm.walk()
    calm.check()
    assert calm.walker.prepared == [False, True]
    assert {*calm.said} >= {one.__name__ for one in HANDOFF_MESSAGES} - {"HandoffCancel"}
    for kill in "ab":
        for number in range(len(calm.said)):
            one = Crossing(kill, number)
            one.walk()
            assert kill not in one.net.nodes
            one.check()


def test_a_late_cancel_ends_nothing() -> None:
    """Trap 21: it was said before its consumer came back to the border."""
    net = corridor()
    walker = Walker(net)
    for place in ("a/2", "a/1", "a/2"):
        walker.go(place)
        net.run(500_000)
    node = net.nodes["b"]
    handoff = node.overlay.handoff

    def cancel(step: StepNumber) -> None:
        came = CameByLink("a", HandoffCancel("b", "a", "walker", step))
        net._perform(node, node.perform(handoff, handoff.receive(came, net.now), net.now))

    heard = handoff.last_step("walker")
    assert heard is not None
    late = StepNumber(heard.attachment, heard.number - 1)
    cancel(late)
    assert virtuals(net)["b"] == ["walker"]
    due = StepNumber(heard.attachment, heard.number + 1)
    cancel(due)
    assert virtuals(net)["b"] == []
