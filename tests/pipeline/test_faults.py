"""What survives? A worker killed in the middle of every job, and a disk that is really full."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.model.context_arrow import from_arrow
from roamcast.pipeline import load as loading
from roamcast.pipeline import plan, sweep
from roamcast.pipeline.archive import append as archive
from roamcast.pipeline.archive import care as archive_care
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.retention import erase, retain
from roamcast.pipeline.ingest import archive as ingest_archive
from roamcast.pipeline.ingest import job as ingest_job
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.journals import load as load_journal
from roamcast.pipeline.journals.plan_files import make_plan
from roamcast.pipeline.journals.read import FAILED, read_journals, segments
from roamcast.pipeline.lookup import run as lookup
from roamcast.pipeline.metrics import metrics
from roamcast.pipeline.spark.errors import collected
from tests.pipeline.clusters import WAIT_SECONDS, Cluster, environment, need_java
from tests.pipeline.journal_jobs import PLAY, SETS
from tests.pipeline.test_archive import everything, same
from tests.pipeline.test_spark_ingest import clock, line, open_state, people_and_contexts
from tests.strategies_journal import simulate
from tests.strategies_pipeline import contexts, expected, lines, messages

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def gated(function: Callable[..., Any], gate: Path) -> Callable[..., Any]:
    """Let a task tell who runs it, and go on only when the gate is open."""

    def first_wait(*given: Any) -> Iterator[Any]:
        process, line_of = os.getpid(), []
        while process > 1:
            line_of.append(process)
            status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
            process = int(status.rpartition(")")[2].split()[1])
        beside = gate / f".{line_of[0]}"
        beside.write_text(" ".join(map(str, line_of)), encoding="utf-8")
        beside.rename(gate / f"began-{line_of[0]}")
        while not (gate / "open").exists():
            time.sleep(0.02)
        yield from function(*given)

    return first_wait


def killed_during(cluster: Cluster, gate: Path, job: Callable[[], Any]) -> Any:
    """Run a job; kill the worker of a task that has begun; give what the job gives."""
    with ThreadPoolExecutor(1) as pool:
        try:
            answer = pool.submit(job)
            until = time.monotonic() + WAIT_SECONDS
            while not (begun := sorted(gate.glob("began-*"))):
                assert not answer.done(), answer.result()
                assert time.monotonic() < until, "no task began"
                time.sleep(0.02)
            cluster.kill_the_one_behind([int(p) for p in begun[0].read_text().split()])
        finally:
            (gate / "open").touch()
        return answer.result(timeout=WAIT_SECONDS)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    made = tmp_path / "gate"
    made.mkdir()
    return made


@pytest.mark.soak  # test_spark_ingest.py kills a driver
@pytest.mark.parametrize("stage", ["read", "scan", "archive"])
def test_a_worker_killed_during_an_ingest_changes_nothing(
    cluster: Cluster,
    cluster_session: Any,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    seen = [
        line(f"p{n % 40}", f"2026-01-01T{n // 40:02d}:00:00Z", place=f"a/{n % 7}", attributes=said)
        for n in range(400)
        for said in ({"role": "guest", "age": n % 3},)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join([*seen[:200], "no sighting"]))
    stored = pa.Table.from_pylist([json.loads(text) for text in seen[200:]])
    pq.write_table(stored, tmp_path / "in.parquet", row_group_size=50)
    monkeypatch.setattr(ingest_archive, "HERE_ROWS", 0)

    def ingest(name: str) -> list[tuple[Any, ...]]:
        with open_state(tmp_path, name) as state:
            paths = [tmp_path / "in.jsonl", tmp_path / "in.parquet"]
            batch = ingest_once(cluster_session, state, paths, IngestSettings(), clock)
            assert (batch.counts["sightings"], batch.counts["malformed"]) == (401, 1)
            return people_and_contexts(state)

    want = ingest("undisturbed")
    with monkeypatch.context() as patch:
        if stage == "read":
            read = ingest_job.ReadStretches
            patch.setattr(ingest_job, "ReadStretches", lambda *told: gated(read(*told), gate))
        elif stage == "scan":
            real = ingest_job.ScanAndWrite
            patch.setattr(ingest_job, "ScanAndWrite", lambda task: gated(real(task), gate))
        else:
            patch.setattr(ingest_archive, "write_runs", gated(ingest_archive.write_runs, gate))
        found = killed_during(cluster, gate, lambda: ingest("disturbed"))
    assert len(want) == 400
    assert found == want


@pytest.mark.soak
def test_a_worker_killed_during_a_load_changes_nothing(
    cluster: Cluster,
    cluster_session: Any,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = contexts(51, 500, days=3)
    (tmp_path / "c.jsonl").write_bytes(lines(from_arrow(table)))
    monkeypatch.setattr(loading, "HERE_BYTES", 0)
    monkeypatch.setattr(loading, "STRETCH_BYTES", 50_000)
    monkeypatch.setattr(archive, "write_sorted", gated(archive.write_sorted, gate))
    done = killed_during(
        cluster,
        gate,
        lambda: loading.load(tmp_path / "c.jsonl", tmp_path / "a", spark=lambda: cluster_session),
    )
    assert done.rows == 500
    assert same(everything(tmp_path / "a"), table)


@pytest.mark.parametrize(
    "job",
    [pytest.param(name, marks=pytest.mark.soak) for name in ("compact", "retain", "erase")],
)
def test_a_worker_killed_while_files_are_rewritten_changes_nothing(
    cluster: Cluster,
    cluster_session: Any,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
) -> None:
    table = contexts(52, 400, days=3)
    for start in (0, 200):
        append(table.slice(start, 200), tmp_path / "a", settings=ArchiveSettings(0, grid_s=0))
    shutil.copytree(tmp_path / "a", tmp_path / "undisturbed")
    half = sorted(moment for moment in table["t_d"].cast("int64").to_pylist() if moment)[200]
    vids = table["vid"].to_pylist()[:100]
    jobs: dict[str, Callable[[Path, Any], Any]] = {
        "compact": lambda where, spark: archive_care.compact(where, spark).rows_read,
        "retain": lambda where, spark: retain(where, drop_before=half, spark=spark).rows_dropped,
        "erase": lambda where, spark: erase(where, vids, spark).rows_erased,
    }
    want = jobs[job](tmp_path / "undisturbed", None)
    monkeypatch.setattr(archive_care, "SPARK_BYTES", 0)
    monkeypatch.setattr(archive_care, "rewrite_group", gated(archive_care.rewrite_group, gate))
    done = killed_during(cluster, gate, lambda: jobs[job](tmp_path / "a", cluster_session))
    assert done == want > 0
    assert same(everything(tmp_path / "a"), everything(tmp_path / "undisturbed"))


@pytest.mark.soak
def test_a_worker_killed_during_a_lookup_changes_nothing(
    cluster: Cluster,
    cluster_session: Any,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, asked = contexts(53, 400, days=3), messages(54, 33)
    append(table, tmp_path / "a", settings=ArchiveSettings(0, grid_s=0))
    monkeypatch.setattr(lookup, "run_tasks", gated(lookup.run_tasks, gate))
    asker = lookup.Lookup(tmp_path / "a", cluster_session, driver_rows=0)
    found = killed_during(cluster, gate, lambda: asker.ask(asked))
    assert found == expected(table, asked)


@pytest.mark.soak
def test_a_worker_killed_during_metrics_changes_nothing(
    cluster: Cluster, cluster_session: Any, gate: Path, tmp_path: Path
) -> None:
    simulate(tmp_path / "journals", 3, limited=0, remote=0)
    journal = read_journals(cluster_session, segments([tmp_path / "journals"]))

    def numbers(records: Any) -> list[str]:
        return sorted(map(repr, collected(metrics(records), FAILED).to_pylist()))

    want = numbers(journal)
    held = journal.mapInArrow(gated(iter, gate), journal.schema)
    assert killed_during(cluster, gate, lambda: numbers(held)) == want
    assert want


@pytest.mark.soak
def test_a_worker_killed_during_a_plan_changes_nothing(
    cluster: Cluster,
    cluster_session: Any,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(tmp_path / "journals", 3, limited=0, remote=0)
    found = segments([tmp_path / "journals"])

    def made(name: str) -> dict[str, str]:
        make_plan(cluster_session, found, tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        return {path.name: path.read_text().replace(f"{tmp_path}/{name}", "") for path in files}

    want = made("undisturbed")
    monkeypatch.setattr(plan, "replay", gated(plan.replay, gate))
    assert killed_during(cluster, gate, lambda: made("disturbed")) == want


@pytest.mark.soak
def test_a_worker_killed_during_a_load_of_journals_changes_nothing(
    cluster: Cluster,
    cluster_session: Any,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(tmp_path / "journals", 3, limited=0, remote=0)
    monkeypatch.setattr(load_journal, "HERE_ROWS", 0)

    def loaded(name: str) -> list[tuple[object, ...]]:
        load_journal.load_journals(
            cluster_session, [tmp_path / "journals"], tmp_path / name, finish=True
        )
        return sorted(
            tuple(map(repr, row.values())) for row in everything(tmp_path / name).to_pylist()
        )

    want = loaded("undisturbed")
    monkeypatch.setattr(archive, "write_sorted", gated(archive.write_sorted, gate))
    assert killed_during(cluster, gate, lambda: loaded("disturbed")) == want
    assert len(want) > 20


@pytest.mark.soak
def test_a_worker_killed_during_a_sweep_changes_nothing(
    cluster: Cluster, cluster_session: Any, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> list[sweep.Outcome]:
        return sweep.outcomes(sweep.sweep(cluster_session, PLAY, SETS, 2, partitions=4))

    want = rows()
    monkeypatch.setattr(sweep, "run_task", gated(sweep.run_task, gate))
    assert killed_during(cluster, gate, rows) == want
    assert len(want) == 4


def test_a_full_disk_is_one_clear_error_and_the_archive_is_as_before(tmp_path: Path) -> None:
    """A disk of a few megabytes, in a name space of its own, is filled up to some last bytes."""
    need_java()
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = shutil.which("unshare")
    enter = [str(unshare), "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=8m none '{disk}'"
    if unshare is None or subprocess.run([*enter, mount], check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk in a name space")
    code = f"from tests.pipeline.full_disk import run; run('{tmp_path}')"
    done = subprocess.run(
        [*enter, f'{mount} && exec "$0" -c "$1"', sys.executable, code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
