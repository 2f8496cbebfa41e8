"""OO's emulation with load (4.2): 20 nodes, 5 brokers on consumers' nodes, load control or not.

Each of the 15 consumers costs the same share of a broker, so that the average load is what a point
says. Without control everybody takes the nearest broker. With control a broker whose own load would
exceed its limit is not chosen. The paper names two thresholds, both of the average load: from 30 %
control lowers the largest load (figure 12), up to 70 % the nearest broker is always chosen (figure
13). With a limit of 100 % of the broker's own load both come out, so the text need not contradict
itself; the limits 70 % and 30 %, and ours with hysteresis (70 %, 50 %), stand beside it.
"""

from functools import cache
from typing import Any

import msgspec
import numpy as np

from roamcast.lab import _oo as oo
from roamcast.lab import _oo_clients as clients
from roamcast.lab.report import Steps
from roamcast.sim.movement.waypoint import RoamingArea

AREA = RoamingArea(750.0, 500.0, pause_s=30.0)
NODES, UPDATE_S, DISCOVERY_S = 20, 5, 1
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LOADS_QUICK = (0.2, 0.3, 0.5, 0.7, 1.0)


class Control(msgspec.Struct, frozen=True):
    """A way to control load: no broker is chosen at its limit, until it has at most `low`."""

    name: str
    limit: float = clients.UNBOUNDED
    low: float | None = None


NONE = Control("no control")
FULL = Control("limit 100 %", 1.0)
CONTROLS = (
    NONE,
    FULL,
    Control("limit 70 %", 0.7),
    Control("limit 30 %", 0.3),
    Control("limit 70 %, again from 50 %", 0.7, 0.5),
)


def measure(quick: bool, progress: Steps) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run every load and control; give rows of largest load, hops and moves, and parameters."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    loads = LOADS_QUICK if quick else LOADS
    values: dict[tuple[float, str, str], list[float]] = {}
    with progress("seeds", seeds) as step:
        for seed in range(seeds):
            for key, value in _seed(seed, loads).items():
                values.setdefault(key, []).append(value)
            step(1)
    rows = [
        {**oo.row({"average load": load, "control": name}, quantity, found), "most": max(found)}
        for (load, name, quantity), found in values.items()
    ]
    parameters = {
        "nodes": NODES,
        "area": "750 m x 500 m",
        "pause s": AREA.pause_s,
        "brokers": 5,
        "producers": 5,
        "consumers": 15,
        "update period s": UPDATE_S,
        "discovery period s": DISCOVERY_S,
        "seconds": oo.SECONDS,
        "seeds": seeds,
    }
    return rows, parameters


@cache
def _seed(seed: int, loads: tuple[float, ...]) -> dict[tuple[float, str, str], float]:
    """Run one seed; figures 12 and 13 show the same runs."""
    roles = clients.OO_SMALL
    walked = oo.trace(seed, nodes=NODES, area=AREA)
    lengths = clients.broker_lengths(walked, roles, seed, UPDATE_S)
    still = clients.ClientHomes(walked, roles, lengths.static, discovery_s=None)
    static = float(np.nanmean(still.hops))
    found: dict[tuple[float, str, str], float] = {}

    def homes(control: Control, share: float) -> clients.ClientHomes:
        return clients.ClientHomes(
            walked,
            roles,
            lengths.opportunistic,
            discovery_s=DISCOVERY_S,
            limit=control.limit,
            share=share,
            low=control.low,
            by_path=False,
        )

    nearest = homes(NONE, 1.0)  # nobody looks at loads: one run serves all of them
    for load in loads:
        share = load * roles.brokers / len(roles.consumers)
        for control in CONTROLS:
            made = nearest if control is NONE else homes(control, share)
            scale = share if control is NONE else 1.0
            found[load, control.name, "largest load"] = float(made.load_max.max()) * scale
            found[load, control.name, "hops"] = float(np.nanmean(made.hops))
            found[load, control.name, "hops saved"] = static - float(np.nanmean(made.hops))
            found[load, control.name, "moves a minute"] = made.moves / (oo.SECONDS / 60)
        found[load, "static", "hops"] = static
    return found


def line(rows: list[dict[str, Any]], control: str, quantity: str) -> dict[float, float]:
    """Give one line of the figure: average load → value."""
    return {
        r["average load"]: r["ours"]
        for r in rows
        if r["control"] == control and r["quantity"] == quantity
    }


def first_load(first: dict[float, float], other: dict[float, float], by: float) -> float:
    """Give the lowest average load at which two lines differ by more than a share."""
    for load, value in first.items():
        if abs(value - other[load]) > by * other[load]:
            return load
    return float("inf")
