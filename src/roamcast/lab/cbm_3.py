"""Figure 3 of CBM: total traffic against the number of filters, uniform probabilities."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from roamcast.lab import _cbm as cbm
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.placement.optimal import curve
from roamcast.placement.tree import Floats

TITLE = "CBM figure 3: total traffic with k optimally placed filters, uniform probability P"

CHANCES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
COUNTS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 25, 31, 40, 50, 63)
SEEDS, SEEDS_QUICK = 100, 10

SHARE_ROOM = 0.05
"""About 75 % is 70 to 80 %."""


def run(quick: bool, progress: Steps) -> Report:
    """Average the whole curve over seeds for each P."""
    seeds = SEEDS_QUICK if quick else SEEDS
    tree = cbm.paper_tree()
    rows = []
    curves = {}
    with progress("probabilities", len(CHANCES)) as step:
        for number, chance in enumerate(CHANCES):
            drawn = [
                cbm.draw_wanted(cbm.generator(3, number, seed), cbm.uniform(chance))
                for seed in range(seeds)
            ]
            costs = np.array([curve(cbm.traffic_of(tree, wanted), cbm.INNER) for wanted in drawn])
            mean = curves[chance] = costs.mean(axis=0)
            for k in COUNTS:
                traffic, error = cbm.mean_error(costs[:, k])
                bare, reduction = float(mean[0]), float(mean[0] - mean[-1])
                rows.append(
                    {
                        "P": chance,
                        "k": k,
                        "traffic": traffic,
                        "error": error,
                        "saved": 1 - traffic / bare,
                        "share_of_all": (bare - traffic) / reduction if reduction else None,
                    }
                )
            step(1)
    parameters = {"vertices": 127, "users": 64, "items": 64, "seeds": seeds}
    return Report("cbm-3", parameters, rows, _claims(curves))


def _claims(curves: dict[float, Floats]) -> list[Claim]:
    saved = {chance: float(1 - mean[3] / mean[0]) for chance, mean in curves.items()}
    share = {
        chance: float((mean[0] - mean[15]) / (mean[0] - mean[-1]))
        for chance, mean in curves.items()
        if mean[0] > mean[-1]
    }
    sparse = [saved[chance] for chance in CHANCES if 0.05 <= chance <= 0.2]
    falling = [saved[chance] for chance in CHANCES]
    everything = cbm.LINKS * cbm.ITEMS
    return [
        near(
            "3 filters save 12-50 % for 0.05 ≤ P ≤ 0.2, least",
            min(sparse),
            0.12,
            0.05,
            note="at P = 0.2",
        ),
        near(
            "3 filters save 12-50 % for 0.05 ≤ P ≤ 0.2, most",
            max(sparse),
            0.5,
            0.05,
            note="at P = 0.05; below it the saving grows on",
        ),
        Claim(
            "15 filters give about 75 % of what 63 give, whatever P (least, most)",
            [min(share.values()), max(share.values())],
            all(abs(value - 0.75) <= SHARE_ROOM for value in share.values()),
            0.75,
            note=f"{share[0.2]:.2f} at P = 0.2; it falls with P",
            tolerance=SHARE_ROOM,
        ),
        Claim(
            "filters save most where subscriptions are sparse",
            [round(value, 3) for value in falling],
            all(later < earlier for earlier, later in pairwise(falling)),
            "falling with P",
        ),
        Claim(
            "P = 1 is basic multicast: no saving",
            float(curves[1.0][0] - curves[1.0][-1]),
            bool(curves[1.0][0] == curves[1.0][-1] == everything),
            0,
            tolerance=0,
        ),
        Claim(
            "very sparse: traffic dips already at k = 0, items nobody wants stay at the root",
            float(curves[0.01][0]),
            bool(curves[0.01][0] < 0.9 * everything),
            f"below {everything}",
        ),
    ]


def draw(report: Report, path: Path) -> None:
    """Draw traffic against k, one line per P."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for row in report.rows:
        point = (row["k"], row["traffic"], row["error"])
        series.setdefault(f"P = {row['P']:g}", []).append(point)
    cbm.lines(
        path,
        series,
        title="Total traffic with optimal placement of k filters (CBM figure 3)",
        across="filters k",
        up="messages (item × link)",
    )
