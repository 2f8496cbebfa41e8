"""How long does OO's simulation take? 600 s of 100 mobile nodes, and growth up to 1,000 nodes.

As in figure 6, 40 % of the nodes are brokers; larger fields have the same density. One matrix of
hops a second is most of the work. Times are CPU seconds of this process.
"""

import time
from typing import Any

import numpy as np

from roamcast.lab import _oo as oo
from roamcast.lab.report import Claim, Report, Steps
from roamcast.sim.movement.waypoint import RoamingArea

TITLE = "overlay-sim: OO's simulation of mobile brokers, time and growth up to 1,000 nodes"

PERIOD_S = 50
SECONDS_BAR = 10.0
SIZES, SIZES_QUICK = (100, 200, 400, 700, 1_000), (50, 100, 200)
GROWTH_SECONDS, GROWTH_SECONDS_QUICK = 60, 20
GROWTH_PERIOD_S = 10
GROWTH_BAR = 3.0
"""All pairs of nodes times the links of each: the matrix of hops grows with the square at least."""


def measure(nodes: int, seconds: int, period_s: int) -> dict[str, Any]:
    """Let so many nodes roam; give what that took."""
    side = 1000.0 * (nodes / oo.NODES) ** 0.5
    brokers = nodes * oo.BROKERS // oo.NODES
    began = time.process_time()
    walked = oo.trace(1, nodes=nodes, seconds=seconds, area=RoamingArea(side, side), first=brokers)
    roamed = time.process_time()
    found = oo.run_brokers(walked, 1, period_s, brokers)
    done = time.process_time()
    oo.trace.cache_clear()
    return {
        "nodes": nodes,
        "brokers": brokers,
        "seconds": seconds,
        "hops CPU s": round(roamed - began, 2),
        "overlay CPU s": round(done - roamed, 2),
        "CPU ms a second": round(1000 * (done - began) / seconds, 2),
        "opportunistic hops": round(float(found.opportunistic.mean()), 2),
    }


def run(quick: bool, progress: Steps) -> Report:
    """Measure the paper's size, then growth."""
    sizes = SIZES_QUICK if quick else SIZES
    seconds = GROWTH_SECONDS_QUICK if quick else GROWTH_SECONDS
    with progress("fields", 1 + len(sizes)) as step:
        whole = measure(oo.NODES, oo.SECONDS, PERIOD_S)
        step(1)
        rows = []
        for nodes in sizes:
            rows.append(measure(nodes, seconds, GROWTH_PERIOD_S))
            step(1)
    took = whole["hops CPU s"] + whole["overlay CPU s"]
    logs = np.log([row["nodes"] for row in rows])
    growth = float(np.polyfit(logs, np.log([row["CPU ms a second"] for row in rows]), 1)[0])
    claims = [
        Claim("600 s of 100 mobile nodes, CPU seconds", round(took, 1), took < SECONDS_BAR,
              bar=SECONDS_BAR),
        Claim("time grows with this power of the number of nodes", round(growth, 2),
              growth < GROWTH_BAR, bar=GROWTH_BAR),
    ]  # fmt: skip
    parameters = {"range m": 250, "update period s": [PERIOD_S, GROWTH_PERIOD_S]}
    return Report("overlay-sim", parameters, [whole, *rows], claims)
