"""Figure 7b of TCC: messages that collect the local results and resolve the vids."""

from pathlib import Path

import numpy as np

from roamcast.lab import _tcc as tcc
from roamcast.lab.report import Claim, Report, Steps

TITLE = "TCC figure 7b: backtracking and vid resolution against the target's edge"

ORDER = ("FBTH", "BTH2", "BTH3", "BTH4", "NH")
DENSITIES = (1.0, 100.0)
"""Matching contexts an access node, beside the usual ten: the paper names no number."""

total = tcc.per_cast("answers", "resolves")


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    """Count all messages over ten runs; with `full` also on 100,000 routers."""
    runs = tcc.RUNS_QUICK if quick else tcc.RUNS
    found = tcc.historic(runs, progress)
    rows = _rows(found)
    parameters = tcc.parameters(runs)
    claims = _claims(found)
    for density in DENSITIES[:1] if quick else DENSITIES:
        varied = tcc.historic(
            tcc.RUNS_QUICK, progress, edges=(tcc.EDGES[0], tcc.WIDEST), contexts_per_access=density
        )
        rows += [{"contexts": density, **row} for row in _rows(varied)]
        claims.append(_order(varied, f"the same with {density:g} matching contexts, 0.05, 0.25"))
    if full:
        large = tcc.historic(runs, progress, **tcc.setting_of(tcc.LARGE))
        rows += [{"routers": tcc.LARGE, **row} for row in _rows(large)]
        claims.append(_order(large, f"the same with {tcc.LARGE:,} routers (at 0.25)"))
    return Report("tcc-7b", parameters, rows, claims)


def _rows(found: dict[tuple[float, str], list[tcc.Row]]) -> list[tcc.Row]:
    return [
        {
            "edge": edge,
            "policy": policy,
            **tcc.spread("messages", tcc.of_runs(rows, total)),
            "answers": float(np.mean(tcc.of_runs(rows, tcc.per_cast("answers")))),
            "resolves": float(np.mean(tcc.of_runs(rows, tcc.per_cast("resolves")))),
        }
        for (edge, policy), rows in found.items()
    ]


def _means(found: dict[tuple[float, str], list[tcc.Row]]) -> dict[tuple[float, str], float]:
    return {key: float(np.mean(tcc.of_runs(rows, total))) for key, rows in found.items()}


def _order(found: dict[tuple[float, str], list[tcc.Row]], claim: str) -> Claim:
    """Claim that FBTH sends least and NH most, at every edge and in every run."""
    held = True
    for edge in {edge for edge, _ in found}:
        by_policy = np.array([tcc.of_runs(found[edge, policy], total) for policy in ORDER])
        held = held and bool(
            (by_policy[0] < by_policy[1:]).all() and (by_policy[-1] >= by_policy[:-1]).all()
        )
    means = _means(found)
    widest = [round(means[tcc.WIDEST, policy]) for policy in ORDER]
    return Claim(claim, widest, held, paper="FBTH lowest, NH highest")


def _claims(found: dict[tuple[float, str], list[tcc.Row]]) -> list[Claim]:
    means = _means(found)
    rising = [[means[edge, policy] for policy in ORDER] for edge in tcc.EDGES]
    naive, collected = found[tcc.WIDEST, "NH"], found[tcc.WIDEST, "FBTH"]
    spared = sum(row["resolves"] for row in naive) - sum(row["resolves"] for row in collected)
    spent = sum(row["answers"] for row in collected)
    lowest = tcc.EDGES[0]
    note = f"at {lowest}: BTH4 {means[lowest, 'BTH4']:.0f}, NH {means[lowest, 'NH']:.0f} messages"
    return [
        _order(found, "FBTH sends least, NH most, in every run (at 0.25: FBTH, BTH2-4, NH)"),
        Claim("the further down it is collected, the more", [round(v) for v in rising[-1]],
              all(row == sorted(row) for row in rising), paper="increases with the limit",
              note=note),
        Claim("at 0.25 collecting spares this many times the messages it costs", spared / spent,
              spared > 2 * spent, paper="collecting is dominated by resolution"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw all messages against the edge, one line per policy."""
    rows = [row for row in report.rows if "routers" not in row and "contexts" not in row]
    title = "Backtracking and vid resolution (TCC figure 7b)"
    tcc.draw_bars(path, rows, "messages", title, "messages a cast")
