"""Hosts that walk over a grid of cells between real nodes, for JIT's figure.

Nodes are the overlay's own machines on a simulated network; each serves one location area. A host
walks in straight legs, reports every cell it enters, and crosses with its vector.
"""

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

import msgspec

from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.journal.book import Journal
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.parts import Part
from roamcast.model.records import HandoffStep, Record
from roamcast.model.wire import Registry
from roamcast.overlay.events import SendOnLink
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.messages import FlowMark, FlowStood
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.events import AttachConsumer, DetachConsumer, ReportPlace
from roamcast.overlay.handoff.handoff import HandoffNode
from roamcast.overlay.handoff.messages import HANDOFF_MESSAGES, Attachment
from roamcast.overlay.handoff.predict import nodes_ahead
from roamcast.overlay.handoff.settings import HandoffSettings, Surroundings, surroundings
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.overlay import OverlayNode, OverlaySettings
from roamcast.overlay.tables.messages import TABLES_MESSAGES
from roamcast.sim.host import Boot, Host
from roamcast.sim.network import LinkQuality
from roamcast.sim.topology.cells import CellGrid, CellGridSize
from roamcast.sim.workloads._overlay_parts import key_pair
from roamcast.sim.workloads.overlay import BareNode
from roamcast.sim.world import World

Policy = Literal["normal", "all neighbours", "location-based", "predicted"]
POLICIES: Final[tuple[Policy, ...]] = ("normal", "all neighbours", "location-based", "predicted")

AREA_CELLS: Final = 8
LINK_US: Final = 20_000
START_US: Final = 5_000_000
"""Until then links come up and tables settle."""

AHEAD_CELLS: Final = 2.0
"""How many cells ahead a prediction looks: through the border cell and into the next."""

SAMPLES: Final = 500
"""How often what is held is looked at in a run."""

EVENT_CELLS: Final = 3.0
"""An event for each host in the time that so many cells take, on average."""

T_US: Final = 60_000_000
HANDOFF: Final = HandoffSettings(still_us=T_US, dwell_us=2_000_000)
LEASE_CELLS: Final = 3
"""A lease is as long as a host takes for so many cells: no node dies here, so nothing is lost."""

LEGS: Final = OverlaySettings(
    LinkSettings(
        acknowledge_us=1_000_000,
        silent_us=3_600_000_000,
        channel=ChannelSettings(sync_interval_us=30_000_000, sync_interval_us_max=600_000_000),
    )
)
"""Nothing is lost here: links need no more than now and then a sign of life."""

CONTROL: Final = frozenset({*HANDOFF_MESSAGES, FlowMark, FlowStood, *TABLES_MESSAGES})


class Crossing(msgspec.Struct):
    """One crossing between two areas."""

    gap_us: int | None = None
    travel_us: int = 0
    set_up_us: int | None = None
    asked: bool = False
    rested: bool = False
    at_us: int = 0


class Meter(Part):
    """Counts the messages that handoff costs: its own, marks and tables."""

    part: ClassVar[str] = "meter"
    inputs: ClassVar = (SendOnLink,)

    def __init__(self) -> None:
        self.control = 0

    def receive(self, given: Any, now: int) -> tuple[Effect, ...]:
        """Count what goes over a link."""
        del now
        self.control += type(given.message) in CONTROL
        return ()


class Leg(msgspec.Struct, frozen=True):
    """A straight walk at one speed: from when and where, in which direction, until when."""

    start_us: int
    x: float
    y: float
    dx: float
    dy: float
    end_us: int


def legs(draw: random.Random, size: tuple[float, float], speed: float, until: int) -> Iterator[Leg]:
    """Draw straight walks across the grid; after one in five the host rests longer than T."""
    x, y, now = draw.uniform(0, size[0]), draw.uniform(0, size[1]), START_US
    while now < until:
        to_x, to_y = draw.uniform(0, size[0]), draw.uniform(0, size[1])
        way = math.hypot(to_x - x, to_y - y)
        took = max(1, int(way / speed * 1e6))
        yield Leg(now, x, y, (to_x - x) / took, (to_y - y) / took, now + took)
        now += took + (int(1.5 * T_US) if draw.random() < 0.2 else 0)
        x, y = to_x, to_y


