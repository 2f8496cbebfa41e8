"""JIT's missing figure: how long a crossing leaves a host without events, and what it costs.

Hexagonal cells in areas of 8 × 8, one node for each area, 20 ms links, T = 60 s. Four policies:
no preparation, virtual consumers at all neighbours, at those that a border cell borders, and at
those among them that lie ahead.

Nodes spend no time on their work here, so hosts do not slow each other down, and what one crossing
shows does not depend on how many hosts there are: each setting has its 200 hosts in ten runs of 20.
That is checked: the fastest hosts in the smallest cells also walk 200 at a time.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab._jit import POLICIES, Crossing, Policy, TrialPlan, TrialResult, played
from roamcast.lab.report import Claim, Report, Steps

TITLE = "delivery gap and cost of handoff, by policy, speed and size of cells (JIT has no figure)"

Setting = tuple[float, float, int, int]
"""Metres of a cell, metres a second, hosts at a time, runs."""

QUICK: list[Setting] = [(300.0, 30.0, 12, 1)]
FULL: list[Setting] = [
    (100.0, 30.0, 200, 1),
    *((cell, speed, 20, 10) for cell in (100.0, 1_000.0) for speed in (1.5, 30.0)),
    (300.0, 8.0, 20, 10),
]
"""Only the time counts that a cell takes: it is 3.3 s to 11 minutes, and the middle of that."""


def run(quick: bool, progress: Steps) -> Report:
    """Run every policy on the same walks."""
    areas, settings = (3, QUICK) if quick else (5, FULL)
    plans = {
        (setting, policy): [
            TrialPlan(policy, setting[0], setting[1], setting[2], areas, seed)
            for seed in range(setting[3])
        ]
        for setting in settings
        for policy in POLICIES
    }
    everything = [plan for some in plans.values() for plan in some]
    results: list[TrialResult] = []
    with progress("runs", len(everything)) as step:
        if quick:
            results = [played(plan) for plan in everything]
        else:
            fresh = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(os.cpu_count(), fresh) as pool:
                for result in pool.map(played, everything):
                    results.append(result)
                    step(1)
    found = dict(zip(everything, results, strict=True))
    rows = [
        _row(policy, setting, [found[plan] for plan in some])
        for (setting, policy), some in plans.items()
    ]
    moves: dict[Policy, list[Crossing]] = {policy: [] for policy in POLICIES}
    for plan, result in found.items():
        moves[plan.policy] += result.moves
    wrong = sum(result.wrong for result in results)
    parameters = {"areas": areas * areas, "runs": len(results), "link_ms": 20, "T_s": 60}
    return Report("jit-gap", parameters, rows, _claims(rows, moves, wrong))


def _row(policy: Policy, setting: Setting, made: list[TrialResult]) -> dict[str, Any]:
    cell_m, speed, hosts, _ = setting
    moves = [move for result in made for move in result.moves]
    gaps = [move.gap_us / 1e3 for move in moves if move.gap_us is not None]
    set_up = [move.set_up_us / 1e3 for move in moves if move.set_up_us is not None]
    return {
        "policy": policy,
        "cell_m": cell_m,
        "speed_mps": speed,
        "hosts": hosts,
        "crossings": len(moves),
        "travel_s": float(np.median([move.travel_us / 1e6 for move in moves] or [0.0])),
        "set_up_ms": float(np.median(set_up)) if set_up else None,
        "gap_ms": float(np.mean(gaps)) if gaps else None,
        "gap_ms_max": float(np.max(gaps)) if gaps else None,
        "prepared": sum(move.gap_us == 0 for move in moves) / max(1, len(moves)),
        "control_per_crossing": sum(one.control for one in made) / max(1, len(moves)),
        "virtual_s_per_crossing": sum(one.virtual_s for one in made) / max(1, len(moves)),
        "buffered_bytes": float(np.mean([one.buffered_bytes for one in made])),
    }


def _claims(
    rows: list[dict[str, Any]], moves: dict[Policy, list[Crossing]], wrong: int
) -> list[Claim]:
    def seconds(policy: Policy) -> float:
        return float(sum(row["virtual_s_per_crossing"] for row in rows if row["policy"] == policy))

    late = [
        move for policy in POLICIES[1:] for move in moves[policy] if is_late(move, moves[policy])
    ]
    normal = [move.gap_us for move in moves["normal"] if move.gap_us is not None]
    share = seconds("location-based") / max(1e-9, seconds("all neighbours"))
    predicted = seconds("predicted") / max(1e-9, seconds("location-based"))
    asked = [move.asked for move in moves["predicted"] if not move.rested]
    hits = sum(asked) / max(1, len(asked))
    return [
        Claim("events lost, twice or out of order", wrong, wrong == 0, paper=0, tolerance=0),
        Claim(
            "crossings with a gap although travel time was at least set-up time",
            len(late), not late, paper=0, tolerance=0,
        ),
        Claim("shortest gap of a normal handoff, ms", min(normal) / 1e3, min(normal) > 0, bar=0.0),
        Claim(
            "virtual-consumer seconds, location-based over all neighbours",
            share, share <= 0.15, bar=0.15,
        ),
        Claim(
            "virtual-consumer seconds, predicted over location-based",
            predicted, predicted <= 0.6, bar=0.6,
        ),
        Claim("share of crossings that were predicted", hits, hits >= 0.8, bar=0.8),
    ]  # fmt: skip


def is_late(move: Crossing, moves: list[Crossing]) -> bool:
    """Whether a crossing should have had no gap, and had one (JIT section 3)."""
    if move.rested or not move.asked or not move.gap_us:
        return False
    known = move.set_up_us
    if known is None:  # it did not stand yet: by the longest that others took
        known = max((one.set_up_us for one in moves if one.set_up_us is not None), default=0)
    return move.travel_us >= known


def draw(report: Report, path: Path) -> None:
    """Draw the gap and the cost by policy."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for policy in POLICIES:
        rows = [row for row in report.rows if row["policy"] == policy]
        names = [f"{row['cell_m']:.0f} m\n{row['speed_mps']:g} m/s\n{row['hosts']}" for row in rows]
        left.plot(names, [row["gap_ms"] for row in rows], marker="o", label=policy)
        right.plot(names, [row["virtual_s_per_crossing"] for row in rows], marker="o", label=policy)
    left.set(ylabel="mean gap, ms", title="Delivery gap")
    right.set(ylabel="virtual-consumer seconds a crossing", title="Cost", yscale="symlog")
    left.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
