"""One command, three kinds of Spark: this machine, a real standalone cluster, Spark Connect.

Each lookup runs as a person would run it, as a process of its own.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.pipeline.archive.append import append
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from tests.pipeline.clusters import (
    WAIT_SECONDS,
    Cluster,
    connect_server,
    environment,
    need_java,
    needs_connect,
)
from tests.pipeline.journal_jobs import results
from tests.pipeline.test_archive import everything
from tests.pipeline.test_spark_ingest import clock, open_state
from tests.strategies_journal import simulate
from tests.strategies_pipeline import contexts, expected, messages

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Case:
    """An archive, messages, and the answers they must get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        table, asked = contexts(31, 400, days=3), messages(32, 33)
        append(table, folder / "archive")
        records = [{"id": name, "filter": one.source} for name, one in asked.items()]
        encoded = [msgspec.json.encode(record) + b"\n" for record in records]
        (folder / "messages.jsonl").write_bytes(b"".join(encoded))
        self.want = [{"id": n, "vids": vids} for n, vids in expected(table, asked).items()]

    def start(self, master: str) -> subprocess.Popen[bytes]:
        """Begin a lookup on Spark, however small its plan is."""
        # One executor of a cluster is enough: another is another Java.
        few = ["--conf", "spark.cores.max=1"] if master.startswith("spark:") else []
        command = ["pipeline", *few, "lookup", "messages.jsonl", "--archive", "archive"]
        return self.command(*command, "--on", "spark", "--spark", master)

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Run a command as a person would."""
        code = "from roamcast.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def sightings(self) -> list[str]:
        """Write two files of sightings, lines and columns, each with a row that is none.

        Who is at a place when the first file ends is still there when the second begins.
        """
        lines = [
            {
                "person": f"p{n % 4}",
                "source": "badge",
                "time": f"2026-01-01T0{n // 60}:{n % 60:02d}:00Z",
                "place": f"a/{n // 20}",
                "attributes": {"role": "guest", "age": n // 40},
            }
            for n in range(70)
        ]
        text = b"".join(msgspec.json.encode(one) + b"\n" for one in lines[:35])
        (self.folder / "in0.jsonl").write_bytes(text + b"no sighting\n")
        table = pa.Table.from_pylist([*lines[35:], {"person": "nobody"}])
        pq.write_table(table, self.folder / "in1.parquet", row_group_size=10)
        return ["in0.jsonl", "in1.parquet"]

    def ingested(self, archive: str) -> list[tuple[object, ...]]:
        """Give the contexts of an archive, whatever their vids."""
        table = everything(self.folder / archive).drop_columns(["vid"])
        return sorted(tuple(map(repr, row.values())) for row in table.to_pylist())

    def check(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the lookup and compare its lines."""
        try:
            out, err = process.communicate(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == 0, err.decode()[-2_000:]
        assert [msgspec.json.decode(line) for line in out.splitlines()] == self.want


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    need_java()
    return Case(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_java()
    with connect_server(tmp_path_factory.mktemp("connect") / "log") as address:
        yield address


def test_on_this_machine(case: Case) -> None:
    case.check(case.start("local[2]"))


def test_on_a_standalone_cluster(case: Case, cluster: Cluster) -> None:
    case.check(case.start(cluster.master))


@needs_connect
def test_through_spark_connect(case: Case, connect: str, spark: Any) -> None:
    """A lookup, and sightings in two runs, of which a session here makes the same at once.

    The first run leaves people and open contexts behind, which the second one goes on with.
    """
    names = case.sightings()
    lookup = case.start(connect)
    more = ["--archive", "there", "--grid-s", "0", "--on", "spark", "--spark", connect, "--json"]
    for name, how in zip(names, (["--keep-open"], []), strict=True):
        process = case.command("pipeline", "ingest", name, *how, *more)
        out, err = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0, err.decode()[-2_000:]
        assert msgspec.json.decode(out)["malformed"] == 1
    case.check(lookup)
    with open_state(case.folder, "here") as state:
        paths = [case.folder / name for name in names]
        batch = ingest_once(spark, state, paths, IngestSettings(), clock)
        assert batch.counts["malformed"] == 2
    assert case.ingested("there") == case.ingested("here")
    assert len(case.ingested("there")) > 7


@pytest.mark.soak  # three sessions do all jobs: a minute; the tests above keep each way alive
@needs_connect
def test_journals_give_the_same_on_a_cluster_through_connect_and_here(
    spark: Any, cluster: Cluster, connect: str, tmp_path: Path
) -> None:
    """Metrics, plan, load and sweep, all in one process each."""
    journals = tmp_path / "journals"
    simulate(journals, 3, limited=0, remote=0)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.journal_jobs", *map(str, words)],
            cwd=Path(__file__).parents[2],
            env=environment(),
            stderr=subprocess.PIPE,
        )
        for words in (
            (cluster.master, journals, tmp_path / "cluster"),
            (connect, journals, tmp_path / "connect"),
        )
    ]
    want = msgspec.to_builtins(results(spark, journals, tmp_path / "here"))
    for process in started:
        _, told = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0, told.decode()[-2_000:]
    assert len(want["contexts"]) > 20
    for name in ("cluster", "connect"):
        found = msgspec.json.decode((tmp_path / name / "results.json").read_bytes())
        assert found == want, name
