"""One command, three kinds of Spark: this machine, a real standalone cluster, Spark Connect.

Each lookup runs as a person would run it, as a process of its own. Every process started here is
ended by its id.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pyspark
import pytest

from roamcast.errors import MissingError
from roamcast.pipeline.archive import append
from roamcast.pipeline.session import check_java
from roamcast.sim.experiment import play_workload
from tests.pipeline.test_archive import everything
from tests.strategies_pipeline import contexts, expected, messages

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOME = Path(pyspark.__file__).parent
WAIT_SECONDS = 600


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
        command = ["pipeline", "lookup", "messages.jsonl", "--archive", "archive"]
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

    def ingested(self, master: str, archive: str) -> list[tuple[object, ...]]:
        """Ingest sightings in two runs; give the contexts that come of them."""
        lines = [
            {
                "person": f"p{n % 7}",
                "source": "badge",
                "time": f"2026-01-0{1 + n // 35}T00:{n % 35:02d}:00Z",
                "place": f"a/{n % 3}",
                "attributes": {"role": "guest", "age": n % 2},
            }
            for n in range(70)
        ]
        for number, part in enumerate((lines[:35], lines[35:])):
            text = b"".join(msgspec.json.encode(one) + b"\n" for one in part)
            (self.folder / f"in{number}.jsonl").write_bytes(text + b"no sighting\n")
            more = ["--archive", archive, "--spark", master, "--json"]
            process = self.command("pipeline", "ingest", f"in{number}.jsonl", *more)
            out, err = process.communicate(timeout=WAIT_SECONDS)
            assert process.returncode == 0, err.decode()[-2_000:]
            assert msgspec.json.decode(out)["malformed"] == 1
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


def environment() -> dict[str, str]:
    chosen = {
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "ROAMCAST_SPARK_MEMORY": "1g",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return os.environ | chosen


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], log: Path, port: int | None = None) -> Iterator[int]:
    """Run a server; give its id once it listens; end it, and only it, afterwards."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=environment(), stdout=sink, stderr=sink)
        try:
            until = time.monotonic() + WAIT_SECONDS
            while port is not None and not listens(port):
                assert process.poll() is None, log.read_text()[-2_000:]
                assert time.monotonic() < until, log.read_text()[-2_000:]
                time.sleep(0.1)
            yield process.pid
        finally:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    try:
        check_java()
    except MissingError as error:
        pytest.skip(str(error))
    return Case(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def cluster(case: Case) -> Iterator[tuple[str, list[int]]]:
    """A master and two workers on loopback: its address, the workers' process ids."""
    port = free_port()
    launch, where = str(HOME / "bin" / "spark-class"), ["--host", "127.0.0.1", "--webui-port", "0"]
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        start = [launch, "org.apache.spark.deploy.master.Master", "--port", str(port), *where]
        stack.enter_context(running(start, case.folder / "master.log", port))
        workers = []
        for number in range(2):
            at = free_port()
            start = [launch, "org.apache.spark.deploy.worker.Worker", "--port", str(at), *where]
            start += ["--cores", "1", "--memory", "1g", "--work-dir", str(case.folder / "work")]
            log = case.folder / f"worker{number}.log"
            workers.append(stack.enter_context(running([*start, master], log, at)))
        yield master, workers


def test_on_this_machine(case: Case) -> None:
    case.check(case.start("local[2]"))


def test_on_a_standalone_cluster(case: Case, cluster: tuple[str, list[int]]) -> None:
    case.check(case.start(cluster[0]))


def test_a_sweep_on_a_standalone_cluster_gives_the_rows_of_a_plain_loop(
    case: Case, cluster: tuple[str, list[int]]
) -> None:
    words = ["pipeline", "sweep", "channel", "--parameters", "messages=12,receivers=1|3"]
    words += ["--seeds", "2", "--partitions", "3", "--spark", cluster[0], "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from roamcast.cli import main; main()", *words],
        cwd=case.folder,
        env=environment(),
        capture_output=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    assert msgspec.json.decode(done.stdout)["rows"] == [
        {**sizes, "seed": seed, **play_workload(seed=seed, **sizes)}
        for sizes in (
            {"workload": "channel", "messages": 12, "receivers": 1},
            {"workload": "channel", "messages": 12, "receivers": 3},
        )
        for seed in (0, 1)
    ]


def children(parent: int) -> list[int]:
    """Give the ids of a process's children: a worker's executors."""
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    tasks = listed.parents[1].iterdir() if listed.exists() else []
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("grpc", "grpc_status", "zstandard")),
    reason="needs the packages of pyspark[connect]",
)
def test_through_spark_connect(case: Case) -> None:
    port = free_port()
    server = [
        str(HOME / "bin" / "spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *("--master", "local[2]", "--driver-memory", "1g"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false", "spark-internal"),
    ]
    with running(server, case.folder / "connect.log", port):
        case.check(case.start(f"sc://127.0.0.1:{port}"))
        there = case.ingested(f"sc://127.0.0.1:{port}", "there")
        assert there == case.ingested("local[2]", "here")
        assert len(there) > 7
