"""The time a short job waits for Spark, with shared Java classes and without.

The same command each time, an ingest of one sighting, as cron would run it (docs/decisions/0085).
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from roamcast.lab.report import Claim, Report, Steps
from roamcast.pipeline.spark import java_classes

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
from _processes import measured

TITLE = "A short job on Spark: with the classes Java kept, and without"


def run(quick: bool, progress: Steps) -> Report:
    """Run the command in turn both ways, and compare the medians."""
    repeats = 2 if quick else 7
    if not java_classes.FILE.exists():
        java_classes.make()
    spent: dict[str, list[float]] = {"with": [], "without": []}
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name,
        progress("jobs", 2 * repeats) as step,
    ):
        folder = Path(name)
        (folder / "one.jsonl").write_text(java_classes.SIGHTING)
        for number in range(repeats):
            for how, seconds in spent.items():
                archive = str(folder / f"{how}{number}")
                words = ["pipeline", "ingest", str(folder / "one.jsonl"), "--archive", archive]
                used = str(java_classes.FILE) if how == "with" else ""
                more = [f"{java_classes.VARIABLE}={used}", sys.executable, "-m", "roamcast"]
                seconds.append(measured(["env", *more, *words]).seconds)
                step(1)
    rows: list[dict[str, Any]] = [
        {"classes": how, "median s": statistics.median(s), "least s": min(s), "most s": max(s)}
        for how, s in spent.items()
    ]
    ratio = rows[1]["median s"] / rows[0]["median s"]
    claims = [Claim("a short job, without the classes against with", ratio, ratio > 1, bar="> 1")]
    megabytes = java_classes.FILE.stat().st_size / 1e6
    return Report("start", {"repeats": repeats, "file MB": megabytes}, rows, claims)
