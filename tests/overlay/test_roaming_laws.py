"""The law of roaming: whatever is moved, published and lost, each consumer has what it wants.

Three nodes in a line, each with its part of a corridor. Consumers walk, sleep and leave the old
node before or after the new one stands; producers walk, too, and send again elsewhere what was not
answered; links lose and part. Everything wanted comes once, in each producer's order.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.model.contexts import Context
from roamcast.overlay.flows.cursor import ConsumerCursor, ProducerCursor
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.handoff.events import AttachConsumer, DetachConsumer, ReportPlace
from roamcast.overlay.handoff.messages import Attachment
from tests.overlay.test_handoff import WALK, corridor, node_of
from tests.overlay_net import Net

LINKS = (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"))
WANTED = "colour = 'red'"

NODES = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("go"), st.integers(0, 1), st.sampled_from(WALK), st.booleans()),
    st.tuples(st.just("go"), st.integers(0, 1), st.sampled_from(WALK), st.booleans()),
    st.tuples(st.just("sleep"), st.integers(0, 1)),
    st.tuples(st.just("publish"), st.sampled_from("pq"), NODES, st.none() | NODES, st.booleans()),
    st.tuples(st.just("publish"), st.sampled_from("pq"), NODES, st.none() | NODES, st.booleans()),
    st.tuples(st.just("publish"), st.sampled_from("pq"), NODES, st.none() | NODES, st.booleans()),
    st.tuples(st.just("pass"), st.integers(1, 400)),
    st.tuples(st.just("lose"), st.sampled_from([0.0, 0.1, 0.4])),
    st.tuples(st.just("cut"), st.sampled_from(LINKS)),
    st.tuples(st.just("heal")),
)


class Consumer:
    """A program with one subscription: it takes its vector along."""

    def __init__(self, net: Net, name: str) -> None:
        self.net = net
        self.name = name
        self.cursor = ConsumerCursor()
        self.seen: dict[str, list[int]] = {"p": [], "q": []}
        self.stands = False
        self._place = ""
        self._sessions: dict[str, int] = {}
        """Nodes → the attachment."""
        self._counter = 0
        self._read = len(net.out)

    @property
    def node(self) -> str:
        return node_of(self._place) if self._place else ""

    def go(self, place: str, *, hold: bool) -> None:
        """Be in a place; cross with or without the old node until the new one serves."""
        if place[0] == self.node and self._sessions:
            self._place = place
            self.net.give(self.node, ReportPlace(self.name, place))
            return
        if not hold:
            self.sleep()
        previous, self._place = self.node, place
        self._attach(previous)

    def sleep(self, but: str = "") -> None:
        """End sessions; what they had on the way is lost."""
        for node in [one for one in self._sessions if one != but]:
            attachment = Attachment(1, self._sessions.pop(node))
            self.net.give(node, DetachConsumer(self.name, attachment))

    def _attach(self, previous: str) -> None:
        self._counter += 1
        self.stands = False
        self._sessions[self.node] = self._counter
        self.net.give(
            self.node,
            AttachConsumer(
                self._counter, self.name, "owner", Attachment(1, self._counter), WANTED,
                self.cursor.pairs, self._place, "" if previous == self.node else previous,
            ),
        )  # fmt: skip

    def take(self) -> None:
        """Take what came."""
        out, self._read = self.net.out[self._read :], len(self.net.out)
        for node, effect in out:
            if node in self._sessions and getattr(effect, "consumer", "") == self.name:
                self._hear(node, effect)

    def _hear(self, node: str, effect: Any) -> None:
        again = False
        if isinstance(effect, EventsStanding):
            again = self.cursor.standing(effect)
            if node == self.node and not again:
                self.stands = True
                self.sleep(but=node)
        elif isinstance(effect, EventsDelivered):
            taken = self.cursor.take(effect)
            again = taken.missing
            for event in taken.events:
                self.seen[event.producer].append(event.number)
        assert not isinstance(effect, EventsLost), effect
        if again and node == self.node:
            self._attach("")

    def back(self) -> None:
        """Come again if no node serves it."""
        if not self.stands or not self._sessions:
            self._place = self._place or WALK[0]
            self._attach("")


class World:
    """The corridor, two consumers and two producers, and what they are owed."""

    def __init__(self) -> None:
        self.net = corridor()
        self.consumers = [Consumer(self.net, name) for name in ("one", "two")]
        self.producers = {name: ProducerCursor(life=1) for name in "pq"}
        self.owed: dict[str, list[int]] = {"p": [], "q": []}
        for consumer, place in zip(self.consumers, ("a/1", "b/2"), strict=True):
            consumer.go(place, hold=False)
        self.passes(500)
        assert all(one.stands and len(one.cursor.vector) == 3 for one in self.consumers)

    def passes(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 5):
            self.net.run(5_000)
            for consumer in self.consumers:
                consumer.take()

    def publish(self, name: str, node: str, again: str | None, *, red: bool) -> None:
        """Publish; `again`: the answer did not come, and it is sent there as well."""
        cursor = self.producers[name]
        number, needs = cursor.following(), cursor.needs()
        context = Context("event", attributes={"colour": "red" if red else "blue"})
        made = PublishEvent(0, name, 1, number, context, b"", needs)
        for where in (node, again or node):
            found = [one for one in self.net.give(where, made) if isinstance(one, EventPublished)]
        cursor.published(found[0].origin, found[0].at)
        self.owed[name] += [number] * red

    def step(self, kind: str, *given: Any) -> None:
        match kind:
            case "go":
                self.consumers[given[0]].go(given[1], hold=given[2])
            case "sleep":
                self.consumers[given[0]].sleep()
            case "publish":
                self.publish(*given[:3], red=given[3])
            case "pass":
                self.passes(given[0])
            case "lose":
                self.net._loss = given[0]
            case "cut":
                self.net.cut.add(given[0])
            case "heal":
                self.net.cut.clear()

    def ends(self) -> None:
        """Everything heals, and everybody is somewhere."""
        self.net.cut.clear()
        self.net._loss = 0.0
        for _ in range(40):
            self.passes(500)
            for consumer in self.consumers:
                consumer.back()
            if all(one.stands and one.seen == self.owed for one in self.consumers):
                break


@given(st.lists(STEPS, max_size=80) | st.lists(STEPS, min_size=30, max_size=80))
@settings(max_examples=60)
def test_any_interleaving_leaves_each_consumer_with_what_it_wants_in_order(
    steps: list[tuple[Any, ...]],
) -> None:
    world = World()
    for kind, *more in steps:
        world.step(kind, *more)
        world.passes(5)
    world.ends()
    for consumer in world.consumers:
        assert consumer.seen == world.owed
        assert not consumer.cursor.late
