"""Scenarios: sizes, link quality and faults, drawn from a seed or narrowed down (decision 0024).

A scenario runs in three phases. First users act under faults, with safety checked throughout. Then
everything is healed and users stop. Then every liveness promise must come true.
"""

import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import PurePath

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.journal.book import Journal
from roamcast.sim.checkers import Violation
from roamcast.sim.clocks import Clock, Skew
from roamcast.sim.faults import (
    AnyFault,
    ClockStep,
    draw_faults,
    draw_quality,
    draw_skew,
    schedule,
)
from roamcast.sim.kernel import Kernel, Runaway
from roamcast.sim.network import LinkQuality, QualityOf
from roamcast.sim.shapes import Shape, reach_of
from roamcast.sim.workload import Make
from roamcast.sim.world import World

DURATION_US_MIN, DURATION_US_MAX = 100_000, 6_000_000
SETTLE_STEP_US = 250_000
EVENTS_MAX = 5_000_000
TAIL_LINES = 20
TRACE_LINES = 5
SEED_MAX = 2**63 - 1


class Scenario(msgspec.Struct, frozen=True):
    """Everything that a run depends on besides the code."""

    workload: str
    seed: int
    duration_us: int
    sizes: dict[str, int]
    qualities: tuple[LinkQuality, ...]
    """The quality of most links first, then those of some different ones."""
    faults: tuple[AnyFault, ...]
    shape: Shape = Shape.FLAT
    """The hops between hosts; delay and loss apply to each hop."""
    skew: Skew | None = None
    """How far clocks are off."""


class Narrowing(msgspec.Struct, frozen=True):
    """A reduction of a seed's scenario: which faults remain, which sizes are set."""

    faults: tuple[int, ...] | None = None
    settings: dict[str, int] = {}

    def options(self) -> str:
        """Return the equivalent command line options."""
        said = [f"--set {name}={value}" for name, value in self.settings.items()]
        if self.faults is not None:
            said.append(f"--faults {','.join(map(str, self.faults)) or 'none'}")
        return " ".join(said)


class RunOutcome(msgspec.Struct, frozen=True):
    """The result of a run; `promise` is empty if no promise was broken."""

    workload: str
    seed: int
    digest: str
    events: int
    virtual_us: int
    metrics: dict[str, float]
    promise: str = ""
    detail: str = ""
    tail: list[str] = []

    @property
    def failed(self) -> bool:
        """Return whether a promise was broken."""
        return bool(self.promise)


def draw_scenario(name: str, make: Make, seed: int) -> Scenario:
    """Draw sizes (small ones as likely as large), link quality and faults from the seed."""
    if not 0 <= seed <= SEED_MAX:
        raise LimitError(f"a seed is between 0 and {SEED_MAX}")
    generator = Kernel(seed).generator(f"scenario/{name}")
    workload = make()
    sizes = dict.fromkeys(workload.sizes, 0)

    def draw(size: str) -> None:
        # Logarithmic: most defects show with few hosts, and small runs are fast and easy to read.
        least, most = workload.sizes[size]
        spread = math.log(most + 1) - math.log(least + 1)
        drawn = math.exp(math.log(least + 1) + spread * generator.random()) - 1
        sizes[size] = min(max(round(drawn), least), most)

    for size in workload.sizes:
        if size not in workload.drawn_last:
            draw(size)
    duration = generator.randint(DURATION_US_MIN, DURATION_US_MAX)
    qualities = tuple(draw_quality(generator) for _ in range(generator.choice((1, 1, 2, 4))))
    faults = draw_faults(generator, duration)
    shape = generator.choice((Shape.FLAT, Shape.FLAT, Shape.TREE, Shape.LINE))
    skew = draw_skew(generator)
    for size in workload.sizes:
        if size in workload.drawn_last:
            draw(size)
    return Scenario(name, seed, duration, sizes, qualities, faults, shape, skew)


