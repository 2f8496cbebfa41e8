"""Runs of workloads as functions of their parameters, for sweeps on Spark."""

from typing import Any

from roamcast.errors import LimitError
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.swarm import Tally, run_swarm
from roamcast.sim.workload import find_workload

BLOCK_MAX = 100_000


def swarm_block(workload: str, seed: int, block: int = 100) -> dict[str, Any]:
    """Run a block of a swarm's seeds: block number `seed` begins at `seed * block`.

    One row for a block, not for a seed: the driver of a sweep holds a row of every task.
    """
    if not 1 <= block <= BLOCK_MAX:
        raise LimitError(f"a block has 1 to {BLOCK_MAX} seeds, not {block}")
    make = find_workload(workload)
    tally = Tally()
    first = seed * block
    for outcome in run_swarm([workload], range(first, first + block), workers=1):
        tally.add(outcome, make)
    return {
        "first": first,
        "runs": tally.runs,
        "failed": tally.failed,
        "events": tally.totals["events"],
        "promise": "; ".join(failure.outcome.promise for failure in tally.failures),
        "again": "; ".join(failure.command for failure in tally.failures),
    }


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
