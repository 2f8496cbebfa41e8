"""What every test gets: the same examples, one hash seed, marks that are true, long work first."""

import gc
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers

import roamcast
from roamcast.pipeline.spark import java_classes
from tests import nursery

COMMON: dict[str, Any] = {
    "deadline": None,  # speed is measured in bench/, never timed in a test
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
# `test`: a landing must not fail by luck, so the examples follow from the test's own source and
# nothing is remembered from an earlier run, and no test draws more than EXAMPLES_MAX. `quick`: the
# same, but fewer. `soak`: the same, but as many as each test names. `explore`: as many, but new
# ones (scripts/explore.py).
settings.register_profile("test", derandomize=True, database=None, **COMMON)
settings.register_profile("quick", settings.get_profile("test"))
settings.register_profile("soak", settings.get_profile("test"))
settings.register_profile(
    "explore", database=DirectoryBasedExampleDatabase(".hypothesis/examples"), **COMMON
)
settings.load_profile("test")

EXAMPLES_MAX = {"test": 50, "quick": 20}
"""Most examples of a test, by profile; `soak` and `explore` draw as many as it names (0440)."""

QUICK_SHARE = 5
"""`make quick` draws this many times fewer examples than a test names."""

HASH_SEED = "0"
"""PYTHONHASHSEED of every run that names no other."""

# Java lives for seconds in tests: optimising its code for hours to come costs more than it gives.
BRIEF_JAVA = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(BRIEF_JAVA)
os.environ["SPARK_SUBMIT_OPTS"] = " ".join(BRIEF_JAVA + java_classes.options())

ON_SPARK = (
    "tests/matching/test_snapshot_spark.py",
    "tests/pipeline/test_analysis.py",
    "tests/pipeline/test_crowds.py",
    "tests/pipeline/test_ingest_frames.py",
    "tests/pipeline/test_ingest_mqtt.py",
    "tests/pipeline/test_ingest_names.py",
    "tests/pipeline/test_ingest_nasty.py",
    "tests/pipeline/test_ingest_room.py",
    "tests/pipeline/test_lookup_nats.py",
    "tests/pipeline/test_lookup_watch.py",
    "tests/pipeline/test_mail_to_sensed.py",
    "tests/pipeline/test_spark_archive.py",
    "tests/pipeline/test_spark_handles.py",
    "tests/pipeline/test_spark_ingest.py",
    "tests/pipeline/test_spark_jobs.py",
    "tests/pipeline/test_transitions.py",
    "tests/pipeline/test_twelve.py",
    "tests/pipeline/test_cluster.py",  # uses the session and the cluster
    "tests/pipeline/test_faults.py",  # stops the session, and starts one on the cluster
    "tests/pipeline/test_notebook.py",  # stops the session, and starts a Connect server
)
"""Files that share a Spark session: they go to one worker, in this order.

A second session would load and compile all of Spark again: 20 seconds of CPU.
"""

SPARK_UNIT = "Spark"
SPARK_PLACES = {file: place for place, file in enumerate(ON_SPARK)}

MARKED_S = {"slow": 4, "spark": 10, "process": 2}
"""About how long a test with a mark takes; the others are many and short."""

MAY_START_PROCESSES = {"process", "spark"}
TOOLS = {"fc-list"}
"""Programs that libraries may ask about this machine: matplotlib looks for fonts."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # `make test &` starts us so; a process that a test interrupts would inherit it, and not end
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Fix the hash seed: Python reads it only when it starts, so this process starts once more.

    The Makefile could set it, but then plain `pytest` would order sets by another seed in each run
    and a failure might not come again. Workers of xdist and the processes of tests inherit it.
    """
    if "PYTHONHASHSEED" in os.environ:
        return
    os.environ["PYTHONHASHSEED"] = HASH_SEED
    if config.getoption("numprocesses", None):
        return  # only the workers run tests
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()  # else the new process would write into a closed file
    os.execv(sys.executable, sys.orig_argv)


def pytest_sessionstart() -> None:
    """Make examples independent of what was imported before a test.

    Hypothesis draws one value in 20 from the constants of our modules loaded so far: the same test
    would see other examples alone, in another worker or after another test. Only `explore` draws
    from them, and from all.
    """
    if settings.get_current_profile_name() != "explore":
        nothing = providers.Constants()
        providers._get_local_constants = lambda: nothing
        return
    with warnings.catch_warnings():  # of litestar, while its parameters are made
        warnings.simplefilter("ignore", DeprecationWarning)
        for module in pkgutil.walk_packages(roamcast.__path__, "roamcast."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the tests themselves: they stay, and are many."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """End what forked the commands of tests; what was set aside is freed again."""
    gc.unfreeze()  # nanobind would tell of every object of its modules that is left at the end
    nursery.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: one that began last would let the other workers wait for it."""
    seconds: dict[str, float] = {}
    for item in items:
        unit = unit_of(item.nodeid)
        marks = {mark.name for mark in item.iter_markers()}
        seconds[unit] = seconds.get(unit, 0) + sum(MARKED_S.get(name, 0) for name in marks) + 0.1
        uses = {"spark", "cluster"} & set(getattr(item, "fixturenames", ()))
        if uses and unit != SPARK_UNIT:
            raise pytest.UsageError(f"{unit} uses Spark: list it in ON_SPARK of tests/conftest.py")
        if MAY_START_PROCESSES & marks:
            # Processes and their clocks: a busy machine may need a second try (0116).
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: (-seconds[unit_of(item.nodeid)], place_in_unit(item.nodeid)))
    if settings.get_current_profile_name() in EXAMPLES_MAX:
        for test in {getattr(item, "obj", None) for item in items}:
            draw_fewer(test)
        for machine in {getattr(item, "cls", None) for item in items}:
            if isinstance(own := getattr(machine, "settings", None), settings):
                machine.settings = fewer(own)  # of a state machine


def draw_fewer(test: Any) -> None:
    """Lower the number of examples of a hypothesis test, whatever its own settings say."""
    test = getattr(test, "__func__", test)  # of a method
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None:
        test._hypothesis_internal_use_settings = fewer(own)


def fewer(own: settings) -> settings:
    """Bound the examples of a test's settings; divide them for `make quick`."""
    profile, most = settings.get_current_profile_name(), own.max_examples
    if profile == "quick":
        most = max(most // QUICK_SHARE, 5)
    return settings(own, max_examples=min(most, EXAMPLES_MAX[profile]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test that starts a process and is not marked so: `make quick` leaves those out."""
    if any(mark.name in MAY_START_PROCESSES for mark in item.iter_markers()):
        return (yield)
    start, fork = subprocess.Popen.__init__, nursery.Forked.__init__

    def refuse(self: Any, args: Any, *more: Any, **named: Any) -> None:
        if isinstance(args, list) and str(args[0]) in TOOLS:
            start(self, args, *more, **named)
            return
        raise AssertionError(f"this test starts {args}: mark it pytest.mark.process")

    subprocess.Popen.__init__ = refuse  # type: ignore[method-assign]
    nursery.Forked.__init__ = refuse  # type: ignore[method-assign]
    try:
        return (yield)
    finally:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]
        nursery.Forked.__init__ = fork  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch what a test of planted defects plants: if nothing calls it, it found nothing."""
    patch = getattr(item, "funcargs", {}).get("monkeypatch")
    if patch is None or not item.path.name.endswith("_defects.py"):
        return (yield)
    from tests.planting import watched

    with watched(patch):
        return (yield)


@pytest.fixture(scope="session")
def stopped_at_the_end() -> Iterator[None]:
    yield
    from tests.pipeline.clusters import stop_running

    stop_running()


@pytest.fixture(scope="module")
def spark(stopped_at_the_end: None) -> Any:
    """Start a session on two cores of this machine, or take the one that the last module used."""
    from roamcast.pipeline.spark.session import Settings, start
    from tests.pipeline.clusters import OPTIONS, need_java

    need_java()
    return start(Settings(master="local[2]", name="roamcast-tests", memory="2g", options=OPTIONS))


def file_of(nodeid: str) -> str:
    """Name the file of a test."""
    return nodeid.partition("::")[0]


def unit_of(nodeid: str) -> str:
    """Name what is never torn apart: a file, or all files that share a Spark session."""
    file = file_of(nodeid)
    return SPARK_UNIT if file in SPARK_PLACES else file


def place_in_unit(nodeid: str) -> int:
    """Order the files of a unit."""
    return SPARK_PLACES.get(file_of(nodeid), 0)


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
