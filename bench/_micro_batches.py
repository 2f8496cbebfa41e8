"""What does a micro-batch of ten sightings take when millions of people are registered?

The register is written by the scan's own files, as a batch of Spark's tasks would, with somebody of
twenty still in sight. Then a folder is watched and gets ten sightings at a time.
"""

import json
import queue
import statistics
import time
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import pyarrow as pa

from roamcast.identity import agent_core as core
from roamcast.identity.agent_settings import AgentSettings
from roamcast.identity.pseudonyms import new_handles
from roamcast.model.time import format_instant
from roamcast.pipeline.archive.append import commit
from roamcast.pipeline.ingest import job, rows
from roamcast.pipeline.ingest.run import IngestSettings
from roamcast.pipeline.ingest.scan import ScanTask
from roamcast.pipeline.ingest.state import IngestState, SightingBatch, opened
from roamcast.pipeline.ingest.watch import ingest_watch
from roamcast.pipeline.ingest.write import ScanAndWrite, WriteTask

TOGETHER = 400_000
ROWS, OPEN_EVERY = 10, 20
DAY_US = 86_400_000_000
WAIT_S = 60.0


def measure(spark: Any, work: Path, people: int, start_us: int, repeats: int) -> dict[str, Any]:
    """Give the seconds from a file's arrival to the archive's commit, and the state's size."""
    private, archive, folder = (work / name for name in ("private", "archive", "in"))
    folder.mkdir(parents=True)
    settings = IngestSettings(late_s=0)
    with opened(private, archive, "bench.example.org", token_bytes) as state:
        began = time.perf_counter()
        register(state, people, start_us)
        registered_s = time.perf_counter() - began
        told: queue.Queue[SightingBatch] = queue.Queue()
        seconds, cores = [], []

        def clock() -> int:
            return start_us + DAY_US

        with ingest_watch(
            spark, state, folder, settings, clock, every_s=0.1, on_batch=told.put
        ) as query:
            for number in range(repeats):
                path = folder / f".{number}"
                path.write_text("\n".join(_sightings(number, people, start_us)))
                before, used = time.perf_counter(), time.process_time()
                path.rename(folder / f"{number}.jsonl")
                batch = told.get(timeout=WAIT_S)
                seconds.append(time.perf_counter() - before)
                cores.append(time.process_time() - used)
                assert batch.counts["sightings"] == ROWS, batch.counts
                assert batch.counts["people"] == people, batch.counts
            assert query.isActive
    return {
        "registered people": people,
        "registered s": registered_s,
        "ten rows, median s": statistics.median(seconds[1:]),
        "ten rows, most s": max(seconds[1:]),
        "driver's core s": statistics.median(cores[1:]),
        "layers": 1 + len(batch.layers),
    }


def register(state: IngestState, people: int, start_us: int) -> None:
    """Let a first batch have seen so many people."""
    target = state.target(None)
    number, _ = state.begin()
    scan = ScanTask(state.keys, AgentSettings(), start_us)
    writer = ScanAndWrite(WriteTask(scan, str(state.batch_folder(number)), target.settings))
    reports = []
    for first in range(0, people, TOGETHER):
        count = min(TOGETHER, people - first)
        reports.append(writer.written(_known(first, count, start_us)))
    done = job.taken(pa.Table.from_batches(reports))
    batch = SightingBatch(number=number, newest=start_us, released=start_us, counts=done.counts)
    state.prepare(batch)
    commit(target, [], (), (state.application, number))
    state.committed(batch)


def _known(first: int, count: int, start_us: int) -> pa.Table:
    """Give lines of the register, and a sighting of one in twenty, in the order of the scan."""
    known = np.arange(first, first + count)
    seen = known[known % OPEN_EVERY == 0]
    names = np.concatenate([known, seen])
    ranks = np.concatenate([np.full(count, rows.RANK_PERSON), np.full(len(seen), 2)])
    order = np.lexsort([ranks, names])
    named = [f"person-{number:08d}" for number in names[order].tolist()]
    sighted = pa.array(ranks[order] == rows.RANK_SIGHTING)
    handles = pa.concat_arrays(
        [new_handles(count, token_bytes).cast(pa.binary()), pa.nulls(len(seen), pa.binary())]
    ).take(pa.array(order))
    moments = np.where(ranks == rows.RANK_PERSON, core.NEVER, start_us)[order]
    columns = {
        "person": pa.array(named),
        "handle": handles,
        "rank": pa.array(ranks[order].astype(np.int8)),
        "fresh": sighted,
        "time": pa.array(moments),
        "file": pa.array(np.full(len(names), start_us - DAY_US)),
        "source": pa.array(np.zeros(len(names), np.int8)),
        "place": pa.array(["campus/b1"]).take(pa.array(np.zeros(len(names), np.int64))),
    }
    return rows.taken(pa.table(columns)).combine_chunks()


def _sightings(number: int, people: int, start_us: int) -> list[str]:
    rng = np.random.default_rng(number)
    at = format_instant(start_us + (number + 1) * 1_000_000)
    return [
        json.dumps(
            {
                "person": f"person-{who:08d}",
                "source": "badge",
                "time": at,
                "place": f"campus/b{who % 7}",
            }
        )
        for who in rng.choice(people, ROWS, replace=False).tolist()
    ]
