"""Homes under faults: a share of the seeds that the swarm runs."""

import pytest

from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.homes import HomesWorkload


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), 9, 11, 880])
def test_every_promise_holds(seed: int) -> None:
    """In 880 an event is delivered that its home had no time to acknowledge before it fell."""
    scenario = draw_scenario("homes", HomesWorkload, seed)
    outcome = play(scenario, HomesWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)
    if seed == 9:
        assert outcome.digest == play(scenario, HomesWorkload).digest


@pytest.mark.soak
def test_every_promise_holds_under_more_seeds() -> None:
    for seed in range(100, 400):
        outcome = play(draw_scenario("homes", HomesWorkload, seed), HomesWorkload)
        assert not outcome.failed, (seed, outcome.promise, outcome.detail)
