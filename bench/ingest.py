"""How many sightings a second become archived contexts, beside DuckDB on the same rows?

Both read the same Parquet files of one-source sightings with points and attributes (badges: 100,000
people who stay in a room for a while and move on) and compute the same contexts: a new one when the
place changes, or after a silence longer than the heartbeat. Ours goes all the way: checks, the user
agent's rules, fresh vids, state, and the archive's commit. DuckDB runs its window functions, gives
each context a fresh id and its attribute a column, sorts, and writes Parquet. The counts must
agree. Then ten sightings at a time come to a watch that knows millions of people.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.lab.report import Claim, Report, Steps

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
from _micro_batches import measure
from _processes import size_bytes, watched

TITLE = "sightings to archived contexts on Spark, beside DuckDB on the same rows"

START_US = 1_750_000_000_000_000
HEARTBEAT_S = 300
PLACES = 2_000
ROLES = 20
SEED = 17
SHARE_MIN, GROWTH_MAX, MICRO_MAX_S = 0.5, 1.3, 2.0


def generate(folder: Path, rows: int, people: int, files: int) -> None:
    """Write sightings: each file is a stretch of time, everybody in it, shuffled by time."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    names = pa.array([f"person-{n:06d}" for n in range(people)])
    rooms = pa.array([f"campus/b{n // 100}/{n // 20 % 5}/{n}" for n in range(PLACES)])
    roles = pa.array([f'{{"role": "role-{n}"}}' for n in range(ROLES)])
    degrees = [np.round(base + generator.random(PLACES) / 100, 6) for base in (116.3, 39.98)]
    room = generator.integers(0, PLACES, people)
    each = rows // files
    clock_us = START_US
    for number in range(files):
        who = generator.integers(0, people, each)
        moved = generator.random(each) < 0.05
        where = room[who]
        where[moved] = generator.integers(0, PLACES, int(moved.sum()))
        room[who[moved]] = where[moved]
        # one sighting a person every 100 s or so; the longer silences end contexts
        span_us = int(each / people * 100 * 1_000_000)
        times = clock_us + np.sort(generator.choice(span_us, each, replace=False))
        clock_us += span_us
        table = pa.table(
            {
                "person": names.take(pa.array(who)),
                "source": pa.array(["badge"]).take(pa.array(np.zeros(each, np.int64))),
                "time": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "place": rooms.take(pa.array(where)),
                "lon": degrees[0][where],
                "lat": degrees[1][where],
                "attributes": roles.take(pa.array(who % ROLES)),
            }
        )
        pq.write_table(table, folder / f"sightings-{number:04d}.parquet", row_group_size=250_000)


DUCKDB = """
COPY (
  WITH seen AS (
    SELECT DISTINCT person, epoch_us(time) AS t, place, lon, lat, attributes
    FROM read_parquet('{source}')
  ), cut AS (
    SELECT *, CASE WHEN lag(place) OVER w IS DISTINCT FROM place
                     OR t - lag(t) OVER w > {heartbeat} THEN 1 ELSE 0 END AS begins,
           CASE WHEN lead(t) OVER w - t <= {heartbeat} THEN lead(t) OVER w ELSE t END AS until
    FROM seen WINDOW w AS (PARTITION BY person ORDER BY t)
  ), numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY person ORDER BY t) AS stay FROM cut
  )
  SELECT uuid() AS vid, any_value(place) AS place, any_value(lon) AS lon, any_value(lat) AS lat,
         min(t) AS t_r, max(until) AS t_d, any_value(attributes) ->> 'role' AS role
  FROM numbered GROUP BY person, stay ORDER BY place, t_r
) TO '{target}' (FORMAT parquet)
"""


def with_duckdb(source: Path, target: Path) -> tuple[float, float, int, int]:
    """Compute the contexts in DuckDB; give seconds, core seconds, contexts, time present in µs."""
    import duckdb

    began, before = time.perf_counter(), time.process_time()
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.execute("SET memory_limit = '4GB'")
        connection.execute(f"SET temp_directory = '{target.parent / 'spill'}'")
        connection.execute(
            DUCKDB.format(
                source=source / "*.parquet", target=target, heartbeat=HEARTBEAT_S * 1_000_000
            )
        )
        taken, spent = time.perf_counter() - began, time.process_time() - before
        found = connection.execute(
            f"SELECT count(*), sum(t_d - t_r) FROM read_parquet('{target}')"  # noqa: S608
        ).fetchone()
    assert found is not None
    return taken, spent, int(found[0]), int(found[1])