def narrow(scenario: Scenario, narrowing: Narrowing) -> Scenario:
    """Remove faults and set sizes; also `duration_ms`, `calm` and `right_clocks`.

    `calm`: no loss, hosts one hop apart.
    """
    sizes = dict(scenario.sizes)
    duration, qualities, shape = scenario.duration_us, scenario.qualities, scenario.shape
    skew = scenario.skew
    for name, value in narrowing.settings.items():
        if name == "duration_ms":
            if not 1 <= value <= DURATION_US_MAX // 1_000:
                raise LimitError(f"duration_ms lies between 1 and {DURATION_US_MAX // 1_000}")
            duration = value * 1_000
        elif name == "calm":
            if value:
                qualities, shape = (LinkQuality(),), Shape.FLAT
        elif name == "right_clocks":
            skew = None if value else skew
        elif name in sizes:
            sizes[name] = value
        else:
            known = ", ".join([*sizes, "duration_ms", "calm", "right_clocks"])
            raise InputError(f"there is no setting {name!r}; there are: {known}")
    faults = scenario.faults
    if narrowing.faults is not None:
        if any(not 0 <= number < len(faults) for number in narrowing.faults):
            raise InputError(f"the seed has {len(faults)} faults, numbered from 0")
        faults = tuple(faults[number] for number in narrowing.faults)
    return msgspec.structs.replace(
        scenario,
        duration_us=duration,
        sizes=sizes,
        qualities=qualities,
        shape=shape,
        faults=faults,
        skew=skew,
    )


def check_sizes(bounds: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> None:
    """Raise for sizes outside the workload's bounds."""
    for name, value in sizes.items():
        least, most = bounds[name]
        if not least <= value <= most:
            raise LimitError(f"{name} lies between {least} and {most}")


def play(scenario: Scenario, make: Make, journal: Journal | None = None) -> RunOutcome:
    """Run a scenario to its end or to the first broken promise."""
    workload = make()
    check_sizes(workload.sizes, scenario.sizes)
    quality = scenario.qualities[0]
    world = World(
        scenario.seed,
        workload.registry,
        quality=quality,
        journal=journal,
        user_effects=workload.effects,
    )
    if len(scenario.qualities) > 1:
        world.network.quality_of = _assigned(world.kernel, scenario.qualities)
    world.network.reach = reach_of(scenario.shape, world.kernel)
    if scenario.skew is not None or any(isinstance(one, ClockStep) for one in scenario.faults):
        world.clock_of = _clocks(world.kernel, scenario.skew or Skew(0, 0))
    promise = detail = ""
    events = 0
    metrics: dict[str, float] = {}
    try:
        workload.setup(world, scenario.sizes)
        workload.start(world, scenario.duration_us)
        for fault in scenario.faults:
            if fault.at_us < scenario.duration_us:
                schedule(world, fault)
        events = world.kernel.run(scenario.duration_us, EVENTS_MAX)
        world.mend()
        end = scenario.duration_us + workload.settle_us_max
        while world.now < end:  # stop as soon as it is settled: most runs need a fraction of this
            events += world.kernel.run(world.now + SETTLE_STEP_US, EVENTS_MAX)
            if workload.settled(world):
                break
        workload.check(world)
        metrics = workload.metrics(world)
    except Violation as violation:
        promise, detail = violation.promise, violation.detail
    except Runaway as runaway:
        promise, detail = "bounded work", str(runaway)
    except AssertionError as mistake:  # a machine's own assertion is a finding, with its seed
        promise, detail = "own assertion", f"{str(mistake) or 'assert'} {_where(mistake)}"
    except Exception as error:  # noqa: BLE001 — whatever a run raises is a finding, with its seed
        promise, detail = f"raises {type(error).__name__}", f"{error} {_where(error)}"
    return RunOutcome(
        workload=scenario.workload,
        seed=scenario.seed,
        digest=world.journal.digest(),
        events=events,
        virtual_us=world.now,
        metrics=metrics,
        promise=promise,
        detail=detail,
        tail=world.journal.tail(TAIL_LINES) if promise else [],
    )


def _where(error: Exception) -> str:
    """Name the lines that an exception came through, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[:0:-1]
    lines = [f"{PurePath(one.filename).name}:{one.lineno} {one.name}" for one in frames]
    return f"({', '.join(lines[:TRACE_LINES])})"


def _clocks(kernel: Kernel, skew: Skew) -> Callable[[str], Clock]:
    """Draw each host's clock by its name."""
    return lambda name: skew.clock(kernel.generator(f"clock/{name}"))


def _assigned(kernel: Kernel, qualities: tuple[LinkQuality, ...]) -> QualityOf:
    """Assign the first quality to half of the links and others to the rest, by their names."""

    def choose(source: str, destination: str) -> LinkQuality | None:
        generator = kernel.generator(f"quality/{source}/{destination}")
        return None if generator.random() < 0.5 else generator.choice(qualities[1:])

    return choose
