"""Figure 16 of OO: the flood watch, with a tenth of the area through a modulator that moves."""

from pathlib import Path
from typing import Any

from roamcast.errors import MissingError
from roamcast.lab import _flood_bed as bed
from roamcast.lab._cbm import lines
from roamcast.lab.oo_15 import BUSY
from roamcast.lab.report import Claim, Report, Steps

TITLE = "OO figure 16: flood watch in namespaces, 10 % of the area by a modulator moved upstream"

PAPER_MS = 200.0
ARRAY_S = 0.3
"""For one hop of a whole array: long, so that the processes' own time does not matter much."""


def run(quick: bool, progress: Steps) -> Report:
    """Run four topologies in turn at each load, both ways side by side."""
    lacking = bed.missing()
    if lacking:
        raise MissingError(lacking)
    loads = {BUSY: 3.0} if quick else {0.3: 8.0, BUSY: 12.0}
    rows, parameters = bed.measure(0.1, ARRAY_S, loads, progress)
    return Report("oo-16", {"quick": quick, **parameters}, rows, _claims(rows))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    scale = bed.PAPER_MS / (ARRAY_S * 1e3)
    moved = [
        row["latency_ms"] * scale
        for row in rows
        if row["way"] == "opportunistic" and row["topology"] != "A-B-C"
    ]
    static = bed.latency(rows, BUSY, "B-A-C", "static") * scale
    return [
        Claim("with the modulator at A: largest mean latency in the paper's ms", round(max(moved)),
              max(moved) < PAPER_MS, bar=PAPER_MS,
              note=f"one hop of a whole array is {bed.PAPER_MS:.0f} ms there, "
              f"{ARRAY_S * 1e3:.0f} ms here; static in B-A-C: {static:.0f}"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw latency against load in B-A-C."""
    bed.draw(report, path, lines, "Flood watch, 10 % of the area, in B-A-C (OO figure 16)")
