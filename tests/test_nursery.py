"""Commands forked from a nursery are processes like others."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nursery import ROOT, Forked, can_fork, environment
from tests.processes import roamcast

pytestmark = pytest.mark.process


def test_it_writes_ends_with_its_code_and_leaves_nothing() -> None:
    version = Forked(["--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None)
    assert version.stdout is not None
    assert version.stdout.read().startswith(b"roamcast")
    assert version.wait(60) == 0
    assert version.poll() == 0
    version.stdout.close()


def test_a_mistake_is_told_on_its_own_stderr() -> None:
    reading, writing = os.pipe()
    wrong = Forked(["who", "--nonsense"], stdin=None, stdout=subprocess.DEVNULL, stderr=writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as errors:
        assert b"--nonsense" in errors.read()
    assert wrong.wait(60) == 2


def test_it_can_be_killed_and_says_so(tmp_path: Path) -> None:
    service = roamcast("serve", "--json", "--port", "0", "--data", str(tmp_path))
    assert service.answer()["url"]
    assert service.process.poll() is None
    service.kill()
    assert service.process.poll() == -signal.SIGKILL


def test_what_only_counts_at_a_start_makes_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fork()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    assert not can_fork()


def test_a_keeper_starts_without_what_only_its_service_needs() -> None:
    """On a machine that is busy serving, a keeper's start takes from those that serve."""
    assert not imports("roamcast.live.cluster.keeper", "numba")


def test_a_service_starts_without_pandas() -> None:
    assert not imports("roamcast.live.service.running", "pandas")


def imports(module: str, other: str) -> bool:
    code = f"import sys, {module}; sys.exit({other!r} in sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    made = subprocess.run(command, env=environment(), cwd=ROOT, check=False)
    assert made.returncode in (0, 1)
    return made.returncode == 1