class TrialResult(msgspec.Struct, frozen=True):
    """What one run showed."""

    moves: list[Crossing]
    wrong: int
    """Events lost, twice, or out of order."""
    control: int
    """Messages that handoff cost."""
    virtual_s: float
    buffered_bytes: float
    """Held for virtual consumers, on average."""


class TrialPlan(msgspec.Struct, frozen=True):
    """One run: who walks where, how fast, and which policy prepares."""

    policy: Policy
    cell_m: float
    speed: float
    hosts: int
    areas: int
    seed: int


def played(plan: TrialPlan) -> TrialResult:
    """Play a run for as long as each host takes to cross an area."""
    trial = Trial(plan)
    trial.play()
    buffered = sum(trial.buffered) / len(trial.buffered)
    control = sum(meter.control for meter in trial.meters)
    return TrialResult(trial.moves, trial.wrong, control, trial.virtual_s, buffered)


class Walk:
    """One host: a consumer with a filter of its own, and everything that happened to it."""

    def __init__(self, number: int) -> None:
        self.name = f"h{number}"
        self.cursor = ConsumerCursor()
        self.node = ""
        self.counter = 0
        self.place = ""
        self.bordering: dict[str, int] = {}
        """Nodes → since when it is in a place that borders them."""
        self.move: Crossing | None = None
        self.had: set[tuple[str, int]] = set()
        self.last: dict[str, int] = {}
        """Producers → the number of their last event."""
        self.owed: list[tuple[str, int, str, int]] = []
        """(producer, number, origin, position) of every event for it."""
        self.starts: dict[str, int] = {}
        self.wrong = 0


