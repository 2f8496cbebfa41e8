"""People of the homes workload, the places where modulators run, and a record beside the machines.

The record knows what was published and acknowledged, and what each consumer had or was told that it
would not have. From that alone it judges: it asks no machine.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Final

import msgspec
import wasmtime

from roamcast.broker import Failed
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.homes.choice import HomeReason
from roamcast.overlay.homes.events import (
    AttachModulated,
    ConfirmModulated,
    DetachModulated,
    ModulatedAttached,
    ModulatorsAnew,
    ModulatorsStopped,
    MoveClient,
    ReportBrokers,
    ServedElsewhere,
)
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.homes.trail import HomeTrail
from roamcast.overlay.modulators.events import (
    EndModulation,
    LookUpModule,
    Modulate,
    ModuleLookedUp,
    ModuleShelved,
    ShelveModule,
    StartModulation,
)
from roamcast.overlay.modulators.modulation import Modulation
from roamcast.overlay.modulators.sandbox import Engine
from roamcast.overlay.modulators.specs import Code, EveryNth, Select, Spec, WithinBox
from roamcast.overlay.modulators.workshop import Workshop
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host, HostState
from roamcast.sim.world import World

COLOURS: Final = ("red", "green", "blue")
WANTED: Final = ("true", "colour <> 'blue'", "colour = 'red' OR colour = 'green'")
WIRELESS_US: Final = 10_000
"""The longest way between a consumer and its home."""

DWELL_US: Final = 800_000
"""Nobody leaves a home earlier only because another is nearer."""

PATIENCE_US: Final = 1_500_000
"""A consumer that is not served looks for another home after so long."""

WORK_US: Final = 4_000
"""The longest time that modulators take for a job."""

AGAIN_US: Final = 400_000

PlaceOrder = StartModulation | Modulate | EndModulation | LookUpModule | ShelveModule
"""What a home asks of the place where modulators run."""

Reaches = Callable[[str, str], int | None]
"""How many radio hops it is from one to the other, if they can hear each other."""


@cache
def third_module() -> bytes:
    """Make a module that lets every third event through, and is so long that it comes in pieces."""
    text = f"""(module (memory (export "memory") 2)
      (global $count (mut i32) (i32.const 0))
      (data (i32.const 16384) "{"x" * 60_000}")
      (func (export "alloc") (param i32) (result i32) (i32.const 16))
      (func (export "run") (param i64 i32 i32) (result i64)
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (if (i32.rem_u (global.get $count) (i32.const 3)) (then (return (i64.const 0))))
        (i64.or (i64.shl (i64.extend_i32_u (local.get 1)) (i64.const 32))
                (i64.extend_i32_u (local.get 2))))
      (func (export "save") (result i64)
        (i32.store (i32.const 8) (global.get $count)) (i64.const 0x0000000800000004))
      (func (export "load") (param i32 i32) (global.set $count (i32.load (local.get 0)))))"""
    return bytes(wasmtime.wat2wasm(text))


@cache
def _engine() -> Engine:
    """All hosts compile the module once: what it answers depends on nothing else."""
    return Engine()


_parsed = cache(Filter.parse)
"""A consumer's few filters are asked for each event again and again."""


class WorkPlaces:
    """A workshop for each life of each host, and a shelf of modules that outlives them.

    Answers come after a while, in order.
    """

    def __init__(self, world: World, draw: random.Random) -> None:
        self.shelves: dict[str, dict[str, bytes]] = {}
        self.fetched = 0
        self._world = world
        self._draw = draw
        self._shops: dict[tuple[str, int], Workshop] = {}
        self._ready: dict[tuple[str, int], int] = {}

    def order(self, host: Host, order: PlaceOrder) -> None:
        """Work, and answer later, if the host is still there then."""
        shelf = self.shelves.setdefault(host.name, {})
        match order:
            case LookUpModule(module, to, at, most):
                code = shelf.get(module, b"")
                piece = code[at : at + most]
                self._answer(host, ModuleLookedUp(module, to, at, len(code), piece))
            case ShelveModule(module, code):
                if module in shelf:
                    raise Violation("a module is fetched once", f"{host.name} has {module} again")
                shelf[module] = code
                self.fetched += 1
                self._answer(host, ModuleShelved(module))
            case _:
                key = (host.name, host.boots)
                shop = self._shops.setdefault(key, Workshop(partial(self._make, host.name)))
                answer = shop.work(order)
                if answer is not None:
                    self._answer(host, answer)

    def _make(self, host: str, specs: Sequence[Spec]) -> Modulation:
        if not any(isinstance(spec, Code) for spec in specs):
            return Modulation(specs)
        engine, shelf = _engine(), self.shelves[host]
        return Modulation(
            specs,
            engine=engine,
            find=lambda name: engine.compile(shelf[name]) if name in shelf else None,
        )

    def _answer(self, host: Host, answer: Input) -> None:
        key = (host.name, host.boots)
        world = self._world
        at = max(world.now + self._draw.randrange(WORK_US), self._ready.get(key, 0))
        self._ready[key] = at

        def give(_: int) -> None:
            if host.boots == key[1] and host.state is not HostState.DOWN:
                world.give(host, answer)

        world.kernel.call(at, give)


