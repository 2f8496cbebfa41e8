"""Figure 10 of OO: path length from producers to consumers against the discovery period."""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab import _oo as oo
from roamcast.lab import _oo_clients as clients
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps

TITLE = "OO figure 10: path length from producers to consumers against the discovery period"

UPDATE_S = 20
PERIODS_S, PERIODS_QUICK_S = (5, 10, 20, 30, 40, 50, 60), (5, 20, 60)
MOVING = ("static-opportunistic", "opportunistic-opportunistic")


def run(quick: bool, progress: Steps) -> Report:
    """Run every period on the same walks and overlays."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    periods = PERIODS_QUICK_S if quick else PERIODS_S
    hops: dict[tuple[int, str], list[float]] = {}
    moves: dict[int, list[float]] = {period: [] for period in periods}
    with progress("seeds", seeds * len(periods)) as step:
        for seed in range(seeds):
            walked = oo.trace(seed)
            lengths = clients.broker_lengths(walked, clients.OO_ROLES, seed, UPDATE_S)
            paths = {MOVING[0]: lengths.static, MOVING[1]: lengths.opportunistic}
            for period in periods:
                for name, among in paths.items():
                    homes = clients.ClientHomes(walked, clients.OO_ROLES, among, discovery_s=period)
                    hops.setdefault((period, name), []).append(float(np.nanmean(homes.hops)))
                moves[period].append(homes.moves / (70 * oo.SECONDS / 60))
                step(1)
    rows = [
        oo.row({"period s": period, "approach": name}, "hops", values)
        for (period, name), values in hops.items()
    ]
    rows += [oo.row({"period s": p}, "moves a client and minute", moves[p]) for p in periods]
    parameters = oo.parameters(
        seeds, brokers=20, producers=10, consumers=60, **{"update period s": UPDATE_S}
    )
    return Report("oo-10", parameters, rows, _claims(rows, periods))


def _claims(rows: list[dict[str, Any]], periods: tuple[int, ...]) -> list[Claim]:
    claims = []
    lines_of = {name: [r["ours"] for r in rows if r.get("approach") == name] for name in MOVING}
    for name, values in lines_of.items():
        growth = values[-1] / values[0]
        slight = "slightly longer paths with longer discovery periods"
        claims.append(Claim(
            f"{name}: hops at {periods[0]} to {periods[-1]} s", [round(v, 2) for v in values],
            values[-1] > values[0] and growth < 1.5, paper=slight,
            note=f"{growth - 1:.0%} longer in all"))  # fmt: skip
    gaps = np.array(lines_of[MOVING[0]]) - np.array(lines_of[MOVING[1]])
    return [
        *claims,
        Claim("an overlay that follows is shorter at every period: hops saved (least)",
              float(gaps.min()), bool(gaps.min() > 0), paper="shorter"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw hops against the period, a line for each approach."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for one in report.rows:
        if "approach" in one:
            point = (one["period s"], one["ours"], one["error"])
            series.setdefault(one["approach"], []).append(point)
    lines(path, series, title="Path length against the discovery period (OO figure 10)",
          across="discovery period, s", up="physical hops")  # fmt: skip