class Trial(Journal):
    """One run of one policy: nodes, hosts, and what it cost."""

    def __init__(self, plan: TrialPlan) -> None:
        super().__init__()
        policy, cell_m, speed = plan.policy, plan.cell_m, plan.speed
        side = AREA_CELLS * plan.areas
        duration_us = int(AREA_CELLS * cell_m / speed * 1e6)
        self.policy = policy
        self.grid = CellGrid(CellGridSize(side, side, AREA_CELLS, AREA_CELLS, cell_m))
        self.moves: list[Crossing] = []
        self.meters: list[Meter] = []
        self.virtual_s = 0.0
        self.buffered: list[int] = []
        self._speed = speed
        lease_us = max(HANDOFF.lease_us, int(LEASE_CELLS * cell_m / speed * 1e6))
        # A normal handoff leaves nothing behind.
        dwell_us = 1 if policy == "normal" else HANDOFF.dwell_us
        self._handoff = msgspec.structs.replace(HANDOFF, lease_us=lease_us, dwell_us=dwell_us)
        self._end_us = START_US + duration_us
        self._sample_us = max(1, duration_us // SAMPLES)
        self._draw = random.Random(f"jit {cell_m} {speed} {plan.seed}")
        self._asked: dict[tuple[str, str], int] = {}
        self._set_up: dict[tuple[str, str], int] = {}
        self._walks = {f"h{number}": Walk(number) for number in range(plan.hosts)}
        self._areas: list[int] = self.grid.area.tolist()
        self._cells = {self.grid.path(cell): cell for cell in range(self.grid.cells)}
        self._tickets: list[tuple[Walk, str, int]] = []
        self._numbers: dict[str, int] = {}
        registry = Registry(LINK_MESSAGES)
        self.world = World(plan.seed, registry, quality=LinkQuality(delay_us=LINK_US), journal=self)
        self.world.observe(self._observe)
        links = self.grid.area_topology.links.tolist()
        self._beside: dict[str, list[str]] = {}
        for one, other in links:
            self._beside.setdefault(f"la{one}", []).append(f"la{other}")
            self._beside.setdefault(f"la{other}", []).append(f"la{one}")
        self._near = {
            place: [self.grid.path(n) for n in self.grid.topology.neighbours(cell).tolist()]
            for place, cell in self._cells.items()
        }
        for node in sorted(self._beside):
            self.world.add_host(node, partial(self._boot, node))

    # --- nodes

    def _boot(self, node: str, boot: Boot) -> BareNode:
        meter = Meter()
        self.meters.append(meter)
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {far: NeighbourSettings(key_pair(far)[1], (far,)) for far in self._beside[node]},
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            LEGS,
            users=(meter,),
            flows=FlowSettings(),
            handoff=HandoffNode(self._around(node), self._handoff),
        )
        epoch = epoch_at(boot.now, 0, 0)
        return BareNode(made, epoch=epoch, now=boot.now, load=boot.disk.open().load)

    def _around(self, node: str) -> Surroundings:
        if self.policy == "normal":
            return Surroundings(lambda _: ())
        if self.policy == "all neighbours":
            return Surroundings(lambda _: tuple(self._beside[node]))
        return surroundings(node, self._near, node_of)

    # --- hosts

    def play(self) -> None:
        """Let everybody walk, publish to each of them now and then, and sample what is held."""
        call = self.world.kernel.call
        width = self.grid.centres_m.max(axis=0).tolist()
        for walk in self._walks.values():
            for leg in legs(self._draw, (width[0], width[1]), self._speed, self._end_us):
                self._schedule(walk, leg)
        nodes = sorted(self._beside)
        every_us = EVENT_CELLS * self.grid.size.cell_m / self._speed * 1e6
        for walk in self._walks.values():
            at = START_US + 1_000_000
            while at < self._end_us:
                at += int(self._draw.expovariate(1 / every_us))
                node = self._draw.choice(nodes)
                if at < self._end_us:  # a later one might not arrive before the run is over
                    call(at, partial(self._publish, walk, node))
        for at in range(START_US, self._end_us, self._sample_us):
            call(at, self._sample)
        self.world.kernel.run(self._end_us + 10_000_000, 100_000_000)
        for walk in self._walks.values():
            walk.wrong += self._lost(walk)

    def _schedule(self, walk: Walk, leg: Leg) -> None:
        """Find the cells of a leg by points a twentieth of a cell apart."""
        step_us = max(1, int(self.grid.size.cell_m / 20 / self._speed * 1e6))
        times = [*range(leg.start_us, leg.end_us, step_us), leg.end_us]
        points = [
            (leg.x + leg.dx * (at - leg.start_us), leg.y + leg.dy * (at - leg.start_us))
            for at in times
        ]
        last = -1
        for at, cell, point in zip(times, self.grid.cell_of(points).tolist(), points, strict=True):
            if cell >= 0 and cell != last and at < self._end_us:
                last = cell
                heading = (leg.dx * 1e6, leg.dy * 1e6)
                self.world.kernel.call(at, partial(self._enter, walk, cell, point, heading))

    def _enter(
        self, walk: Walk, cell: int, at: tuple[float, float], heading: tuple[float, float], now: int
    ) -> None:
        place = self.grid.path(cell)
        if place == walk.place:
            return
        node = node_of(place)
        toward = None
        if self.policy == "predicted":
            toward = nodes_ahead(
                at, heading, self._nodes_at, node, reach_m=AHEAD_CELLS * self.grid.size.cell_m
            )
        walk.place = place
        if node == walk.node:
            self._give(node, ReportPlace(walk.name, place, toward))
        else:
            self._cross(walk, node, place, now)
            if toward is not None:
                self._give(node, ReportPlace(walk.name, place, toward))
        beyond = {node_of(other) for other in self._near[place]} - {node}
        walk.bordering = {one: walk.bordering.get(one, now) for one in beyond}

    def _nodes_at(self, points: Sequence[tuple[float, float]]) -> Iterator[str | None]:
        for cell in self.grid.cell_of(points).tolist():
            yield None if cell < 0 else f"la{self._areas[cell]}"

    def _cross(self, walk: Walk, node: str, place: str, now: int) -> None:
        previous, walk.node = walk.node, node
        attachment = Attachment(1, walk.counter)
        if previous:
            key = (walk.name, node)
            local = self._part(previous).locals.get(walk.name)
            walk.move = Crossing(
                travel_us=now - walk.bordering.get(node, now),
                set_up_us=self._set_up.get(key),
                asked=local is not None and node in local.asked,
                rested=local is not None and local.state == "still",
                at_us=now,
            )
            self.moves.append(walk.move)
            self._give(previous, DetachConsumer(walk.name, attachment))
        walk.counter += 1
        self._give(
            node,
            AttachConsumer(
                0, walk.name, walk.name, Attachment(1, walk.counter), f"topic = '{walk.name}'",
                walk.cursor.pairs, place, previous,
            ),
        )  # fmt: skip

    def _part(self, node: str) -> Any:
        machine: Any = self.world.hosts[node].machine
        return machine.overlay.handoff

    def _give(self, node: str, given: Any) -> None:
        self.world.give(self.world.hosts[node], given)

    def _publish(self, walk: Walk, node: str, now: int) -> None:
        del now
        producer = f"p-{node}"
        number = self._numbers[producer] = self._numbers.get(producer, 0) + 1
        self._tickets.append((walk, producer, number))
        context = Context("event", attributes={"topic": walk.name})
        self._give(node, PublishEvent(len(self._tickets) - 1, producer, 1, number, context))

    # --- what happens

    def write(self, time_us: int, host: str, record: Record) -> None:
        """Note how long it takes from the request until everything stands."""
        if isinstance(record, HandoffStep):
            key = (record.receiver, record.peer)
            if record.step == "asked":
                self._asked.setdefault(key, time_us)
                self._set_up.pop(key, None)
            elif record.step == "standing" and key in self._asked:
                self._set_up[key] = time_us - self._asked.pop(key)
            elif record.step == "cancelled":
                self._asked.pop(key, None)
        super().write(time_us, host, record)

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        if isinstance(effect, EventPublished):
            walk, producer, number = self._tickets[effect.ticket]
            walk.owed.append((producer, number, effect.origin, effect.at.number))
            return
        found = self._walks.get(getattr(effect, "consumer", ""))
        if found is None or host.name != found.node:
            return
        if isinstance(effect, EventsStanding):
            found.cursor.standing(effect)
            for origin, position in effect.vector:
                found.starts.setdefault(origin, position.number)
            if found.move is not None and found.move.gap_us is None:
                found.move.gap_us = now - found.move.at_us
        elif isinstance(effect, EventsLost):
            found.wrong += 1
        elif isinstance(effect, EventsDelivered):
            taken = found.cursor.take(effect)
            found.wrong += taken.missing
            for event in taken.events:
                found.wrong += event.number <= found.last.get(event.producer, 0)
                found.last[event.producer] = event.number
                found.had.add((event.producer, event.number))

    def _lost(self, walk: Walk) -> int:
        return sum(
            origin in walk.starts
            and at > walk.starts[origin]
            and (producer, number) not in walk.had
            for producer, number, origin, at in walk.owed
        )

    def _sample(self, now: int) -> None:
        del now
        held = 0
        for node in self._beside:
            part = self._part(node)
            self.virtual_s += len(part.virtuals) * self._sample_us / 1e6
            home = part._flows.home  # noqa: SLF001 — the figure looks at what nobody else needs
            held += sum(
                one.buffer.bytes for one in home.consumers.values() if one.buffer is not None
            )
        self.buffered.append(held)

    @property
    def wrong(self) -> int:
        """Events lost, twice, or out of order."""
        return sum(walk.wrong for walk in self._walks.values())


def node_of(place: str) -> str:
    """Name the node of a cell's place: its location area."""
    return place.split("/")[1]
