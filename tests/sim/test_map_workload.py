"""The whole map service under faults: a few dozen seeds here, a thousand by `roamcast swarm`."""

import pytest

from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workloads.map import MapWorkload


def run(seed: int, make: type[MapWorkload] = MapWorkload) -> str:
    scenario = draw_scenario("map", make, seed)
    plain = narrow(scenario, Narrowing(settings={"compiled": 0}))
    outcome = play(plain, make)
    return f"{outcome.promise}: {outcome.detail}" if outcome.failed else ""


@pytest.mark.parametrize("first", [0, 10, 20])
def test_every_view_equals_the_map_once_the_network_heals(first: int) -> None:
    for seed in range(first, first + 10):
        assert run(seed) == "", f"roamcast swarm --only map --seed {seed} --set compiled=0"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = narrow(draw_scenario("map", MapWorkload, 3), Narrowing(settings={"compiled": 0}))
    assert play(scenario, MapWorkload).digest == play(scenario, MapWorkload).digest
