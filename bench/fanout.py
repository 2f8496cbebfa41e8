"""How many clients can one process tell of every change? Beside a bare `websockets` broadcast.

All clients of a run live in one other process, the same for both. The peer only broadcasts a text
of the same size; ours takes each update from a publisher's WebSocket session, writes it to disk,
matches it, and tells the sessions. Delay is from just before the publisher (the peer: the
broadcast) sent it until a client has read the frame.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from websockets.sync.client import connect

from roamcast.lab.report import Claim, Report, Steps

TITLE = "fanout: one process to 5,000 WebSocket clients, beside a bare websockets broadcast"
HERE = Path(__file__).parent
WHERE = "place = 'hall'"
SETTINGS = """
[limits]
connections_max = 20000
connections_per_subject_max = 20000
frames_per_s = 100000
frames_burst = 100000
steps_per_s = 1e12
steps_burst = 1000000000000
ping_s = 3600
"""


class Process:
    """A child that answers a line with a line."""

    running: ClassVar[list["Process"]] = []

    def __init__(self, *command: str) -> None:
        self.child = subprocess.Popen(  # noqa: S603 - our own programs
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.running.append(self)

    def line(self) -> str:
        """Read what the child says next."""
        assert self.child.stdout is not None
        said = self.child.stdout.readline().decode()
        if not said:
            raise RuntimeError("a process of the bench ended early")
        return said

    def ask(self, text: str) -> Any:
        """Say a line and read the answer."""
        assert self.child.stdin is not None
        self.child.stdin.write(text.encode() + b"\n")
        self.child.stdin.flush()
        return json.loads(self.line())

    def end(self) -> None:
        """End the child."""
        self.child.kill()
        self.child.wait()

    @classmethod
    def end_all(cls) -> None:
        """End every child that still runs, whatever has happened."""
        while cls.running:
            cls.running.pop().end()

    def core_s(self) -> float:
        """How long cores have worked for the child: on a busy machine, too, a fair measure."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """How much memory the child holds."""
        status = Path(f"/proc/{self.child.pid}/status").read_text(encoding="utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


def clients(url: str, token: str, count: int, where: str) -> Process:
    made = Process(sys.executable, str(HERE / "_fanout_clients.py"), url, token, str(count), where)
    assert made.line().strip() == "ready"
    return made


def settle(readers: Process, wait_s: float = 30.0) -> dict[str, Any]:
    """Wait until nothing more arrives, then give the numbers."""
    before: dict[str, Any] = readers.ask("stats")
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        time.sleep(1.0)
        now = readers.ask("stats")
        if now["frames"] == before["frames"]:
            return dict(now)
        before = now
    return before


class Publisher:
    """Publishes changes of objects in the hall through one WebSocket session."""

    def __init__(self, url: str, token: str) -> None:
        address = url.replace("http", "ws", 1) + "/session?device=publisher"
        headers = {"Authorization": f"Bearer {token}"}
        self.link = connect(
            address,
            additional_headers=headers,
            compression=None,
            max_queue=None,
            ping_interval=None,
        )
        self.number = 0

    def publish(self, rate: float, seconds: float, contexts: int) -> int:
        """Publish at a rate, the objects in turn; how many were sent."""
        start = time.monotonic()
        sent = 0
        while (now := time.monotonic()) - start < seconds:
            due = start + sent / rate
            if due > now:
                time.sleep(due - now)
            self._send(contexts)
            sent += 1
        return sent

    def _send(self, contexts: int, re: str = "") -> None:
        self.number += 1
        feature = {
            "type": "Feature",
            "id": f"p{self.number % contexts}",
            "properties": {"place": "hall", "sent": time.monotonic_ns(), "n": self.number},
        }
        self.link.send(json.dumps({"type": "publish", "re": re, "feature": feature}))

    def flood(self, seconds: float, contexts: int, window: int = 256) -> tuple[int, float]:
        """Publish as fast as it is acknowledged: how many, in how many seconds."""
        start = time.monotonic()
        sent = open_ones = 0
        while time.monotonic() - start < seconds or open_ones:
            while open_ones < window and time.monotonic() - start < seconds:
                self._send(contexts, "flood")
                sent += 1
                open_ones += 1
            said = json.loads(self.link.recv())
            open_ones -= said["type"] == "done" and said.get("re") == "flood"
        return sent, time.monotonic() - start


def serve(folder: Path, more: str = "") -> tuple[Process, str, str]:
    """Start a service, with more settings than these; give it, its URL and a token."""
    settings = folder / "settings.toml"
    settings.write_text(SETTINGS + more, encoding="utf-8")
    command = [sys.executable, "-m", "roamcast", "serve", "--json", "--port", "0"]
    made = Process(*command, "--data", str(folder), "--settings", str(settings))
    address = json.loads(made.line())
    return made, address["url"], address["token"]


def run(quick: bool, progress: Steps) -> Report:
    count = 500 if quick else 5_000
    seconds = 4.0 if quick else 10.0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, progress("phases", 8) as step:
        try:
            service, url, token = serve(Path(folder))
            readers = clients(url.replace("http", "ws", 1) + "/session", token, count, WHERE)
            publisher = Publisher(url, token)
            publisher.publish(5, 1.0, 1)  # warm
            settle(readers)
            step(1)
            ours = ours_at(readers, publisher, rows, count, 5.0, seconds, contexts=1)
            frame_bytes = max(200, round(ours["bytes"] / max(ours["frames"], 1)))
            step(1)
            memory_before = service.memory_mb()
            hundred = ours_at(readers, publisher, rows, count, 100.0, seconds, contexts=20)
            last_true = hundred["last"] == [publisher.number]
            memory_after = service.memory_mb()
            step(1)
            top = saturated(readers, publisher, rows, count, seconds)
            step(1)
            readers.end()
            service.end()
            peer = Process(sys.executable, str(HERE / "_fanout_peer.py"))
            address = f"ws://127.0.0.1:{peer.line().strip()}/"
            readers = clients(address, "", count, "")
            peer.ask(f"5 1 {frame_bytes}")
            settle(readers)
            step(1)
            theirs = peer_at(readers, peer, rows, count, 5.0, seconds, frame_bytes)
            step(1)
            peer_top = peer_at(readers, peer, rows, count, 1_000.0, seconds / 2, frame_bytes)
            step(2)
        finally:
            Process.end_all()
    return report(quick, count, rows, ours, theirs, top, peer_top, last_true,
                  memory_after - memory_before)  # fmt: skip


def ours_at(
    readers: Process,
    publisher: Publisher,
    rows: list[dict[str, Any]],
    count: int,
    rate: float,
    seconds: float,
    *,
    contexts: int,
) -> dict[str, Any]:
    readers.ask("reset")
    sent = publisher.publish(rate, seconds, contexts)
    got = settle(readers)
    rows.append(row("roamcast", rate, sent, count, got))
    return {**got, "sent": sent}


def saturated(
    readers: Process, publisher: Publisher, rows: list[dict[str, Any]], count: int, seconds: float
) -> dict[str, Any]:
    """Publish as fast as the service acknowledges, ever other objects."""
    readers.ask("reset")
    sent, spent = publisher.flood(seconds, 5_000)
    got = settle(readers)
    rows.append(row("roamcast", round(sent / spent), sent, count, got))
    return {**got, "sent": sent}


def peer_at(
    readers: Process,
    peer: Process,
    rows: list[dict[str, Any]],
    count: int,
    rate: float,
    seconds: float,
    size: int,
) -> dict[str, Any]:
    readers.ask("reset")
    sent = peer.ask(f"{rate} {seconds} {size}")["sent"]
    got = settle(readers)
    rows.append(row("websockets broadcast", rate, sent, count, got))
    return {**got, "sent": sent}


def row(who: str, rate: float, sent: int, count: int, got: dict[str, Any]) -> dict[str, Any]:
    return {
        "who": who,
        "offered_per_s": rate,
        "updates": sent,
        "frames_per_client": round(got["frames"] / count, 2),
        "events_per_client": round(got["events"] / count, 2),
        "frames_per_s": round(got["frames"] / got["seconds"]),
        "updates_per_s_to_all": round(got["events"] / count / got["seconds"], 1),
        "p50_ms": round(got["p50_ms"], 1),
        "p99_ms": round(got["p99_ms"], 1),
    }


def report(
    quick: bool,
    count: int,
    rows: list[dict[str, Any]],
    ours: dict[str, Any],
    theirs: dict[str, Any],
    top: dict[str, Any],
    peer_top: dict[str, Any],
    last_true: bool,
    grown_mb: float,
) -> Report:
    p50 = ours["p50_ms"] / theirs["p50_ms"]
    p99 = ours["p99_ms"] / theirs["p99_ms"]
    frames = (top["frames"] / top["seconds"]) / (peer_top["frames"] / peer_top["seconds"])
    updates = (top["events"] / top["seconds"]) / (peer_top["events"] / peer_top["seconds"])
    whole = ours["events"] == ours["sent"] * count
    return Report(
        "fanout",
        {"clients": count, "quick": quick},
        rows,
        [
            Claim("at 5 updates a second everything is delivered", ours["events"], whole,
                  bar=ours["sent"] * count),
            Claim("p50 beside the peer's at 5 a second", round(p50, 2), p50 <= 1.8, bar=1.8),
            Claim("p99 beside the peer's at 5 a second", round(p99, 2), p99 <= 1.8, bar=1.8),
            Claim("updates a second to all at saturation, beside the peer's", round(updates, 2),
                  updates >= 0.55, bar=0.55, note=f"frames a second: {frames:.2f} of the peer's"),
            Claim("at 100 updates a second every client ends with the true state", last_true,
                  last_true, bar=True),
            Claim("memory grown during that, MB", round(grown_mb, 1), grown_mb < 100, bar=100),
        ],
    )  # fmt: skip
