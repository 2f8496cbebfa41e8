"""Sessions that walk between whole brokers with their limits, while nodes are drained and fail.

Two to five whole brokers with their event desks and drains, on hosts that crash and lose what was
not synced, with links that lose, reorder and part. Judged by a record of its own: each session gets
every event it wants, once and in order; a client with a limit gets no more in any second, also
while two brokers serve it (trap 23); a drained node hands everybody over and loses nobody.
"""

import random
from collections import deque
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from roamcast.broker import (
    Acknowledged,
    Broker,
    CloseSession,
    CutOff,
    Failed,
    Frame,
    LimitSession,
    OpenSession,
)
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.past.messages import LookForEnded
from roamcast.channels.past.settings import PastSettings
from roamcast.channels.sessions import messages as say
from roamcast.identity.rules import Viewer
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.consumers.attended import digest
from roamcast.overlay.consumers.drain import DrainNode, UndrainNode
from roamcast.overlay.consumers.events import (
    ConsumerMoved,
    PublishEventFor,
    SubscribeSessionEvents,
    UnsubscribeSessionEvents,
)
from roamcast.overlay.consumers.settings import EventSettings
from roamcast.overlay.events import HangUp
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.handoff.handoff import HandoffNode
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.handoff.settings import Surroundings
from roamcast.overlay.links.messages import NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.feeding import standard_tables
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._map_parts import ScanMatcher, quick_settings
from roamcast.sim.workloads._overlay_parts import key_pair, overlay_of
from roamcast.sim.workloads._roaming_parts import FILTERS, TICKETS, Consumer, Producer
from roamcast.sim.workloads._roaming_parts import RoamingRecord as Record
from roamcast.sim.workloads.overlay import LINGER_US, OverlayWorkload
from roamcast.sim.workloads.roaming import FLOWS, HANDOFF, LINKED
from roamcast.sim.world import World

WATCH_US: Final = 100_000
HANG_UP_US: Final = 1_000_000
"""A client with a limit leaves an old broker after this long, whether the new one stands or not."""
OWNER: Final = "ann"
LIMITS: Final = (0, 0, 4_000, 12_000)
_decode = msgspec.json.Decoder(say.Answer).decode


class DeskProducer(Producer):
    """A producer that publishes through a broker's desk."""

    def _send(self, number: int, now: int) -> None:
        pending = self._pending
        if isinstance(pending, PublishEvent) and pending.number == number:
            self._pending = PublishEventFor(  # type: ignore[assignment]
                pending.ticket, OWNER, self.name, pending.life, number,
                Context(self.name, attributes=pending.context.attributes), pending.data,
                pending.needs,
            )  # fmt: skip
        super()._send(number, now)


class RoamingClient(Consumer):
    """A session with one subscription, and perhaps a limit; the SDK's end of it."""

    limit = 0
    previous = ""
    names: ClassVar[dict[str, str]] = {}
    """Producers' digests → their names."""

    @property
    def session(self) -> str:
        """Its name at every broker."""
        return f"{OWNER}#{self.name}"

    def begin(self, limit: int) -> None:
        """Set the limit, before anything else."""
        self.limit = limit
        self._left: deque[tuple[int, int, str, int]] = deque()
        """What left for it within the last second: when, bytes, from where, in which life."""
        self._parts: dict[str, list[str]] = {}

    def attach(self, node: str, now: int = 0, *, hold: bool = False) -> None:
        """Go to a node, if it takes newcomers."""
        host = self.up(node)
        broker = None if host is None else host.machine
        if not isinstance(broker, Broker) or (broker.drain is not None and broker.drain.to):
            return
        super().attach(node, now, hold=hold)
        if self.node is not None:
            self.previous = self.node
        if hold and self.limit:
            later = partial(self._hang_up, self.attachment)
            self.world.kernel.call(self.world.now + HANG_UP_US, later)

    def _hang_up(self, attachment: int, now: int) -> None:
        del now
        if self.attachment == attachment and self.node is not None:
            self.leave(but=self.node)

    def _subscribe(self, host: Host) -> None:
        self._parts.pop(host.name, None)
        previous = "" if self.previous == host.name else self.previous
        for given in (
            OpenSession(0, self.session, Viewer(OWNER)),
            LimitSession(0, self.session, self.limit),
            SubscribeSessionEvents(
                0, self.session, "all", self.wanted, self.cursor.pairs, "", previous,
                Attachment(1, self.attachment), 1_000_000,
            ),
        ):  # fmt: skip
            self.world.give(host, given)

    def _unsubscribe(self, host: Host, attachment: int) -> None:
        del attachment
        if self.over:
            self.world.give(host, UnsubscribeSessionEvents(0, self.session, "all"))
        self.world.give(host, CloseSession(self.session))

    def left(self, host: Host, size: int, now: int) -> None:
        """Count what leaves for it, by all brokers that it is connected with."""
        session = self._sessions.get(host.name)
        if not self.limit or session is None or session[1] != host.boots:
            return
        self._left.append((now, size, host.name, host.boots))
        while self._left[0][0] < now - MICROSECONDS:
            self._left.popleft()
        # A host that fell has forgotten what it sent in its last second.
        hosts = self.world.hosts
        total = sum(bytes_ for _, bytes_, at, boots in self._left if hosts[at].boots == boots)
        if total > self.limit:
            detail = f"{self.name} got {total} bytes in a second, its limit is {self.limit}"
            raise Violation("limits hold in every second of a move", detail)

    def _arrived(self, host: Host, effect: Effect) -> None:
        assert isinstance(effect, Frame)
        message = _decode(effect.data)
        if isinstance(message, say.FramePart):
            parts = self._parts.setdefault(host.name, [])
            parts.append(message.text)
            if not message.last:
                return
            message = _decode("".join(self._parts.pop(host.name)))
        match message:
            case say.EventsStand(_, vector):
                found = tuple((name, Position(*at)) for name, at in vector.items())
                super()._arrived(host, EventsStanding(self.name, found))
            case say.EventsGap(_, origin, after, upto, reason):
                lost = EventsLost(self.name, origin, Position(*after), Position(*upto), reason)
                super()._arrived(host, lost)
            case say.EventsFrame():
                super()._arrived(host, self._delivered(message))
            case say.ConsumerElsewhere(_, to) if host.name == self.node:
                self.attach(to, hold=True)

    def _delivered(self, frame: say.EventsFrame) -> EventsDelivered:
        events = tuple(
            (one.position, Event(self.names[one.producer], one.life, one.number, b""))
            for one in frame.events
        )
        after, upto = Position(*frame.after), Position(*frame.upto)
        return EventsDelivered(self.name, frame.origin, after, upto, events)


