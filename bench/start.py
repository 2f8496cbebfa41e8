"""The time a short job takes: without Spark, and on Spark with shared Java classes and without.

The same command each time, an ingest of one sighting, as cron would run it (docs/decisions/0085).
Few rows need no Spark (0371), so the two ways on Spark are asked for.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from roamcast.lab.report import Claim, Report, Steps
from roamcast.pipeline.spark import java_classes

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
from _processes import Cost, measured

TITLE = "A short job: without Spark, and on Spark with the classes Java kept, and without"
ONCE_S, ONCE_MB = 17.0, 1_900.0
"""What an ingest of one row took before (issue 20): half of both is the bar."""


def run(quick: bool, progress: Steps) -> Report:
    """Run the command in turn both ways, and compare the medians."""
    repeats = 2 if quick else 7
    if not java_classes.FILE.exists():
        java_classes.make()
    spent: dict[str, list[Cost]] = {"with": [], "without": [], "no Spark": []}
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name,
        progress("jobs", 3 * repeats) as step,
    ):
        folder = Path(name)
        (folder / "one.jsonl").write_text(java_classes.SIGHTING)
        for number in range(repeats):
            for how, costs in spent.items():
                archive = str(folder / f"{how}{number}")
                words = ["pipeline", "ingest", str(folder / "one.jsonl"), "--archive", archive]
                words += ["--on", "driver" if how == "no Spark" else "spark"]
                used = str(java_classes.FILE) if how == "with" else ""
                more = [f"{java_classes.VARIABLE}={used}", sys.executable, "-m", "roamcast"]
                costs.append(measured(["env", *more, *words]))
                step(1)
    rows = [{"classes": how, **_told(costs)} for how, costs in spent.items()]
    ratio = rows[1]["median s"] / rows[0]["median s"]
    seconds, megabytes = rows[2]["median s"], rows[2]["memory peak MB"]
    claims = [
        Claim("a short job, without the classes against with", ratio, ratio > 1, bar="> 1"),
        Claim("an ingest of one row, s", seconds, seconds <= ONCE_S / 2, bar=ONCE_S / 2),
        Claim("its memory, MB", megabytes, megabytes <= ONCE_MB / 2, bar=ONCE_MB / 2),
    ]
    megabytes = java_classes.FILE.stat().st_size / 1e6
    return Report("start", {"repeats": repeats, "file MB": megabytes}, rows, claims)


def _told(costs: list[Cost]) -> dict[str, Any]:
    seconds = [cost.seconds for cost in costs]
    return {
        "median s": statistics.median(seconds),
        "least s": min(seconds),
        "most s": max(seconds),
        "core s": statistics.median(cost.core_s for cost in costs),
        "memory peak MB": max(cost.memory_mb for cost in costs),
    }
