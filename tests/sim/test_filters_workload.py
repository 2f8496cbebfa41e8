"""Filters under faults: a share of the seeds that the swarm runs."""

import pytest

from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.filters import FiltersWorkload


@pytest.mark.parametrize("seed", range(6))
def test_every_promise_holds(seed: int) -> None:
    scenario = draw_scenario("filters", FiltersWorkload, seed)
    outcome = play(scenario, FiltersWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)
    if seed == 0:
        assert outcome.digest == play(scenario, FiltersWorkload).digest


@pytest.mark.soak
def test_every_promise_holds_under_more_seeds() -> None:
    for seed in range(100, 1_100):
        outcome = play(draw_scenario("filters", FiltersWorkload, seed), FiltersWorkload)
        assert not outcome.failed, (seed, outcome.promise, outcome.detail)
