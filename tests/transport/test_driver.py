"""A service's clock follows the wall forward, never goes back and never stands still."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.model.machine import Effect, Input
from roamcast.transport import driver
from roamcast.transport.driver import (
    STEP_US_BELIEVED,
    Driver,
    RemoteClock,
    nothing,
    steady_clock,
    wall_clock,
)

SECOND = 1_000_000
HOUR = 3_600 * SECOND
YEAR = 365 * 24 * HOUR
START = 1_794_800_000 * SECOND


class Times:
    """The clocks of a machine, set by hand."""

    def __init__(self) -> None:
        self.wall_us = START
        self.pace_us = 7 * HOUR

    def time_ns(self) -> int:
        return self.wall_us * 1_000

    def monotonic_ns(self) -> int:
        return self.pace_us * 1_000

    def passes(self, us: int) -> None:
        self.wall_us += us
        self.pace_us += us


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times()
    monkeypatch.setattr(driver, "time", made)
    return made


def test_it_goes_with_the_wall(times: Times) -> None:
    now = wall_clock()
    assert now() == START
    times.passes(SECOND)
    assert now() == START + SECOND


@pytest.mark.parametrize("slept_us", [1, SECOND, STEP_US_BELIEVED])
def test_after_a_short_sleep_it_is_right_at_once(times: Times, slept_us: int) -> None:
    now = wall_clock()
    times.wall_us += slept_us  # the machine's own pace stands still meanwhile
    assert now() == times.wall_us
    times.passes(SECOND)
    assert now() == times.wall_us


def test_after_a_long_sleep_it_is_right_when_the_wall_has_stood_for_a_minute(times: Times) -> None:
    now = wall_clock()
    times.wall_us += 8 * HOUR
    assert now() == START
    times.passes(STEP_US_BELIEVED - 1)
    assert now() == START + STEP_US_BELIEVED - 1
    times.passes(1)
    assert now() == times.wall_us
    times.passes(SECOND)
    assert now() == times.wall_us


def test_a_wall_that_is_a_year_ahead_by_mistake_and_comes_back_changes_nothing(
    times: Times,
) -> None:
    now = wall_clock()
    for _ in range(3):  # each time it is doubted anew
        times.wall_us += YEAR
        now()
        times.passes(STEP_US_BELIEVED - 1)
        now()
        times.wall_us -= YEAR
        times.passes(1)
        assert now() == times.wall_us


def test_a_mistake_that_was_believed_stays_but_the_clock_goes_on(times: Times) -> None:
    now = wall_clock()
    times.wall_us += YEAR
    now()
    times.passes(STEP_US_BELIEVED)
    ahead = now()
    times.wall_us -= YEAR
    for step in range(1, 4):
        times.passes(SECOND)
        assert now() == ahead + step * SECOND


def test_while_the_wall_is_behind_it_runs_on_until_the_wall_is_there(times: Times) -> None:
    now = wall_clock()
    times.wall_us -= 10 * SECOND
    times.passes(SECOND)
    assert now() == START + SECOND
    times.wall_us += 10 * SECOND
    assert now() == times.wall_us
    times.wall_us += SECOND
    assert now() == times.wall_us


def test_a_steady_clock_does_not_mind_what_the_wall_does(times: Times) -> None:
    now = steady_clock()
    for step in (8 * HOUR, -YEAR):
        times.wall_us += step
        assert now() == START + times.pace_us - 7 * HOUR
        times.passes(SECOND)


def test_a_remote_clock_may_be_set_back_once_and_then_only_forward(times: Times) -> None:
    clock = RemoteClock()
    assert clock.now() == START
    clock.follow(START - YEAR)
    assert clock.now() == START - YEAR
    clock.follow(START - 2 * YEAR)
    assert clock.now() == START - YEAR
    clock.follow(START + HOUR)
    times.passes(SECOND)
    assert clock.now() == START + HOUR + SECOND


@given(st.lists(st.tuples(st.integers(0, 3 * HOUR), st.integers(-YEAR, YEAR)), max_size=50))
def test_it_never_goes_back_nor_slower_than_time_passes(steps: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        times = Times()
        patch.setattr(driver, "time", times)
        now = wall_clock()
        before, walls = now(), [times.wall_us]
        for passed_us, set_us in steps:
            times.passes(passed_us)
            times.wall_us += set_us
            walls = [wall + passed_us for wall in walls] + [times.wall_us]
            found = now()
            assert before + passed_us <= found <= max(walls)
            before = found


class Machine:
    """One that is due at once after every input."""

    def __init__(self) -> None:
        self.asked = self.advanced = 0
        self.due: int | None = None

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        self.due = now
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        self.advanced += 1
        self.due = None
        return ()

    def deadline(self) -> int | None:
        self.asked += 1
        return self.due


def test_a_machine_under_load_is_asked_now_and_then_and_still_does_what_is_due() -> None:
    machine, inputs = Machine(), 2_000

    async def load() -> None:
        driver = Driver(machine, clock=wall_clock(), carry=nothing)
        driver.start()
        for _ in range(inputs):
            driver.give(Input())
            await asyncio.sleep(0)  # another turn of the loop
        while machine.due is not None:
            await asyncio.sleep(0)
        driver.close()

    asyncio.run(load())
    assert machine.advanced > 1
    assert machine.asked < inputs / 2
