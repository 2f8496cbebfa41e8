"""The drains workload keeps its promises, and finds what is planted in desks and drains."""

from typing import Any

import pytest

from roamcast.model.machine import Effect
from roamcast.overlay.consumers.desk import EventDesk
from roamcast.overlay.consumers.drain import Drain
from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.drains import DrainsWorkload
from tests.planting import planted

SEEDS = 1_000


def found(first: int) -> str:
    """Give the first broken promise; `first` saves the seeds before the one that shows it."""
    for seed in range(first, SEEDS):
        outcome = play(draw_scenario("drains", DrainsWorkload, seed), DrainsWorkload)
        if outcome.failed:
            return outcome.promise
    raise AssertionError(f"{SEEDS} seeds did not find it")


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_keeps_every_promise(seed: int) -> None:
    outcome = play(draw_scenario("drains", DrainsWorkload, seed), DrainsWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)


def test_two_homes_that_send_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 23: each holds the limit, and together they do not."""
    monkeypatch.setattr(EventDesk, "_hold", lambda *_: None)
    assert found(FIRST["two homes"]) == "limits hold in every second of a move"


def test_a_home_that_forgets_what_it_sent_itself_is_found() -> None:
    """A client goes and comes back within a second, and where it was meanwhile knows nothing."""
    where = "roamcast.channels.spread.streams:Ledger.adopt"
    forgets = "self._assumed, self._total = None, 0; self._entries.clear()"
    with planted(where, "self._assumed = None", forgets):
        assert found(FIRST["forgets"]) == "limits hold in every second of a move"


def test_a_window_that_stays_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 23: the old home has stopped, and what it sent is forgotten."""
    monkeypatch.setattr(EventDesk, "spent", lambda *_: ())
    monkeypatch.setattr(EventDesk, "_hold", forgetful(EventDesk._hold))
    assert found(FIRST["window"]) == "limits hold in every second of a move"


def forgetful(real: Any) -> Any:
    def hold(self: EventDesk, session: str, name: str, ledger: Any, now: int) -> None:
        real(self, session, name, ledger, now)
        ledger.adopt(now, ())

    return hold


def test_a_drain_that_tells_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Drain, session: str, now: int) -> list[Effect]:
        del now
        self._next.pop(session, None)
        return []

    monkeypatch.setattr(Drain, "_look", silent)
    assert found(FIRST["silent drain"]) == "a drain hands everybody over"


def test_frames_that_a_slow_session_loses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = EventDesk._pump

    def leaking(self: EventDesk, name: str, now: int) -> list[Effect]:
        waiting = self._waiting.get(name)
        effects = real(self, name, now)
        if waiting is not None and len(waiting.frames) > 3:
            waiting.bytes -= len(waiting.frames.pop()[0])
        return effects

    monkeypatch.setattr(EventDesk, "_pump", leaking)
    assert found(FIRST["lost frames"])


FIRST = {"two homes": 36, "window": 36, "forgets": 270, "silent drain": 0, "lost frames": 15}
"""The seed that shows each, so that a test need not run those before it."""
