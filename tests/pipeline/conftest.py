"""One Spark cluster for all modules of tests; the session is in tests/conftest.py."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.pipeline.archive import table
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.ingest import few
from roamcast.pipeline.spark import session as sessions
from roamcast.pipeline.spark.session import Settings, started
from tests.pipeline.clusters import (
    OPTIONS,
    Cluster,
    connect_server,
    environment,
    need_java,
    stop_running,
)

EXACT = ArchiveSettings(grid_s=0)


@pytest.fixture(scope="module", autouse=True)
def exact_times() -> Iterator[None]:
    """Store times exactly: most tests compare every row. test_blurring.py tries the default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "DEFAULT", EXACT)
        yield


@pytest.fixture(autouse=True)
def small_batches_on_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests of Spark's jobs have them, however few rows; test_ingest_few.py has others."""
    if request.node.get_closest_marker("spark"):
        monkeypatch.setattr(few, "HERE_ROWS", -1)


@pytest.fixture
def command(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command in this process, on our session; test_cluster.py has one start its own."""
    monkeypatch.setattr(sessions, "started", lambda _settings: nullcontext(spark))
    return run_here


@pytest.fixture
def commanded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Callable[..., str]]:
    """Run commands of the pipeline in this process, on a given session."""

    def on(session: Any) -> Callable[..., str]:
        monkeypatch.setattr(sessions, "started", lambda _settings: nullcontext(session))
        return partial(run_here, "pipeline")

    return on


def run_here(*words: object) -> str:
    done = CliRunner().invoke(build(), [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(
    scope="module",
    params=[
        "local",
        pytest.param("cluster", marks=pytest.mark.soak),
        pytest.param("connect", marks=pytest.mark.soak),  # test_cluster.py keeps this way alive
    ],
)
def anywhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A session on this machine, on a standalone cluster, and through Connect."""
    if request.param != "connect":
        yield request.getfixturevalue("spark" if request.param == "local" else "cluster_session")
        return
    need_java()
    stop_running()
    before = dict(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(connect_server(tmp_path_factory.mktemp("connect") / "log"))
        yield stack.enter_context(started(Settings(master=server)))
    for name in os.environ.keys() - before.keys():
        del os.environ[name]  # pyspark's: other processes would look for a server, too


@pytest.fixture(scope="module")
def cluster_session(cluster: Cluster) -> Iterator[Any]:
    """A session of this process on the cluster; the one on this machine makes room for it."""
    stop_running()
    settings = Settings(master=cluster.master, memory="1g", options=OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        with started(settings) as session:
            yield session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_java()
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
