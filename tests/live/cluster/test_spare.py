"""A spare loads behind whatever is served: `roamcast.live.cluster.spare`."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from roamcast.errors import RoamcastError
from roamcast.live.cluster.spare import gently


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_loading_has_a_lower_priority_and_serving_has_not() -> None:
    priorities: list[int] = []

    def work() -> None:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, 0)
    gently(work, 7)
    assert priorities == [7]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_fails_while_loading_is_told() -> None:
    def work() -> None:
        raise RoamcastError("no such kernel")

    with pytest.raises(RoamcastError, match="no such kernel"):
        gently(work, 7)


PROGRAM = """
import os, signal, sys

import msgspec

from roamcast.live.cluster.spare import load

load()

from roamcast.live.config.settings import Settings
from roamcast.live.service.running import run

server = msgspec.structs.replace(Settings().server, port=0, data=sys.argv[1])
before = set(sys.modules)


def started(url, token):
    print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
    os.kill(os.getpid(), signal.SIGTERM)


run(msgspec.structs.replace(Settings(), server=server), started=started)
"""


@pytest.mark.process
def test_a_spare_has_loaded_what_a_service_needs_to_start(tmp_path: Path) -> None:
    """What it imports in its turn keeps everybody waiting."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"roamcast", "uvicorn"}
