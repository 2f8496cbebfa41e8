"""SIGTERM ends an experiment with everything that it has started."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roamcast.commands._ending import EXIT_CODE
from roamcast.lab import _flood_bed

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


def family(root: int) -> set[int]:
    """All processes that descend from one."""
    found = {root}
    for one in Path(f"/proc/{root}/task").glob("*/children"):
        for child in one.read_text().split():
            found |= family(int(child))
    return found


def until(is_so):
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


def runs(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("command", "members"),
    [
        ("swarm --seeds 100000 --only channel --workers 2", 4),
        ("bench run roam --quick", 4),
        pytest.param(
            "figure run oo-15 --quick", 6,
            marks=pytest.mark.skipif(bool(_flood_bed.missing()), reason=_flood_bed.missing()),
        ),
    ],
)  # fmt: skip
def test_nothing_stays_behind(command, members):
    process = subprocess.Popen(
        [sys.executable, "-m", "roamcast", *command.split()],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        until(lambda: len(family(process.pid)) >= members or process.poll() is not None)
        started = family(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == EXIT_CODE
        until(lambda: not any(map(runs, started)))
        assert f"-{process.pid}-" not in " ".join(_namespaces())
    finally:
        process.kill()
        process.wait()


def _namespaces() -> list[str]:
    folder = Path("/var/run/netns")
    return [one.name for one in folder.iterdir()] if folder.exists() else []
