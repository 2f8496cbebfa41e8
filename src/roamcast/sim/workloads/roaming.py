"""Producers and consumers that walk, sleep and come again elsewhere, while all else fails.

Two to eight nodes on trees and cyclic graphs, on hosts that crash and lose what was not synced,
with failing disks and links that lose, reorder and part. Judged by a record of its own: each
consumer gets every event it wants, once, in its producers' order, in causal order where that is
asked, and what a log no longer had is told. At rest nothing is held anywhere.
"""

import random
from functools import partial
from typing import ClassVar, Final

import msgspec

from roamcast.broker import Failed
from roamcast.channels.failover.epochs import epoch_at
from roamcast.model.machine import Effect
from roamcast.model.wire import Registry
from roamcast.overlay.events import HangUp
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
)
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.events import (
    AttachConsumer,
    ConsumerAttached,
    ConsumerGone,
    ConsumerReleased,
)
from roamcast.overlay.handoff.handoff import Handoff, HandoffNode
from roamcast.overlay.handoff.messages import Attachment, StepNumber
from roamcast.overlay.handoff.settings import HandoffSettings, Surroundings
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.wants import Wants
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._overlay_parts import key_pair, overlay_of
from roamcast.sim.workloads._roaming_parts import (
    FILTERS,
    TICKETS,
    Consumer,
    Producer,
    RoamingRecord,
    Walker,
)
from roamcast.sim.workloads.overlay import LINGER_US, SETTINGS, BareNode
from roamcast.sim.world import World

WATCH_US: Final = 100_000
STRANGER: Final = "stranger"
LINKED: Final = msgspec.structs.replace(
    SETTINGS, links=msgspec.structs.replace(SETTINGS.links, skew_us_max=600_000_000)
)
"""Clocks are another workload's matter: here all nodes link."""

FLOWS: Final = FlowSettings(
    log_age_us=600_000_000,
    log_bytes_max=8_000_000,
    reader_bytes_max=300_000,
    queue_bytes_max=400_000,
    empty_us=80_000,
    doubt_us=300_000,
    fetch_us=300_000,
    wave_us=600_000,
    hold_us=600_000_000,
    buffer_bytes_max=1_500,
)
HANDOFF: Final = HandoffSettings(
    still_us=1_500_000,
    lease_us=1_500_000,
    dwell_us=700_000,
    sleep_us=1_500_000,
    retry_us=150_000,
    arrived_us=2_000_000,
)
SHORT: Final = msgspec.structs.replace(FLOWS, log_age_us=1_200_000, log_bytes_max=20_000)


