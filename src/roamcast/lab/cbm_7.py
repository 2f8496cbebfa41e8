"""Figure 7 of CBM: total delay against subscription probability, for several filter delays."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from roamcast.lab import _cbm as cbm
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import delay

TITLE = "CBM figure 7: total delay and number of filters against P, filter delay F from 100 to 2000"

LINK_DELAY = 10.0
FILTER_DELAYS = (100.0, 200.0, 500.0, 1000.0, 2000.0)
CHANCES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SEEDS, SEEDS_QUICK = 60, 6


def run(quick: bool, progress: Steps) -> Report:
    """Average the optimum's delay and filters over seeds, for every F and P."""
    seeds = SEEDS_QUICK if quick else SEEDS
    tree = cbm.paper_tree()
    rows = []
    with progress("probabilities", len(CHANCES)) as step:
        for number, chance in enumerate(CHANCES):
            flow = [
                cbm.flow_of(
                    tree, cbm.draw_wanted(cbm.generator(7, number, seed), cbm.uniform(chance))
                )
                for seed in range(seeds)
            ]
            for filter_delay in FILTER_DELAYS:
                problems = [delay(tree, one, filter_delay, LINK_DELAY) for one in flow]
                found = [optimal(problem) for problem in problems]
                total, error = cbm.mean_error([one.cost for one in found])
                bare, _ = cbm.mean_error([problem.unfiltered for problem in problems])
                count, count_error = cbm.mean_error([len(one.filters) for one in found])
                rows.append(
                    {
                        "F": filter_delay,
                        "P": chance,
                        "delay": total,
                        "error": error,
                        "without_filters": bare,
                        "saved": 1 - total / bare,
                        "filters": count,
                        "filters_error": count_error,
                    }
                )
            step(1)
    parameters = {"vertices": 127, "users": 64, "items": 64, "c": LINK_DELAY, "seeds": seeds}
    return Report("cbm-7", parameters, rows, [*_claims(rows), *_more_claims(seeds)])


def _claims(rows: list[dict[str, float]]) -> list[Claim]:
    def column(filter_delay: float, name: str) -> dict[float, float]:
        return {row["P"]: row[name] for row in rows if row["F"] == filter_delay}

    counts = column(100.0, "filters")
    peak = max(counts, key=lambda chance: counts[chance])
    saved = column(100.0, "saved")
    sparse = [column(f, "filters")[0.1] for f in FILTER_DELAYS]
    delays = [column(f, "delay")[0.1] for f in FILTER_DELAYS]
    return [
        near(
            "the number of filters peaks near P = 0.3 (F/c = 10)",
            peak,
            0.3,
            0.1,
            note=f"{counts[peak]:.1f} filters there; larger F/c peak lower",
        ),
        Claim(
            "filters can be very effective (delay saved at P = 0.05, F/c = 10)",
            saved[0.05],
            saved[0.05] > 0.3,
            "very effective",
        ),
        Claim(
            "sparse: the larger the filter delay, the fewer filters (P = 0.1)",
            sparse,
            all(later <= earlier for earlier, later in pairwise(sparse)),
            "falling",
        ),
        Claim(
            "the larger the filter delay, the larger the total delay (P = 0.1)",
            [round(value) for value in delays],
            all(later >= earlier for earlier, later in pairwise(delays)),
            "rising",
        ),
    ]


def _more_claims(seeds: int) -> list[Claim]:
    tree = cbm.paper_tree()
    none_pays = 0
    for number, chance in enumerate(CHANCES):
        wanted = cbm.draw_wanted(cbm.generator(77, number), cbm.uniform(chance))
        none_pays = max(
            none_pays, len(optimal(delay(tree, cbm.flow_of(tree, wanted), 500)).filters)
        )
    local = {}
    for skew in (1.0, 0.6, 0.4):
        chances = cbm.locality(skew, 0.2)
        flow = [
            cbm.flow_of(tree, cbm.draw_wanted(cbm.generator(74, seed), chances))
            for seed in range(seeds)
        ]
        local[skew] = float(np.mean([optimal(delay(tree, f, 100, LINK_DELAY)).cost for f in flow]))
    return [
        Claim(
            "with c = 1 and F = 500 no filter pays (most filters at any P)",
            none_pays,
            none_pays == 0,
            bar=0,
            note="errata: the paper gives no c; with c = 1 its figure would be flat",
        ),
        Claim(
            "as for traffic, locality lowers the delay (q = 1, 0.6, 0.4; F/c = 10)",
            [round(value) for value in local.values()],
            local[1.0] > local[0.6] > local[0.4],
            "qualitatively similar",
        ),
    ]


def draw(report: Report, path: Path) -> None:
    """Draw delay and number of filters against P, one line per F."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, low) = plt.subplots(2, 1, figsize=(8, 7.5), layout="constrained", sharex=True)
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.88, len(FILTER_DELAYS)))
    for filter_delay, shade in zip(FILTER_DELAYS, shades, strict=True):
        rows = [row for row in report.rows if row["F"] == filter_delay]
        x = [row["P"] for row in rows]
        for axes, name, error in ((top, "delay", "error"), (low, "filters", "filters_error")):
            axes.errorbar(
                x,
                [row[name] for row in rows],
                yerr=[row[error] for row in rows],
                label=f"F = {filter_delay:g}",
                color=shade,
                marker="o",
                markersize=3,
                linewidth=1.4,
                capsize=2,
            )
    bare = [row for row in report.rows if row["F"] == FILTER_DELAYS[0]]
    top.plot(
        [row["P"] for row in bare],
        [row["without_filters"] for row in bare],
        color="#999999",
        linestyle=":",
        label="no filters",
    )
    top.set_ylabel("total delay")
    low.set_ylabel("filters placed")
    low.set_xlabel("subscription probability P")
    low.axvline(0.3, color="#999999", linewidth=0.8, linestyle=":")
    for axes in (top, low):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    top.legend(frameon=False, fontsize=9)
    top.set_title(f"Optimal placement for delay, c = {LINK_DELAY:g} (CBM figure 7)", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)
