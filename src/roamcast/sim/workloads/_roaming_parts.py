"""People of the roaming workload, and what is owed to them: a record beside the machines."""

import random
from functools import partial
from typing import Final

import msgspec

from roamcast.broker import Failed
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.overlay.flows.cursor import ConsumerCursor, ProducerCursor
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
    SubscribeEvents,
    UnsubscribeEvents,
)
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.handoff.events import AttachConsumer, DetachConsumer, ReportPlace
from roamcast.overlay.handoff.messages import Attachment
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host, HostState
from roamcast.sim.world import World

AGAIN_US: Final = 400_000
"""How long a producer waits for an answer before it asks again, wherever it is then."""

WIRELESS_US: Final = 15_000
"""The longest way of a delivery from a home to its consumer."""

TICKETS: Final = 1_000_000
"""Tickets of one producer; lower ones are those of consumers."""

COLOURS: Final = ("red", "green", "blue")
FILTERS: Final = (
    "colour = 'red'",
    "colour IN ('red', 'green')",
    "colour <> 'blue'",
    "colour = 'blue' OR colour = 'green'",
    "true",
)

Id = tuple[str, int]
"""A producer and a number of its own."""


class Fact(msgspec.Struct):
    """One acknowledged publication."""

    origin: str
    at: Position
    context: Context


class RoamingRecord:
    """What was promised to producers, and what consumers had, in order."""

    def __init__(self) -> None:
        self.facts: dict[Id, Fact] = {}
        self.saw: dict[Id, frozenset[Id]] = {}
        """Publications → what their producer had seen before, if order is asked for."""
        self.had: dict[str, list[Id]] = {}
        self.starts: dict[str, dict[str, Position]] = {}
        self.gaps: dict[str, list[tuple[str, Position, Position]]] = {}
        self.blocked: dict[str, dict[Id, Id]] = {}
        """Consumers → what must not come any more → because of which event."""

    def delivered(self, consumer: str, event: Event) -> None:
        """Check what a consumer gets against all that it had before."""
        one: Id = (event.producer, event.number)
        had = self.had.setdefault(consumer, [])
        if one in had:
            raise Violation("no duplicate", f"{consumer} has {one} again")
        last = max((number for producer, number in had if producer == one[0]), default=0)
        if one[1] < last:
            raise Violation("FIFO per producer", f"{consumer} has {one} after {last}")
        late = self.blocked.setdefault(consumer, {})
        if one in late:
            raise Violation("causal order", f"{consumer} has {one} after {late[one]}")
        had.append(one)
        for before in self.saw.get(one, ()):
            if before not in had:
                late[before] = one

    def lacking(self, consumer: str, wanted: Filter) -> Id | None:
        """Name an event that a consumer should have by now."""
        had = set(self.had.get(consumer, ()))
        starts = self.starts.get(consumer, {})
        for one, fact in self.facts.items():
            start = starts.get(fact.origin)
            if one in had or start is None or fact.at <= start:
                continue
            if wanted.matches(fact.context) and not self._was_lost(consumer, fact):
                return one
        return None

    def _was_lost(self, consumer: str, fact: Fact) -> bool:
        return any(
            origin == fact.origin and after < fact.at <= upto
            for origin, after, upto in self.gaps.get(consumer, ())
        )


class Roamer:
    """Somebody who is at one node at a time, or asleep."""

    def __init__(self, name: str, world: World, draw: random.Random) -> None:
        self.name = name
        self.node: str | None = None
        self.world = world
        self._draw = draw

    def up(self, node: str | None) -> Host | None:
        """Give the host of a node if it runs."""
        if node is None:
            return None
        host = self.world.hosts[node]
        return host if host.state is HostState.UP else None


class Producer(Roamer):
    """It publishes one event after the other; each is sent until it is acknowledged."""

    def __init__(self, name: str, world: World, draw: random.Random, record: RoamingRecord) -> None:
        super().__init__(name, world, draw)
        self.left = 0
        self.follows: Consumer | None = None
        """Whose eyes it has: what that consumer saw comes before what it publishes."""
        self.large = 0
        self._record = record
        self._cursor = ProducerCursor(life=1)
        self._pending: PublishEvent | None = None

    @property
    def done(self) -> bool:
        """Whether everything is acknowledged."""
        return self._pending is None and not self.left

    def publish(self, now: int) -> None:
        """Publish another event, if the last one is through."""
        del now
        if self._pending is not None or not self.left:
            return
        self.left -= 1
        number = self._cursor.following()
        needs = self._cursor.needs()
        if self.follows is not None:
            needs = self._cursor.needs(self.follows.cursor.vector)
            seen = frozenset(self._record.had.get(self.follows.name, ()))
            self._record.saw[self.name, number] = seen
        size = 120_000 if self.large else self._draw.randrange(100)
        self.large = max(0, self.large - 1)
        context = self._context()
        data = self._draw.randbytes(size)
        self._pending = PublishEvent(
            ticket_of(self.name, number), self.name, 1, number, context, data, needs
        )
        self._send(number, 0)

    def _context(self) -> Context:
        return Context(self.name, attributes={"colour": self._draw.choice(COLOURS)})

    def _send(self, number: int, now: int) -> None:
        del now
        pending = self._pending
        if pending is None or pending.number != number:
            return
        host = self.up(self.node)
        if host is not None:
            self.world.give(host, pending)
        later = self.world.now + AGAIN_US
        self.world.kernel.call(later, partial(self._send, number))

    def answered(self, effect: EventPublished | Failed) -> None:
        """Take an answer; a refusal is asked again."""
        pending = self._pending
        if pending is None or isinstance(effect, Failed) or effect.ticket != pending.ticket:
            return
        self._pending = None
        self._cursor.published(effect.origin, effect.at)
        fact = Fact(effect.origin, effect.at, pending.context)
        self._record.facts[self.name, pending.number] = fact