def with_spark(spark: Any, source: Path, archive: Path) -> tuple[float, int, int]:
    """Ingest into a new archive; give seconds, contexts and the time present in µs."""
    from roamcast.identity.agent_settings import AgentSettings
    from roamcast.pipeline.archive.files import read_file
    from roamcast.pipeline.archive.layout import ArchiveSettings
    from roamcast.pipeline.archive.table import Archive
    from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
    from roamcast.pipeline.ingest.state import opened, private_folder

    settings = IngestSettings(
        agent=AgentSettings(heartbeat_s=HEARTBEAT_S, dwell_s=0, margin=0),
        archive=ArchiveSettings(grid_s=0),  # the peer stores exact times, and both are compared
        here_rows=-1,  # also the first, small ingest is one of Spark's, or it would warm nothing
    )
    began = time.perf_counter()
    with opened(private_folder(archive), archive, "bench.example.org", token_bytes) as state:
        batch = ingest_once(spark, state, [source], settings, lambda: time.time_ns() // 1_000)
    taken = time.perf_counter() - began
    assert batch.counts["malformed"] == batch.counts["late"] == 0, batch.counts
    opened_archive = Archive.open(archive)
    present = 0
    for path in opened_archive.files()["path"].to_pylist():
        table = read_file(opened_archive.storage, path, ["t_r", "t_d"])
        begin, end = (table[name].cast(pa.int64()).to_numpy() for name in ("t_r", "t_d"))
        present += int((end - begin).sum())
    return taken, batch.counts["contexts"], present


def run(quick: bool, progress: Steps) -> Report:
    from roamcast.pipeline.spark.session import Settings, started

    me, people = os.getpid(), 100_000
    sizes = [200_000, 1_000_000] if quick else [2_000_000, 20_000_000]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        started(Settings(master="local[2]", memory="3g")) as spark,
        progress("ingests", 2 * len(sizes) + 2) as step,
    ):
        work = Path(name)
        warm = work / "warm"
        warm.mkdir()
        generate(warm, 20_000, 1_000, 1)
        with_spark(spark, warm, work / "warm-archive")  # Java and Numba compile here, not below
        step(1)
        for size in sizes:
            source = work / "sightings"
            source.mkdir()
            generate(source, size, people, max(1, size // 500_000))
            with watched(me) as watch:
                before_s = watch.core_s
                ours_s, contexts, present = with_spark(spark, source, work / "archive")
            spent_s = watch.core_s - before_s
            step(1)
            peer_s, peer_core_s, peer_contexts, peer_present = with_duckdb(
                source, work / "peer.parquet"
            )
            step(1)
            rows.append(
                {
                    "sightings": size,
                    "people": people,
                    "contexts": contexts,
                    "duckdb contexts": peer_contexts,
                    "same time present": present == peer_present,
                    "ours s": ours_s,
                    "ours sightings/s": size / ours_s,
                    "core µs a sighting": 1e6 * spent_s / size,
                    "duckdb s": peer_s,
                    "duckdb sightings/s": size / peer_s,
                    "duckdb core µs": 1e6 * peer_core_s / size,
                    "share of duckdb": peer_s / ours_s,
                    "memory peak MB": watch.peak_bytes / 1e6,
                    "Java's peak MB": watch.java_bytes / 1e6,
                    "a worker's peak MB": watch.worker_bytes / 1e6,
                    "archive bytes a context": size_bytes(work / "archive") / contexts,
                    "private bytes a person": size_bytes(work / "archive.private") / people,
                }
            )
            for path in (source, work / "archive", work / "archive.private"):
                shutil.rmtree(path)
        registered = 200_000 if quick else 5_000_000
        micro = measure(spark, work / "micro", registered, START_US, 4 if quick else 12)
        step(1)
    told = {name: round(value, 2) for name, value in micro.items()}
    parameters = {"people": people, "cores": 2, "seed": SEED} | told
    return Report("ingest", parameters, rows, [*_claims(rows), _micro_claim(micro)])


def _micro_claim(micro: dict[str, Any]) -> Claim:
    seconds = micro["ten rows, median s"]
    told = f"a micro-batch of ten rows with {micro['registered people']:,} registered people, s"
    return Claim(told, round(seconds, 2), seconds < MICRO_MAX_S, bar=f"< {MICRO_MAX_S:g} s")


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    last, first = rows[-1], rows[0]
    same = all(r["contexts"] == r["duckdb contexts"] and r["same time present"] for r in rows)
    growth = last["memory peak MB"] / first["memory peak MB"]
    ratio = last["sightings"] / first["sightings"]
    share = last["share of duckdb"]
    return [
        Claim("the contexts are those that DuckDB computes", same, same, bar=True),
        Claim("share of DuckDB's sightings a second", share, share >= SHARE_MIN, bar=SHARE_MIN),
        Claim(
            f"memory when rows grow {ratio:.0f} times", growth, growth <= GROWTH_MAX, bar=GROWTH_MAX
        ),
    ]
