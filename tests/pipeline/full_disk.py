"""What `test_faults` runs where a small disk is mounted: ingests with less and more room left."""

import os
import time
from pathlib import Path

import pytest

from roamcast.errors import RoamcastError
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.state import opened
from roamcast.pipeline.spark.session import Settings, started
from tests.pipeline.test_archive import everything
from tests.pipeline.test_spark_ingest import line

LEFT = [0, 262_144]
PEOPLE = 6_000


def run(folder: str) -> None:
    """Ingest a little; then more than fits, with each amount of room left; then with enough."""
    work, disk = Path(folder), Path(folder) / "disk"
    (work / "few.jsonl").write_text(line("ann"))
    (work / "many.jsonl").write_text("\n".join(line(f"p{n}") for n in range(PEOPLE)))
    target = disk / "archive"
    with (
        started(Settings(master="local[2]", memory="1g")) as spark,
        opened(disk / "private", target, "trusted.example.org", os.urandom) as state,
    ):

        def ingest(name: str) -> None:
            now = time.time_ns() // 1_000
            ingest_once(spark, state, [work / name], IngestSettings(), lambda: now)

        ingest("few.jsonl")
        before, version = everything(target)["vid"].to_pylist(), Archive.open(target).version
        assert len(before) == 1
        for left in LEFT:
            fill(disk, left)
            with pytest.raises(RoamcastError, match="No space left on device") as told:
                ingest("many.jsonl")  # were it to fit, the disk would be too large
            assert "\n" not in str(told.value)
            (disk / "filler").unlink()
            assert Archive.open(target).version == version
            assert everything(target)["vid"].to_pylist() == before
            lying = [path for path in target.rglob("*.parquet") if "_delta_log" not in path.parts]
            assert len(lying) == 1, "nothing of a batch that failed takes room"
        ingest("many.jsonl")
        found = set(everything(target)["vid"].to_pylist())
        assert len(found) == PEOPLE + 1
        assert found > set(before)


def fill(disk: Path, left: int) -> None:
    """Fill a disk up to some bytes."""
    room = os.statvfs(disk)
    free = room.f_bavail * room.f_frsize
    (disk / "filler").write_bytes(bytes(max(0, free - left)))
