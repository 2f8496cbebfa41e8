"""TCC IV-B: what early caching of future casts spares, against a forwarding to every network.

The paper argues: if 30 % of the contexts match, 70 % of the networks are spared. That holds for one
context per network. With c independent ones, 1 - 0.7^c of the networks are reached. How many links
that spares depends on the topology; in a row of routers it can be none.
"""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab import _tcc as tcc
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.sim.hops.experiment import CASTS, future_run

TITLE = "TCC IV-B: networks, links and copies that early caching of future casts spares"

SHARES = (0.02, 0.1, 0.3, 0.5, 0.7)
CONTEXTS = (1, 2, 5, 10, 50)
PAPER_SHARE, PAPER_SPARED = 0.3, 0.7
CASTS_QUICK = 5
TOPOLOGIES = ("trade-off", "line")


def run(quick: bool, progress: Steps) -> Report:
    """Send casts of edge 0.25 for every share of matching contexts and contexts per network."""
    runs = tcc.RUNS_QUICK if quick else tcc.RUNS
    casts = CASTS_QUICK if quick else CASTS
    rows = []
    with progress("cases", len(TOPOLOGIES) * len(SHARES) * len(CONTEXTS)) as step:
        for topology in TOPOLOGIES:
            for share in SHARES:
                for contexts in CONTEXTS:
                    rows.append(_row(topology, share, contexts, runs, casts))
                    step(1)
    parameters = {
        "edge": tcc.WIDEST,
        "routers": 10_000,
        "access nodes": 7_000,
        "runs": runs,
        "casts a run": casts,
        "line (ours)": "10,000 routers in a row; casts enter anywhere",
    }
    return Report("tcc-future", parameters, rows, _claims(rows))


def _row(topology: str, share: float, contexts: int, runs: int, casts: int) -> dict[str, Any]:
    found = [
        future_run(tcc.WIDEST, share, contexts, seed, line=topology == "line", casts=casts)
        for seed in range(runs)
    ]

    def spared(after: str, before: str) -> list[float]:
        return [1 - row[after] / row[before] for row in found]

    return {
        "topology": topology,
        "matching": share,
        "contexts": contexts,
        "networks_spared": float(np.mean(spared("reached", "networks"))),
        "formula": (1 - share) ** contexts,
        **tcc.spread("links_spared", spared("links", "links_at_once")),
        "copies_spared": float(np.mean(spared("copies", "copies_at_once"))),
    }


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    at = {(row["topology"], row["matching"], row["contexts"]): row for row in rows}
    one = at["trade-off", PAPER_SHARE, 1]
    many = at["trade-off", PAPER_SHARE, 10]
    line = at["line", PAPER_SHARE, 1]
    worst = max(abs(row["networks_spared"] - row["formula"]) for row in rows)
    least = min(row["copies_spared"] for row in rows)
    return [
        near("networks spared, 30 % match, one context per network", one["networks_spared"],
             PAPER_SPARED, 0.02),
        near("networks spared, 30 % match, ten contexts per network", many["networks_spared"],
             PAPER_SPARED, 0.02, note="0.7^10: the paper's 70 % need one context per network"),
        Claim("networks reached are 1 - (1 - p)^c: the largest difference", worst, worst < 0.02,
              bar=0.02),
        Claim("links spared in the trade-off tree, 30 % match, one context",
              one["links_spared"], one["links_spared"] > 0.5,
              paper="tree-like, more favourable"),
        Claim("links spared in a row of routers", line["links_spared"], line["links_spared"] < 0.02,
              paper="nullifies any saving"),
        Claim("cached copies spared, least of all cases", least, least >= -1e-9,
              paper="no more storage than at the leaves"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw networks and links spared against the share that matches, a line per c."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.88, len(CONTEXTS)))
    for axes, topology in zip(panels, TOPOLOGIES, strict=True):
        for contexts, shade in zip(CONTEXTS, shades, strict=True):
            mine = [
                row
                for row in report.rows
                if row["topology"] == topology and row["contexts"] == contexts
            ]
            shares = [100 * row["matching"] for row in mine]
            axes.plot(
                shares, [100 * row["links_spared"] for row in mine], "o-", ms=3, color=shade,
                label=f"links, {contexts} contexts",
            )  # fmt: skip
            axes.plot(
                shares, [100 * row["networks_spared"] for row in mine], "--", color=shade, lw=1
            )
        axes.set_title(f"{topology} (dashed: networks)", fontsize=11)
        axes.set_xlabel("contexts that match, %")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("spared by early caching, %")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
