"""Figure 12 of OO: the largest load of a broker against the average load."""

from pathlib import Path
from typing import Any

from roamcast.lab import _oo_load as load
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps

TITLE = "OO figure 12: largest broker load against average load, with and without control"

PAPER_FROM = 0.3
"""Below this average load both behave the same."""


def run(quick: bool, progress: Steps) -> Report:
    """Run every load and control; figure 13 has the paths of the same runs."""
    rows, parameters = load.measure(quick, progress)
    rows = [row for row in rows if row["quantity"] == "largest load"]
    return Report("oo-12", parameters, rows, _claims(rows))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    nearest = load.line(rows, load.NONE.name, "largest load")
    begins = _begins(rows, load.FULL.name, nearest)
    full = load.line(rows, load.FULL.name, "largest load")
    return [
        Claim("limit 100 %: average load from which control lowers the largest load", begins,
              PAPER_FROM < begins <= 0.5, paper="above 0.3",
              note="a limit of 70 % matters from "
              f"{_begins(rows, 'limit 70 %', nearest):g}, of 30 % from "
              f"{_begins(rows, 'limit 30 %', nearest):g}"),
        Claim("limit 100 %: no broker is overloaded, largest load at any average",
              max(full.values()), max(full.values()) <= 1.0001, paper="control ameliorates this"),
        Claim("without control brokers are overloaded: largest load at 100 %", nearest[1.0],
              nearest[1.0] > 1.5, paper="some brokers become overloaded"),
    ]  # fmt: skip


def _begins(rows: list[dict[str, Any]], control: str, nearest: dict[float, float]) -> float:
    return load.first_load(load.line(rows, control, "largest load"), nearest, 0.02)


def draw(report: Report, path: Path) -> None:
    """Draw the largest load against the average."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for one in report.rows:
        point = (one["average load"], one["ours"], one["error"])
        series.setdefault(one["control"], []).append(point)
    lines(path, series, title="Largest broker load (OO figure 12)",
          across="average load", up="largest load")  # fmt: skip