class RoamingWorkload(Workload):
    """Nodes, those who walk between them, and the record of what is owed."""

    name: ClassVar[str] = "roaming"
    registry = Registry(LINK_MESSAGES)
    effects: ClassVar = (
        Failed, HangUp, EventPublished, EventsDelivered, EventsLost, EventsStanding,
        ConsumerAttached, ConsumerGone, ConsumerReleased,
    )  # fmt: skip
    sizes: ClassVar = {
        "nodes": (2, 8),
        "more_edges": (0, 4),
        "producers": (1, 5),
        "consumers": (1, 5),
        "events": (1, 120),
        "moves": (0, 24),
        "sleeps": (0, 4),
        "large": (0, 2),
        "causal": (0, 1),
        "short_log": (0, 1),
        "walkers": (0, 1),
    }

    def __init__(self) -> None:
        self._record = RoamingRecord()
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._prepared = 0
        self._strange = random.Random()
        self._attempts = 0
        self._went: dict[tuple[str, str], tuple[int, int, StepNumber | None]] = {}
        """Nodes and who went from there → when, in which life of the host, what was heard last."""
        self._over = False
        """Consumers have left: everything goes to rest."""

    # --- the world

    def setup(self, world: World, sizes: Sizes) -> None:
        """A tree, some more links, and people at random nodes."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/roaming")
        self._strange = world.kernel.generator("workload/roaming/strangers")
        world.clock_of = lambda _: None
        nodes = [f"n{number}" for number in range(sizes["nodes"])]
        for number, node in enumerate(nodes):
            if number:
                self._join(node, nodes[draw.randrange(number)])
        for _ in range(sizes["more_edges"]):
            self._join(*draw.sample(nodes, 2))
        world.observe(self._observe)
        for node in nodes:
            world.add_host(node, partial(self._boot, node))
        for number in range(sizes["consumers"]):
            wanted = draw.choice(FILTERS)
            consumer = self._consumer(f"c{number}", world, wanted)
            self.consumers.append(consumer)
            world.kernel.call(draw.randrange(300_000), partial(self._attach, consumer))
        for number in range(sizes["producers"]):
            producer = Producer(f"p{number}", world, draw, self._record)
            producer.node = draw.choice(nodes)
            if sizes["causal"] and draw.random() < 0.6:
                producer.follows = draw.choice(self.consumers)
            self.producers.append(producer)
        for _ in range(sizes["large"]):
            draw.choice(self.producers).large += 1

    def _consumer(self, name: str, world: World, wanted: str) -> Consumer:
        kind = Walker if self._sizes["walkers"] else Consumer
        return kind(name, world, self._draw, self._record, wanted)

    def _join(self, first: str, other: str) -> None:
        if other not in self._beside.setdefault(first, []):
            self._beside[first].append(other)
            self._beside.setdefault(other, []).append(first)

    @property
    def flow_settings(self) -> FlowSettings:
        """How long logs are in this run."""
        return SHORT if self._sizes["short_log"] else FLOWS

    def _boot(self, node: str, boot: Boot) -> BareNode:
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {
                far: NeighbourSettings(key_pair(far)[1], (far,))
                for far in self._beside.get(node, ())
            },
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            LINKED,
            flows=self.flow_settings,
            wants=Wants(linger_us=LINGER_US),
            handoff=HandoffNode(self._surroundings(node), HANDOFF),
        )
        epoch = epoch_at(boot.now, 0, 0)
        return BareNode(made, epoch=epoch, now=boot.now, load=boot.disk.open().load)

    def _surroundings(self, node: str) -> Surroundings:
        """One place inside each node, and one at each border with a neighbour."""
        beside = self._beside.get(node, ())
        return Surroundings(
            lambda place: tuple(far for far in beside if place == f"{node}/{far}"),
            lambda place: tuple(f"{node}/{far}" for far in beside if place == f"{far}/{node}"),
        )

    # --- what people do

    def start(self, world: World, duration_us: int) -> None:
        """Publish, walk, sleep at random moments."""
        draw, call = self._draw, world.kernel.call
        nodes = list(world.hosts)
        for _ in range(self._sizes["events"]):
            producer = draw.choice(self.producers)
            producer.left += 1
            call(draw.randrange(duration_us), producer.publish)
        for _ in range(self._sizes["moves"]):
            at, node = draw.randrange(duration_us), draw.choice(nodes)
            if draw.random() < 0.4:
                call(at, partial(self._move_producer, draw.choice(self.producers), node))
            else:
                hold = draw.random() < 0.5
                consumer = draw.choice(self.consumers)
                ahead = max(0, at - draw.randrange(600_000))
                call(ahead, partial(self._approach, consumer, node))
                call(at, partial(self._move, consumer, node, hold))
        for _ in range(self._sizes["sleeps"]):
            consumer = draw.choice(self.consumers)
            at = draw.randrange(duration_us)
            until = at + draw.randrange(3_000_000)
            call(at, partial(self._sleep, consumer))
            call(min(until, duration_us), partial(self._attach, consumer))
        for at in range(WATCH_US, duration_us, WATCH_US):
            call(at, lambda _: self._watch(world))

    def _move_producer(self, producer: Producer, node: str, now: int) -> None:
        del now
        producer.node = node

    def _approach(self, consumer: Consumer, node: str, now: int) -> None:
        """Come near a border before it is crossed, or turn away from it."""
        del now
        if consumer.node is not None:
            near = node in self._beside.get(consumer.node, ())
            consumer.report(f"{consumer.node}/{node if near else 'in'}")

    def _move(self, consumer: Consumer, node: str, hold: bool, now: int) -> None:
        if consumer.node is not None:
            self._check_prepared(consumer, node, now)
            consumer.attach(node, now, hold=hold)

    def _check_prepared(self, consumer: Consumer, node: str, now: int) -> None:
        """Who comes right back is prepared for, unless a newer home said something (trap 19)."""
        host = consumer.up(node)
        handoff = None if host is None else part_of(host)
        went = self._went.get((node, consumer.name))
        if went is None or host is None or handoff is None:
            return
        at, boots, heard = went
        soon = now < at + HANDOFF.dwell_us and host.boots == boots
        known = consumer.name in handoff.virtuals or consumer.name in handoff.locals
        if soon and handoff.last_step(consumer.name) == heard and not known:
            detail = f"{consumer.name} is back at {node} after {now - at} us"
            raise Violation("who comes right back is prepared for", detail)

    def _try_strangers(self) -> None:
        """Attach with another's credential, or by a way that is long gone (traps 21 and 22)."""
        draw = self._strange
        there = [one for one in self.consumers if isinstance(one, Walker) and one.look()]
        if not there or draw.random() > 0.2:
            return
        one = draw.choice(there)
        host = one.up(one.node)
        assert host is not None
        self._attempts -= 1
        owner, attachment = draw.choice(
            ((STRANGER, one.attachment + 1), ("owner", one.attachment - 1))
        )
        attach = AttachConsumer(
            self._attempts, one.name, owner, Attachment(1, attachment), "true", (), one.place
        )
        one.world.give(host, attach)

    def _sleep(self, consumer: Consumer, now: int) -> None:
        del now
        consumer.leave()

    def _attach(self, consumer: Consumer, now: int) -> None:
        nodes = list(self._beside) or ["n0"]
        if consumer.node is None and not self._over:
            consumer.attach(self._draw.choice(nodes), now)
            if consumer.node is None:  # that node is down
                again = partial(self._attach, consumer)
                consumer.world.kernel.call(now + WATCH_US, again)

    def _watch(self, world: World) -> None:
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is not None:
                for part in overlay.parts:
                    check_bounds(f"{host.name}'s {part.part}", part)
        self._try_strangers()
        for consumer in self.consumers:
            if consumer.node is not None and not consumer.look():
                consumer.leave()
                self._attach(consumer, world.now)

    # --- the end

    def settled(self, world: World) -> bool:
        """Everything owed is there; then consumers leave, and nothing is held."""
        self._watch(world)
        for consumer in self.consumers:
            if consumer.node is None:
                self._attach(consumer, world.now)
        for producer in self.producers:
            if self._over:
                break
            host = producer.up(producer.node)
            if host is None:
                producer.node = self._draw.choice(list(world.hosts))
            producer.publish(world.now)
        if not self._over and self._lacking(world) is None:
            self._over = True
            for consumer in self.consumers:
                consumer.over = True
                consumer.leave()
        return self._over and self._held(world) is None

    def _lacking(self, world: World) -> tuple[str, str] | None:
        for producer in self.producers:
            if not producer.done:
                return "liveness", f"{producer.name} is not through"
        for consumer in self.consumers:
            missing = set(world.hosts) - set(consumer.cursor.vector)
            if not consumer.standing or missing:
                return "liveness", f"{consumer.name} does not stand: {sorted(missing)}"
            lacking = self._record.lacking(consumer.name, consumer.wanted)
            if lacking is not None:
                return "no loss", f"{consumer.name} lacks {lacking}"
        for host in world.hosts.values():
            flows = overlay_of(host)
            if flows is None or flows.flows is None or not flows.flows.idle():
                return "queues are empty at rest", f"{host.name} has something to do"
        return None

    def _held(self, world: World) -> tuple[str, str] | None:
        for host in world.hosts.values():
            overlay = overlay_of(host)
            assert overlay is not None
            assert overlay.flows is not None
            home = overlay.flows.home
            assert overlay.handoff is not None
            held = {**overlay.handoff.locals, **overlay.handoff.virtuals}
            if held or not overlay.handoff.idle():
                return "virtual consumers are gone at rest", f"{host.name} has {list(held)}"
            if home.consumers or home.behind():
                return "tables are empty at rest", f"{host.name} serves {list(home.consumers)}"
            table = overlay.exchange.tables["wants"].occupancy()
            if table["wants.filters"][0]:
                return "tables are empty at rest", f"{host.name} has {table}"
        return None

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        self._watch(world)
        broken = self._held(world) if self._over else self._lacking(world)
        if broken is not None:
            raise Violation(*broken)
        if not self._sizes["short_log"] and self._record.gaps:
            raise Violation("no loss", f"told as lost: {self._record.gaps}")

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {
            "published": len(self._record.facts),
            "delivered": sum(map(len, self._record.had.values())),
            "prepared": self._prepared,
            "gaps": sum(map(len, self._record.gaps.values())),
        }

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        if isinstance(effect, EventPublished | Failed):
            if effect.ticket >= TICKETS:  # consumers ask again when they are not served
                self.producers[effect.ticket // TICKETS - 1].answered(effect)
        elif isinstance(effect, ConsumerAttached):
            self._prepared += effect.prepared
            if effect.ticket < 0:
                detail = f"{effect.consumer} was taken over at {host.name}"
                raise Violation("a consumer is its credential's latest attachment", detail)
        elif isinstance(effect, ConsumerGone):
            handoff = part_of(host)
            if effect.to and handoff is not None:
                heard = handoff.last_step(effect.consumer)
                self._went[host.name, effect.consumer] = (now, host.boots, heard)
        elif isinstance(effect, EventsDelivered | EventsLost | EventsStanding):
            consumer = next(one for one in self.consumers if one.name == effect.consumer)
            consumer.carry(host, effect, now)


def part_of(host: Host) -> Handoff | None:
    """Give the handoff of a host's node."""
    overlay = overlay_of(host)
    return None if overlay is None else overlay.handoff


WORKLOAD = RoamingWorkload
