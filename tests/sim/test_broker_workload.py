"""Whole brokers under faults: some seeds here, a thousand by `roamcast swarm --only broker`."""

import pytest

from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workloads.broker import BrokerWorkload


@pytest.mark.parametrize("first", [0, pytest.param(30, marks=pytest.mark.soak)])
def test_nothing_is_lost_and_nobody_sees_what_rules_hide(first: int) -> None:
    counts: dict[str, float] = {}
    for seed in range(first, first + (90 if first else 30)):
        outcome = play(draw_scenario("broker", BrokerWorkload, seed), BrokerWorkload)
        found = f"{outcome.promise}: {outcome.detail}"
        assert outcome.promise == "", f"roamcast swarm --only broker --seed {seed}: {found}"
        for name, count in outcome.metrics.items():
            counts[name] = counts.get(name, 0) + count
    # Faults of every kind really happened to requests and to servers.
    for name in ("acknowledged", "refused", "unsure", "frames", "handed over", "followers"):
        assert counts[name] > 0, name
    assert counts["starts"] > 30


def test_the_same_seed_gives_the_same_journal() -> None:
    one, other = (
        play(draw_scenario("broker", BrokerWorkload, 7), BrokerWorkload) for _ in range(2)
    )
    assert one.digest == other.digest


def test_a_state_under_two_sets_of_rules_is_archived_once_by_a_host_whose_clock_is_behind() -> None:
    sizes = {"calm": 1, "seats": 2, "vids": 1, "publishers": 1, "rules": 1, "queue": 8}
    scenario = draw_scenario("broker", BrokerWorkload, 2_109)
    outcome = play(narrow(scenario, Narrowing((5,), sizes)), BrokerWorkload)
    assert outcome.promise == "", outcome.detail


def test_what_a_host_that_comes_back_brings_of_an_archived_state_is_not_archived_again() -> None:
    # The host that took over wrote a step of its own for what it adopted. That left for the archive
    # before the step of the host that had fallen arrived (0200).
    outcome = play(draw_scenario("broker", BrokerWorkload, 2_000_327), BrokerWorkload)
    assert outcome.promise == "", outcome.detail


def test_an_old_state_that_a_new_server_adopts_first_is_not_archived_again() -> None:
    # Its step was archived and deleted before; a new write of that step outranked the deletion.
    outcome = play(draw_scenario("broker", BrokerWorkload, 256), BrokerWorkload)
    assert outcome.promise == "", outcome.detail


def test_what_was_sent_before_a_reboot_is_judged_by_the_clock_of_then() -> None:
    outcome = play(draw_scenario("broker", BrokerWorkload, 595), BrokerWorkload)
    assert outcome.promise == "", outcome.detail
