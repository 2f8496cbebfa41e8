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


def measured(command: list[str]) -> Cost:
    """Run a command to its end; memory is that of its whole family (Java, Python workers)."""
    before_s, began = _children_s(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - a bench's own
        with watched_memory(process.pid) as peak:
            said, _ = process.communicate()
        taken_s = time.perf_counter() - began
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"
    return Cost(taken_s, _children_s() - before_s, peak[0] / 1e6, said)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def watched_memory(root: int) -> Iterator[list[int]]:
    """Follow the resident memory of a process and all its children; the peak in bytes."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(PERIOD_S):
            peak[0] = max(peak[0], _resident(root))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _resident(root: int) -> int:
    return sum(int(fields[21]) for fields in family(root)) * resource.getpagesize()


def worked_s(root: int) -> float:
    """Add up the time that cores spent on them: unlike seconds, hardly more on a busy machine."""
    ticks = sum(int(number) for fields in family(root) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[list[str]]:
    """Give what the system tells of a process and all that descend from it."""
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
    return [known[process] for process in sorted(found) if process in known]


def size_bytes(folder: Path) -> int:
    """Add up the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
