"""The jobs over journals in one session, whatever its master: their results as plain values.

`python -m tests.pipeline.journal_jobs MASTER JOURNALS OUT` runs them as a process of its own.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.journals.load import load_journals
from roamcast.pipeline.journals.plan_files import make_plan
from roamcast.pipeline.journals.read import FAILED, read_journals, segments
from roamcast.pipeline.metrics import metrics
from roamcast.pipeline.spark.errors import collected
from roamcast.pipeline.spark.session import Settings, started
from roamcast.pipeline.sweep import outcomes, sweep

PLAY = "roamcast.sim.experiment:play_workload"
SETS = [{"workload": "channel", "messages": 12, "receivers": number} for number in (1, 3)]


def results(spark: Any, journals: Path, out: Path) -> dict[str, Any]:
    """Run metrics, plan, load and sweep; give everything they made, in a fixed order."""
    found = segments([journals])
    numbers = collected(metrics(read_journals(spark, found)), FAILED).to_pylist()
    make_plan(spark, found, out / "plan")
    landed = load_journals(spark, [journals], out / "archive", finish=True)
    archive = Archive.open(out / "archive")
    rows = [
        repr(row)
        for path in archive.files()["path"].to_pylist()
        for row in read_file(archive.storage, path).to_pylist()
    ]
    return {
        "metrics": sorted(map(repr, numbers)),
        "plan": {
            path.name: path.read_text().replace(str(out), "")  # where it lies stands in it
            for path in sorted((out / "plan").iterdir())
        },
        "landed": [msgspec.to_builtins(one) for one in landed],
        "contexts": sorted(rows),
        "sweep": [msgspec.to_builtins(one) for one in outcomes(sweep(spark, PLAY, SETS, 2))],
    }


if __name__ == "__main__":
    master, journals, out = sys.argv[1:]
    options = {"spark.sql.shuffle.partitions": "4"}
    with started(Settings(master=master, memory="1g", options=options)) as session:
        made = results(session, Path(journals), Path(out))
    (Path(out) / "results.json").write_bytes(msgspec.json.encode(made))
