"""Ours: how well a reader of an archive chains a person's vids by times, against grid and density.

TCC 4 gives each context a vid of its own and stores its exact times. Those times link the vids
again: the figure shows how a grid of times takes that away, and what it costs in addressing.
"""

from pathlib import Path
from typing import Any

from roamcast.identity.live_blur import GRID_S
from roamcast.lab import _linkability as link
from roamcast.lab.report import Claim, Report, Steps

TITLE = "Linkability: precision and recall of boundary joins against the grid of times"

GRIDS_S = (0, 60, 300, 900, 1_800, 3_600)
DENSITIES = (5, 20, 100)
DENSITIES_QUICK = (20,)
CROWD = 20
ATTACKS = ("nearest, same building", "movement")


def run(quick: bool, progress: Steps) -> Report:
    """Attack archives of made people at several densities, and GeoLife where it is at hand."""
    densities = DENSITIES_QUICK if quick else DENSITIES
    data = {f"{each} a building": link.made(each * link.BUILDINGS) for each in densities}
    path = None if quick else link.geolife_path()
    if path is not None:
        data["GeoLife"] = link.geolife(path)
    grids = (0, GRID_S) if quick else GRIDS_S
    rows: list[dict[str, Any]] = []
    with progress("archives", len(data) * len(grids)) as step:
        for name, stays in data.items():
            vids, truth = link.vids_of(stays, paper=False)
            for grid_s in grids:
                stored = link.stored(stays, vids, grid_s)
                price = link.found_over_exact(stays, stored)
                told = link.by_succession(stored, truth, link.NEARS)
                rows += [
                    {"data": name, "grid_s": grid_s, **row, "found_over_exact": price}
                    for row in told
                ]
                step(1)
    return Report("linkability", {"quick": quick, "grid_s": GRID_S}, rows, _claims(rows))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    def best(grid_s: int) -> float:
        return max(
            float(row["precision"])
            for row in rows
            if row["data"] == f"{CROWD} a building"
            and row["grid_s"] == grid_s
            and row["attack"].removeprefix("mutual ") in link.JOINS
        )

    exact, default = best(0), best(GRID_S)
    return [
        Claim("exact times: precision of the best boundary join", exact, exact > 0.9, bar=0.9),
        Claim(
            f"rounded to {GRID_S} s, {CROWD} people in a building", default, default <= 0.1, bar=0.1
        ),
    ]


def draw(report: Report, path: Path) -> None:
    """Draw precision and recall for each density, with the price above them."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in report.rows))
    figure, axes = plt.subplots(1, 3, figsize=(13, 4))
    for axis, measure, attack in (
        (axes[0], "precision", ATTACKS[0]),
        (axes[1], "recall", ATTACKS[0]),
        (axes[2], "precision", ATTACKS[1]),
    ):
        for name in names:
            own = [row for row in report.rows if (row["data"], row["attack"]) == (name, attack)]
            axis.plot(
                [max(row["grid_s"], 10) for row in own], [row[measure] for row in own],
                marker="o", label=name,
            )  # fmt: skip
        axis.axvline(GRID_S, color="grey", linestyle=":")
        axis.axhline(0.1, color="grey", linewidth=0.5)
        axis.set(xscale="log", xlabel="grid (s); 10 is exact", ylabel=measure, title=attack)
        axis.legend()
    prices = {row["grid_s"]: row["found_over_exact"] for row in report.rows}
    told = ", ".join(f"{grid_s} s: {price:.2f}" for grid_s, price in prices.items())
    figure.suptitle(f"contexts that an hour's question finds, over exact: {told}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
