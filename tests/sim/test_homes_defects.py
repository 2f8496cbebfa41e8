"""Deliberate defects of homes and relocation: the swarm finds each."""

from typing import Any

import pytest

from roamcast.overlay.homes.adaptors import TopologyAdaptor
from roamcast.overlay.homes.managers import ClientRecord, ResourceMonitor
from roamcast.overlay.homes.relocation import ModulatedConsumer, Saved
from roamcast.overlay.homes.serving import Serving
from roamcast.overlay.homes.working import ServingLeaseDue
from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.homes import HomesWorkload
from tests.planting import planted

pytestmark = pytest.mark.slow
SEEDS = 1_000


def found(first: int = 0) -> str:
    """Give the first broken promise; `first` saves the seeds before the one that shows it."""
    for seed in range(first, SEEDS):
        outcome = play(draw_scenario("homes", HomesWorkload, seed), HomesWorkload)
        if outcome.failed:
            return outcome.promise
    raise AssertionError(f"{SEEDS} seeds did not find it")


def test_a_state_that_is_taken_after_its_vector_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 24: modulators move while events flow."""

    def late(self: ModulatedConsumer, checkpoint: Any) -> None:
        self.base, self._steps = Saved(self.base.vector, checkpoint), []

    monkeypatch.setattr(ModulatedConsumer, "freeze", late)
    assert found(FIRST["state"]) in ("modulators go on", "no loss", "no duplicate")


def test_a_herd_that_everybody_lets_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 25: no admission."""
    monkeypatch.setattr(ResourceMonitor, "admits", lambda *_: True)
    assert found(FIRST["herd"]) in ("loads return below the threshold", "nobody flaps")


def test_a_replay_in_any_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModulatedConsumer.begin

    def careless(self: ModulatedConsumer, saved: Any, had: Any) -> None:
        real(self, saved, had)
        self.script.clear()
        self._steps.clear()

    monkeypatch.setattr(ModulatedConsumer, "begin", careless)
    assert found(FIRST["order"]) in ("modulators go on", "no loss", "no duplicate")


def test_a_checkpoint_that_is_trusted_before_it_is_confirmed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModulatedConsumer, "_has", lambda *_: True)
    assert found(FIRST["unconfirmed"]) in ("modulators go on", "no loss")


def test_a_former_home_that_forgets_where_a_state_went_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Serving, "_was_given", lambda *_: None)
    assert found(FIRST["forgets"]) == "modulators go on"


def test_an_attachment_that_claims_do_not_compare_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Serving._claimed

    def any_claim(self: Serving, claim: Any, now: int) -> Any:
        served = self.served.get(claim.consumer)
        if served is not None:
            served.attachment = type(served.attachment)(0, 0)
        return real(self, claim, now)

    monkeypatch.setattr(Serving, "_claimed", any_claim)
    assert found(FIRST["attachment"]) in (
        "modulators go on", "no loss", "nothing is held at rest", "liveness",
    )  # fmt: skip


def test_answers_that_go_out_before_their_steps_are_on_disk_are_found() -> None:
    """After a crash nobody knows in which order events of several logs were taken."""
    where = "roamcast.overlay.homes.working:ServingWork._worked"
    early = "return [*self._release(served), *self._store(served)]"
    with planted(where, "return self._store(served)", early):
        assert found(FIRST["early"]) in ("modulators go on", "no loss")


def test_a_home_that_answers_for_what_is_not_on_its_disk_is_found() -> None:
    where = "roamcast.overlay.homes.working:ServingWork._answer_for"
    early = "return [*self._store(served), *self._serve(served)]"
    with planted(where, "return self._store(served)", early):
        assert found(FIRST["answers"]) == "modulators go on"


def test_a_record_without_the_origins_that_only_the_end_knows_is_found() -> None:
    """A home falls after it met an origin; the next script of it begins where nobody knows."""
    where = "roamcast.overlay.homes.relocation:ModulatedConsumer.begin"
    joined = "base = msgspec.structs.replace(base, vector=pairs(vector))"
    with planted(where, joined, "base = base if saved else Saved(pairs(vector))"):
        assert found(FIRST["origins"]) == "no loss"


def test_origins_of_which_an_end_is_never_told_again_are_found() -> None:
    """An end confirms what it knows, and modulators wait for it without an end."""
    where = "roamcast.overlay.homes.working:ServingWork._stand"
    with planted(where, "if unknown", "if False"):
        assert found(FIRST["unknown"]) == "no loss"


def test_path_lengths_that_only_another_tree_renews_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A link that fails for a moment leaves the tree as it was, and a broker out of reach."""
    real = TopologyAdaptor.process

    def renewing(self: TopologyAdaptor, event: Any, known: Any, now: int) -> Any:
        known.brokers._hops_of = None
        return real(self, event, known, now)

    monkeypatch.setattr(TopologyAdaptor, "process", renewing)
    where = "roamcast.overlay.homes.managers:BrokerManager.before"
    with planted(where, "counted[0] is not graph", "False"):
        assert found(FIRST["paths"]) == "nobody flaps"


def test_a_home_that_takes_its_own_battery_for_full_is_found() -> None:
    where = "roamcast.overlay.homes.adaptors:Knowledge._candidate"
    with planted(where, "battery=self.monitor.battery", "battery=1.0"):
        assert found(FIRST["battery"]) == "work is where it is cheapest"


def test_asking_only_the_best_broker_though_it_has_no_room_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientRecord, "is_refused", lambda *_: False)
    assert found(FIRST["refused"]) == "work is where it is cheapest"


def test_a_share_of_bytes_that_is_forgotten_on_a_move_is_found() -> None:
    """At its new home nothing has gone through its modulators yet: it would go back."""
    where = "roamcast.overlay.homes.homes:Homes._add"
    kept = "client.passed = asked.passed if given.passed is None else given.passed"
    with planted(where, kept, "pass"):
        assert found(FIRST["share"]) == "nobody flaps"


def test_what_a_light_move_skips_untold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModulatedConsumer.stands

    def silent(self: ModulatedConsumer, start: Any) -> Any:
        real(self, start)
        return []

    monkeypatch.setattr(ModulatedConsumer, "stands", silent)
    assert found(FIRST["untold"]) == "no loss"


def test_a_lease_without_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Serving.advance

    def endless(self: Serving, now: int) -> Any:
        leases = [key for key in self.timers.times if isinstance(key, ServingLeaseDue)]
        for key in leases:
            self.timers.cancel(key)
        return real(self, now)

    monkeypatch.setattr(Serving, "advance", endless)
    assert found(FIRST["lease"]) == "nothing is held at rest"


def test_room_that_stays_promised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResourceMonitor, "expire", lambda *_: None)
    monkeypatch.setattr(ResourceMonitor, "deadline", lambda _: None)
    assert found(FIRST["room"]) in ("nothing is held at rest", "loads return below the threshold")


FIRST = {
    "state": 1,
    "herd": 2,
    "order": 10,
    "unconfirmed": 10,
    "forgets": 10,
    "attachment": 0,
    "early": 151,
    "answers": 70,
    "origins": 104,
    "unknown": 532,
    "paths": 263,
    "battery": 86,
    "refused": 2,
    "share": 65,
    "untold": 9,
    "lease": 36,
    "room": 5,
}
"""The seed that shows each, so that a test need not run those before it."""
