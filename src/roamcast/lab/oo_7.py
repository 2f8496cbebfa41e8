"""Figure 7 of OO: path length among brokers against the update period."""

import itertools
from pathlib import Path
from typing import Any

from roamcast.lab import _oo as oo
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps, near

TITLE = "OO figure 7: path length among 40 mobile brokers against the update period"

PERIODS_S, PERIODS_QUICK_S = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100), (10, 50, 100)
PAPER = {10: 3.32, 50: 4.17, 100: 4.43}
STATIC = 6.06


def run(quick: bool, progress: Steps) -> Report:
    """Run every period on the same walks."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    periods = PERIODS_QUICK_S if quick else PERIODS_S
    lengths: dict[int, list[float]] = {period: [] for period in periods}
    static: list[float] = []
    with progress("seeds", seeds * len(periods)) as step:
        for seed in range(seeds):
            walked = oo.trace(seed)
            for period in periods:
                found = oo.run_brokers(walked, seed, period)
                lengths[period].append(float(found.opportunistic.mean()))
                step(1)
            static.append(float(found.static.mean()))
    rows = [oo.row({"period s": period}, "hops", lengths[period]) for period in periods]
    rows.append(oo.row({}, "static hops", static))
    parameters = oo.parameters(seeds, brokers=oo.BROKERS)
    return Report("oo-7", parameters, rows, _claims(rows))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    found = {r["period s"]: r["ours"] for r in rows if "period s" in r}
    static = rows[-1]["ours"]
    claims = [
        near(f"mean hops at a period of {period} s", found[period], paper, oo.PAPER_SHARE * paper)
        for period, paper in PAPER.items()
    ]
    values = list(found.values())
    rising = all(later > earlier - 0.1 for earlier, later in itertools.pairwise(values))
    return [
        *claims,
        Claim("longer periods, longer paths", [round(value, 2) for value in values], rising,
              paper="rising, not rapidly"),
        Claim("at 100 s still shorter than static: hops saved", static - found[100],
              static - found[100] > 0.5, paper="significantly", note="the paper: 6.06 - 4.43"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw hops against the period."""
    points = [(r["period s"], r["ours"], r["error"]) for r in report.rows if "period s" in r]
    lines(path, {"opportunistic": points}, title="Path length among brokers (OO figure 7)",
          across="update period, s", up="physical hops")  # fmt: skip
