"""Figure 6 of OO: path length among brokers over time, updates every 50 s."""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab import _oo as oo
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps, near

TITLE = "OO figure 6: path length among 40 mobile brokers over time, static and opportunistic"

PERIOD_S = 50
WINDOW_S = 20
"""Width of a point of the timeline."""

PAPER = {"static": 6.06, "opportunistic": 4.17, "physical": 2.36}


def run(quick: bool, progress: Steps) -> Report:
    """Run every seed; average over time, and over the seeds in each window."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    runs = []
    with progress("seeds", seeds) as step:
        for seed in range(seeds):
            runs.append(oo.run_brokers(oo.trace(seed), seed, PERIOD_S))
            step(1)
    rows: list[dict[str, Any]] = []
    found = {}
    for name in PAPER:
        lengths = np.array([getattr(one, name) for one in runs])
        rows.append(oo.row({}, name, lengths.mean(axis=1)))
        found[name] = float(lengths.mean())
        for begin in range(0, oo.SECONDS, WINDOW_S):
            window = lengths[:, begin : begin + WINDOW_S].mean(axis=1)
            rows.append(oo.row({"second": begin}, name, window))
    parameters = oo.parameters(seeds, brokers=oo.BROKERS, **{"update period s": PERIOD_S})
    return Report("oo-6", parameters, rows, _claims(found, rows))


def _claims(found: dict[str, float], rows: list[dict[str, Any]]) -> list[Claim]:
    claims = [
        near(f"{name}: mean hops", found[name], paper, oo.PAPER_SHARE * paper)
        for name, paper in PAPER.items()
    ]
    line = {
        name: [r["ours"] for r in rows if r["quantity"] == name and "second" in r] for name in PAPER
    }
    start = line["static"][0] / line["opportunistic"][0]
    shorter = np.mean(np.array(line["opportunistic"][3:]) < np.array(line["static"][3:]))
    return [
        *claims,
        Claim("both start alike: static / opportunistic in the first 20 s", start,
              abs(start - 1) < 0.05, paper="similar path lengths at the beginning"),
        Claim("share of later windows in which opportunistic is shorter", float(shorter),
              bool(shorter >= 0.95), paper="at almost all time points"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw the three lines over time."""
    series: dict[str, list[tuple[float, float, float]]] = {name: [] for name in PAPER}
    for one in report.rows:
        if "second" in one:
            point = (one["second"] + WINDOW_S / 2, one["ours"], one["error"])
            series[one["quantity"]].append(point)
    lines(path, series, title="Path length among brokers over time (OO figure 6)",
          across="seconds", up="physical hops")  # fmt: skip
