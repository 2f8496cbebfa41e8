"""One Spark session for all modules of tests, on two cores of this machine, and one cluster."""

from collections.abc import Iterator
from typing import Any

import pytest

from roamcast.pipeline.spark.session import Settings, start, started
from tests.pipeline.clusters import Cluster, environment, need_java, stop_running

OPTIONS = {"spark.sql.shuffle.partitions": "4"}


@pytest.fixture(scope="session")
def stopped_at_the_end() -> Iterator[None]:
    yield
    stop_running()


@pytest.fixture(scope="module")
def spark(stopped_at_the_end: None) -> Any:
    """Start one, or take the one that the last module used."""
    need_java()
    return start(Settings(master="local[2]", name="roamcast-tests", memory="2g", options=OPTIONS))


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
