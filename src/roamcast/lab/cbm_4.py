"""Figure 4 of CBM: users who are close in the tree want similar items."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from roamcast.lab import _cbm as cbm
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.placement.optimal import curve

TITLE = "CBM figure 4: effect of subscription locality q on total traffic, mean probability 0.2"

SKEWS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
COUNTS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 31, 45, 63)
MEAN = 0.2
SEEDS, SEEDS_QUICK = 100, 10

Curves = dict[float, np.ndarray]


def run(quick: bool, progress: Steps) -> Report:
    """Average the whole curve over seeds for each q, with and without keeping the mean."""
    seeds = SEEDS_QUICK if quick else SEEDS
    tree = cbm.paper_tree()
    rows = []
    mean_fixed: Curves = {}
    cut: Curves = {}
    with progress("skews", len(SKEWS)) as step:
        for number, skew in enumerate(SKEWS):
            for keep_mean, curves in ((True, mean_fixed), (False, cut)):
                chances = cbm.locality(skew, MEAN, keep_mean=keep_mean)
                costs = np.array(
                    [
                        curve(
                            cbm.traffic_of(
                                tree, cbm.draw_wanted(cbm.generator(4, number, seed), chances)
                            ),
                            cbm.INNER,
                        )
                        for seed in range(seeds)
                    ]
                )
                curves[skew] = costs.mean(axis=0)
                if not keep_mean:
                    continue
                for k in COUNTS:
                    traffic, error = cbm.mean_error(costs[:, k])
                    rows.append(
                        {
                            "q": skew,
                            "k": k,
                            "traffic": traffic,
                            "error": error,
                            "further": float(1 - traffic / mean_fixed[1.0][k]),
                            "P_max": float(chances.max()),
                        }
                    )
            step(1)
    parameters = {"vertices": 127, "users": 64, "items": 64, "mean": MEAN, "seeds": seeds}
    return Report("cbm-4", parameters, rows, _claims(mean_fixed, cut))


def _claims(mean_fixed: Curves, cut: Curves) -> list[Claim]:
    steady = [
        float(mean_fixed[low][k] - mean_fixed[high][k])
        for k in (1, 3, 15, 31, 63)
        for high, low in pairwise(SKEWS[2:])
    ]
    further = {
        k: {q: float(1 - mean_fixed[q][k] / mean_fixed[1.0][k]) for q in SKEWS} for k in (3, 63)
    }
    claims = [
        Claim(
            "more locality, less traffic, whatever the number of filters (q from 0.8 down)",
            max(steady),
            max(steady) < 0,
            "falling",
            note="largest change of traffic from one q to the next lower, k in 1, 3, 15, 31, 63",
        )
    ]
    for k, said in ((3, 0.15), (63, 0.3)):
        nearest = min(further[k], key=lambda q: abs(further[k][q] - said))
        ours = further[k][nearest]
        claims.append(
            near(
                f"at k = {k} locality saves about {said:.0%} more, at some q",
                ours,
                said,
                0.05,
                note=f"q = {nearest:g}",
            )
        )
    claims.append(_both(mean_fixed, cut))
    return claims


def _both(mean_fixed: Curves, cut: Curves) -> Claim:
    """Search for a q at which k = 3 gives 15 % and k = 63 almost 30 %, in any reading we know."""
    tried = []
    for name, curves in (("mean kept", mean_fixed), ("cut at 1, mean not kept", cut)):
        for unit in ("of the traffic at q = 1", "of the traffic without filters"):
            for q in SKEWS[1:]:
                base = curves[1.0]
                by = (base[3], base[63]) if unit.endswith("1") else (base[0], base[0])
                pair = (
                    float((base[3] - curves[q][3]) / by[0]),
                    float((base[63] - curves[q][63]) / by[1]),
                )
                miss = max(abs(pair[0] - 0.15), abs(pair[1] - 0.3))
                tried.append((miss, name, unit, q, pair))
    tried.sort(key=lambda reading: reading[0])
    miss, name, unit, q, pair = tried[0]
    return Claim(
        "15 % at k = 3 and almost 30 % at k = 63 at one and the same q",
        [round(value, 3) for value in pair],
        miss <= 0.03,
        [0.15, 0.3],
        tolerance=0.03,
        note=f"nearest of {len(tried)} readings: q = {q:g}, {name}, share {unit}",
    )


def draw(report: Report, path: Path) -> None:
    """Draw traffic against k, one line per q."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for row in report.rows:
        point = (row["k"], row["traffic"], row["error"])
        series.setdefault(f"q = {row['q']:g}", []).append(point)
    cbm.lines(
        path,
        series,
        title="Effect of locality on total traffic, mean probability 0.2 (CBM figure 4)",
        across="filters k",
        up="messages (item × link)",
    )
