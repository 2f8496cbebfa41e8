"""The flood watch of OO's figures 15 and 16: namespaces, processes, phases, measurements."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from roamcast.lab._flood import ARRAY_BYTES, STATIONS, TOPOLOGIES, address_of, now_us
from roamcast.lab.report import Report, Steps

PAPER_MS: Final = 1_000.0
"""The paper's latency of one hop with all data; ours of one hop is put equal to it."""

HOPS: Final = {"A-B-C": 2, "A-B-C-A": 2, "A-C-B": 3, "B-A-C": 3}
"""Hops of an array by the static way, A → B → C."""

LONGER: Final = 3
"""So many times longer is B-A-C, for whose latency there is a number."""

WAYS: Final = ("static", "opportunistic")
SETTLE_S: Final = 1.5
"""After a change of topology homes change; then arrays are published."""


class Process:
    """One process of the testbed, with its lines."""

    def __init__(self, inside: str, role: str, settings: dict[str, Any]) -> None:
        around = ["ip", "netns", "exec", inside]
        command = [sys.executable, "-m", "roamcast.lab._flood", role, json.dumps(settings)]
        self._process = subprocess.Popen(  # noqa: S603 - ours
            [*around, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def tell(self, **command: Any) -> None:
        """Send a command."""
        self._in.write(json.dumps(command) + "\n")
        self._in.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for a line."""
        line = self._out.readline()
        if not line:
            raise RuntimeError("a process of the testbed ended early")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """End it by the end of its input."""
        self._in.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()


def missing() -> str:
    """Say in one line why there are no namespaces here; empty if there are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip (Debian: iproute2)"
    name = f"roamcast-flood-{os.getpid()}-try"
    if not _done("ip", "netns", "add", name):
        return "no network namespace can be made here"
    pair = _done("ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
    _done("ip", "netns", "del", name)
    return "" if pair else "no pair of network devices can be made here"


def _done(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


@contextmanager
def namespaces(name: str) -> Iterator[dict[str, str]]:
    """Make a namespace for the medium and one for each station, joined in pairs."""
    spaces = {one: f"roamcast-flood-{os.getpid()}-{name}-{one}" for one in ("medium", *STATIONS)}
    try:
        for space in spaces.values():
            _must("ip", "netns", "add", space)
        medium = spaces["medium"]
        for one in STATIONS:
            space, address = spaces[one], address_of(one)
            ends = (f"to-{one}", medium, address[:-1] + "1"), ("air", space, address)
            _must("ip", "-n", medium, "link", "add", f"to-{one}", "type", "veth",
                  "peer", "name", "air", "netns", space)  # fmt: skip
            for device, where, own in ends:
                _must("ip", "-n", where, "addr", "add", f"{own}/30", "dev", device)
                _must("ip", "-n", where, "link", "set", device, "up")
        yield spaces
    finally:
        for space in spaces.values():
            _done("ip", "netns", "del", space)


def _must(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True)  # noqa: S603


class Bed:
    """The processes of one way, static or opportunistic."""

    def __init__(self, stack: ExitStack, way: str, share: float, array_s: float) -> None:
        spaces = stack.enter_context(namespaces(way[:3]))
        settings = {
            "medium": {"bytes_per_s": ARRAY_BYTES / array_s},
            "c": {"share": share, "opportunistic": way == "opportunistic"},
        }
        found: dict[str, Process] = {}
        for role in ("medium", *STATIONS):
            found[role] = Process(spaces[role], role, settings.get(role, {}))
            stack.callback(found[role].end)
            found[role].hear()  # each finds the medium and its home ready
        self.way = way
        self.medium, self.a, self.c = found["medium"], found["a"], found["c"]

    def turn(self, topology: str) -> int:
        """Change the topology; give how long the medium was busy so far."""
        self.medium.tell(topology=topology)
        return int(self.medium.hear()["busy_us"])


def arrivals(load: float, array_s: float, seconds: float, seed: int) -> list[float]:
    """Draw when arrays are published, so that B-A-C's static way has this utilisation.

    A Poisson process of which the number of arrivals is known: they are uniform.
    """
    draw = random.Random(seed)
    count = round(seconds * load / (HOPS["B-A-C"] * array_s))
    return sorted(draw.uniform(0, seconds) for _ in range(count))


def measure(
    share: float, array_s: float, loads: dict[float, float], progress: Steps
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run both ways side by side through all loads (load → seconds) and topologies.

    `array_s`: how long an array takes the medium for one hop.
    """
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        beds = [Bed(stack, way, share, array_s) for way in WAYS]
        time.sleep(SETTLE_S)  # links come up
        phases: list[tuple[float, str, int, int, dict[str, float]]] = []
        with progress("topologies", len(loads) * len(TOPOLOGIES)) as step:
            for load, seconds in loads.items():
                for number, topology in enumerate(TOPOLOGIES):
                    long = seconds * (LONGER if topology == "B-A-C" else 1)
                    times = arrivals(load, array_s, long, number)
                    phases.append(_phase(beds, load, topology, long, times))
                    time.sleep(12 * array_s)  # what is in the queue arrives
                    step(1)
        for bed in beds:
            bed.c.tell(say=True)
        found = {bed.way: bed.c.hear() for bed in beds}
    for load, topology, begin, end, busy in phases:
        for way in WAYS:
            times = [took for at, took in found[way]["latencies"] if begin <= at < end]
            rows.append(
                {
                    "load": load,
                    "topology": topology,
                    "way": way,
                    "arrays": len(times),
                    "latency_ms": round(sum(times) / max(1, len(times)) / 1e3, 1),
                    "medium busy": round(busy[way], 2),
                }
            )
    moves = {way: [to for _, to in found[way]["moves"]] for way in WAYS}
    return rows, {"array_s": array_s, "share": share, "moves": moves}


def _phase(
    beds: list[Bed], load: float, topology: str, seconds: float, drawn: list[float]
) -> tuple[float, str, int, int, dict[str, float]]:
    for bed in beds:
        bed.turn(topology)
    time.sleep(SETTLE_S)
    before = {bed.way: bed.turn(topology) for bed in beds}
    begin = now_us() + 50_000
    times = [begin + round(at * 1e6) for at in drawn]
    for bed in beds:
        bed.a.tell(publish_us=times)
    time.sleep(seconds + 0.05)
    end = now_us()
    busy = {bed.way: (bed.turn(topology) - before[bed.way]) / (end - begin) for bed in beds}
    return load, topology, begin, end, busy


def latency(rows: list[dict[str, Any]], load: float, topology: str, way: str) -> float:
    """Find one mean latency, in ms; without arrays it is infinite."""
    for row in rows:
        if (row["load"], row["topology"], row["way"]) == (load, topology, way) and row["arrays"]:
            return float(row["latency_ms"])
    return float("inf")


def draw(report: Report, path: Path, lines: Any, title: str) -> None:
    """Draw latency against load in B-A-C, one line for each way."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for row in report.rows:
        if row["topology"] == "B-A-C":
            point = (row["load"], row["latency_ms"], 0.0)
            series.setdefault(row["way"], []).append(point)
    lines(path, series, title=title, across="load of the static way", up="mean latency, ms")
