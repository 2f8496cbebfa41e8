"""Radio networks that move, part and merge; consumers with modulators follow their best homes.

10 to 40 nodes on a plane, a third of them brokers; everybody passes on for everybody. Brokers crash
and lose what was not synced, links lose and reorder, groups walk away and come back, and one may be
a meeting to which everybody comes. Judged by a record of its own: strict relocation loses, doubles
and reorders nothing and its modulators count on; light variants lose no more than they say. Once
everything is healed, loads are below the threshold, nobody moves more than twice, nobody is served
where it costs more than at an open broker, and nothing is held at rest.
"""

import math
import random
from functools import partial
from hashlib import sha256
from typing import ClassVar, Final

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
from roamcast.overlay.homes.choice import BYTES, LATENCY, POWER, HomeCandidate
from roamcast.overlay.homes.events import (
    MeasureLoad,
    ModulatedAttached,
    ModulatorsAnew,
    ModulatorsStopped,
    MoveClient,
    ServedElsewhere,
)
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.modulators.events import (
    EndModulation,
    LookUpModule,
    Modulate,
    ShelveModule,
    StartModulation,
)
from roamcast.overlay.modulators.specs import Code
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.wants import Wants
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.radio import RadioField
from roamcast.sim.storage import DiskState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._homes_parts import (
    DWELL_US,
    HomesConsumer,
    HomesProducer,
    HomesRecord,
    PlaceOrder,
    WorkPlaces,
    hops_from,
    third_module,
)
from roamcast.sim.workloads._overlay_parts import Inert, key_pair, overlay_of
from roamcast.sim.workloads.overlay import LINGER_US, BareNode
from roamcast.sim.workloads.roaming import LINKED
from roamcast.sim.world import World

RANGE_M: Final = 100.0
STEP_US: Final = 200_000
"""How often nodes move, measure and look around."""

SPEEDS_M: Final = (0.0, 5.0, 15.0, 30.0)
"""Metres in one step: time is scaled, as everywhere in the swarm."""

FALL_US: Final = 400_000
"""For at most so long a disk syncs nothing before its host falls."""

REST_US: Final = 6_000_000
"""For so long loads must stay below the threshold."""

LINKS_US: Final = 3_000_000
"""After healing, links come up and paths change for so long; then nobody has a reason to flap."""

MOVES_MAX: Final = 2
FLOWS: Final = FlowSettings(
    log_bytes_max=8_000_000,
    reader_bytes_max=300_000,
    queue_bytes_max=400_000,
    empty_us=80_000,
    doubt_us=300_000,
    fetch_us=300_000,
    wave_us=600_000,
    hold_us=600_000_000,
)


def home_settings(policy: int) -> HomeSettings:
    """Shorter times, short records, and one of the policies."""
    return HomeSettings(
        policy=(LATENCY, BYTES, POWER)[policy],
        dwell_us=DWELL_US,
        delay_us=400_000,
        ask_us=500_000,
        move_us=1_500_000,
        reserve_us=1_500_000,
        report_us=200_000,
        claim_us=250_000,
        patience_us=1_500_000,
        lease_us=12_000_000,
        renew_steps=4,
        steps_max=12,
    )


def battery_of(broker: str) -> float:
    """Give what is left of a broker's energy: less the higher its number."""
    return 1.0 - int(broker[1:]) / 20


