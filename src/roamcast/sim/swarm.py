"""The swarm: many seeds on all cores, and the reduction of a failing one (decision 0024).

Seeds are independent, so processes share nothing. Outcomes are read in the order of the seeds, so
the first failure is the same for any number of workers. A share of the seeds is run twice: the
journals must be equal. Nothing is collected per seed, so a million seeds need the memory of one.
"""

import ctypes
import gc
import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Final

import msgspec

from roamcast.sim.scenario import Narrowing, RunOutcome, Scenario, draw_scenario, narrow, play
from roamcast.sim.workload import Make, find_workload

REPEAT_EVERY: Final = 16
"""One seed in this many is run twice, to check that a run depends on nothing but the seed."""

SHRINK_RUNS_MAX: Final = 80
CHUNK: Final = 4
"""Seeds that travel to a worker together."""

CHUNKS_AHEAD: Final = 4
"""Chunks per worker that are under way or wait to be read."""

FAILURES_MAX: Final = 20
"""Failures that a `Tally` shrinks and holds: one for each promise of each workload."""

GARBAGE: Final = (20_000, 20, 50)
"""When Python looks for garbage: a run makes a world and drops it, so to look more often is 15 %
of its time and finds nothing."""

MAPPED_BYTES: Final = 128 * 1024
"""Larger blocks go back to the system when they are freed. The C library would raise this by
itself, and the tables of old worlds would leave a gigabyte full of holes."""

_M_MMAP_THRESHOLD: Final = -3
"""Of `mallopt`, in the C library's `malloc.h`."""

WORKER_DIED: Final = "a run leaves its process alive"

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


class Shard(msgspec.Struct, frozen=True):
    """One of several equal parts of the seeds, numbered from 1."""

    number: int = 1
    of: int = 1

    def seeds(self, first: int, count: int) -> range:
        """Return this part's seeds: every `of`-th, so that each part has old and new ones."""
        return range(first + self.number - 1, first + count, self.of)


class Tally:
    """Counts of a swarm and its first failures; its size does not grow with the seeds."""

    def __init__(self) -> None:
        self.runs = 0
        self.failed = 0
        self.totals: dict[str, float] = {"events": 0}
        self.by_workload: dict[str, int] = {}
        self.failures: list[Failure] = []
        self._promises: dict[tuple[str, str], None] = {}

    def add(self, outcome: RunOutcome, make: Make) -> Failure | None:
        """Count an outcome; shrink and return the first failure of its kind."""
        self.runs += 1
        self.by_workload[outcome.workload] = self.by_workload.get(outcome.workload, 0) + 1
        self.totals["events"] += outcome.events
        for name, value in outcome.metrics.items():
            self.totals[name] = self.totals.get(name, 0) + value
        if not outcome.failed:
            return None
        self.failed += 1
        kind = (outcome.workload, outcome.promise)
        if kind in self._promises or len(self.failures) >= FAILURES_MAX:
            return None
        self._promises[kind] = None
        failure = shrink(outcome, make)
        self.failures.append(failure)
        return failure


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
) -> Generator[RunOutcome, None, None]:
    """Run every workload under every seed, in order; the caller may stop at any time.

    With more than one worker `make_of` must be importable in a fresh process.
    """
    tasks = ((name, seed) for seed in seeds for name in names)
    if workers <= 1:
        before = gc.get_threshold()
        _tend_memory()
        try:
            for name, seed in tasks:
                yield run_seed(name, make_of(name), seed)
        finally:
            gc.set_threshold(*before)
        return
    pool = _Pool(workers, make_of)
    try:
        yield from pool.run(tasks)
    finally:
        pool.close()


class _Pool:
    """Workers that run chunks of tasks; outcomes come in the order of the tasks."""

    def __init__(self, workers: int, make_of: Callable[[str], Make]) -> None:
        self._workers = workers
        self._make_of = make_of
        self._pool = self._fresh(workers)

    def _fresh(self, workers: int) -> ProcessPoolExecutor:
        # Spawned, not forked (0024): a worker starts clean, with its own hash randomisation.
        return ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_tend_memory,
        )

    def run(self, tasks: Iterator[Task]) -> Iterator[RunOutcome]:
        """Yield the outcome of each task; a bounded number of them is ahead of the reader."""
        ahead: deque[tuple[list[Task], Future[list[RunOutcome]] | None]] = deque()
        while True:
            while len(ahead) < self._workers * CHUNKS_AHEAD:
                chunk = list(islice(tasks, CHUNK))
                if not chunk:
                    break
                ahead.append((chunk, self._submit(chunk)))
            if not ahead:
                return
            chunk, future = ahead.popleft()
            try:
                if future is None:
                    raise BrokenProcessPool
                outcomes = future.result()
            except BrokenProcessPool:
                # Whichever chunk killed its worker, each of them is run again: this one alone.
                outcomes = [self._run_alone(task) for task in chunk]
                self.close()
                self._pool = self._fresh(self._workers)
                ahead = deque((waiting, self._submit(waiting)) for waiting, _ in ahead)
            yield from outcomes

    def _submit(self, chunk: list[Task]) -> Future[list[RunOutcome]] | None:
        """Hand a chunk to a worker; None if one of them has died since."""
        try:
            return self._pool.submit(_run_chunk, chunk, self._make_of)
        except BrokenProcessPool:
            return None

    def _run_alone(self, task: Task) -> RunOutcome:
        """Run one task in a process of its own, which it may kill."""
        with self._fresh(1) as pool:
            try:
                return pool.submit(_run_chunk, [task], self._make_of).result()[0]
            except BrokenProcessPool:
                name, seed = task
                detail = "the worker process died: out of memory, or a crash in native code"
                return RunOutcome(name, seed, "", 0, 0, {}, WORKER_DIED, detail)

    def close(self) -> None:
        """End the workers after what they are running now."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _tend_memory() -> None:
    """Let this process hold little more than the world that it runs."""
    gc.set_threshold(*GARBAGE)
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # not every C library has it
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def _run_chunk(chunk: list[Task], make_of: Callable[[str], Make]) -> list[RunOutcome]:
    return [run_seed(name, make_of(name), seed) for name, seed in chunk]


def shrink(outcome: RunOutcome, make: Make) -> Failure:
    """Search for a smaller scenario that breaks the same promise: fewer faults, hosts, seconds."""
    whole = draw_scenario(outcome.workload, make, outcome.seed)
    best = Failure(outcome, Narrowing(), whole, 0)
    improved = outcome.promise != WORKER_DIED  # it would kill this process, too
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
    if failure.scenario.skew is not None:
        yield _with(now, "right_clocks", 1)
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
