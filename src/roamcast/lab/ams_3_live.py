"""AMS figure 3, live: the largest meeting of a real service, with sockets and multicast.

People watch a room, then arrive in it at random moments and publish themselves through the SDK's
machines. The ways: unicast to everybody (as in AMS), one channel for everything, many channels; by
UDP multicast in a network namespace of its own, and by sockets, where a frame is encoded once and
written to each. Meetings grow until updates take longer than the bound on average. Service and
people share one machine, so the figure reports which of them was busy; the service's cost per
update does not depend on how busy the people were (decision 0081).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.lab._ams import (
    DELAY_S_MAX,
    MEETING_S,
    largest_meeting,
    level,
    line,
    move_s,
    watching,
)
from roamcast.lab._ams import ROOM as SIMULATED_ROOM
from roamcast.lab._ams_live import Meeting, Namespace
from roamcast.lab.report import Claim, Report, Steps

TITLE = "meetings through the running service: unicast, one channel, many; UDP, sockets (AMS 3)"

UDP: Final = "239.192.80.0/28:5080"
LOOPBACK: Final = "127.0.0.1"
PAPER: Final = {Mode.UNICAST: 50, Mode.SINGLE: 530}
WORDS: Final = {Mode.UNICAST: "unicast", Mode.SINGLE: "single", Mode.MANY: "many"}
WAYS: Final = {
    "unicast": (Mode.UNICAST, "socket"),
    "one channel by UDP": (Mode.SINGLE, "udp"),
    "many channels by UDP": (Mode.MANY, "udp"),
    "one channel by sockets": (Mode.SINGLE, "socket"),
    "many channels by sockets": (Mode.MANY, "socket"),
}
"""Way → the service's mode, and the transport of its channels."""
SETTINGS: Final = """
[limits]
connections_per_subject_max = 10000
frames_per_s = 100000
[journal]
on = false
[channels]
mode = "{mode}"
heartbeat_s = 10
client_timeout_s = 60
probe_s = 0.25
"""
BUSY: Final = 0.9
"""A process that used more than this share of a core was the bottleneck."""


class Spent(NamedTuple):
    """Processor time: in all, and as ticks of the program and of the kernel."""

    seconds: float
    own: int
    kernels: int

    def since(self, before: "Spent") -> tuple[float, float]:
        """Return the seconds spent since then by the program, and by the kernel for it."""
        seconds = self.seconds - before.seconds
        own, kernels = self.own - before.own, self.kernels - before.kernels
        share = kernels / (own + kernels) if own + kernels else 0.0
        return seconds * (1 - share), seconds * share


