"""One Spark cluster for all modules of tests; the session is in tests/conftest.py."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.pipeline.archive import table
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.ingest import few
from roamcast.pipeline.spark import session as sessions
from roamcast.pipeline.spark.session import Settings, started
from tests.pipeline.clusters import OPTIONS, Cluster, environment, need_java, stop_running

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

    def run(*words: object) -> str:
        done = CliRunner().invoke(build(), [*map(str, words)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


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
