"""Figure 15 of OO: the flood watch on three stations that share one medium, all data."""

from pathlib import Path
from typing import Any

from roamcast.errors import MissingError
from roamcast.lab import _flood_bed as bed
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps

TITLE = "OO figure 15: flood watch in namespaces, latency of static and opportunistic, all data"

BUSY = 0.75
"""Utilisation of the medium by the static way in B-A-C at which the ways are compared."""


def run(quick: bool, progress: Steps) -> Report:
    """Run four topologies in turn at each load, both ways side by side."""
    lacking = bed.missing()
    if lacking:
        raise MissingError(lacking)
    loads = {BUSY: 3.0} if quick else {0.3: 5.0, 0.5: 7.0, BUSY: 20.0}
    rows, parameters = bed.measure(1.0, 0.1, loads, progress)
    return Report("oo-15", {"quick": quick, **parameters}, rows, _claims(rows, parameters, quick))


def _claims(rows: list[dict[str, Any]], parameters: dict[str, Any], quick: bool) -> list[Claim]:
    static, ours = (bed.latency(rows, BUSY, "B-A-C", way) for way in bed.WAYS)
    claims = [
        Claim(f"B-A-C at a utilisation of {BUSY}: opportunistic is faster, times",
              round(static / ours, 2), static / ours >= (3 if quick else 6), bar=3 if quick else 6,
              note=f"{static:.0f} against {ours:.0f} ms; paper 6,000 against 1,000"),
        Claim("the consumer's home moves to A once A hears C, and stays",
              parameters["moves"]["opportunistic"][:1], parameters["moves"]["opportunistic"][:1]
              == ["a"], paper="A is chosen as C's home broker from A-B-C-A on"),
        Claim("nothing moves in the static way", parameters["moves"]["static"],
              not parameters["moves"]["static"], paper="static"),
    ]  # fmt: skip
    alike = [bed.latency(rows, load, "A-B-C", way) for load in _loads(rows) for way in bed.WAYS]
    shown = max(alike) / max(1.0, min(alike))
    if not quick:
        claims.append(
            Claim("A-B-C: both ways are alike, at most times", round(shown, 2), shown < 2.5,
                  paper="both use A → B → C", note="over all loads")
        )  # fmt: skip
    return claims


def _loads(rows: list[dict[str, Any]]) -> list[float]:
    return sorted({row["load"] for row in rows})


def draw(report: Report, path: Path) -> None:
    """Draw latency against load in B-A-C."""
    bed.draw(report, path, lines, "Flood watch, all data, in B-A-C (OO figure 15)")
