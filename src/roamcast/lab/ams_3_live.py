"""Does a meeting come out live as it does in figure 3? A real service, real sockets on loopback.

People arrive at a meeting one after another, watch the room and publish themselves through the SDK.
Once with channels switched off (AMS's unicast: everybody is told alone, and receipts it), once with
many channels (here by the socket: one frame, made once, for everybody). What the broker spends on a
delivery is its processor time; the delay is from a publication until a watcher has it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from roamcast.lab.report import Claim, Report, Steps

TITLE = "a meeting through the running service: unicast beside many channels, on loopback (AMS 3)"

ROOM: Final = "lab/1/meeting"
ARRIVALS_S: Final = 0.05
"""Between two arrivals."""
MODES: Final = {"unicast": 1_000_000, "many channels": 2}
"""Mode → q, how many subscribers of a query earn a channel."""


class Watcher:
    """One person in the meeting."""

    def __init__(self, delays_ms: list[float]) -> None:
        self._delays_ms = delays_ms
        self.known: dict[str, int] = {}

    async def follow(self, view: Any) -> None:
        """Take every change and note how old it is."""
        async for change in view:
            if change.kind in ("appeared", "changed") and change.context is not None:
                sent = int(change.context.attributes["sent"])
                self._delays_ms.append((time.monotonic_ns() - sent) / 1e6)
                self.known[change.vid] = sent


async def meeting(url: str, token: str, people: int, moves: int) -> dict[str, Any]:
    """Let people arrive, then each move `moves` times within the room."""
    from roamcast.client import connect

    delays_ms: list[float] = []
    sessions, tasks, watchers = [], [], []
    truth: dict[str, int] = {}
    for number in range(people):
        me = await connect(url, token, device=f"p{number}")
        watcher = Watcher(delays_ms)
        tasks.append(asyncio.create_task(watcher.follow(me.watch(f"place = '{ROOM}'"))))
        truth[f"p{number}"] = sent = time.monotonic_ns()
        await me.publish(f"p{number}", place=ROOM, sent=sent)
        sessions.append(me)
        watchers.append(watcher)
        await asyncio.sleep(ARRIVALS_S)
    await _until_equal(watchers, truth)
    delays_ms.clear()
    began = time.monotonic()
    for _ in range(moves):
        for number, me in enumerate(sessions):
            truth[f"p{number}"] = sent = time.monotonic_ns()
            await me.publish(f"p{number}", place=ROOM, sent=sent)
    await _until_equal(watchers, truth)
    seconds = time.monotonic() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for me in sessions:
        await me.close()
    delays_ms.sort()
    return {
        "deliveries": people * people * moves,
        "seconds": seconds,
        "p50_ms": delays_ms[len(delays_ms) // 2],
        "p95_ms": delays_ms[len(delays_ms) * 95 // 100],
    }


async def _until_equal(watchers: list[Watcher], truth: dict[str, int]) -> None:
    """Wait until everybody sees everybody as they are."""
    async with asyncio.timeout(120):
        while not all(watcher.known == truth for watcher in watchers):
            await asyncio.sleep(0.05)


def measure(mode: str, people: int, moves: int) -> dict[str, Any]:
    """Run one meeting against a service of its own."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.toml"
        settings.write_text(
            f"[channels]\nsubscribers_min = {MODES[mode]}\n"
            "[limits]\nconnections_per_subject_max = 10000\nrequests_per_s = 100000\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "roamcast", "serve", "--json", "--port", "0"]
        command += ["--data", folder, "--settings", str(settings)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as service:  # noqa: S603 - ours
            try:
                assert service.stdout is not None
                address = json.loads(service.stdout.readline())
                before = _processor_s(service.pid)
                found = asyncio.run(meeting(address["url"], address["token"], people, moves))
                spent = _processor_s(service.pid) - before
            finally:
                service.terminate()
                service.wait(30)
    return {
        "mode": mode,
        "people": people,
        "updates": people * moves,
        "broker_us_per_delivery": round(spent * 1e6 / found["deliveries"], 1),
        "p50_ms": round(found["p50_ms"], 2),
        "p95_ms": round(found["p95_ms"], 2),
    }


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(quick: bool, progress: Steps) -> Report:
    """Run the meetings, both modes at each size."""
    sizes = (10, 20) if quick else (10, 30, 60)
    moves = 3 if quick else 5
    rows = []
    with progress("meetings", len(sizes) * len(MODES)) as step:
        for people in sizes:
            for mode in MODES:
                rows.append(measure(mode, people, moves))
                step(1)
    largest = {row["mode"]: row for row in rows if row["people"] == sizes[-1]}
    cost = {mode: row["broker_us_per_delivery"] for mode, row in largest.items()}
    ratio = cost["unicast"] / cost["many channels"]
    return Report(
        "ams-3-live",
        {"quick": quick, "moves": moves},
        rows,
        [
            Claim(
                f"in a meeting of {sizes[-1]} a delivery costs the broker less by channels, times",
                round(ratio, 2),
                ratio > 1,
                bar=1,
                note="arrivals and registrations included; the last hop is a socket for each, so "
                "figure 3's gain of one transmission for all is not in it",
            )
        ],
    )


def draw(report: Report, path: Path) -> None:
    """Draw the broker's time for a delivery, and the delay, against the meeting's size."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for mode in MODES:
        rows = [row for row in report.rows if row["mode"] == mode]
        sizes = [row["people"] for row in rows]
        axes[0].plot(sizes, [row["broker_us_per_delivery"] for row in rows], "o-", label=mode)
        axes[1].plot(sizes, [row["p95_ms"] for row in rows], "o-", label=mode)
    axes[0].set(xlabel="people in the meeting", ylabel="broker, µs for a delivery", ylim=(0, None))
    axes[1].set(xlabel="people in the meeting", ylabel="delay p95, ms", ylim=(0, None))
    axes[0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
