"""TCC IV-A: the hops that collecting adds, with and without waiting for the slowest subtree.

A delay is the hops from where the cast enters to the trusted node, over the router that resolves.
The paper's "average delay" can be read as the mean over matching contexts (ours for the claim); the
same without waiting, as if every answer were forwarded at once; the mean over people, by the copy
that comes first; or the mean over casts, until the last trusted node has it.
"""

from pathlib import Path

import numpy as np

from roamcast.lab import _tcc as tcc
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.sim.hops.counting import POLICIES

TITLE = "TCC IV-A: FBTH's extra hops, the slowest subtree awaited"

PAPER_HOPS = 5.0
READINGS = {
    "delay": ("delay", "matches"),
    "unwaited": ("delay_unwaited", "matches"),
    "first": ("delay_first", "people"),
    "last": ("delay_last", "casts"),
}
WIDER = (*tcc.EDGES, 0.3, 0.35)
"""Beyond figure 7's edges: where are five hops reached?"""


def run(quick: bool, progress: Steps) -> Report:
    """Average the delays of every policy over the runs."""
    runs = tcc.RUNS_QUICK if quick else tcc.RUNS
    found = tcc.historic(runs, progress, edges=WIDER)
    rows = []
    for edge in WIDER:
        for policy in POLICIES:
            extra = _extra(found, edge, policy, "delay")
            row = {"edge": edge, "policy": policy, "hops": _mean(found, edge, policy)}
            row |= tcc.spread("extra", extra)
            for reading in ("unwaited", "first", "last"):
                row[f"extra_{reading}"] = float(np.mean(_extra(found, edge, policy, reading)))
            rows.append(row)
    return Report("tcc-delay", tcc.parameters(runs), rows, _claims(found))


def _delays(rows: list[tcc.Row], reading: str) -> list[float]:
    above, below = READINGS[reading]
    return tcc.of_runs(rows, lambda row: row[above] / row[below])


def _mean(found: dict[tuple[float, str], list[tcc.Row]], edge: float, policy: str) -> float:
    return float(np.mean(_delays(found[edge, policy], "delay")))


def _extra(
    found: dict[tuple[float, str], list[tcc.Row]], edge: float, policy: str, reading: str
) -> list[float]:
    """Return of each run the hops that a policy has more than NH."""
    pairs = zip(
        _delays(found[edge, policy], reading), _delays(found[edge, "NH"], reading), strict=True
    )
    return [ours - naive for ours, naive in pairs]


def _claims(found: dict[tuple[float, str], list[tcc.Row]]) -> list[Claim]:
    widest = _extra(found, tcc.WIDEST, "FBTH", "delay")
    beyond = [float(np.mean(_extra(found, edge, "FBTH", "delay"))) for edge in WIDER[-2:]]
    by_policy = [
        float(np.mean(_extra(found, tcc.WIDEST, policy, "delay")))
        for policy in ("FBTH", "BTH2", "BTH3", "BTH4", "NH")
    ]
    note = (
        f"runs {min(widest):.1f} to {max(widest):.1f}; the paper names no edge: "
        f"{beyond[0]:.1f} at {WIDER[-2]}, {beyond[1]:.1f} at {WIDER[-1]}"
    )
    return [
        near("FBTH's extra hops at edge 0.25", float(np.mean(widest)), PAPER_HOPS, 0.5, note),
        Claim("collecting further down costs fewer (at 0.25: FBTH, BTH2-4, NH)",
              [round(hops, 2) for hops in by_policy],
              by_policy == sorted(by_policy, reverse=True),
              paper="collecting increases the delay"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw extra hops against the edge, one line per policy."""
    title = "Hops more than NH until the trusted node has the cast (TCC IV-A)"
    tcc.draw_bars(path, report.rows, "extra", title, "extra hops")