class Consumer(Roamer):
    """It has one subscription, which it takes along with its vector."""

    def __init__(
        self, name: str, world: World, draw: random.Random, record: RoamingRecord, wanted: str
    ) -> None:
        super().__init__(name, world, draw)
        self.wanted = Filter.parse(wanted)
        self.cursor = ConsumerCursor()
        self.standing = False
        self.attachment = 0
        self.over = False
        """It will not come again."""
        self._record = record
        self._sessions: dict[str, tuple[int, int]] = {}
        """Nodes → the attachment, and the boot of the host."""
        self._arrives: dict[str, int] = {}
        record.starts[name] = {}

    def attach(self, node: str, now: int = 0, *, hold: bool = False) -> None:
        """Go to a node, or ask it again; `hold`: the old one is left once the new one stands."""
        del now
        host = self.up(node)
        if host is None:
            return
        if not hold:
            self.leave()
        self.attachment += 1
        self.node = node
        self.standing = False
        self._sessions[node] = (self.attachment, host.boots)
        self._subscribe(host)

    def report(self, place: str) -> None:
        """Be in another place of the same node."""
        del place

    def _subscribe(self, host: Host) -> None:
        self.world.give(
            host, SubscribeEvents(self.attachment, self.name, self.wanted, self.cursor.pairs)
        )

    def leave(self, but: str = "") -> None:
        """End sessions; what is on its way to them is lost."""
        for node in [one for one in self._sessions if one != but]:
            attachment, _ = self._sessions.pop(node)
            if self.world.hosts[node].state is not HostState.DOWN:  # a paused one hears it later
                self._unsubscribe(self.world.hosts[node], attachment)
        if not but:
            self.node = None

    def _unsubscribe(self, host: Host, attachment: int) -> None:
        del attachment
        self.world.give(host, UnsubscribeEvents(self.name))

    def look(self) -> bool:
        """Return whether its home still knows it."""
        host = self.up(self.node)
        known = None if self.node is None else self._sessions.get(self.node)
        return host is not None and known is not None and known[1] == host.boots

    def carry(self, host: Host, effect: Effect, now: int) -> None:
        """Bring something from a home to the consumer, in order, if it is still there then."""
        session = self._sessions.get(host.name)
        at = max(now + self._draw.randrange(WIRELESS_US), self._arrives.get(host.name, 0))
        self._arrives[host.name] = at

        def arrive(_: int) -> None:
            if session is not None and self._sessions.get(host.name) == session:
                self._arrived(host, effect)

        self.world.kernel.call(at, arrive)

    def _arrived(self, host: Host, effect: Effect) -> None:
        before = dict(self.cursor.vector)
        if isinstance(effect, EventsStanding):
            late = self.cursor.standing(effect)
            if host.name == self.node and late:
                self.attach(host.name)
            elif host.name == self.node:
                self.standing = True
                self.leave(but=host.name)
        elif isinstance(effect, EventsLost):
            if self.cursor.lost(effect):
                gap = (effect.origin, effect.after, effect.upto)
                self._record.gaps.setdefault(self.name, []).append(gap)
        elif isinstance(effect, EventsDelivered):
            taken = self.cursor.take(effect)
            for event in taken.events:
                self._record.delivered(self.name, event)
            if taken.missing and host.name == self.node:
                self.attach(host.name)
        for origin, position in self.cursor.vector.items():
            if origin not in before:
                start = effect.after if isinstance(effect, EventsDelivered) else position
                self._record.starts[self.name].setdefault(origin, start)


def ticket_of(producer: str, number: int) -> int:
    """Make a ticket that names a producer and a number of its own."""
    return (int(producer[1:]) + 1) * TICKETS + number


class Walker(Consumer):
    """A consumer whose home prepares the next one; it says where it is."""

    previous = ""
    place = ""

    def attach(self, node: str, now: int = 0, *, hold: bool = False) -> None:
        """Go to a node: from its neighbour through the border between them."""
        self.place = f"{node}/{self.previous}" if self.previous else f"{node}/in"
        super().attach(node, now, hold=hold)
        if self.node is not None:
            self.previous = self.node

    def report(self, place: str) -> None:
        """Say where it is, if it is anywhere."""
        host = self.up(self.node)
        if host is not None:
            self.place = place
            self.world.give(host, ReportPlace(self.name, place))

    def _subscribe(self, host: Host) -> None:
        attachment = Attachment(1, self.attachment)
        previous = "" if self.previous == host.name else self.previous
        self.world.give(
            host,
            AttachConsumer(
                self.attachment, self.name, "owner", attachment, self.wanted.text,
                self.cursor.pairs, self.place, previous,
            ),
        )  # fmt: skip

    def _unsubscribe(self, host: Host, attachment: int) -> None:
        gone = DetachConsumer(self.name, Attachment(1, attachment), final=self.over)
        self.world.give(host, gone)
