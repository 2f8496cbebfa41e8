"""A real standalone Spark cluster on loopback; every process is ended by its id."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from roamcast.errors import MissingError
from roamcast.pipeline.spark.session import check_java

HOME = Path(pyspark.__file__).parent
WAIT_SECONDS = 600
OPTIONS = {
    "spark.sql.shuffle.partitions": "2",  # as many as there are cores: rows are few
    # Spark ends workers after a minute without work; the next ones find all imported.
    "spark.python.daemon.module": "tests.pipeline.worker_nursery",
}


needs_connect = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("grpc", "grpc_status", "zstandard")),
    reason="needs the packages of pyspark[connect]",
)


def need_java() -> None:
    try:
        check_java()
    except MissingError as error:
        pytest.skip(str(error))


def stop_running() -> None:
    """Stop the session of this process, if there is one: it can have only one at a time."""
    if pyspark.SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()


class Cluster:
    """A master and two workers; a worker can be killed, and gets a successor."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._folder, self._stack = folder, ExitStack()
        self._workers: list[int] = []
        self._port = port

    def __enter__(self) -> "Cluster":
        with self._stack:
            self._start("master.Master", self._port)
            for _ in range(2):
                self._worker()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def kill_the_one_behind(self, processes: list[int]) -> None:
        """Kill the worker that these processes descend from, with its executors."""
        (victim,) = set(self._workers) & set(processes)
        self._workers.remove(victim)
        executors = children(victim)
        for process in (victim, *executors):
            os.kill(process, signal.SIGKILL)
        self._worker()

    def _worker(self) -> None:
        more = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / "work")]
        self._workers.append(self._start("worker.Worker", free_port(), *more, self.master))

    def _start(self, what: str, port: int, *more: str) -> int:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        command += ["--port", str(port), "--host", "127.0.0.1", "--webui-port", "0", *more]
        log = self._folder / f"{what}-{port}.log"
        return self._stack.enter_context(running(command, log, port))


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """Run a Spark Connect server on this machine; give its address."""
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
    with running(server, log, port):
        yield f"sc://127.0.0.1:{port}"


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


def watching(folder: Path, messages: str, **more: Any) -> subprocess.Popen[bytes]:
    """Begin `lookup --watch` as a person would, on one core; `kill_whole` ends it."""
    words = ["pipeline", "lookup", messages, "--archive", "archive", "--watch", "--out", "out"]
    return subprocess.Popen(
        [sys.executable, "-c", "from roamcast.cli import main; main()", *words],
        cwd=folder,
        env=environment() | {"ROAMCAST_SPARK": "local[1]"},
        start_new_session=True,
        **more,
    )


def kill_whole(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its group, and its Java, as a machine's failure does.

    Java alone would go on with the batch until it notices that its parent is gone.
    """
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + WAIT_SECONDS
    with suppress(ProcessLookupError):
        while True:
            os.killpg(process.pid, 0)
            assert time.monotonic() < until, "something of the group is left"
            time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], log: Path, port: int | None = None) -> Iterator[int]:
    """Run a server; give its id once it listens; end it, and only it, afterwards."""
    with log.open("wb") as sink:
        # executors have the environment of their worker, and nothing else of ours
        brief = {"JAVA_TOOL_OPTIONS": os.environ.get("SPARK_SUBMIT_OPTS", "")}
        process = subprocess.Popen(command, env=environment() | brief, stdout=sink, stderr=sink)
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


def children(parent: int) -> list[int]:
    """Give the ids of a process's children: a worker's executors."""
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    tasks = listed.parents[1].iterdir() if listed.exists() else []
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
