"""Shared parts of TCC's figures: runs, their means with the least and the greatest, drawing.

A run is a task of `roamcast pipeline sweep`: a set of parameters under a seed. Figures call the
same functions in this process, so that `pipeline sweep roamcast.sim.hops.experiment:historic_run`
gives their rows on a cluster.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab.report import Steps
from roamcast.sim.hops.counting import POLICIES
from roamcast.sim.hops.experiment import CASTS, historic_run
from roamcast.sim.hops.routers import Setting

Row = dict[str, Any]

EDGES = (0.05, 0.1, 0.15, 0.2, 0.25)
WIDEST = EDGES[-1]
RUNS, RUNS_QUICK = 10, 3
LARGE = 100_000
SHADES = dict(zip(POLICIES, ("#c0504d", "#2f6db3", "#3f9c35", "#e08e1b", "#7b4ea3"), strict=True))


def setting_of(routers: int) -> Row:
    """Return a setting of this many routers with TCC's share of access nodes."""
    usual = Setting()
    return {"routers": routers, "access": routers * usual.access // usual.routers}


def historic(
    runs: int, progress: Steps, *, edges: Sequence[float] = EDGES, **setting: Any
) -> dict[tuple[float, str], list[Row]]:
    """Run every edge under every seed; give the runs' rows by edge and policy."""
    found: dict[tuple[float, str], list[Row]] = {}
    with progress("runs", len(edges) * runs) as step:
        for edge in edges:
            for seed in range(runs):
                for row in historic_run(edge, seed, **setting):
                    found.setdefault((edge, row["policy"]), []).append(row)
                step(1)
    return found


def of_runs(rows: list[Row], value: Callable[[Row], float]) -> list[float]:
    """Return a quantity of each run."""
    return [value(row) for row in rows]


def per_cast(*names: str) -> Callable[[Row], float]:
    """Return the quantity that is the sum of these counts, for one cast."""
    return lambda row: float(sum(row[name] for name in names)) / float(row["casts"])


def spread(name: str, values: Sequence[float]) -> Row:
    """Return the mean of the runs, and the least and the greatest (TCC's error bars)."""
    return {name: float(np.mean(values)), "lowest": min(values), "highest": max(values)}


def parameters(runs: int, casts: int = CASTS) -> Row:
    """Return what a figure was made with, and our choice of what the paper leaves open."""
    usual = Setting()
    return {
        "routers": usual.routers,
        "alpha": usual.alpha,
        "access nodes": usual.access,
        "trusted nodes": usual.trusted,
        "runs": runs,
        "casts a run": casts,
        "matching contexts an access node (ours)": usual.contexts_per_access,
        "contexts a person (ours)": usual.contexts_per_person,
        "chance of a new vid (ours)": usual.new_vid,
        "service area (ours)": "the router's point",
        "an empty answer (ours)": "is sent",
    }


def draw_bars(path: Path, rows: list[Row], what: str, title: str, up: str) -> None:
    """Draw a quantity against the target's edge, a line for each policy, with the runs' bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5.2), layout="constrained")
    for policy, shade in SHADES.items():
        mine = [row for row in rows if row.get("policy") == policy and "edge" in row]
        mean = np.array([row[what] for row in mine])
        low = mean - np.array([row["lowest"] for row in mine])
        high = np.array([row["highest"] for row in mine]) - mean
        axes.errorbar(
            [row["edge"] for row in mine],
            mean,
            yerr=np.maximum(0, np.stack([low, high])),
            label=policy,
            color=shade,
            marker="o",
            markersize=3,
            linewidth=1.4,
            capsize=2,
        )
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("edge of the target")
    axes.set_ylabel(up)
    axes.set_xticks(sorted({row["edge"] for row in rows}))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
