"""Section 7.1.3 of CBM: the initial placement, the heuristic, the optimum and chance over time."""

from pathlib import Path

import numpy as np

from roamcast.lab import _cbm as cbm
from roamcast.lab.report import Claim, Report, Steps
from roamcast.placement.cost import cost
from roamcast.placement.heuristic import step as heuristic_step
from roamcast.placement.optimal import optimal

TITLE = "CBM section 7.1.3: one heuristic move a batch beside optimal, initial and random placement"

CHANCE = 0.3
FILTERS = 15
BATCHES = 50
CHANGING = 0.2
DISTRICTS = 8
WORKLOADS = ("gradual", "rapid")
SEEDS, SEEDS_QUICK = 60, 6


def run(quick: bool, progress: Steps) -> Report:
    """Follow 50 batches in which users change, for both workloads and many seeds."""
    seeds = SEEDS_QUICK if quick else SEEDS
    rows = []
    excess = {}
    with progress("runs", 2 * seeds) as tick:
        for number, workload in enumerate(WORKLOADS):
            runs = []
            for seed in range(seeds):
                runs.append(_follow(workload, cbm.generator(713, number, seed)))
                tick(1)
            costs = np.array(runs)
            above = (
                costs / costs[:, :, [2]] - 1
            )  # per run, because subscriptions vary more than plans
            excess[workload] = above.mean(axis=0)
            for batch in range(BATCHES):
                row = {"workload": workload, "batch": batch}
                row["optimal"], row["optimal_error"] = cbm.mean_error(costs[:, batch, 2])
                for plan, name in ((0, "initial"), (1, "heuristic"), (3, "random")):
                    mean, error = cbm.mean_error(above[:, batch, plan])
                    row[f"{name}_above"], row[f"{name}_error"] = mean, error
                rows.append(row)
    parameters = {
        "P": CHANCE,
        "k": FILTERS,
        "batches": BATCHES,
        "changing": CHANGING,
        "seeds": seeds,
        "rapid": "besides, each batch one of 8 districts takes a new rate between 0 and 0.6",
    }
    return Report("cbm-heuristic", parameters, rows, _claims(excess))


def _follow(workload: str, source: np.random.Generator) -> np.ndarray:
    """Return per batch the traffic of the initial, heuristic, optimal and random placement."""
    tree = cbm.paper_tree()
    rates = np.full(cbm.USERS, CHANCE)
    wanted = cbm.draw_wanted(source, _table(rates))
    problem = cbm.traffic_of(tree, wanted)
    initial = optimal(problem, FILTERS).filters
    moved = initial
    by_chance = sorted(int(v) for v in source.choice(cbm.INNER, FILTERS, replace=False))
    found = []
    for batch in range(BATCHES):
        if batch > 0:
            changing = source.random(cbm.USERS) < CHANGING
            if workload == "rapid":
                district = np.arange(cbm.USERS) // (cbm.USERS // DISTRICTS) == source.integers(
                    DISTRICTS
                )
                rates = np.where(district, 2 * CHANCE * source.random(), rates)
                changing |= district
            fresh = cbm.draw_wanted(source, _table(rates))
            wanted = np.where(changing[:, None], fresh, wanted)
            problem = cbm.traffic_of(tree, wanted)
            moved = heuristic_step(problem, moved, FILTERS)[0].filters
        found.append(
            (
                cost(problem, initial),
                cost(problem, moved),
                optimal(problem, FILTERS).cost,
                cost(problem, by_chance),
            )
        )
    return np.array(found)


def _table(rates: np.ndarray) -> np.ndarray:
    return np.repeat(rates[:, None], cbm.ITEMS, axis=1)


def _claims(excess: dict[str, np.ndarray]) -> list[Claim]:
    steady, rapid = excess["gradual"][1:].mean(axis=0), excess["rapid"]
    early, late = rapid[1:6].mean(axis=0), rapid[-10:].mean(axis=0)
    return [
        Claim(
            "gradual change: the initial placement stays almost optimal (above the optimum)",
            float(steady[0]),
            bool(steady[0] < 0.02),
            "almost the same",
        ),
        Claim(
            "gradual change: the heuristic is almost optimal (above the optimum)",
            float(steady[1]),
            bool(steady[1] < 0.02),
            "almost the same",
        ),
        Claim(
            "random placement is very inefficient (above the optimum)",
            float(steady[3]),
            bool(steady[3] > 0.1 and steady[3] > 10 * steady[0]),
            "very inefficient",
        ),
        Claim(
            "rapid change: the initial placement decays (first five batches, last ten)",
            [round(float(early[0]), 4), round(float(late[0]), 4)],
            bool(late[0] > 1.3 * early[0] and late[0] > 3 * steady[0]),
            "more and more ineffective",
        ),
        Claim(
            "rapid change: the heuristic performs almost as well as the optimum (last ten)",
            float(late[1]),
            bool(late[1] < 0.02 and late[1] < late[0] / 2),
            "almost as well",
        ),
    ]


def draw(report: Report, path: Path) -> None:
    """Draw what each placement costs above the optimum, batch by batch."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    shades = {"initial": "#c0504d", "heuristic": "#2f6db3", "random": "#7f7f7f"}
    for axes, workload in zip(panels, WORKLOADS, strict=True):
        rows = [row for row in report.rows if row["workload"] == workload]
        batches = [row["batch"] for row in rows]
        for name, shade in shades.items():
            above = [100 * row[f"{name}_above"] for row in rows]
            error = [100 * row[f"{name}_error"] for row in rows]
            axes.errorbar(
                batches,
                above,
                yerr=error,
                label=name,
                color=shade,
                linewidth=1.4,
                capsize=1.5,
                elinewidth=0.6,
            )
        axes.set_yscale("symlog", linthresh=1)
        ticks = (0, 0.5, 1, 2, 5, 10, 20, 30)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_ylim(0, 40)
        axes.set_xlabel("batch")
        axes.set_title(f"{workload} change", fontsize=11)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("traffic above the optimum, %")
    panels[0].legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.72))
    figure.suptitle("15 filters, P = 0.3, a fifth of the users change each batch (CBM 7.1.3)")
    figure.savefig(path, dpi=130)
    plt.close(figure)
