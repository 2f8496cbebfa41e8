"""The swarm: many seeds on all cores, and the reduction of a failing one (decision 0024).

Seeds are independent, so processes share nothing. Outcomes are read in the order of the seeds, so
the first failure is the same for any number of workers. A share of the seeds is run twice: the
journals must be equal.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from roamcast.sim.scenario import Narrowing, RunOutcome, Scenario, draw_scenario, narrow, play
from roamcast.sim.workload import Make, find_workload

REPEAT_EVERY: Final = 16
"""One seed in this many is run twice, to check that a run depends on nothing but the seed."""

SHRINK_RUNS_MAX: Final = 80
CHUNK: Final = 4

Task = tuple[str, int]
"""(workload, seed)."""


class Failure(msgspec.Struct, frozen=True):
    """A seed that breaks a promise, reduced to what is needed for that."""

    outcome: RunOutcome
    narrowing: Narrowing
    scenario: Scenario
    runs: int

    @property
    def command(self) -> str:
        """Return the command that reproduces it."""
        first = f"roamcast swarm --seed {self.outcome.seed} --only {self.outcome.workload}"
        return f"{first} {self.narrowing.options()}".rstrip()


def run_seed(name: str, make: Make, seed: int) -> RunOutcome:
    """Run one seed, or run it twice and compare if it is one in REPEAT_EVERY."""
    scenario = draw_scenario(name, make, seed)
    outcome = play(scenario, make)
    if seed % REPEAT_EVERY == 0 and not outcome.failed:
        again = play(scenario, make)
        if again.digest != outcome.digest:
            detail = f"one run gave {outcome.digest}, the next {again.digest}"
            return msgspec.structs.replace(outcome, promise="same seed, same run", detail=detail)
    return outcome


def run_swarm(
    names: Sequence[str],
    seeds: range,
    *,
    workers: int,
    make_of: Callable[[str], Make] = find_workload,
) -> Iterator[RunOutcome]:
    """Run every workload under every seed, in order; the caller may stop at any time.

    With more than one worker `make_of` must be importable in a fresh process.
    """
    tasks = ((name, seed) for seed in seeds for name in names)
    if workers <= 1:
        for name, seed in tasks:
            yield run_seed(name, make_of(name), seed)
        return
    # Spawned, not forked (0024): a worker starts clean, with its own hash randomisation.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(_run_task, tasks, chunksize=CHUNK)


def _run_task(task: Task) -> RunOutcome:
    name, seed = task
    return run_seed(name, find_workload(name), seed)


def shrink(outcome: RunOutcome, make: Make) -> Failure:
    """Search for a smaller scenario that breaks the same promise: fewer faults, hosts, seconds."""
    whole = draw_scenario(outcome.workload, make, outcome.seed)
    best = Failure(outcome, Narrowing(), whole, 0)
    improved = True
    while improved and best.runs < SHRINK_RUNS_MAX:
        improved = False
        for narrowing in _smaller(best, make):
            if best.runs >= SHRINK_RUNS_MAX:
                break
            scenario = narrow(whole, narrowing)
            tried = play(scenario, make)
            best = msgspec.structs.replace(best, runs=best.runs + 1)
            if tried.promise == outcome.promise:  # another promise would be another defect
                best = Failure(tried, narrowing, scenario, best.runs)
                improved = True
                break
    return best


def _smaller(failure: Failure, make: Make) -> Iterator[Narrowing]:
    """Yield further narrowings of the best one so far, the boldest first."""
    now = failure.narrowing
    whole = range(len(failure.scenario.faults)) if now.faults is None else now.faults
    faults = tuple(whole)
    half = len(faults) // 2
    fewer = [(), faults[:half], faults[half:]]
    fewer += [faults[:n] + faults[n + 1 :] for n in range(len(faults))]
    for subset in dict.fromkeys(subset for subset in fewer if len(subset) < len(faults)):
        yield msgspec.structs.replace(now, faults=subset)
    if "calm" not in now.settings:
        yield _with(now, "calm", 1)
    for size, (least, _) in make().sizes.items():
        value = failure.scenario.sizes[size]
        for smaller in dict.fromkeys((least, (least + value) // 2, value - 1)):
            if least <= smaller < value:
                yield _with(now, size, smaller)
    duration_ms = failure.scenario.duration_us // 1_000
    for shorter in (duration_ms // 4, duration_ms // 2, duration_ms * 3 // 4):
        if shorter >= 1:
            yield _with(now, "duration_ms", shorter)


def _with(narrowing: Narrowing, name: str, value: int) -> Narrowing:
    return Narrowing(narrowing.faults, {**narrowing.settings, name: value})