class HomesWorkload(Workload):
    """Brokers, producers and consumers that move, and what is owed to them."""

    name: ClassVar[str] = "homes"
    registry = Registry(LINK_MESSAGES)
    effects: ClassVar = (
        Failed, HangUp, EventPublished, EventsDelivered, EventsLost, EventsStanding,
        ModulatedAttached, ModulatorsAnew, ModulatorsStopped, MoveClient, ServedElsewhere,
        StartModulation, Modulate, EndModulation, LookUpModule, ShelveModule,
    )  # fmt: skip
    sizes: ClassVar = {
        "nodes": (10, 40),
        "consumers": (1, 8),
        "producers": (1, 3),
        "events": (5, 120),
        "more_edges": (0, 6),
        "speed": (0, 3),
        "partings": (0, 3),
        "meeting": (0, 1),
        "policy": (0, 2),
        "falls": (0, 4),
        "modules": (0, 1),
    }
    drawn_last: ClassVar = frozenset({"falls", "modules"})

    def __init__(self) -> None:
        self._record = HomesRecord()
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self._field = RadioField(RANGE_M, relay=True)
        self._side_m = 1.0
        self._goals: dict[str, tuple[float, float]] = {}
        self._apart: dict[str, float] = {}
        """Nodes that walked away, and how far."""
        self._healed_us: int | None = None
        self._calm_us: int | None = None
        """Since when every load has been below the threshold."""
        self._over = False
        self._moves = 0
        self.producers: list[HomesProducer] = []
        self.consumers: list[HomesConsumer] = []

    # --- the world

    def setup(self, world: World, sizes: Sizes) -> None:
        """Place everybody; link brokers; let consumers find their first home."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/homes")
        world.clock_of = lambda _: None
        self._settings = home_settings(sizes["policy"])
        self._places = WorkPlaces(world, draw)
        self._side_m = RANGE_M * 0.55 * math.sqrt(sizes["nodes"])
        brokers = [f"b{number}" for number in range(max(3, sizes["nodes"] * 3 // 10))]
        for number, node in enumerate(brokers):
            if number:
                self._join(node, brokers[draw.randrange(number)])
        for _ in range(sizes["more_edges"]):
            self._join(*draw.sample(brokers, 2))
        world.observe(self._observe)
        world.network.reach = self._field.hops
        for node in brokers:
            self._place(world.add_host(node, partial(self._boot, node)))

        def reaches(first: str, other: str) -> int | None:
            return self._field.hops(world.hosts[first], world.hosts[other])

        for number in range(sizes["consumers"]):
            consumer = HomesConsumer(number, world, draw, self._record, reaches)
            self.consumers.append(consumer)
            self._place(world.add_host(consumer.name, lambda _: Inert()))
        if sizes["modules"]:  # its code is at one broker, and fetched by others that serve it
            code = third_module()
            name = sha256(code).hexdigest()
            self._places.shelves[brokers[-1]] = {name: code}
            self.consumers[0].specs = (Code(name),)
        for number in range(sizes["producers"]):
            producer = HomesProducer(number + 1, world, draw, self._record)
            producer.home = draw.choice(brokers)
            self.producers.append(producer)
        for number in range(sizes["nodes"] - len(world.hosts)):  # they only pass on
            self._place(world.add_host(f"n{number}", lambda _: Inert()))
        # There is room for everybody: loads can be below the threshold.
        room = 0.45 * len(brokers)
        while sum(one.weight for one in self.consumers) > room:
            for one in self.consumers:
                one.weight /= 2

    def _join(self, first: str, other: str) -> None:
        if other not in self._beside.setdefault(first, []):
            self._beside[first].append(other)
            self._beside.setdefault(other, []).append(first)

    def _place(self, host: Host) -> None:
        self._field.move(host, *self._somewhere())

    def _somewhere(self) -> tuple[float, float]:
        return self._draw.random() * self._side_m, self._draw.random() * self._side_m

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
            flows=FLOWS,
            wants=Wants(linger_us=LINGER_US),
            homes=self._settings,
        )
        epoch = epoch_at(boot.now, 0, 0)
        return BareNode(made, epoch=epoch, now=boot.now, load=boot.disk.open().load)

    # --- what happens

    def start(self, world: World, duration_us: int) -> None:
        """Publish at random moments; walk, part and merge, meet."""
        draw, call = self._draw, world.kernel.call
        for _ in range(self._sizes["events"]):
            producer = draw.choice(self.producers)
            producer.left += 1
            call(draw.randrange(duration_us), producer.publish)
        for _ in range(self._sizes["partings"]):
            group = draw.sample(list(world.hosts), len(world.hosts) // 3)
            begin = draw.randrange(duration_us)
            end = begin + draw.randrange(1 + (duration_us - begin) // 2)
            call(begin, partial(self._part, world, group, 1))
            call(end, partial(self._part, world, group, -1))
        if self._sizes["meeting"]:
            call(duration_us // 2, lambda _: self._meet(world))
        for at in range(0, duration_us, STEP_US):
            call(at, lambda _: self._step(world))
        for _ in range(self._sizes["falls"]):
            begin = draw.randrange(duration_us)
            lasts = draw.randrange(min(FALL_US, duration_us - begin))
            call(begin, partial(self._fall, world, lasts))

    def _fall(self, world: World, lasts: int, now: int) -> None:
        """Let a home's disk sync nothing for a while, and then the home fall."""
        host = world.hosts.get(self._draw.choice(self.consumers).home)
        if host is None or host.state is not HostState.UP:
            return
        host.disk.state = DiskState.STALLED

        def fall(_: int) -> None:
            host.disk.state = DiskState.WELL
            world.crash(host)
            world.restart(host)

        world.kernel.call(now + lasts, fall)

    def _part(self, world: World, group: list[str], sign: int, now: int) -> None:
        """Let a group walk out of everybody's range, or come back."""
        del now
        for name in group:
            self._apart[name] = self._apart.get(name, 0) + sign
            x, y = world.hosts[name].position
            self._field.move(world.hosts[name], x + sign * 10 * self._side_m, y)

    def _meet(self, world: World) -> None:
        """Let every consumer come to one broker."""
        x, y = world.hosts["b0"].position
        for consumer in self.consumers:
            if not self._apart.get(consumer.name):
                self._field.move(world.hosts[consumer.name], x + self._draw.random(), y)

    def _step(self, world: World) -> None:
        """Move, measure, look around, check what must always hold."""
        if self._healed_us is None:
            self._walk(world)
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is None or overlay.homes is None:
                continue
            for part in overlay.parts:
                check_bounds(f"{host.name}'s {part.part}", part)
            world.give(host, MeasureLoad(self._load(host.name), battery_of(host.name)))
        for consumer in self.consumers:
            consumer.look(world.now)

    def _walk(self, world: World) -> None:
        far = SPEEDS_M[self._sizes["speed"]]
        for host in world.hosts.values():
            if not far or self._apart.get(host.name):
                continue
            x, y = host.position
            goal = self._goals.get(host.name) or self._somewhere()
            self._goals[host.name] = goal
            left = math.hypot(goal[0] - x, goal[1] - y)
            if left <= far:
                del self._goals[host.name]
                self._field.move(host, *goal)
            else:
                share = far / left
                self._field.move(host, x + share * (goal[0] - x), y + share * (goal[1] - y))

    def _load(self, broker: str) -> float:
        """What its consumers need of it, by what they say."""
        return sum(one.weight for one in self.consumers if one.home == broker)

    # --- the end

    def settled(self, world: World) -> bool:
        """Everything owed is there and loads are low; then consumers leave, and nothing is held."""
        if self._healed_us is None:
            self._heal(world)
        self._step(world)
        if self._healed_us is not None and world.now <= self._healed_us + LINKS_US:
            for consumer in self.consumers:
                consumer.moves = 0
        for producer in self.producers:
            producer.publish(world.now)
        if not self._over and self._lacking(world) is None:
            self._over = True
            for consumer in self.consumers:
                consumer.over = True
                consumer.leave(final=True)
        return self._over and self._held(world) is None

    def _heal(self, world: World) -> None:
        """Bring everybody into range, on a grid; with a meeting, consumers all near one broker."""
        self._healed_us = world.now
        row = math.ceil(math.sqrt(len(world.hosts)))
        for number, host in enumerate(world.hosts.values()):
            x, y = number % row * RANGE_M * 0.6, number // row * RANGE_M * 0.6
            self._field.move(host, x, y)
        self._apart.clear()
        if self._sizes["meeting"]:
            self._meet(world)

    def _lacking(self, world: World) -> tuple[str, str] | None:
        for producer in self.producers:
            if not producer.done:
                return "liveness", f"{producer.name} is not through"
        for consumer in self.consumers:
            lacking = consumer.lacking()
            if lacking:
                return "no loss", f"{consumer.name} {lacking} ({consumer.home})"
        high = self._settings.high
        loads = {name: self._load(name) for name in self._beside}
        full = [name for name, load in loads.items() if load > high + 1e-9]
        if full:
            self._calm_us = None
            return "loads return below the threshold", f"{full} of {loads}"
        if self._calm_us is None:
            self._calm_us = world.now
        if world.now < self._calm_us + REST_US:
            return "loads return below the threshold", "they have not been there for long"
        for consumer in self.consumers:
            dear = self._dearer(consumer)
            if dear:
                return "work is where it is cheapest", f"{consumer.name} {dear}"
        return None

    def _dearer(self, consumer: HomesConsumer) -> str:
        """Name an open broker that is cheaper for a consumer than its home, if there is one.

        Which share its modulators pass, only a home knows: cheaper is what is so for any share.
        """
        policy, gain = self._settings.policy, self._settings.gain
        ways = [hops_from(self._beside, origin) for origin in self._record.facts]
        costs: dict[str, tuple[float, float]] = {}
        for name, after in consumer.near().items():
            before = sum(way[name] for way in ways) / len(ways) if ways else 0.0
            candidate = HomeCandidate(name, before, after, battery=battery_of(name))
            costs[name] = policy.cost(candidate, 0.0), policy.cost(candidate, 1.0)
        home = costs[consumer.home]
        for name, cost in costs.items():
            load = self._load(name)
            admits = load <= self._settings.low and load + consumer.weight < self._settings.high
            if admits and all(one < here - gain for one, here in zip(cost, home, strict=True)):
                return f"is at {consumer.home} for {home}, and {name} costs {cost}"
        return ""

    def _held(self, world: World) -> tuple[str, str] | None:
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is None or overlay.homes is None:
                continue
            assert overlay.flows is not None
            assert overlay.serving is not None
            held = overlay.serving.served
            assert overlay.modules is not None
            if overlay.modules.fetches:
                return "nothing is held at rest", f"{host.name} fetches a module"
            if held or not overlay.serving.idle():
                return "nothing is held at rest", f"{host.name} keeps {list(held)}"
            clients = overlay.homes.clients
            if clients.clients or clients.away or overlay.homes.monitor.reserved:
                return "nothing is held at rest", f"{host.name} has clients or reservations"
            if overlay.flows.home.consumers:
                return "nothing is held at rest", f"{host.name} has consumers of flows"
        return None

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        for consumer in self.consumers:
            if consumer.moves > MOVES_MAX:
                detail = f"{consumer.name} moved {consumer.moves} times though nothing changed"
                raise Violation("nobody flaps", detail)
        broken = self._held(world) if self._over else self._lacking(world)
        if broken is not None:
            raise Violation(*broken)

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {
            "published": sum(map(len, self._record.facts.values())),
            "delivered": sum(len(one.had.taken) for one in self.consumers),
            "attached": sum(one.trail.attachment.counter for one in self.consumers),
            "moves": self._moves,
            "modules fetched": self._places.fetched,
            "told as lost": sum(len(one.had.gaps) for one in self.consumers),
        }

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        if isinstance(effect, PlaceOrder):
            self._places.order(host, effect)
            return
        if isinstance(effect, EventPublished | Failed) and effect.ticket >= 1_000_000:
            self.producers[effect.ticket // 1_000_000 - 1].answered(effect)
            return
        self._moves += isinstance(effect, MoveClient)
        name = getattr(effect, "client", getattr(effect, "consumer", None))
        for consumer in self.consumers:
            mine = isinstance(effect, Failed) and consumer.home == host.name
            if consumer.name == name or mine:
                consumer.carry(host, effect, now)


WORKLOAD = HomesWorkload