class DrainsWorkload(Workload):
    """Whole brokers, sessions that roam among them, and operators who drain them."""

    name: ClassVar[str] = "drains"
    registry = OverlayWorkload.registry
    effects: ClassVar = (
        Acknowledged, Failed, HangUp, LookForEnded, Frame, CutOff, EventPublished, ConsumerMoved,
    )  # fmt: skip
    sizes: ClassVar = {
        "nodes": (2, 5),
        "more_edges": (0, 2),
        "producers": (1, 4),
        "clients": (1, 4),
        "events": (1, 80),
        "moves": (0, 16),
        "drains": (0, 4),
    }

    def __init__(self) -> None:
        self._record = Record()
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self._producers: list[DeskProducer] = []
        self._clients: dict[str, RoamingClient] = {}
        self._phase = 0
        self._emptied = ""
        """The node that is drained in the end."""

    # --- the world

    def setup(self, world: World, sizes: Sizes) -> None:
        """A tree, some more links, and people at random nodes."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/drains")
        world.clock_of = lambda _: None
        nodes = [f"n{number}" for number in range(sizes["nodes"])]
        for number, node in enumerate(nodes):
            self._beside.setdefault(node, [])
            if number:
                self._join(node, nodes[draw.randrange(number)])
        for _ in range(sizes["more_edges"]):
            self._join(*draw.sample(nodes, 2))
        world.observe(self._observe)
        for node in nodes:
            world.add_host(node, partial(self._boot, node))
        for number in range(sizes["producers"]):
            made = DeskProducer(f"p{number}", world, draw, self._record)
            made.node = draw.choice(nodes)
            self._producers.append(made)
        RoamingClient.names = {digest(OWNER, one.name): one.name for one in self._producers}
        for number in range(sizes["clients"]):
            client = RoamingClient(f"c{number}", world, draw, self._record, draw.choice(FILTERS))
            client.begin(draw.choice(LIMITS))
            self._clients[client.session] = client
            world.kernel.call(draw.randrange(300_000), partial(self._attach, client))

    def _join(self, near: str, far: str) -> None:
        if far not in self._beside[near]:
            self._beside[near].append(far)
            self._beside[far].append(near)

    def _boot(self, node: str, boot: Boot) -> Broker:
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {far: NeighbourSettings(key_pair(far)[1], (far,)) for far in self._beside[node]},
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            LINKED,
            standard_tables(msgspec.structs.replace(LINKED.tables, linger_us=LINGER_US)),
            url=f"http://{node}",
        )
        events = EventSettings(
            flows=FLOWS,
            handoff=HandoffNode(Surroundings(lambda _: ()), HANDOFF),
            queue_bytes_max=2_000,
            sleep_us_max=HANDOFF.sleep_us,
        )
        return Broker(
            boot.host,
            epoch=epoch_at(boot.now, 0, 0),
            now=boot.now,
            load=boot.disk.open().load,
            stamp=boot.disk.stamp,
            map_settings=quick_settings(receivers=1, buffer=16, sync_us_max=1_000_000),
            make_matcher=ScanMatcher,
            past_settings=PastSettings(return_us=1_000_000),
            event_settings=events,
            overlay=made,
        )

    # --- what people do

    def start(self, world: World, duration_us: int) -> None:
        """Publish, walk and drain at random moments."""
        draw, call = self._draw, world.kernel.call
        nodes, clients = list(world.hosts), list(self._clients.values())
        for _ in range(self._sizes["events"]):
            producer = draw.choice(self._producers)
            producer.left += 1
            call(draw.randrange(duration_us), producer.publish)
        for _ in range(self._sizes["moves"]):
            client, node = draw.choice(clients), draw.choice(nodes)
            hold = draw.random() < 0.7
            call(draw.randrange(duration_us), partial(self._move, client, node, hold))
        for _ in range(self._sizes["drains"]):
            at, node = draw.randrange(duration_us), draw.choice(nodes)
            call(at, partial(self._drain, world, node))
            call(at + draw.randrange(2_000_000), partial(self._undrain, world, node))
        for at in range(WATCH_US, duration_us, WATCH_US):
            call(at, lambda _: self._watch(world))

    def _move(self, client: RoamingClient, node: str, hold: bool, now: int) -> None:
        if client.node is not None and client.node != node:
            client.attach(node, now, hold=hold)

    def _drain(self, world: World, node: str, now: int) -> None:
        del now
        host = world.hosts[node]
        if host.state is HostState.UP and self._phase == 0:
            world.give(host, DrainNode(0, (), 1_000.0))

    def _undrain(self, world: World, node: str, now: int) -> None:
        del now
        host = world.hosts[node]
        if host.state is not HostState.DOWN and node != self._emptied:
            world.give(host, UndrainNode(0))

    def _attach(self, client: RoamingClient, now: int) -> None:
        if client.node is None and not client.over:
            client.attach(self._draw.choice(list(self._beside)), now)
            if client.node is None:  # that node is down, or drained
                client.world.kernel.call(now + WATCH_US, partial(self._attach, client))

    def _watch(self, world: World) -> None:
        for host in world.hosts.values():
            broker = host.machine
            if isinstance(broker, Broker):
                for part in broker.parts.values():
                    check_bounds(f"{host.name}'s {part.part}", part)
        for client in self._clients.values():
            if client.node is not None and not client.look():
                client.leave()
                self._attach(client, world.now)

    # --- the end

    def settled(self, world: World) -> bool:
        """Everything owed is there; then a node is drained; then sessions end."""
        self._watch(world)
        for client in self._clients.values():
            self._attach(client, world.now)
        for producer in self._producers:
            producer.publish(world.now)
        if self._phase == 0 and self._lacking(world) is None:
            self._phase = 1
            self._emptied = self._draw.choice(list(self._beside))
            for host in world.hosts.values():
                world.give(host, UndrainNode(0))
            world.give(world.hosts[self._emptied], DrainNode(0, (), 1_000.0))
        elif self._phase == 1 and self._drained(world) is None:
            self._phase = 2
            for client in self._clients.values():
                client.over = True
                client.leave()
        return self._phase == 2 and self._held(world) is None

    def _lacking(self, world: World) -> tuple[str, str] | None:
        for producer in self._producers:
            if not producer.done:
                return "liveness", f"{producer.name} is not through"
        for client in self._clients.values():
            missing = set(world.hosts) - set(client.cursor.vector)
            if not client.standing or missing:
                return "liveness", f"{client.name} does not stand: {sorted(missing)}"
            lacking = self._record.lacking(client.name, client.wanted)
            if lacking is not None:
                return "no loss", f"{client.name} lacks {lacking}"
        return None

    def _drained(self, world: World) -> tuple[str, str] | None:
        broker = world.hosts[self._emptied].machine
        assert isinstance(broker, Broker)
        view = broker.drain_view()
        if view.lost:
            return "a drain loses nobody", f"{self._emptied}: {view}"
        if view.sessions or view.consumers:
            return "a drain hands everybody over", f"{self._emptied}: {view}"
        return self._lacking(world)

    def _held(self, world: World) -> tuple[str, str] | None:
        for host in world.hosts.values():
            overlay, broker = overlay_of(host), host.machine
            assert overlay is not None
            assert overlay.flows is not None
            assert overlay.handoff is not None
            assert isinstance(broker, Broker)
            assert broker.events is not None
            held = {**overlay.handoff.locals, **overlay.handoff.virtuals}
            if held or overlay.flows.home.consumers or len(broker.events):
                return "nothing is held at rest", f"{host.name} has {list(held)}"
        return None

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        broken = (self._lacking, self._drained, self._held)[self._phase](world)
        if broken is not None:
            raise Violation(*broken)
        if self._record.gaps:
            raise Violation("no loss", f"told as lost: {self._record.gaps}")

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        had = sum(map(len, self._record.had.values()))
        return {"published": len(self._record.facts), "delivered": had}

    def _observe(self, host: Host, effect: Any, now: int) -> None:
        if isinstance(effect, EventPublished | Failed):
            if effect.ticket >= TICKETS:
                self._producers[effect.ticket // TICKETS - 1].answered(effect)
        elif isinstance(effect, Frame):
            for name in effect.sessions:
                client = self._clients[name]
                client.left(host, len(effect.data), now)
                client.carry(host, effect, now)


WORKLOAD = DrainsWorkload
