"""Figure 7a of TCC: messages that collect the local results, without vid resolution."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roamcast.lab import _tcc as tcc
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.sim.hops.counting import POLICIES
from roamcast.sim.hops.experiment import machine_run

TITLE = "TCC figure 7a: backtracking messages of NH, FBTH and BTH2-4 against the target's edge"

COLLECTING = [policy for policy, branching in POLICIES.items() if branching]
answers = tcc.per_cast("answers")


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    """Count answers over ten runs; with `full` also on 100,000 routers."""
    runs = tcc.RUNS_QUICK if quick else tcc.RUNS
    found = tcc.historic(runs, progress)
    rows = _rows(found)
    parameters = tcc.parameters(runs)
    claims = [*_claims(found), _by_machines(tcc.EDGES[:2] if quick else tcc.EDGES, rows, progress)]
    if full:
        large = tcc.historic(runs, progress, **tcc.setting_of(tcc.LARGE))
        rows += [{"routers": tcc.LARGE, **row} for row in _rows(large)]
        claims.append(_saving(large, f"BTH4 spares of FBTH's, edge 0.25, {tcc.LARGE:,} routers"))
    return Report("tcc-7a", parameters, rows, claims)


def _rows(found: dict[tuple[float, str], list[tcc.Row]]) -> list[tcc.Row]:
    return [
        {"edge": edge, "policy": policy, **tcc.spread("answers", tcc.of_runs(rows, answers))}
        for (edge, policy), rows in found.items()
    ]


def _claims(found: dict[tuple[float, str], list[tcc.Row]]) -> list[Claim]:
    means = {key: float(np.mean(tcc.of_runs(rows, answers))) for key, rows in found.items()}
    falling = [[means[edge, policy] for policy in COLLECTING] for edge in tcc.EDGES]
    widest = [round(value) for value in falling[-1]]
    return [
        Claim("FBTH collects with the most messages at every edge (at 0.25: FBTH, BTH2-4)", widest,
              all(row[0] == max(row) and row.count(row[0]) == 1 for row in falling),
              paper="highest message load"),
        Claim("the further down it is collected, the fewer", widest,
              all(row == sorted(row, reverse=True) for row in falling),
              paper="lower for BTH2 through BTH4"),
        Claim("NH collects nothing", max(means[edge, "NH"] for edge in tcc.EDGES),
              all(means[edge, "NH"] == 0 for edge in tcc.EDGES), paper=0, tolerance=0),
        _saving(found, "BTH4 spares of FBTH's, edge 0.25, mean of the runs"),
    ]  # fmt: skip


def _by_machines(edges: Sequence[float], rows: list[tcc.Row], progress: Steps) -> Claim:
    """Send a cast of each edge under each policy through the real machines; add their rows."""
    different = 0
    with progress("casts through the machines", len(edges)) as step:
        for edge in edges:
            for row in machine_run(edge, 0):
                rows.append({"machines": True, "edge": edge, **row})
                different += row["different"]
            step(1)
    sent = sum(row["sent"] for row in rows if "machines" in row)
    return Claim(f"messages of the real machines that are not counted, of {sent:,}", different,
                 different == 0, bar=0)  # fmt: skip


def _saving(found: dict[tuple[float, str], list[tcc.Row]], claim: str) -> Claim:
    collected, full = (
        np.array(tcc.of_runs(found[tcc.WIDEST, policy], answers)) for policy in ("BTH4", "FBTH")
    )
    spared = 1 - collected / full
    note = f"single runs {spared.min():.2f} to {spared.max():.2f}"
    return near(claim, float(spared.mean()), 0.6, 0.08, note)


def draw(report: Report, path: Path) -> None:
    """Draw answers against the edge, one line per policy."""
    rows = [row for row in report.rows if "routers" not in row and "machines" not in row]
    title = "Backtracking messages, without vid resolution (TCC figure 7a)"
    tcc.draw_bars(path, rows, "answers", title, "messages a cast")
