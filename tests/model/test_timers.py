"""Timers by key: each fires once, at its latest setting, by the handler of its kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.model.machine import Effect, Listen
from roamcast.model.parts import PartTimers, Timer, Timers, TimerTable


class Wake(Timer, frozen=True):
    name: str


class Sleep(Timer, frozen=True):
    name: str


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=60))
def test_timers_fire_each_key_once_at_its_latest_setting(settings: list[tuple[int, int]]) -> None:
    timers: Timers[int] = Timers()
    expected = {}
    for key, time in settings:
        timers.set(key, time)
        expected[key] = time
    assert timers.deadline() == min(expected.values(), default=None)
    assert sorted(timers.due(25)) == sorted(key for key, time in expected.items() if time <= 25)
    assert len(timers) == sum(time > 25 for time in expected.values())


def test_timers_that_were_moved_are_discarded_before_they_pile_up() -> None:
    timers: Timers[str] = Timers()
    for time in range(10_000, 0, -1):
        timers.set("moved", time)
        assert len(timers._heap) <= 4 * len(timers) + 64
    assert list(timers.due(10_000)) == ["moved"]


def test_the_kind_of_a_timer_selects_its_handler() -> None:
    table = TimerTable()
    fired: list[Timer] = []
    table.handle(Wake, fired.append)
    table.handle(Sleep, lambda timer: table.set(Wake(timer.name), 5))
    table.set(Sleep("a"), 3)
    table.set(Wake("b"), 9)
    table.fire(7)
    assert fired == [Wake("a")]  # what a handler sets for now fires, too
    assert len(table) == 1


def test_timers_of_two_kinds_with_equal_fields_are_two_timers() -> None:
    table = TimerTable()
    table.set(Wake("a"), 1)
    table.set(Sleep("a"), 2)
    table.cancel(Wake("a"))
    assert list(table.due(9)) == [Sleep("a")]


def test_a_kind_without_a_handler_is_an_assertion() -> None:
    table = TimerTable()
    table.set(Wake("a"), 1)
    with pytest.raises(AssertionError, match="no handler"):
        table.fire(1)


def test_a_parts_timers_give_what_follows_and_fire_nothing_that_they_set_for_now() -> None:
    def sleep(timer: Sleep, now: int) -> list[Effect]:
        table.set(Wake(timer.name), now)
        return [Listen(f"{timer.name} at {now}")]

    table = PartTimers({Wake: lambda timer, _: [Listen(timer.name)], Sleep: sleep})
    table.set(Sleep("a"), 3)
    table.set(Wake("b"), 3)
    assert table.fire(2) == []
    assert table.fire(7) == [Listen("a at 7"), Listen("b")]
    assert table.fire(7) == [Listen("a")]
    assert not table.times


def test_a_parts_timer_without_a_handler_is_an_assertion() -> None:
    table = PartTimers({})
    table.set(Wake("a"), 1)
    with pytest.raises(AssertionError, match="no handler"):
        table.fire(1)
