"""Figure 13 of OO: path length against the average load."""

from pathlib import Path
from typing import Any

from roamcast.lab import _oo_load as load
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps

TITLE = "OO figure 13: path length against average load, with and without control"

PAPER_FROM = 0.7
"""Up to this average load the nearest broker is always chosen."""


def run(quick: bool, progress: Steps) -> Report:
    """Run every load and control; figure 12 has the loads of the same runs."""
    rows, parameters = load.measure(quick, progress)
    rows = [row for row in rows if row["quantity"] != "largest load"]
    return Report("oo-13", parameters, rows, _claims(rows))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    nearest = load.line(rows, load.NONE.name, "hops")
    begins = {
        control.name: load.first_load(load.line(rows, control.name, "hops"), nearest, 0.05)
        for control in load.CONTROLS[1:]
    }
    saved = [
        (row["most"], row["ours"])
        for row in rows
        if row["control"] == load.FULL.name and row["quantity"] == "hops saved"
    ]
    return [
        Claim("limit 100 %: average load from which paths are more than 5 % longer",
              begins[load.FULL.name], begins[load.FULL.name] > PAPER_FROM, paper="above 0.7",
              note=f"limit 70 %: from {begins['limit 70 %']:g}, "
              f"limit 30 %: from {begins['limit 30 %']:g}"),
        Claim("limit 100 %: hops shorter than static at the lowest load (most of a run, mean)",
              list(saved[0]), saved[0][0] > 1.0, paper="can be more than 1 hop shorter"),
        Claim("limit 100 %: still shorter than static at 100 %: hops saved", saved[-1][1],
              saved[-1][1] > 0, paper="continues to outperform"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw hops against the average load."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for one in report.rows:
        if one["quantity"] == "hops":
            point = (one["average load"], one["ours"], one["error"])
            series.setdefault(one["control"], []).append(point)
    lines(path, series, title="Path length against load (OO figure 13)",
          across="average load", up="physical hops")  # fmt: skip
