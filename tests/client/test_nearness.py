"""Which broker is near: by answering times and by a program's function, in a time of its own."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from roamcast.client import connect, nearness
from roamcast.client.nearness import BETTER_S, PROBE_S, BrokerSearch, Near
from roamcast.errors import InputError

HERE, THERE, GONE = URLS = ("http://a.example", "http://b.example", "http://c.example")
INFINITE = float("inf")


class OverError(Exception):
    """The time of a test is over."""


class Searched:
    """A search whose time passes when it sleeps, and whose brokers answer as a function says."""

    def __init__(
        self, near: Near, times: Callable[[float], dict[str, float]], until: float
    ) -> None:
        self.now = 0.0
        self.at = HERE
        self.moves: list[tuple[float, str, str]] = []
        self.stays = False
        """Whether moves do not work."""
        self._until = until
        self.search = BrokerSearch(
            near, URLS, current=lambda: self.at, move=self._move, tell=self._tell
        )

        async def asked() -> dict[str, float]:
            return times(self.now)

        self.search._times = asked  # type: ignore[method-assign]

    async def _tell(self, message: dict[str, Any]) -> None:
        raise AssertionError(message)

    async def _move(self, url: str, why: str) -> bool:
        self.moves.append((self.now, url, why))
        if not self.stays:
            self.at = url
        return not self.stays

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self._until:
            raise OverError

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str, str]]:
        loop = SimpleNamespace(time=lambda: self.now)
        there = SimpleNamespace(sleep=self._sleep, get_running_loop=lambda: loop)
        with monkeypatch.context() as patch:
            patch.setattr(nearness, "asyncio", there)
            with pytest.raises(OverError):
                asyncio.run(self.search.run())
        return self.moves


def of(here: float, there: float, gone: float = INFINITE) -> dict[str, float]:
    return {HERE: here, THERE: there, GONE: gone}


def test_a_broker_that_is_a_fifth_better_for_ten_seconds_is_gone_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = Searched("latency", lambda _: of(0.100, 0.079), 60.0)
    assert searched.run(monkeypatch) == [(PROBE_S + BETTER_S, THERE, "latency")]


def test_less_than_a_fifth_better_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Searched("latency", lambda _: of(0.100, 0.081), 60.0).run(monkeypatch) == []


def test_ten_seconds_begin_again_after_one_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(now: float) -> dict[str, float]:
        return of(0.100, 0.200 if now == 10 else 0.050)

    searched = Searched("latency", times, 60.0)
    assert searched.run(monkeypatch) == [(12 + BETTER_S, THERE, "latency")]


def test_of_several_the_nearest_is_gone_to_and_of_two_alike_nobody_goes_to_and_fro(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = Searched("latency", lambda _: of(0.100, 0.050, 0.045), 120.0)
    assert searched.run(monkeypatch) == [(PROBE_S + BETTER_S, GONE, "latency")]


def test_a_move_that_does_not_work_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched("latency", lambda _: of(0.100, 0.050), 17.0)
    searched.stays = True
    assert [at for at, _, _ in searched.run(monkeypatch)] == [12.0, 14.0, 16.0]


def test_a_function_of_all_addresses_and_ones_own_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Sequence[str], str]] = []

    def chosen(urls: Sequence[str], current: str) -> str:
        asked.append((urls, current))
        return THERE if len(asked) >= 3 else current

    searched = Searched(chosen, lambda _: {}, 20.0)
    assert searched.run(monkeypatch) == [(3 * PROBE_S, THERE, "chosen")]
    assert asked[0] == (URLS, HERE)
    assert asked[-1] == (URLS, THERE)


def test_a_way_to_choose_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="near"):
        connect("http://a.example", "token", near="palce")  # type: ignore[arg-type]