class ServiceProcess:
    """`roamcast serve` in a process of its own, with its processor time."""

    def __init__(self, folder: Path, mode: Mode, travels: str, around: list[str]) -> None:
        said = SETTINGS.format(mode=WORDS[mode])
        if travels == "udp":
            said += f'udp = "{UDP}"\nudp_interface = "{LOOPBACK}"\n'
        settings = folder / "settings.toml"
        settings.write_text(said, encoding="utf-8")
        command = [sys.executable, "-m", "roamcast", "serve", "--json", "--port", "0"]
        command += ["--data", str(folder / "data"), "--settings", str(settings)]
        self._process = subprocess.Popen(  # noqa: S603 - ours
            [*around, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        meeting = json.loads(self._process.stdout.readline())
        self.url, self.token = str(meeting["url"]), str(meeting["token"])

    def spent(self) -> Spent:
        """Return the processor time used so far."""
        folder = Path(f"/proc/{self._process.pid}")
        fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        threads = [one.read_text(encoding="utf-8") for one in folder.glob("task/*/schedstat")]
        nanoseconds = sum(int(one.split()[0]) for one in threads)
        return Spent(nanoseconds / 1e9, int(fields[11]), int(fields[12]))

    def end(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def measure(way: str, people: int, seconds: float, around: list[str]) -> dict[str, Any]:
    """Run one meeting at a service of its own."""
    mode, travels = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        service = ServiceProcess(Path(folder), mode, travels, around)
        try:
            interface = LOOPBACK if travels == "udp" else ""
            meeting = Meeting(
                service.url, service.token, people, seconds, travels, interface, people
            )
            return {"way": way, "people": people, **_meeting(service, meeting, around)}
        finally:
            service.end()


def _meeting(service: ServiceProcess, meeting: Meeting, around: list[str]) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "roamcast.lab._ams_live",
        msgspec.json.encode(meeting).decode(),
    ]
    with subprocess.Popen(  # noqa: S603 - ours
        [*around, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crowd:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        ways = json.loads(crowd.stdout.readline())["ways"]
        before = service.spent()
        crowd.stdin.write("go\n")
        crowd.stdin.flush()
        found = json.loads(crowd.stdout.readline())
        own, kernels = service.spent().since(before)
    busy = (own + kernels) / found["seconds"]
    carried = found["mean_ms"] <= DELAY_S_MAX * 1e3 and not found["missing"]
    waited_for = [
        who for who, share in (("service", busy), ("people", found["clients_busy"])) if share > BUSY
    ]
    return {
        "by": ", ".join(sorted(ways)),
        "updates_per_s": round(meeting.people / meeting.seconds, 1),
        "mean_ms": round(found["mean_ms"], 2),
        "p95_ms": round(found["p95_ms"], 2),
        "missing": found["missing"],
        "carried": carried,
        "service_us_per_update": round(own / meeting.people * 1e6),
        "kernel_us_per_update": round(kernels / meeting.people * 1e6),
        "service_busy": round(busy, 2),
        "people_busy": round(found["clients_busy"], 2),
        "waited_for": " and ".join(waited_for),
    }


def run(quick: bool, progress: Steps) -> Report:
    """Grow the meetings of each way until one is too large."""
    sizes = (5, 15) if quick else (25, 50, 100, 150, 200, 300, 400, 600, 800)
    seconds = 1.0 if quick else 8.0
    rows: list[dict[str, Any]] = []
    with Namespace() as network, progress("meetings", len(WAYS) * len(sizes)) as step:
        for way in WAYS:
            for done, people in enumerate(sizes):
                rows.append(measure(way, people, seconds, network.around))
                step(1)
                if not rows[-1]["carried"]:
                    step(len(sizes) - done - 1)
                    break
    where = network.missing or "a namespace of its own"
    parameters = {
        "quick": quick,
        "seconds": seconds,
        "delay_bar_s": DELAY_S_MAX,
        "network": where if not network.missing else f"this machine's loopback: {where}",
        "meeting_s": MEETING_S,
        **{f"largest measured, {way}": _largest(rows, way) for way in WAYS},
        **_calculated(rows, quick),
    }
    return Report("ams-3-live", parameters, rows, _claims(rows, parameters))


def _largest(rows: list[dict[str, Any]], way: str) -> int:
    return max((row["people"] for row in rows if row["way"] == way and row["carried"]), default=0)


def _calculated(rows: list[dict[str, Any]], quick: bool) -> dict[str, Any]:
    """Return the largest meeting of the paper's duration, from the measured times of an update.

    By sockets, every person costs the kernel a write. By UDP, the kernel's time is left out: on
    loopback it copies to every listener, on a network it sends once.
    """
    found: dict[str, Any] = {}
    for way, (_, travels) in WAYS.items():
        mine = [row for row in rows if row["way"] == way]
        sizes = [row["people"] for row in mine]
        kernels = [0 if travels == "udp" else row["kernel_us_per_update"] for row in mine]
        times = [
            (row["service_us_per_update"] + more) / 1e6
            for row, more in zip(mine, kernels, strict=True)
        ]
        if not quick and len(sizes) > 1:  # with few updates, the clock's resolution dominates
            found[f"by the service in meeting_s, {way}"] = largest_meeting(line(sizes, times))
    simulated = (50, 200) if quick else (50, 200, 800)
    for mode in Mode:
        query = [watching(SIMULATED_ROOM)]
        samples = 5 if quick else 20
        times = [move_s(MapSettings(mode=mode), people, query, samples) for people in simulated]
        by_size = line(simulated, times) if mode is Mode.UNICAST else level(times)
        found[f"simulator in meeting_s, {mode.value}"] = largest_meeting(by_size)
    for mode, people in PAPER.items():
        found[f"paper, {mode.value}"] = people
    return found


def _claims(rows: list[dict[str, Any]], parameters: dict[str, Any]) -> list[Claim]:
    largest = {way: parameters[f"largest measured, {way}"] for way in WAYS}
    unicast = largest["unicast"]
    claims = []
    for way in ("one channel by UDP", "many channels by UDP"):
        too_large = [row for row in rows if row["way"] == way and not row["carried"]]
        if not too_large and all(row["carried"] for row in rows if row["way"] == "unicast"):
            continue  # no meeting was too large for either
        after = too_large[0]["waited_for"] if too_large else ""
        end = f"beyond it the {after} had no time left" if after else "larger ones were not tried"
        claims.append(
            Claim(
                f"{way} carries a larger meeting than unicast, times",
                round(largest[way] / max(unicast, 1), 2),
                largest[way] >= 10.6 * max(unicast, 1),
                bar=10.6,
                note=f"measured on one machine that service and people share; {end}",
            )
        )
    calculated = {way: parameters.get(f"by the service in meeting_s, {way}", 0) for way in WAYS}
    for way in ("one channel by UDP", "many channels by UDP"):
        if not calculated[way]:
            continue
        times = calculated[way] / max(calculated["unicast"], 1)
        claims.append(
            Claim(
                f"by the service's time, {way} carries a larger meeting than unicast, times",
                round(times, 1),
                times >= 10.6,
                bar=10.6,
                note=f"calculated for the paper's {MEETING_S:g} s from what an update costs the "
                "service, by UDP without the kernel's copies to each listener on this machine",
            )
        )
    both = [
        people
        for people in sorted({row["people"] for row in rows})
        if all(any(row["people"] == people and row["way"] == way for row in rows) for way in WAYS)
    ]
    cost = {row["way"]: row["service_us_per_update"] for row in rows if row["people"] == both[-1]}
    ratio = cost["unicast"] / max(cost["many channels by UDP"], 1)
    claims.append(
        Claim(
            f"in a meeting of {both[-1]} an update costs the service itself less by UDP, times",
            round(ratio, 1),
            ratio > 1,
            bar=1,
            note="without the kernel's time, in which this one machine copies to each listener",
        )
    )
    return claims


def draw(report: Report, path: Path) -> None:
    """Draw the mean delay and the service's time for an update against the meeting's size."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for way in WAYS:
        rows = [row for row in report.rows if row["way"] == way]
        sizes = [row["people"] for row in rows]
        up_to = report.parameters[f"largest measured, {way}"]
        label = f"{way}: up to {up_to}"
        axes[0].plot(sizes, [row["mean_ms"] for row in rows], "o-", label=label)
        spent = [row["service_us_per_update"] for row in rows]
        (drawn,) = axes[1].plot(sizes, spent, "o-", label=way)
        all_of_it = [row["service_us_per_update"] + row["kernel_us_per_update"] for row in rows]
        axes[1].plot(sizes, all_of_it, ":", color=drawn.get_color())
    axes[0].axhline(DELAY_S_MAX * 1e3, color="grey", linewidth=0.8)
    seconds = report.parameters["seconds"]
    axes[0].set(
        xlabel=f"people, who arrive within {seconds:g} s",
        ylabel="mean update delay, ms",
        yscale="log",
        title="One machine for the service and everybody",
    )
    axes[1].set(
        xlabel="people in the meeting",
        ylabel="service, µs for an update (dotted: with the kernel)",
        yscale="log",
    )
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)
