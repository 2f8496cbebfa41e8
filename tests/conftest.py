"""What every test gets: settings that suit a shared, noisy machine, and long work first."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from roamcast.pipeline.spark import java_classes

settings.register_profile(
    "house",
    deadline=None,  # speed is measured in bench/, never timed in a test
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),  # a landing must not fail by luck; local runs explore
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# Java lives for seconds in tests: optimising its code for hours to come costs more than it gives.
BRIEF_JAVA = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(BRIEF_JAVA)
os.environ["SPARK_SUBMIT_OPTS"] = " ".join(BRIEF_JAVA + java_classes.options())

TOGETHER = {
    "tests/pipeline/test_cluster.py": "a Spark cluster",
    "tests/pipeline/test_faults.py": "a Spark cluster",
    "tests/pipeline/test_lookup_watch.py": "a Spark session",
    "tests/pipeline/test_spark_archive.py": "a Spark session",
    "tests/pipeline/test_spark_ingest.py": "a Spark session",
    "tests/pipeline/test_spark_jobs.py": "a Spark session",
}
"""Files that share what takes long to start, and so go to the same worker, one after another."""

PURE = ("model", "matching", "placement", "channels", "overlay", "identity")
"""Packages whose own tests tell how much of them is covered; others would only be slower for it."""

MARKED_S = {"slow": 20, "spark": 10}
"""About how long a test with a mark takes; the others are many and short."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: one that began last would let the other workers wait for it."""
    seconds: dict[str, float] = {}
    for item in items:
        unit = unit_of(item.nodeid)
        marks = {mark.name for mark in item.iter_markers()}
        seconds[unit] = seconds.get(unit, 0) + sum(MARKED_S.get(name, 0) for name in marks) + 0.1
    items.sort(key=lambda item: -seconds[unit_of(item.nodeid)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace only tests of the pure packages, and of those not the ones marked `no_cover`.

    pytest-cov's own way to heed the mark does nothing in a worker of xdist.
    """
    covers = item.nodeid.startswith(tuple(f"tests/{name}/" for name in PURE))
    if covers and not item.get_closest_marker("no_cover"):
        return (yield)
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)


def unit_of(nodeid: str) -> str:
    """Name what is never torn apart: a file, or files that share something."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand units out in the order above, where xdist would go by the number of tests."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class InOrder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return InOrder(config, log)
