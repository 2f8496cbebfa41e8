"""The casts workload keeps its promises over some seeds, and reaches what it claims to try."""

import pytest

from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workloads.casts import CastsWorkload


@pytest.mark.slow
def test_some_seeds_keep_every_promise_and_try_everything() -> None:
    totals: dict[str, float] = {}
    for seed in range(8):
        outcome = play(draw_scenario("casts", CastsWorkload, seed), CastsWorkload)
        assert not outcome.failed, (seed, outcome.promise, outcome.detail)
        for name, value in outcome.metrics.items():
            totals[name] = totals.get(name, 0) + value
    assert all(totals.values()), totals


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(230, id="results come after a cast was forgotten"),
        pytest.param(786, id="a cast is over while its update is on its way to the disk"),
    ],
)
def test_a_seed_that_once_failed_keeps_every_promise(seed: int) -> None:
    scenario = draw_scenario("casts", CastsWorkload, seed)
    plain = narrow(scenario, Narrowing(None, {"rules": 0, "take_overs": 0}))
    outcome = play(plain, CastsWorkload)
    assert not outcome.failed, (outcome.promise, outcome.detail)
