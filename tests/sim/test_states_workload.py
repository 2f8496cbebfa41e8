"""Maps of several brokers under faults: a share of the seeds that the swarm runs."""

import pytest

from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.states import StatesWorkload


@pytest.mark.parametrize("seed", range(8))
def test_every_promise_holds(seed: int) -> None:
    scenario = draw_scenario("states", StatesWorkload, seed)
    outcome = play(scenario, StatesWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)
    if seed == 0:
        assert outcome.digest == play(scenario, StatesWorkload).digest


@pytest.mark.soak
def test_every_promise_holds_under_more_seeds() -> None:
    for seed in range(100, 1_100):
        outcome = play(draw_scenario("states", StatesWorkload, seed), StatesWorkload)
        assert not outcome.failed, (seed, outcome.promise, outcome.detail)
