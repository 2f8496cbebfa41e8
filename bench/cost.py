"""What will a larger archive cost? Measured at sizes ten times apart, fitted, and extended.

Each size is ingested into a new archive, compacted, asked, and one vid is erased. Each measure is
fitted as a fixed part and a part by sighting, so that the relative errors are least. What is told
for 10^9 and 10^11 sightings is that line, on these cores; where a limit of ours lies before, the
claims say so. `--full` adds 10^8 sightings.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np

from roamcast.identity.agent_settings import AgentSettings
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.filters import Filter
from roamcast.model.time import MICROSECONDS, format_instant
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.retention import erase
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.job import BUCKETS_MAX
from roamcast.pipeline.ingest.pack import BUCKET_ROWS
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.state import opened, private_folder
from roamcast.pipeline.lookup.run import Lookup

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
from _processes import size_bytes, watched
from ingest import HEARTBEAT_S, START_US, generate

TITLE = "The pipeline's costs, fitted on growing sizes and extended to 10^9 and 10^11 sightings"
AHEAD = (1_000_000_000, 100_000_000_000)
PEOPLE_SHARE = 20
"""Sightings for each person: people grow with the rows, as they do over years and cities."""

MESSAGES = 100
MEMORY_MB_MAX = 4_000
"""What a driver may hold of an archive's log."""


def run(quick: bool, progress: Steps, full: bool = False) -> Report:
    """Measure, fit, extend."""
    from roamcast.pipeline.spark.session import Settings, started

    sizes = [100_000, 1_000_000] if quick else [1_000_000, 10_000_000]
    if full:
        sizes.append(100_000_000)
    taken: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name,
        started(Settings(master="local[2]", memory="3g")) as spark,
        progress("sizes", len(sizes) + 1) as step,
    ):
        _measured(spark, Path(name) / "warm", 60_000)  # Java and Numba compile here
        step(1)
        for size in sizes:
            taken.append(_measured(spark, Path(name) / str(size), size))
            step(1)
    rows = [_fitted(measure, sizes, [one[measure] for one in taken]) for measure in taken[0]]
    return Report("cost", {"cores": 2, "sizes": sizes}, rows, _claims(rows))


def _measured(spark: Any, work: Path, size: int) -> dict[str, float]:
    source, archive = work / "sightings", work / "archive"
    source.mkdir(parents=True)
    generate(source, size, max(1_000, size // PEOPLE_SHARE), max(1, size // 1_000_000))
    settings = IngestSettings(agent=AgentSettings(heartbeat_s=HEARTBEAT_S, dwell_s=0, margin=0))
    found: dict[str, float] = {}
    with watched(os.getpid()) as watch:
        before = watch.core_s
        with opened(private_folder(archive), archive, "bench.example.org", token_bytes) as state:
            ingest_once(spark, state, [source], settings, lambda: time.time_ns() // 1_000)
    found["ingest, core s"] = watch.core_s - before
    found["ingest, memory MB"] = watch.peak_bytes / 1e6
    for path in source.iterdir():
        path.unlink()
    found["compact, core s"] = _core_s(lambda: (compact(archive), vacuum(archive, hours=0)))
    files = Archive.open(archive).files()
    found["archive, MB"] = float(np.asarray(files["size_bytes"]).sum()) / 1e6
    found["archive, files"] = float(len(files))
    found["driver's list of files, MB"] = files.nbytes / 1e6
    found["private folder, MB"] = size_bytes(private_folder(archive)) / 1e6
    found[f"lookup of {MESSAGES} messages, core s"] = _core_s(
        lambda: Lookup(archive, None).ask(_messages())
    )
    found["one vid erased, core s"] = _core_s(lambda: erase(archive, [_somebody(archive)]))
    return found


def _core_s(work: Any) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def _messages() -> dict[str, Filter]:
    """Ask who was on a floor in a quarter of an hour."""
    found = {}
    for number in range(MESSAGES):
        start = START_US + number % 20 * 60 * MICROSECONDS
        span = f"'{format_instant(start)}', '{format_instant(start + 900 * MICROSECONDS)}'"
        place = f"campus/b{number % 20}/{number // 20 % 5}"
        text = f"within(place, '{place}') AND overlaps(time, INTERVAL({span}))"
        found[str(number)] = Filter.parse(text)
    return found


def _somebody(archive: Path) -> str:
    target = Archive.open(archive)
    table = read_file(target.storage, target.files()["path"][0].as_py(), ["vid"])
    return str(table["vid"][0].as_py())


def fit(sizes: list[int], values: list[float]) -> tuple[float, float]:
    """Fit a fixed part and a part by unit, both at least 0, by least relative squares."""
    size, value = np.array(sizes, float), np.maximum(np.array(values, float), 1e-9)
    both = np.stack([1 / value, size / value], axis=1)
    fixed, each = np.linalg.lstsq(both, np.ones(len(size)), rcond=None)[0]
    if fixed < 0:
        ratio = size / value
        return 0.0, float(ratio.sum() / (ratio @ ratio))
    if each < 0:
        return float((1 / value).sum() / ((1 / value) @ (1 / value))), 0.0
    return float(fixed), float(each)


def _fitted(measure: str, sizes: list[int], values: list[float]) -> dict[str, Any]:
    fixed, each = fit(sizes, values)
    row: dict[str, Any] = {"measure": measure}
    row |= {f"{size:,}": value for size, value in zip(sizes, values, strict=True)}
    row |= {"fixed": fixed, "a million": each * 1e6}
    return row | {f"10^{len(str(ahead)) - 1}": fixed + each * ahead for ahead in AHEAD}


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    by = {row["measure"]: row for row in rows}
    listed = by["driver's list of files, MB"]
    each = listed["a million"] / 1e6
    bends = (MEMORY_MB_MAX - listed["fixed"]) / each if each else float("inf")
    batch = float(BUCKETS_MAX * BUCKET_ROWS)
    told = "sightings at which one batch has more rows in a bucket than a worker is meant to hold"
    return [
        Claim("an archive of 10^9 sightings is listed in the driver's memory", bends,
              bends >= AHEAD[0], bar=AHEAD[0]),
        Claim(told, batch, batch >= AHEAD[0], bar=AHEAD[0]),
    ]  # fmt: skip
