"""A relay under faults: a few dozen seeds here, a thousand by `roamcast swarm --only relay`."""

from functools import partial

import pytest

from roamcast.channels.relay.admission import RelayAdmission
from roamcast.channels.relay.guests import GuestRecord, GuestState
from roamcast.model.machine import Effect
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workloads.relay import RelayWorkload

SEEDS = 200


def test_users_behind_a_relay_see_what_they_may_and_all_of_it() -> None:
    counts = dict.fromkeys(("served", "passed", "sent away", "withheld"), 0.0)
    for seed in range(30):
        outcome = play(draw_scenario("relay", RelayWorkload, seed), RelayWorkload)
        assert outcome.promise == "", f"{outcome.detail}: roamcast swarm --only relay --seed {seed}"
        for name in counts:
            counts[name] += outcome.metrics[name]
    assert all(counts.values()), counts


def test_a_late_announcement_of_the_service_draws_no_guest_away_from_its_relay() -> None:
    scenario = draw_scenario("relay", RelayWorkload, 1_000_793)
    narrowed = narrow(scenario, Narrowing(None, {"outbox": 24, "buffer": 4}))
    outcome = play(narrowed, RelayWorkload)
    assert outcome.promise == "", outcome.detail


class Trusting(RelayAdmission):
    """Shows on while the service does not say what a guest may see."""

    def may_see(self, client: str) -> bool:
        return client in self.served


class Blind(RelayAdmission):
    """Serves guests of any view class."""

    def _review(self, guest: GuestRecord, now: int) -> list[Effect]:
        if guest.state is GuestState.WAITING and self._settings is not None:
            return self._serve(guest, now)
        return super()._review(guest, now)


class Stranded(RelayAdmission):
    """Leaves a guest's publications with the own link it had before."""

    def _serve(self, guest: GuestRecord, now: int) -> list[Effect]:
        ride, self.publishers.ride = self.publishers.ride, lambda *_: []  # type: ignore[method-assign]
        effects = super()._serve(guest, now)
        self.publishers.ride = ride  # type: ignore[method-assign]
        return effects


@pytest.mark.parametrize(
    ("admission", "promise"),
    [
        (Trusting, "nobody sees what they may not"),
        (Blind, "views equal the map"),
        (Stranded, "views equal the map"),
    ],
)
def test_a_relay_that_is_broken_on_purpose_is_found(
    admission: type[RelayAdmission], promise: str
) -> None:
    make = partial(RelayWorkload, admission)
    for seed in range(SEEDS):
        if play(draw_scenario("relay", make, seed), make).promise == promise:
            return
    raise AssertionError("it was not found")
