"""One run of one workload as a function of its parameters, for sweeps on Spark."""

from typing import Any

from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workload import find_workload


def play_workload(workload: str, seed: int, **settings: int) -> dict[str, Any]:
    """Run a workload: sizes by name, `calm` and `duration_ms` as for `roamcast swarm --set`."""
    make = find_workload(workload)
    scenario = narrow(draw_scenario(workload, make, seed), Narrowing(settings=settings))
    outcome = play(scenario, make)
    return {
        "digest": outcome.digest,
        "promise": outcome.promise,
        "events": outcome.events,
        "virtual_s": outcome.virtual_us / 1e6,
        **outcome.metrics,
    }
