"""The kernel: order by (time, priority, sequence), timers, split generators, bounded runs."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.model.machine import Effect
from roamcast.sim.kernel import BUCKET_MAX, FAULT, HEAP_MAX, INPUT, NEVER, Kernel, Runaway


class Beat(Effect, frozen=True):
    number: int


class LoudBeat(Beat, frozen=True):
    pass


class Ticker:
    """Fires at the given times and notes when; an input moves the next time."""

    def __init__(self, times: Sequence[int]) -> None:
        self.wake = NEVER
        self.times = sorted(times, reverse=True)
        self.fired: list[int] = []
        self.heard: list[tuple[int, object]] = []
        self.loud = False

    def receive(self, given: object, now: int) -> Sequence[Effect]:
        self.heard.append((now, given))
        if isinstance(given, int):
            self.times = [given]
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        if not self.times or now < self.times[-1]:
            return ()
        while self.times and self.times[-1] <= now:
            self.times.pop()
        self.fired.append(now)
        return (LoudBeat(now) if self.loud else Beat(now),)

    def deadline(self) -> int | None:
        return self.times[-1] if self.times else None


schedules = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 5)), max_size=60
)


@given(schedules, st.sampled_from([1, 1_000, 1_000_003]), st.integers(0, 4))
def test_actions_come_in_the_order_of_time_priority_and_sequence(
    schedule: list[tuple[int, int, int]], scale: int, crowd: int
) -> None:
    """Each action schedules others meanwhile; a plain sorted list is the oracle."""
    kernel = Kernel(1)
    for filler in range(crowd * HEAP_MAX):
        kernel.call(filler * scale // 7, lambda _: None)
    seen: list[tuple[int, int, int]] = []
    expected: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int, int, int]] = []
    numbers = iter(range(10**6))

    def plan(delay: int, priority: int, more: int) -> None:
        number = next(numbers)
        at = kernel.now + delay * scale

        def act(now: int) -> None:
            seen.append((now, priority, number))
            for again in range(more):
                plan(again, priority, 0)

        kernel.call(at, act, priority)

    for delay, priority, more in schedule:
        plan(delay, priority, more)
    kernel.run(60 * scale * 10)

    numbers = iter(range(10**6))
    for delay, priority, more in schedule:
        waiting.append((delay * scale, priority, next(numbers), more))
    while waiting:
        waiting.sort()
        at, priority, number, more = waiting.pop(0)
        expected.append((at, priority, number))
        waiting += [(at + again * scale, priority, next(numbers), 0) for again in range(more)]
    assert seen == expected


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 2**32))
def test_timers_fire_exactly_when_they_are_due(tickers: int, beats: int, seed: int) -> None:
    generator = random.Random(seed)
    spread = generator.choice((100, 10_000, 10_000_000))
    kernel = Kernel(seed)
    kernel.on(Beat, lambda _target, _effect: None)
    plans = [sorted({generator.randrange(1, spread) for _ in range(beats)}) for _ in range(tickers)]
    machines = [Ticker(plan) for plan in plans]
    for machine in machines:
        kernel.arm(machine)
    kernel.run(spread)
    assert [machine.fired for machine in machines] == plans


@pytest.mark.slow
def test_a_hundred_thousand_timers_fire_in_order() -> None:
    generator = random.Random(5)
    kernel = Kernel(5)
    order: list[int] = []
    kernel.on(Beat, lambda _target, _effect: order.append(_effect.number))
    times = [generator.randrange(1, 10**7) for _ in range(100_000)]
    for time in times:
        kernel.arm(Ticker([time]))
    kernel.run(10**7)
    assert order == sorted(times)
    assert kernel.waiting() == 0


@pytest.mark.parametrize("crowd", [0, 2 * HEAP_MAX])
def test_a_deadline_moved_earlier_fires_earlier_and_one_moved_later_fires_later(crowd: int) -> None:
    kernel = Kernel(1)
    kernel.on(Effect, lambda _target, _effect: None)
    for filler in range(crowd):
        kernel.call(filler, lambda _: None)
    earlier, later, never = Ticker([100]), Ticker([100]), Ticker([100])
    for machine in (earlier, later, never):
        kernel.arm(machine)
    kernel.give(10, earlier, 50)
    kernel.give(10, later, 150)
    kernel.give(10, never, 10**9)
    kernel.run(1_000)
    assert (earlier.fired, later.fired, never.fired) == ([50], [150], [])


def test_a_deadline_already_past_fires_at_once() -> None:
    kernel = Kernel(1)
    kernel.on(Effect, lambda _target, _effect: None)
    machine = Ticker([])
    kernel.give(100, machine, 7)
    kernel.run(1_000)
    assert machine.fired == [100]


def test_at_one_instant_faults_come_before_inputs_and_inputs_before_timers() -> None:
    kernel = Kernel(1)
    order: list[str] = []
    kernel.on(Effect, lambda _target, _effect: order.append("timer"))
    kernel.arm(Ticker([10]))
    kernel.call(10, lambda _: order.append("input"), INPUT)
    kernel.call(10, lambda _: order.append("fault"), FAULT)
    kernel.run(10)
    assert order == ["fault", "input", "timer"]


def test_a_run_includes_its_last_instant_and_can_be_continued() -> None:
    kernel = Kernel(1)
    seen: list[int] = []
    for time in (1, 5, 6, 9):
        kernel.call(time, seen.append)
    kernel.run(5)
    assert (seen, kernel.now) == ([1, 5], 5)
    kernel.run(20)
    assert (seen, kernel.now) == ([1, 5, 6, 9], 20)


def test_an_effect_is_performed_by_its_own_handler_or_its_nearest_bases() -> None:
    kernel = Kernel(1)
    seen: list[str] = []
    kernel.on(Effect, lambda _target, _effect: seen.append("any"))
    kernel.on(Beat, lambda _target, _effect: seen.append("beat"))
    machine = Ticker([1])
    machine.loud = True
    kernel.arm(machine)
    kernel.run(1)
    kernel.perform(machine, [Effect()])
    assert seen == ["beat", "any"]


def test_a_generator_depends_on_the_seed_and_the_name_alone() -> None:
    def draws(seed: int, name: str) -> list[float]:
        generator = Kernel(seed).generator(name)
        return [generator.random() for _ in range(5)]

    kernel = Kernel(3)
    kernel.generator("someone else").random()
    assert kernel.generator("a").random() == draws(3, "a")[0]
    assert draws(3, "a") == draws(3, "a")
    assert draws(3, "a") != draws(3, "b")
    assert draws(3, "a") != draws(4, "a")


def test_a_run_that_never_ends_is_stopped_at_its_bound() -> None:
    kernel = Kernel(1)

    def again(now: int) -> None:
        kernel.call(now, again)

    kernel.call(0, again)
    with pytest.raises(Runaway):
        kernel.run(10, events_max=1_000)


def test_a_run_at_its_bound_of_events_is_not_stopped() -> None:
    kernel = Kernel(1)
    ran: list[int] = []

    def again(now: int) -> None:
        ran.append(now)
        if len(ran) < 900:
            kernel.call(now, again)

    kernel.call(0, again)
    kernel.run(10, events_max=1_000)
    assert len(ran) == 900


def test_a_machine_that_does_not_move_past_its_deadline_is_our_own_mistake() -> None:
    class Stuck(Ticker):
        def advance(self, _now: int) -> Sequence[Effect]:
            return ()

    kernel = Kernel(1)
    kernel.arm(Stuck([5]))
    with pytest.raises(AssertionError):
        kernel.run(10)


def test_the_past_cannot_be_scheduled() -> None:
    kernel = Kernel(1)
    kernel.run(10)
    with pytest.raises(AssertionError):
        kernel.call(9, lambda _: None)


@pytest.mark.parametrize("spread", [1, 1_000, 10**9])
def test_many_events_at_few_or_many_instants_keep_their_order(spread: int) -> None:
    """Dense and sparse queues cross every rearrangement of the buckets, up and down."""
    generator = random.Random(spread)
    kernel = Kernel(1)
    seen: list[tuple[int, int]] = []
    times = [generator.randrange(spread) for _ in range(20 * BUCKET_MAX)]
    for number, time in enumerate(times):
        kernel.call(time, lambda now, number=number: seen.append((now, number)))  # type: ignore[misc]
    kernel.run(spread)
    for number in range(300):  # now few are left: back to a heap
        kernel.call(spread + number * spread, lambda now: seen.append((now, -1)))
    kernel.run(spread * 400)
    expected = sorted((time, number) for number, time in enumerate(times))
    assert seen[: len(times)] == expected
    assert len(seen) == len(times) + 300
    assert seen == sorted(seen, key=lambda entry: entry[0])
