"""How large is an archive of few sightings in many places over a long time?

People check in in 60 cities over a year, as in a network of check-ins: a file for each day and cell
would hold some fifteen rows. They come in batches of a month, so that no batch knows the others.
Then the archive is compacted, vacuumed, and one person is erased.
"""

import tempfile
import time
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.identity.agent_settings import AgentSettings
from roamcast.lab.report import Claim, Report, Steps
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.retention import erase
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.state import opened, private_folder
from roamcast.pipeline.spark.session import Settings, started

TITLE = "few sightings of 60 cities over a year: files, bytes, and one person erased"
SETTINGS = IngestSettings(agent=AgentSettings(dwell_s=0, margin=0))
"""A check-in is a context of its own: nobody stays in sight."""

SEED = 23
CITIES, PEOPLE, MONTHS = 60, 5_000, 12
START_US = 1_735_689_600_000_000  # 2025-01-01
DAY_US = 86_400_000_000
FILES_MAX, BYTES_MAX, ERASED_MAX_S = 500, 2.0, 10.0


def generate(folder: Path, rows: int) -> int:
    """Write a file of check-ins for each month; give their bytes."""
    rng = np.random.default_rng(SEED)
    centres = np.stack([rng.uniform(-120, 140, CITIES), rng.uniform(-40, 60, CITIES)])
    homes = rng.integers(0, CITIES, PEOPLE)
    each, size = rows // MONTHS, 0
    for month in range(MONTHS):
        who = rng.integers(0, PEOPLE, each)
        lon, lat = centres[:, homes[who]] + rng.normal(0, 0.05, (2, each))
        start = START_US + month * 30 * DAY_US
        table = pa.table(
            {
                "person": [f"person-{number:05d}" for number in who.tolist()],
                "source": ["gps"] * each,
                "time": pa.array(start + np.sort(rng.integers(0, 30 * DAY_US, each))).cast(
                    pa.timestamp("us", "UTC")
                ),
                "lon": np.round(lon, 6),
                "lat": np.round(lat, 6),
            }
        )
        path = folder / f"month-{month:02d}.parquet"
        pq.write_table(table, path)
        size += path.stat().st_size
    return size


def run(quick: bool, progress: Steps) -> Report:
    """Ingest month by month, compact, vacuum, erase."""
    rows = 40_000 if quick else 400_000
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name,
        started(Settings(master="local[2]", memory="2g")) as spark,
        progress("months and jobs", MONTHS + 2) as step,
    ):
        source, archive = Path(name) / "sightings", Path(name) / "archive"
        source.mkdir()
        given = generate(source, rows)
        with opened(private_folder(archive), archive, "bench.example.org", token_bytes) as state:
            for path in sorted(source.iterdir()):
                ingest_once(spark, state, [path], SETTINGS, lambda: time.time_ns() // 1_000)
                step(1)
        before = len(Archive.open(archive).files())
        begin = time.perf_counter()
        compact(archive)
        vacuum(archive, hours=0)
        compacted_s = time.perf_counter() - begin
        step(1)
        row = _measured(archive) | {"sightings": rows, "files before": before}
        row |= {"input_bytes": given, "compacted_s": compacted_s}
        begin = time.perf_counter()
        done = erase(archive, [_somebody(archive)])
        row["erased_s"] = time.perf_counter() - begin
        step(1)
    assert done.rows_erased > 0
    assert done.files_left == 0
    return Report("sparse", {"cities": CITIES, "people": PEOPLE}, [row], _claims(row))


def _measured(archive: Path) -> dict[str, Any]:
    files = Archive.open(archive).files()
    return {
        "contexts": int(np.asarray(files["num_records"]).sum()),
        "files": len(files),
        "bytes": int(np.asarray(files["size_bytes"]).sum()),
    }


def _somebody(archive: Path) -> str:
    target = Archive.open(archive)
    table = read_file(target.storage, target.files()["path"][0].as_py(), ["vid"])
    return str(table["vid"][0].as_py())


def _claims(row: dict[str, Any]) -> list[Claim]:
    share = row["bytes"] / row["input_bytes"]
    told = f"{row['sightings']:,} sightings of {CITIES} cities over a year"
    files, seconds = row["files"], round(row["erased_s"], 2)
    return [
        Claim(f"{told}: files", files, files <= FILES_MAX, bar=f"<= {FILES_MAX}"),
        Claim(f"{told}: bytes against the input's Parquet", round(share, 2), share <= BYTES_MAX,
              bar=f"<= {BYTES_MAX:g} times"),
        Claim(f"{told}: one vid erased, s", seconds, seconds < ERASED_MAX_S,
              bar=f"< {ERASED_MAX_S:g} s"),
    ]  # fmt: skip
