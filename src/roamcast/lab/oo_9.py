"""Figure 9 of OO: path length from producers to consumers over time, four approaches."""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab import _oo as oo
from roamcast.lab import _oo_clients as clients
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps, near

TITLE = "OO figure 9: path length from producers to consumers over time, four approaches"

UPDATE_S, DISCOVERY_S = 20, 10
WINDOW_S = 20
NAMES = ("static", "static-opportunistic", "opportunistic-opportunistic", "best")
SAVED = 5.0


def run(quick: bool, progress: Steps) -> Report:
    """Run the four approaches on the same walks."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    hops: dict[str, list[oo.Floats]] = {name: [] for name in NAMES}
    with progress("seeds", seeds) as step:
        for seed in range(seeds):
            walked = oo.trace(seed)
            lengths = clients.broker_lengths(walked, clients.OO_ROLES, seed, UPDATE_S)
            made = clients.approaches(walked, clients.OO_ROLES, lengths, DISCOVERY_S)
            for name in NAMES:
                hops[name].append(made[name]["hops"])
            step(1)
    rows: list[dict[str, Any]] = []
    windows = {}
    for name in NAMES:
        values = np.array(hops[name])
        rows.append(oo.row({}, name, np.nanmean(values, axis=1)))
        within = values[:, : oo.SECONDS].reshape(seeds, -1, WINDOW_S)
        windows[name] = np.nanmean(within, axis=2)
        rows += [
            oo.row({"second": number * WINDOW_S}, name, window)
            for number, window in enumerate(windows[name].T)
        ]
    saved = (windows["static"] - windows["opportunistic-opportunistic"]).max(axis=1)
    rows.append(oo.row({}, "most hops saved in 20 s", saved))
    parameters = oo.parameters(
        seeds,
        brokers=20,
        producers=10,
        consumers=60,
        **{"update period s": UPDATE_S, "discovery period s": DISCOVERY_S},
    )
    return Report("oo-9", parameters, rows, _claims(rows))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    found = {r["quantity"]: r["ours"] for r in rows if "second" not in r}
    means = [found[name] for name in NAMES]
    second = found["static"] - found["static-opportunistic"]
    return [
        near("up to so many hops shorter than static (most in 20 s, mean over seeds)",
             found["most hops saved in 20 s"], SAVED, oo.PAPER_SHARE * SAVED),
        Claim("each approach is shorter than the one before it: mean hops",
              [round(mean, 2) for mean in means], means == sorted(means, reverse=True),
              paper="static, static-opportunistic, opportunistic-opportunistic, best"),
        Claim("hops saved by changing homes alone", second, second > 0.5,
              paper="significantly"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw the four lines over time."""
    series: dict[str, list[tuple[float, float, float]]] = {name: [] for name in NAMES}
    for one in report.rows:
        if "second" in one:
            point = (one["second"] + WINDOW_S / 2, one["ours"], one["error"])
            series[one["quantity"]].append(point)
    lines(path, series, title="Path length from producers to consumers (OO figure 9)",
          across="seconds", up="physical hops")  # fmt: skip
