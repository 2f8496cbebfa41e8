"""Servers fall, sides part and meet: some seeds here, a thousand by `roamcast swarm`."""

import pytest

from roamcast.sim.scenario import draw_scenario, play
from roamcast.sim.workloads.recovery import RecoveryWorkload


@pytest.mark.parametrize("first", [0, 20, 40])
def test_there_is_one_map_again_once_the_network_heals(first: int) -> None:
    starts = merges = 0.0
    for seed in range(first, first + 20):
        outcome = play(draw_scenario("recovery", RecoveryWorkload, seed), RecoveryWorkload)
        assert outcome.promise == "", f"roamcast swarm --only recovery --seed {seed}"
        starts += outcome.metrics["starts"]
        merges += outcome.metrics["merges"]
    assert starts > 20  # not only the first server of each seed
    assert merges > 0
