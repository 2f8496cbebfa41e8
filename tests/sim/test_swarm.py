"""The swarm: keeps promises honest, finds machines broken on purpose, narrows failures down."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from roamcast.channels.reliable.messages import Data, HealResponse
from roamcast.channels.reliable.receiver import ChannelReceiver
from roamcast.errors import InputError, LimitError
from roamcast.model.machine import Effect, Input, Received
from roamcast.sim import swarm
from roamcast.sim.scenario import SEED_MAX, Narrowing, draw_scenario, narrow, play
from roamcast.sim.swarm import (
    CHUNK,
    CHUNKS_AHEAD,
    FAILURES_MAX,
    REPEAT_EVERY,
    WORKER_DIED,
    Failure,
    Shard,
    Tally,
    run_seed,
    run_swarm,
    shrink,
)
from roamcast.sim.workload import Make, Workload, find_workload, workload_names
from roamcast.sim.workloads.channel import ChannelWorkload
from roamcast.sim.world import World

SEEDS = 24
"""`make soak` tries ten thousand."""

TRIED_MORE: Final = (
    "broker", "casts", "drains", "filters", "homes", "map", "overlay", "recovery", "relay",
    "roaming", "sessions", "states", "trust",
)  # fmt: skip
"""Workloads of which a file of their own tries these very seeds, and more."""


@pytest.mark.slow
@pytest.mark.parametrize("name", workload_names())
def test_some_seeds_of_everything_keep_every_promise(name: str) -> None:
    for outcome in run_swarm([name], range(2 if name in TRIED_MORE else SEEDS), workers=1):
        assert not outcome.failed, f"{outcome.seed}: {outcome.promise}: {outcome.detail}"


class IgnoresHundredthGap(ChannelReceiver):
    """Broken on purpose: every hundredth gap is never asked for."""

    gaps = 0

    def _notice(self, first: int, last: int, now: int) -> None:
        self.gaps += 1
        if self.gaps % 100:
            super()._notice(first, last, now)


class MixesIncarnations(ChannelReceiver):
    """Broken on purpose: a restarted sender's messages pass for the old sender's."""

    def receive(self, given: Input, now: int) -> list[Effect]:
        if isinstance(given, Received) and isinstance(given.message, Data) and self.incarnation:
            message = msgspec.structs.replace(given.message, incarnation=self.incarnation)
            given = Received(given.sender, message, given.group)
        return list(super().receive(given, now))


class DeliversTwice(ChannelReceiver):
    """Broken on purpose: a healed message that was already there is delivered again."""

    def receive(self, given: Input, now: int) -> list[Effect]:
        effects = list(super().receive(given, now))
        if isinstance(given, Received) and isinstance(given.message, HealResponse) and effects:
            effects.append(effects[0])
        return effects


class Hoards(ChannelReceiver):
    """Broken on purpose: what waits has no bound."""

    def _hold(self, sequence: int, payload: bytes) -> None:
        self._ahead[sequence] = payload
        self._ahead_bytes += len(payload)
        self._missing.pop(sequence, None)


def first_failure(make: Make, seeds: int = 1_000) -> Failure | None:
    for outcome in run_swarm(["channel"], range(seeds), workers=1, make_of=lambda _: make):
        if outcome.failed:
            return shrink(outcome, make)
    return None


def broken(receiver: type[ChannelReceiver]) -> Make:
    return lambda: ChannelWorkload(receiver=receiver)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("receiver", "promise"),
    [
        (IgnoresHundredthGap, "liveness"),
        (MixesIncarnations, "sequence or snapshot"),
        (DeliversTwice, "sequence or snapshot"),
        (Hoards, "bounded state"),
    ],
)
def test_a_machine_broken_on_purpose_is_found_within_a_thousand_seeds(
    receiver: type[ChannelReceiver], promise: str
) -> None:
    failure = first_failure(broken(receiver))
    assert failure is not None
    assert failure.outcome.promise == promise
    assert failure.outcome.tail
    # The seed reproduces it, whole and narrowed down, and the sound machine passes both.
    seed = failure.outcome.seed
    assert run_seed("channel", broken(receiver), seed).promise == promise
    sound = find_workload("channel")
    scenario = narrow(draw_scenario("channel", sound, seed), failure.narrowing)
    assert play(scenario, broken(receiver)) == failure.outcome
    assert not run_seed("channel", sound, seed).failed
    assert not play(scenario, sound).failed
    assert failure.command.startswith(f"roamcast swarm --seed {seed} --only channel")


def test_shrinking_leaves_less_than_the_seed_had() -> None:
    failure = first_failure(broken(DeliversTwice))
    assert failure is not None
    whole = draw_scenario("channel", find_workload("channel"), failure.outcome.seed)
    assert failure.scenario.faults == ()
    assert failure.scenario.sizes["receivers"] == 1
    assert failure.scenario.sizes["messages"] < whole.sizes["messages"]
    assert failure.scenario.duration_us <= whole.duration_us
    assert "--set receivers=1" in failure.command


def digest_in_a_fresh_process(seed: int, hash_seed: str) -> str:
    code = (
        "from roamcast.sim.scenario import *\n"
        "from roamcast.sim.workload import find_workload\n"
        "make = find_workload('channel')\n"
        f"print(play(draw_scenario('channel', make, {seed}), make).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.process
def test_the_same_seed_gives_the_same_digest_across_processes_and_hash_seeds() -> None:
    make = find_workload("channel")
    for seed in (11, 12):
        here = play(draw_scenario("channel", make, seed), make).digest
        assert {digest_in_a_fresh_process(seed, hash_seed) for hash_seed in ("random", "7")} == {
            here
        }


def test_another_seed_gives_another_digest() -> None:
    make = find_workload("channel")
    digests = {play(draw_scenario("channel", make, seed), make).digest for seed in range(20)}
    assert len(digests) == 20


def test_a_run_that_depends_on_more_than_the_seed_is_caught() -> None:
    runs: list[None] = []

    class Moody(ChannelWorkload):
        def start(self, world: World, duration_us: int) -> None:
            runs.append(None)
            super().start(world, duration_us)
            if len(runs) % 2:
                world.kernel.call(0, lambda _: world.pause(world.hosts["server"]))

    assert not run_seed("channel", Moody, REPEAT_EVERY + 1).failed
    assert run_seed("channel", Moody, REPEAT_EVERY).promise == "same seed, same run"


@pytest.mark.slow
def test_outcomes_do_not_depend_on_the_number_of_workers() -> None:
    seeds = range(100, 112)
    alone = list(run_swarm(["channel"], seeds, workers=1))
    together = list(run_swarm(["channel"], seeds, workers=2))
    assert alone == together
    assert [outcome.seed for outcome in alone] == list(seeds)


def failing(raises: Callable[[], None]) -> Make:
    class Failing(ChannelWorkload):
        def check(self, _world: World) -> None:
            raises()

    return Failing


def test_a_failed_assertion_inside_a_machine_is_a_finding() -> None:
    def mistake() -> None:
        raise AssertionError("impossible")

    outcome = run_seed("channel", failing(mistake), 3)
    assert outcome.promise == "own assertion"
    assert outcome.detail.startswith("impossible (test_swarm.py:")


def test_every_exception_is_a_finding_with_its_seed_and_place() -> None:
    def bug() -> None:
        raise ZeroDivisionError("by nothing")

    outcome = run_seed("channel", failing(bug), 3)
    assert (outcome.promise, outcome.seed) == ("raises ZeroDivisionError", 3)
    assert outcome.detail.startswith("by nothing (test_swarm.py:")
    failure = shrink(outcome, failing(bug))
    assert failure.outcome.promise == outcome.promise
    assert failure.command.startswith("roamcast swarm --seed 3 --only channel --set")
    assert failure.scenario.faults == ()


def test_a_failed_measurement_is_a_finding_too() -> None:
    class Unmeasured(ChannelWorkload):
        def metrics(self, _world: World) -> dict[str, float]:
            raise KeyError("delivered")

    assert run_seed("channel", Unmeasured, 3).promise == "raises KeyError"


def dying(name: str) -> Make:
    """A workload that ends its process under seed 5, as running out of memory would."""
    make = find_workload(name)

    class Dying(ChannelWorkload):
        def start(self, world: World, duration_us: int) -> None:
            if world.kernel.seed == 5:
                os._exit(1)
            super().start(world, duration_us)

    return Dying if name == "channel" else make


@pytest.mark.process
def test_a_seed_that_kills_its_process_is_a_finding_and_the_others_go_on() -> None:
    found = list(run_swarm(["channel"], range(12), workers=2, make_of=dying))
    assert [outcome.seed for outcome in found] == list(range(12))
    (dead,) = [outcome for outcome in found if outcome.failed]
    assert (dead.seed, dead.promise) == (5, WORKER_DIED)
    assert shrink(dead, find_workload("channel")).runs == 0  # it would kill this process


def test_shards_are_equal_parts_of_the_seeds() -> None:
    parts = [Shard(number, 3).seeds(10, 11) for number in (1, 2, 3)]
    assert sorted(seed for part in parts for seed in part) == list(range(10, 21))
    assert {len(part) for part in parts} == {3, 4}


def test_a_tally_holds_one_failure_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "SHRINK_RUNS_MAX", 1)  # twenty failures are shrunk here

    def bug() -> None:
        raise ZeroDivisionError

    tally = Tally()
    for outcome in run_swarm(["channel"], range(3), workers=1, make_of=lambda _: failing(bug)):
        tally.add(outcome, failing(bug))
    assert (tally.runs, tally.failed, len(tally.failures)) == (3, 3, 1)
    for number in range(FAILURES_MAX + 5):
        other = msgspec.structs.replace(tally.failures[0].outcome, promise=f"promise {number}")
        tally.add(msgspec.structs.replace(other, seed=1), find_workload("channel"))
    assert len(tally.failures) == FAILURES_MAX


def test_no_more_tasks_are_ahead_of_the_reader_than_the_bound() -> None:
    drawn = 0

    class Seeds:
        def __iter__(self) -> Iterator[int]:
            nonlocal drawn
            for seed in range(10_000):
                drawn += 1
                yield seed

    found = run_swarm(["channel"], Seeds(), workers=2)  # type: ignore[arg-type]
    assert next(found).seed == 0
    found.close()
    assert drawn <= (2 * CHUNKS_AHEAD + 1) * CHUNK + 1


def test_a_scenario_is_drawn_within_its_bounds_and_reaches_both_ends() -> None:
    make = find_workload("channel")
    bounds = make().sizes
    drawn = [draw_scenario("channel", make, seed) for seed in range(400)]
    for size, (least, most) in bounds.items():
        values = [scenario.sizes[size] for scenario in drawn]
        assert min(values) >= least
        assert max(values) <= most
        assert min(values) <= least + (most - least) * 0.05
        assert max(values) >= most * 0.9
    assert max(scenario.qualities[0].loss for scenario in drawn) == 0.3
    assert max(scenario.qualities[0].late for scenario in drawn) == 0.1
    assert {None if one.skew is None else one.skew.offset_us for one in drawn} == {
        *(None, 100_000, 2_000_000, 20_000_000),
    }
    assert {type(fault).__name__ for scenario in drawn for fault in scenario.faults} == {
        "Crash",
        "Pause",
        "Partition",
        "Deafness",
        "Weather",
        "DiskTrouble",
        "ClockStep",
    }


def test_narrowing_says_itself_in_options_and_refuses_what_is_not_there() -> None:
    make = find_workload("channel")
    scenario = draw_scenario("channel", make, 5)
    narrowing = Narrowing((0,), {"receivers": 2, "duration_ms": 50, "calm": 1})
    assert narrowing.options() == "--set receivers=2 --set duration_ms=50 --set calm=1 --faults 0"
    assert Narrowing(()).options() == "--faults none"
    small = narrow(scenario, narrowing)
    assert small.sizes["receivers"] == 2
    assert small.duration_us == 50_000
    assert small.qualities[0].loss == 0
    assert small.faults == scenario.faults[:1]
    for wrong in (Narrowing((99,)), Narrowing(None, {"nothing": 1})):
        with pytest.raises(InputError):
            narrow(scenario, wrong)
    with pytest.raises(LimitError, match="receivers lies between"):
        play(narrow(scenario, Narrowing(None, {"receivers": 10**6})), make)
    with pytest.raises(LimitError, match="duration_ms"):
        narrow(scenario, Narrowing(None, {"duration_ms": 10**6}))


@pytest.mark.parametrize("seed", [-1, SEED_MAX + 1])
def test_a_seed_outside_its_bounds_is_refused(seed: int) -> None:
    with pytest.raises(LimitError):
        draw_scenario("channel", find_workload("channel"), seed)


def test_the_largest_seed_runs() -> None:
    assert not run_seed("channel", find_workload("channel"), SEED_MAX).failed


def test_the_page_has_a_row_for_each_workload() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    _, _, table = page.partition("## The workloads")
    rows = re.findall(r"^\| `(\w+)` \|", table.partition("\n## ")[0], flags=re.MULTILINE)
    assert sorted(rows) == sorted(workload_names())


def test_workloads_are_found_by_name() -> None:
    assert "channel" in workload_names()
    for name in workload_names():
        workload = find_workload(name)()
        assert isinstance(workload, Workload)
        assert workload.name == name
    with pytest.raises(InputError, match="there are: "):
        find_workload("nothing")
