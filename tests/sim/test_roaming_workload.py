"""Roaming under faults: a share of the seeds that the swarm runs."""

import pytest

from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.roaming import RoamingWorkload


@pytest.mark.parametrize("seed", range(16))
def test_every_promise_holds(seed: int) -> None:
    scenario = draw_scenario("roaming", RoamingWorkload, seed)
    outcome = play(scenario, RoamingWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)
    if seed % 4 == 0:
        assert outcome.digest == play(scenario, RoamingWorkload).digest


@pytest.mark.soak
def test_every_promise_holds_under_more_seeds() -> None:
    for seed in range(100, 1_100):
        outcome = play(draw_scenario("roaming", RoamingWorkload, seed), RoamingWorkload)
        assert not outcome.failed, (seed, outcome.promise, outcome.detail)
