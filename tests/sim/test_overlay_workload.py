"""The overlay under faults: a share of the seeds that the swarm runs."""

import pytest

from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.overlay import OverlayWorkload


@pytest.mark.parametrize("seed", range(10))
def test_every_promise_holds(seed: int) -> None:
    scenario = draw_scenario("overlay", OverlayWorkload, seed)
    outcome = play(scenario, OverlayWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)
    assert outcome.digest == play(scenario, OverlayWorkload).digest


@pytest.mark.soak
def test_every_promise_holds_under_more_seeds() -> None:
    for seed in range(100, 600):
        outcome = play(draw_scenario("overlay", OverlayWorkload, seed), OverlayWorkload)
        assert not outcome.failed, (seed, outcome.promise, outcome.detail)