class HomesRecord:
    """What was published, by origin and position."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[Position, Context]] = {}
        self.waiting: set[str] = set()
        """Producers of an event that is not acknowledged: a log may have it, and deliver it."""

    def published(self, origin: str, at: Position, context: Context) -> None:
        """Note an acknowledged publication."""
        self.facts.setdefault(origin, {})[at] = context

    def within(
        self, origin: str, after: Position, upto: Position | None, wanted: Filter
    ) -> list[Position]:
        """Give where there was something for a filter in (after, upto]."""
        return [
            at
            for at, context in self.facts.get(origin, {}).items()
            if after < at and (upto is None or at <= upto) and wanted.matches(context)
        ]


class HomesProducer:
    """It publishes at the broker that is nearest when it begins; each until it is acknowledged."""

    def __init__(self, number: int, world: World, draw: random.Random, record: HomesRecord) -> None:
        self.name = f"p{number}"
        self.number = number
        self.home = ""
        self.left = 0
        self._world = world
        self._draw = draw
        self._record = record
        self._count = 0
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
        self._count += 1
        draw = self._draw
        point = (draw.uniform(-10, 10), draw.uniform(-10, 10))
        context = Context(self.name, None, point, {"colour": draw.choice(COLOURS)})
        ticket = self.number * 1_000_000 + self._count
        data = draw.randbytes(draw.randrange(60))
        self._pending = PublishEvent(ticket, self.name, 1, self._count, context, data)
        self._record.waiting.add(self.name)
        self._send(self._count, 0)

    def _send(self, count: int, now: int) -> None:
        del now
        pending = self._pending
        if pending is None or pending.number != count:
            return
        host = self._world.hosts[self.home]
        if host.state is HostState.UP:
            self._world.give(host, pending)
        self._world.kernel.call(self._world.now + AGAIN_US, partial(self._send, count))

    def answered(self, effect: EventPublished | Failed) -> None:
        """Take an answer; what is refused is sent again."""
        pending = self._pending
        if pending is None or isinstance(effect, Failed) or effect.ticket != pending.ticket:
            return
        self._pending = None
        self._record.waiting.discard(self.name)
        self._record.published(effect.origin, effect.at, pending.context)


class Had(msgspec.Struct):
    """What one consumer had, and was told that it would not have."""

    starts: dict[str, Position] = {}
    gaps: list[EventsLost] = []
    taken: list[tuple[str, Position]] = []
    uncounted: list[tuple[str, dict[str, Position]]] = []
    """Events that were let through while the record was not whole: origin, and vector with it."""
    begins: int = 0
    """How often its modulators began anew."""


class HomesConsumer:
    """One subscription with modulators, and its end: it goes where its home says, or nearest."""

    def __init__(
        self,
        number: int,
        world: World,
        draw: random.Random,
        record: HomesRecord,
        reaches: Reaches,
    ) -> None:
        self.name = f"c{number}"
        self.relocation = Relocation(draw.random() < 0.7, draw.random() < 0.7)
        self.specs = draw_specs(draw)
        self.wanted = Filter.parse(draw.choice(WANTED))
        self.weight = draw.choice((0.05, 0.1, 0.2))
        self.home = ""
        self.boots = 0
        self.standing = False
        self.served = False
        self.moves = 0
        """Since everything was healed."""
        self.over = False
        self.cursor = ConsumerCursor()
        self.trail = HomeTrail(1)
        self.had = Had()
        self._world = world
        self._draw = draw
        self._record = record
        self._reaches = reaches
        self._since = 0
        self._came = 0
        """When it went to the home it has."""
        self._arrives = 0

    @property
    def strict(self) -> bool:
        """Whether nothing may be lost, nor its modulators begin anew."""
        return self.relocation.events and self.relocation.state

    @property
    def every(self) -> int:
        """Which share of what is selected its modulators let through: every so many-th."""
        counting = (one.n for one in self.specs if isinstance(one, EveryNth))
        return next(counting, 3 if any(isinstance(one, Code) for one in self.specs) else 1)

    def selects(self, context: Context) -> bool:
        """Return whether an event gets as far as the counting modulator."""
        if not self.wanted.matches(context):
            return False
        for one in self.specs:
            if isinstance(one, Select) and not _parsed(one.filter).matches(context):
                return False
            if isinstance(one, WithinBox):
                assert context.point is not None
                x, y = context.point
                if not (one.west <= x <= one.east and one.south <= y <= one.north):
                    return False
        return True

    # --- homes

    def near(self) -> dict[str, float]:
        """Search for brokers: those that can be heard, and how far they are."""
        found = {}
        for host in self._world.hosts.values():
            hops = self._reaches(self.name, host.name) if host.name[0] == "b" else None
            if hops is not None and host.state is HostState.UP:
                found[host.name] = float(hops)
        return found

    def look(self, now: int) -> None:
        """Report what is near; go elsewhere if the home cannot be heard, or does not serve."""
        if self.over:
            return
        near = self.near()
        host = self._world.hosts.get(self.home)
        if host is None or self.home not in near or host.boots != self.boots:
            self.leave()
            if near:
                self.attach(min(near, key=lambda one: (near[one], one)))
            return
        if not (self.served and self.standing) and now > self._since + PATIENCE_US:
            self.attach(self._draw.choice(list(near)))
            return
        self._world.give(host, ReportBrokers(self.name, tuple(near.items())))

    def attach(self, node: str) -> None:
        """Go to a home."""
        world = self._world
        if self.home != node:
            self.leave()
            self._came = world.now
        host = world.hosts[node]
        if host.state is not HostState.UP:
            return
        trail = self.trail.goes_to(node)
        self.home, self.boots = node, host.boots
        self.served = self.standing = False
        self._since = world.now
        world.give(
            host,
            AttachModulated(
                self.trail.attachment.counter, self.name, "owner", self.trail.attachment,
                self.wanted.text, self.specs, self.relocation, self.cursor.pairs,
                self.trail.served, trail, self.weight,
            ),
        )  # fmt: skip

    def leave(self, *, final: bool = False) -> None:
        """End the session; what is on its way is lost."""
        host = self._world.hosts.get(self.home)
        self.home = ""
        if host is not None and host.state is not HostState.DOWN and host.boots == self.boots:
            self._world.give(host, DetachModulated(self.name, self.trail.attachment, final))

    # --- what comes

    def carry(self, host: Host, effect: Effect, now: int) -> None:
        """Bring something from a home to the consumer, in order, if both still hear each other."""
        attachment, boots = self.trail.attachment, host.boots
        if host.name != self.home:
            return
        if isinstance(effect, MoveClient) and effect.reason is HomeReason.SHORTER:
            stayed = now - self._came
            if stayed < DWELL_US:
                raise Violation("nobody flaps", f"{self.name} stayed at {host} for {stayed} us")
        at = max(now + self._draw.randrange(WIRELESS_US), self._arrives)
        self._arrives = at

        def arrive(_: int) -> None:
            here = self.home == host.name and self.trail.attachment == attachment
            if here and self.boots == boots and self._reaches(self.name, host.name) is not None:
                self._arrived(effect)
            elif here:
                self.leave()  # a session is in order and whole, or over

        self._world.kernel.call(at, arrive)

    def _arrived(self, effect: Effect) -> None:
        match effect:
            case ModulatedAttached(ticket, _, continued):
                if ticket == self.trail.attachment.counter:
                    self._attached(continued)
            case Failed():
                self._since = min(self._since, self._world.now - PATIENCE_US + AGAIN_US)
            case _ if self.served:  # what comes before is of an earlier session
                self._learned(effect)

    def _attached(self, continued: bool) -> None:
        self.served = True
        self.trail.served_by(self.home)
        self.had.begins += not continued
        if self.strict and not continued and self.had.begins > 1:
            raise Violation("modulators go on", f"{self.name}'s began anew")

    def _learned(self, effect: Effect) -> None:
        had = self.had
        match effect:
            case EventsStanding(_, vector):
                if self.cursor.standing(effect):
                    raise Violation("no loss", f"{self.name}'s home begins too late: {effect}")
                for origin, position in vector:
                    had.starts.setdefault(origin, position)
                self.standing = True
            case EventsDelivered():
                self._delivered(effect)
            case EventsLost():
                self._lost(effect)
            case ModulatorsAnew(_, reason) | ModulatorsStopped(_, reason):
                if self.strict or isinstance(effect, ModulatorsStopped):
                    raise Violation("modulators go on", f"{self.name}: {reason}")
            case MoveClient(_, to):
                if self._reaches(self.name, to) is not None:
                    self.moves += 1
                    self.attach(to)
            case ServedElsewhere():
                self.leave()

    def _lost(self, effect: EventsLost) -> None:
        if self.cursor.lost(effect):
            self.had.gaps.append(effect)
            if self.relocation.events:
                raise Violation("no loss", f"{self.name} is told of {effect}")

    def _delivered(self, effect: EventsDelivered) -> None:
        if effect.origin not in self.had.starts:
            self.had.starts[effect.origin] = self.cursor.vector.get(effect.origin, effect.after)
        before = dict(self.cursor.vector)
        taken = self.cursor.take(effect)
        if taken.missing:
            raise Violation("no loss", f"{self.name} has a gap before {effect}, at {before}")
        numbers = {event: Position(effect.upto.epoch, at) for at, event in effect.events}
        for event in taken.events:
            self._had(effect.origin, numbers[event], event, before)
        host = self._world.hosts[self.home]
        if self._draw.random() < 0.5 and host.state is HostState.UP:
            confirm = ConfirmModulated(self.name, self.trail.attachment, self.cursor.pairs)
            self._world.give(host, confirm)

    def _had(self, origin: str, at: Position, event: Event, before: dict[str, Position]) -> None:
        had = self.had
        if not self.selects(event.context):
            raise Violation("modulators select", f"{self.name} has {event.context}")
        if (origin, at) in had.taken:
            raise Violation("no duplicate", f"{self.name} has {at} of {origin} again")
        last = max((one for where, one in had.taken if where == origin), default=None)
        if last is not None and at < last:
            raise Violation("FIFO per origin", f"{self.name} has {at} of {origin} after {last}")
        had.taken.append((origin, at))
        if self.strict:
            had.uncounted.append((origin, {**before, origin: at}))
            self._count_on()

    def _count_on(self) -> None:
        """Check that exactly so many events as modulators let in lie before each that came.

        An event whose home fell before it acknowledged it may be in its log, and delivered, before
        the producer asks again: until then the record has too few.
        """
        if self._record.waiting:
            return
        uncounted, self.had.uncounted = self.had.uncounted, []
        for origin, upto in uncounted:
            starts = self.had.starts
            count = sum(len(self.counted(one, upto[one])) for one in upto if one in starts)
            if count % self.every:
                detail = f"{self.name} has {upto[origin]} of {origin} as {count}."
                raise Violation("modulators go on", detail)

    def counted(self, origin: str, upto: Position | None) -> list[Position]:
        """Give the events of an origin that modulators should have counted up to a position."""
        start = self.had.starts[origin]
        found = self._record.facts.get(origin, {})
        return [
            at
            for at, context in found.items()
            if start < at and (upto is None or at <= upto) and self.selects(context)
        ]

    # --- the end

    def lacking(self) -> str:
        """Say what the consumer should have by now; empty if it has everything."""
        if not (self.served and self.standing):
            return "is not served"
        self._count_on()
        owed = told = 0
        for origin in self.had.starts:
            ends = [*self._record.facts.get(origin, ())]
            if ends and self.cursor.vector.get(origin, Position(0, 0)) < max(ends):
                return f"has not come to the end of {origin}'s log"
            counted = self.counted(origin, None)
            gaps = [gap for gap in self.had.gaps if gap.origin == origin]
            lost = [at for at in counted if any(gap.after < at <= gap.upto for gap in gaps)]
            owed += len(counted)
            told += len(lost)
            if self.every == 1:
                missing = set(counted) - set(lost)
                missing -= {at for where, at in self.had.taken if where == origin}
                if missing:
                    return f"lacks {sorted(missing)} of {origin}"
        got, every = len(self.had.taken), self.every
        if self.strict and got != owed // every:
            return f"has {got} of {owed} events, of which every {every}. is wanted"
        # Each new beginning may cost all but one of a round, and so may each gap.
        slack = (every - 1) * (self.had.begins + len(self.had.gaps) + 1)
        if got * every > owed + slack or got * every < owed - told - slack:
            return f"has {got} of {owed} events; {told} were told as lost"
        return ""


def hops_from(beside: Mapping[str, Sequence[str]], source: str) -> dict[str, int]:
    """Count links from a broker to each other one."""
    hops, found = {source: 0}, [source]
    for node in found:  # it grows meanwhile
        for other in beside.get(node, ()):
            if other not in hops:
                hops[other] = hops[node] + 1
                found.append(other)
    return hops


def draw_specs(draw: random.Random) -> tuple[Spec, ...]:
    """Draw modulators: some select, some count, some do both."""
    selecting: list[Spec] = [
        Select("colour <> 'green'"),
        WithinBox(-8, -8, 9, 9),
        Select(),
    ]
    found: list[Spec] = [draw.choice(selecting)] if draw.random() < 0.6 else []
    if draw.random() < 0.7 or not found:
        found.append(EveryNth(draw.choice((2, 3, 5))))
    return tuple(found)
