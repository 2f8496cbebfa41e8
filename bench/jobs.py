"""What does each job of the pipeline take, and what does the archive weigh?

Every job runs as cron would run it: a command of its own, Spark started by those that need it. The
sightings are those of `bench run ingest`, in two runs of half of them.
The journal is of simulated brokers, each simulated run copied under other names until it is long
enough. Numbers of seconds include the start of Python and Java.
"""

import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from roamcast.journal.book import Entry, Journal
from roamcast.journal.segments import Segments, read_entries
from roamcast.lab.report import Report, Steps
from roamcast.model.records import ContextOpened, UpdateMatched
from roamcast.model.time import MICROSECONDS, format_instant
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.table import Archive
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workload import find_workload

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
from _processes import Cost, measured, size_bytes
from ingest import START_US, generate

TITLE = "The pipeline's jobs one by one: seconds, memory, bytes"
SEEDS = (3, 4, 5)
SIZES = {"clients": 9, "operations": 160, "mode": 0, "compiled": 0, "duration_ms": 6_000}
ERASED = 1_000


def run(quick: bool, progress: Steps) -> Report:
    """Run the jobs of docs/operations.md, one after the other."""
    sightings, people = (100_000, 10_000) if quick else (2_000_000, 100_000)
    records, asked = (20_000, 100) if quick else (200_000, 1_000)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name,
        progress("jobs", 12) as step,
    ):
        work = Path(name)
        archive, reports = work / "archive", work / "reports"

        def job(what: str, *words: str) -> Cost:
            cost = measured([sys.executable, "-m", "roamcast", "pipeline", *words])
            rows.append(
                {
                    "job": words[0],
                    "of": what,
                    "seconds": cost.seconds,
                    "core seconds": cost.core_s,
                    "memory peak MB": cost.memory_mb,
                }
            )
            step(1)
            return cost

        there = ["--archive", str(archive)]
        source = work / "sightings"
        source.mkdir()
        generate(source, sightings, people, 4)
        for half in (sorted(source.iterdir())[:2], sorted(source.iterdir())[2:]):
            words = [*map(str, half), *there, "--heartbeat-s", "300", "--dwell-s", "0", "--json"]
            job(f"{sightings // 2:,} sightings", "ingest", *words)
        contexts, weight = _weighed(archive)
        weights = {
            "contexts": contexts,
            "archive bytes a context": weight / contexts,
            "archive bytes a sighting": weight / sightings,
            "private bytes a person": size_bytes(work / "archive.private") / people,
        }
        messages = work / "messages.jsonl"
        _ask(messages, asked)
        job(f"{asked:,} messages", "lookup", str(messages), *there, "--on", "driver")
        job(f"{contexts:,} contexts", "compact", *there, "--json")
        weights["bytes a context, compacted"] = _weighed(archive)[1] / contexts
        job(f"{asked:,} messages", "lookup", str(messages), *there, "--on", "driver")
        job(f"{asked:,} messages, Spark", "lookup", str(messages), *there, "--on", "spark")

        journal = work / "journal"
        begun, weights["records an update"], weights["journal bytes a record"] = _journal(
            journal, records
        )
        of = f"{records:,} records"
        job(f"{of}, {begun:,} objects", "load", str(journal), *there, "--json")
        reports.mkdir()
        job(of, "metrics", str(journal), "--out", str(reports / "metrics.parquet"))
        job(of, "plan", str(journal), "--out", str(reports / "plan"), "--json")

        (work / "vids.txt").write_text("".join(f"{vid}\n" for vid in _vids(archive)))
        job(f"{ERASED:,} vids", "erase", str(work / "vids.txt"), *there, "--json")
        when = format_instant(START_US + int(timedelta(days=40) / timedelta(microseconds=1)))
        job("all contexts, reduced", "retain", *there, "--reduce-days", "30", "--now", when)
        job("what was replaced", "vacuum", *there, "--hours", "0", "--json")
    parameters = {"sightings": sightings, "people": people}
    rounded = {name: round(value, 1) for name, value in weights.items()}
    return Report("jobs", parameters | rounded, rows, [])


def _weighed(archive: Path) -> tuple[int, int]:
    """Count the contexts of an archive and the bytes of the files that hold them."""
    files = Archive.open(archive).files()
    return sum(files["num_records"].to_pylist()), sum(files["size_bytes"].to_pylist())


def _ask(path: Path, count: int) -> None:
    """Write messages to who was on a floor in a quarter of an hour."""
    with path.open("wb") as sink:
        for number in range(count):
            start = START_US + number % 40 * 60 * MICROSECONDS
            span = f"'{format_instant(start)}', '{format_instant(start + 900 * MICROSECONDS)}'"
            floor = f"campus/b{number % 20}/{number // 20 % 5}"
            text = f"within(place, '{floor}') AND overlaps(time, INTERVAL({span}))"
            sink.write(msgspec.json.encode({"id": f"m{number}", "filter": text}) + b"\n")


def _journal(folder: Path, records: int) -> tuple[int, float, float]:
    """Write a journal of so many records; give how many objects appear in it.

    And, of the simulated runs (copies are packed better than any journal), records an update and
    bytes a record.
    """
    simulated = folder.with_name("simulated")
    runs = [list(_simulated(simulated, seed)) for seed in SEEDS]
    sink, begun, copy, left = Segments(folder, "brokers"), 0, 0, records
    while left:
        entries = runs[copy % len(runs)][:left]
        shift = copy // len(runs) * SIZES["duration_ms"] * 1_000
        sink.add([(t + shift, f"{copy}.{host}", record) for t, host, record in entries])
        begun += sum(isinstance(record, ContextOpened) for _, _, record in entries)
        left -= len(entries)
        copy += 1
    sink.close()
    held = [record for entries in runs for _, _, record in entries]
    updates = sum(isinstance(record, UpdateMatched) for record in held)
    return begun, len(held) / updates, size_bytes(simulated) / len(held)


def _simulated(folder: Path, seed: int) -> Iterator[Entry]:
    make = find_workload("map")
    settings = {**SIZES, "limited": 0, "remote": 0, "calm": 1}
    scenario = narrow(draw_scenario("map", make, seed), Narrowing(settings=settings))
    journal = Journal(Segments(folder, f"run-{seed}"))
    outcome = play(scenario, make, journal)
    journal.close()
    assert not outcome.failed, outcome
    return read_entries(folder, f"run-{seed}")


def _vids(archive: Path) -> list[str]:
    """Give some vids, as a trusted node would list them for a person."""
    opened = Archive.open(archive)
    found: list[str] = []
    for path in opened.files()["path"].to_pylist():
        found += read_file(opened.storage, path, ["vid"])["vid"].to_pylist()[:ERASED]
        if len(found) >= ERASED:
            break
    return found[:ERASED]
