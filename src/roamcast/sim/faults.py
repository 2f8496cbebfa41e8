"""What goes wrong, when and for how long? Faults as values, so that fewer of them can be tried.

A fault names its hosts by number, and numbers wrap around the hosts there are, so that a smaller
world can still show the same failure. Host 0 is the one that a workload's others depend on.
"""

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from roamcast.sim.clocks import Clock, Skew
from roamcast.sim.host import Host
from roamcast.sim.network import Deaf, LinkQuality, NetworkCut
from roamcast.sim.storage import DiskState
from roamcast.sim.world import World

FAULTS_MAX: Final = 12
NUMBERS: Final = 1_000_000


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Something that happens at a time and ends after a while."""

    at_us: int
    lasts_us: int


class Crash(Fault, frozen=True):
    """A host stops at once and boots again afterwards."""

    host: int


class Pause(Fault, frozen=True):
    """A host stands still, then finds everything that has waited."""

    host: int


class Partition(Fault, frozen=True):
    """Every so many-th host is cut off from the others; in one direction or in both."""

    every: int
    offset: int
    inwards: bool = True
    outwards: bool = True


class Deafness(Fault, frozen=True):
    """Every so many-th host misses what is sent to groups; what is sent to it alone passes.

    So it is where switches prune multicast, or a wireless link carries it without repeating.
    """

    every: int
    offset: int
    loss: float


class Weather(Fault, frozen=True):
    """Every link without a quality of its own gets worse."""

    quality: LinkQuality


class DiskTrouble(Fault, frozen=True):
    """A host's disk refuses writes, syncs nothing, or is full."""

    host: int
    state: DiskState


class ClockStep(Fault, frozen=True):
    """A host reboots, and its clock shows an earlier or a later time than it would have."""

    host: int
    step_us: int


AnyFault = Crash | Pause | Partition | Deafness | Weather | DiskTrouble | ClockStep
_KINDS: Final = (Crash, Pause, Partition, Deafness, Weather, DiskTrouble, ClockStep)
STEPS_US: Final = (-20_000_000, -5_000_000, -1_000_000, -10_000, 10_000, 2_000_000, 20_000_000)


def draw_faults(generator: random.Random, duration_us: int) -> tuple[AnyFault, ...]:
    """Draw up to FAULTS_MAX faults that begin and end within the duration."""
    count = generator.choice((0, 1, 2, 3, 5, 8, FAULTS_MAX))
    faults: list[AnyFault] = []
    for _ in range(count):
        at = generator.randrange(duration_us)
        lasts = 1 + int((duration_us - at - 1) * generator.random() ** 2)
        host = generator.choice((0, generator.randrange(NUMBERS), generator.randrange(NUMBERS)))
        kind = generator.choice(_KINDS)
        if kind is Crash or kind is Pause:
            faults.append(kind(at, lasts, host))
        elif kind is Partition:
            every = generator.choice((2, 3, NUMBERS))  # half, a third, or one host alone
            inwards, outwards = generator.choice(((True, True), (True, False), (False, True)))
            faults.append(Partition(at, lasts, every, host, inwards, outwards))
        elif kind is Deafness:
            every = generator.choice((1, 2, NUMBERS))  # everybody, half, or one host alone
            faults.append(Deafness(at, lasts, every, host, generator.choice((0.5, 1.0, 1.0))))
        elif kind is DiskTrouble:
            trouble = (DiskState.FAILING, DiskState.STALLED, DiskState.FULL)
            faults.append(DiskTrouble(at, lasts, host, generator.choice(trouble)))
        elif kind is ClockStep:
            faults.append(ClockStep(at, lasts, host, generator.choice(STEPS_US)))
        else:
            faults.append(Weather(at, lasts, draw_quality(generator)))
    return tuple(sorted(faults, key=lambda fault: fault.at_us))


def draw_quality(generator: random.Random) -> LinkQuality:
    """Draw what links do: loss up to 30 %, duplication, reordering, delays up to 10 ms."""
    choose = generator.choice
    return LinkQuality(
        delay_us=choose((100, 1_000, 5_000, 10_000)),
        jitter_us=choose((0, 0, 1_000, 10_000)),
        bandwidth_bps=choose((0, 0, 10_000_000)),
        loss=choose((0.0, 0.01, 0.05, 0.1, 0.2, 0.3)),
        duplicate=choose((0.0, 0.0, 0.05, 0.2)),
        reorder=choose((0.0, 0.0, 0.05, 0.3)),
        truncate=choose((0.0, 0.0, 0.0, 0.02)),
        late=choose((0.0, 0.0, 0.02, 0.1)),
    )


def draw_skew(generator: random.Random) -> Skew | None:
    """Draw how far clocks are off: not at all, within a network, badly set, running badly."""
    return generator.choice(
        (None, None, Skew(100_000, 200), Skew(20_000_000, 200), Skew(2_000_000, 20_000))
    )


def schedule(world: World, fault: AnyFault) -> None:
    """Arrange for a fault to begin and to end."""
    names = list(world.hosts)
    call, begins, ends = world.kernel.call, fault.at_us, fault.at_us + fault.lasts_us

    def chosen(number: int) -> Host:
        return world.hosts[names[number % len(names)]]

    if isinstance(fault, Crash):
        host = chosen(fault.host)
        call(begins, lambda _: world.crash(host))
        call(ends, lambda _: world.restart(host))
    elif isinstance(fault, ClockStep):
        host = chosen(fault.host)
        call(begins, lambda _: _step(world, host, fault.step_us))
        call(ends, lambda _: world.restart(host))
    elif isinstance(fault, Pause):
        host = chosen(fault.host)
        call(begins, lambda _: world.pause(host))
        call(ends, lambda _: world.resume(host))
    elif isinstance(fault, DiskTrouble):
        host, state = chosen(fault.host), fault.state
        call(begins, lambda _: setattr(host.disk, "state", state))
        call(ends, lambda _: setattr(host.disk, "state", DiskState.WELL))
    elif isinstance(fault, Deafness):
        deaf = Deaf(_every(names, fault.every, fault.offset), fault.loss)
        call(begins, lambda _: world.network.deafen(deaf))
        call(ends, lambda _: world.network.undeafen(deaf))
    elif isinstance(fault, Partition):
        apart = _every(names, fault.every, fault.offset)
        cut = NetworkCut(apart, inwards=fault.inwards, outwards=fault.outwards)
        call(begins, lambda _: world.network.cut(cut))
        call(ends, lambda _: world.network.mend(cut))
    else:
        fair = world.network.quality

        def worsen(_: int) -> None:
            world.network.quality = fault.quality

        def clear(_: int) -> None:
            world.network.quality = fair

        call(begins, worsen)
        call(ends, clear)


def _step(world: World, host: Host, step_us: int) -> None:
    """Crash a host whose clock shows another time when it boots again."""
    world.crash(host)
    host.clock = (host.clock or Clock()).stepped(step_us)


def _every(names: Sequence[str], every: int, offset: int) -> frozenset[str]:
    """Choose every so many-th host, beginning with some one of the first."""
    offset %= min(every, len(names))
    return frozenset(name for number, name in enumerate(names) if number % every == offset)
