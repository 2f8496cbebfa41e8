"""Figure 11 of OO: path length from producers to consumers against speed and discovery period."""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab import _oo as oo
from roamcast.lab import _oo_clients as clients
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps
from roamcast.sim.movement.waypoint import RoamingArea

TITLE = "OO figure 11: path length from producers to consumers against speed"

UPDATE_S = 20
SPEEDS_M_S, SPEEDS_QUICK_M_S = (2.0, 5.0, 10.0, 20.0, 30.0), (2.0, 30.0)
PERIODS_S = (5, 20, 60)


def run(quick: bool, progress: Steps) -> Report:
    """Run every speed with several discovery periods; all nodes walk about as fast."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    speeds = SPEEDS_QUICK_M_S if quick else SPEEDS_M_S
    hops: dict[tuple[float, int], list[float]] = {}
    with progress("seeds", seeds * len(speeds)) as step:
        for speed in speeds:
            area = RoamingArea(speed_min_m_s=0.9 * speed, speed_max_m_s=1.1 * speed)
            for seed in range(seeds):
                walked = oo.trace(seed, area=area)
                lengths = clients.followed_lengths(walked, clients.OO_ROLES, seed, UPDATE_S)
                for period in PERIODS_S:
                    homes = clients.ClientHomes(
                        walked, clients.OO_ROLES, lengths, discovery_s=period
                    )
                    hops.setdefault((speed, period), []).append(float(np.nanmean(homes.hops)))
                step(1)
    rows = [
        oo.row({"speed m/s": speed, "period s": period}, "hops", values)
        for (speed, period), values in hops.items()
    ]
    parameters = oo.parameters(
        seeds,
        brokers=20,
        producers=10,
        consumers=60,
        **{"update period s": UPDATE_S, "speed": "within 10 % of the speed named"},
    )
    return Report("oo-11", parameters, rows, _claims(rows, speeds))


def _claims(rows: list[dict[str, Any]], speeds: tuple[float, ...]) -> list[Claim]:
    found = {(r["speed m/s"], r["period s"]): r["ours"] for r in rows}
    slow, fast = speeds[0], speeds[-1]
    often, seldom = PERIODS_S[0], PERIODS_S[-1]
    gains = {speed: found[speed, seldom] - found[speed, often] for speed in speeds}
    return [
        Claim(f"discovery every {often} s against {seldom} s: hops saved at each speed",
              [round(gain, 2) for gain in gains.values()], min(gains.values()) > 0,
              paper="more frequent discovery achieves shorter paths"),
        Claim("the faster nodes move, the more that saves (fastest over slowest)",
              gains[fast] / gains[slow], gains[fast] > 2 * gains[slow],
              paper="at very fast speed it improves performance significantly"),
        Claim(f"faster nodes have longer paths (every {seldom} s)",
              [round(found[speed, seldom], 2) for speed in speeds],
              found[fast, seldom] > found[slow, seldom], paper="longer"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw hops against speed, a line for each discovery period."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for one in report.rows:
        name = f"discovery every {one['period s']} s"
        series.setdefault(name, []).append((one["speed m/s"], one["ours"], one["error"]))
    lines(path, series, title="Path length against speed (OO figure 11)",
          across="speed, m/s", up="physical hops")  # fmt: skip
