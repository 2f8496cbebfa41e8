"""What do processes cost? Seconds, time of cores, and the peak of memory, with all they started."""

import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

PERIOD_S = 0.2


class Cost(msgspec.Struct, frozen=True):
    """What a command took, and what it said."""

    seconds: float
    core_s: float
    memory_mb: float
    said: bytes


class Watch:
    """What a process and all that it started (Java, Python workers) have taken so far."""

    def __init__(self, root: int) -> None:
        self.peak_bytes = 0
        self.java_bytes = 0
        self.worker_bytes = 0
        """The peaks of one process alone: the largest Java, the largest other beside the root."""
        self._root = root
        self._ticks: dict[tuple[int, str], int] = {}

    @property
    def core_s(self) -> float:
        """The time that cores spent on them: unlike seconds, hardly more on a busy machine."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def look(self) -> None:
        """Look at the whole family; those who are gone keep what they had taken."""
        total = 0
        for process, fields in family(self._root).items():
            held = int(fields[21]) * resource.getpagesize()
            total += held
            if _name(process) == "java":
                self.java_bytes = max(self.java_bytes, held)
            elif process != self._root:
                self.worker_bytes = max(self.worker_bytes, held)
            self._ticks[process, fields[19]] = int(fields[11]) + int(fields[12])
        self.peak_bytes = max(self.peak_bytes, total)


def measured(command: list[str]) -> Cost:
    """Run a command to its end."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - a bench's own
        with watched(process.pid) as watch:
            said, _ = process.communicate()
        taken_s = time.perf_counter() - began
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"
    return Cost(taken_s, watch.core_s, watch.peak_bytes / 1e6, said)


@contextmanager
def watched(root: int) -> Iterator[Watch]:
    """Look at a process and its family again and again, as long as the block lasts."""
    watch, done = Watch(root), threading.Event()

    def look() -> None:
        while not done.wait(PERIOD_S):
            watch.look()

    watch.look()
    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield watch
    finally:
        done.set()
        watcher.join()


def family(root: int) -> dict[int, list[str]]:
    """Give what the system tells of a process and all that descend from it, by their ids."""
    known: dict[int, list[str]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            known[int(status.parent.name)] = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
    found, more = set(), {root}
    while more:
        found |= more
        more = {p for p, fields in known.items() if int(fields[1]) in found} - found
    return {process: known[process] for process in sorted(found) if process in known}


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def size_bytes(folder: Path) -> int:
    """Add up the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
