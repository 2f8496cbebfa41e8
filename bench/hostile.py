"""Does one hostile client make the others wait? Each way, beside a quiet service in the same run.

A bystander asks for `/healthz` again and again, by a new connection each time. A watcher waits for
each change that a publisher makes. Measured are the longest wait of both while the attacker is at
work, and when nobody is; afterwards the memory that the service still holds once the attacker
has been gone for a while, and that a newcomer is served. Where other programs share the processors
a wait says little, so it is measured also in processor time: what the service itself spent while
the bystander waited.
"""

import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from websockets.sync.client import connect

from bench._attacks import WAYS
from bench.subscriptions import HERE, served
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.auth.admission import TokenKeys

TITLE = "hostile: the longest wait of bystanders while one client does its worst"
PERIOD_S = 0.02
BATCH = 500
ALLOWED_MS = 50.0
GROWTH_MAX = 1.1
GONE_S = 45.0
"""How long after an attack the memory may take to return: sessions wait 30 s for their client."""
CONTEXTS = 20_000
SETTINGS = """
[limits]
connections_max = 4000
publications_per_client_max = 100000
requests_per_s = 100000.0
requests_burst = 1000000
[journal]
on = false
"""


class Wait(NamedTuple):
    """The longest wait in milliseconds, and the most that the service worked during one."""

    wall_ms: float
    cpu_ms: float


class Waits:
    """The waits of a bystander and of a watcher."""

    def __init__(self, process: int, url: str, token: str) -> None:
        self._process, self._url, self._token = process, url, token
        self._headers = {"Authorization": f"Bearer {token}"}

    def longest(self, during: Callable[[], Any]) -> tuple[Wait, Wait, Any]:
        """Measure while something is done; give the longest wait of each, and what was done."""
        over = threading.Event()
        waits: dict[str, Wait] = {}
        threads = [
            threading.Thread(target=self._again, args=(name, once, over, waits))
            for name, once in (("bystander", self._health()), ("watcher", self._change()))
        ]
        for thread in threads:
            thread.start()
        done = during()
        over.set()
        for thread in threads:
            thread.join()
        return waits["bystander"], waits["watcher"], done

    def _again(
        self, name: str, once: Callable[[], None], over: threading.Event, waits: dict[str, Wait]
    ) -> None:
        once()
        longest = most = 0.0
        while not over.wait(PERIOD_S):
            began, worked = time.perf_counter(), worked_s(self._process)
            once()
            longest = max(longest, time.perf_counter() - began)
            most = max(most, worked_s(self._process) - worked)
        waits[name] = Wait(longest * 1_000, most * 1_000)

    def _health(self) -> Callable[[], None]:
        """Ask `/healthz` as a stranger does: a new connection each time, and no token."""

        def once() -> None:
            there = http.client.HTTPConnection(urlsplit(self._url).netloc)
            there.request("GET", "/healthz")
            answer = there.getresponse()
            answer.read()
            there.close()
            assert answer.status == 200, answer.status

        return once

    def _change(self) -> Callable[[], None]:
        address = self._url.replace("http", "ws", 1) + "/session?device=watcher"
        there = connect(address, additional_headers=self._headers, compression=None)
        said = {"type": "subscribe", "re": "w", "filter": "within(place, 'hq')"}
        there.send(json.dumps(said))
        publisher = http.client.HTTPConnection(urlsplit(self._url).netloc)
        turn = 0

        def once() -> None:
            nonlocal turn
            turn += 1
            put(publisher, self._token, "moving", f"hq/{turn}")
            while f"hq/{turn}" not in str(there.recv()):
                pass

        return once


def put(there: http.client.HTTPConnection, token: str, vid: str, place: str, **more: Any) -> None:
    """Publish a context."""
    feature = {"type": "Feature", "geometry": None, "properties": {"place": place, **more}}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/geo+json"}
    there.request("PUT", f"/contexts/{vid}", json.dumps(feature), headers)
    answer = there.getresponse()
    answer.read()
    assert answer.status in (200, 201), answer.status


def put_many(there: http.client.HTTPConnection, token: str, numbers: range) -> None:
    """Publish contexts in one request."""
    features = [
        {
            "type": "Feature",
            "id": f"v{number}",
            "geometry": None,
            "properties": {"place": f"b/{number}", "level": number},
        }
        for number in numbers
    ]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/geo+json"}
    body = json.dumps({"type": "FeatureCollection", "features": features})
    there.request("POST", "/contexts", body, headers)
    answer = there.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


def attack(way: str, url: str, token: str, seconds: float) -> dict[str, int]:
    """Let a process of its own do its worst."""
    command = [sys.executable, "-m", "bench._attacks", way, url, token, str(seconds)]
    ran = subprocess.run(  # noqa: S603 - our own program
        command, cwd=HERE.parent, stdout=subprocess.PIPE, check=True
    )
    told: dict[str, int] = json.loads(ran.stdout)
    return told


def worked_s(process: int) -> float:
    """Give the processor seconds of the thread that serves everybody."""
    spent = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[0]
    return int(spent) / 1e9


def memory_mb(process: int) -> float:
    """Give how much memory a process holds."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def memory_left_mb(process: int, most: float) -> float:
    """Wait until a process holds little enough, but not for ever; give what it holds then."""
    until = time.monotonic() + GONE_S
    while (held := memory_mb(process)) > most and time.monotonic() < until:
        time.sleep(1.0)
    return held


def _quiet_row(quiet: tuple[Wait, Wait, Any]) -> dict[str, float]:
    return {
        f"{who}_{unit}": getattr(quiet[number], field)
        for number, who in enumerate(("bystander", "watcher"))
        for unit, field in (("ms", "wall_ms"), ("cpu_ms", "cpu_ms"))
    }


def run(quick: bool, progress: Steps) -> Report:
    """Attack one service in each way."""
    seconds = 3.0 if quick else 20.0
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as made,
        served(Path(made), HERE.parent / "src", SETTINGS) as (process, url, token),
        progress("ways", len(WAYS) + 1) as step,
    ):
        there = http.client.HTTPConnection(urlsplit(url).netloc)
        for first in range(0, CONTEXTS, BATCH):
            put_many(there, token, range(first, first + BATCH))
        keys = TokenKeys.open(Path(made) / "data")
        now = round(time.time() * 1e6)
        scopes = ("read", "subscribe", "publish")
        attacker = keys.issue("mallory", scopes, lifetime_s=3_600, now=now)
        waits = Waits(process, url, token)
        cold = memory_mb(process)
        for way in WAYS:  # the code is loaded, and what is remembered of any request is there
            attack(way, url, attacker, 1.0)
        time.sleep(GONE_S)
        quiet = waits.longest(lambda: time.sleep(seconds))
        step(1)
        for way in WAYS:
            before = memory_mb(process)
            told = waits.longest(lambda way=way: attack(way, url, attacker, seconds))
            newcomer = http.client.HTTPConnection(urlsplit(url).netloc)
            put(newcomer, token, "newcomer", "b/1")
            rows.append(
                {
                    "way": way,
                    "bystander_ms": told[0].wall_ms,
                    "bystander_cpu_ms": told[0].cpu_ms,
                    "watcher_ms": told[1].wall_ms,
                    "watcher_cpu_ms": told[1].cpu_ms,
                    "memory_mb_before": before,
                    "memory_mb_after": memory_left_mb(process, before * GROWTH_MAX),
                    "told": json.dumps(told[2]),
                }
            )
            step(1)
        first = rows[0]["memory_mb_before"]
        kept = memory_left_mb(process, first * GROWTH_MAX) / first
    claims = []
    for who, alone in (("bystander", quiet[0]), ("watcher", quiet[1])):
        for what, unit, most in (
            (f"longest wait of a {who}", "ms", ALLOWED_MS + 2 * alone.wall_ms),
            (f"the service's work while a {who} waits", "cpu_ms", ALLOWED_MS + 2 * alone.cpu_ms),
        ):
            worst = max(row[f"{who}_{unit}"] for row in rows)
            claims.append(Claim(what, worst, worst <= most, bar=f"<= {most:.0f}"))
    rows = [*rows, {"way": "(nobody)", **_quiet_row(quiet)}]
    grown = max(row["memory_mb_after"] / row["memory_mb_before"] for row in rows[:-1])
    bar = f"<= {GROWTH_MAX} times"
    claims.append(Claim("memory after an attack", grown, grown <= GROWTH_MAX, bar=bar))
    # One attack after the other may each leave a little: all of them together count as well.
    claims.append(Claim("memory after all attacks", kept, kept <= GROWTH_MAX, bar=bar))
    parameters = {"contexts": CONTEXTS, "seconds": seconds, "memory_mb_cold": cold}
    return Report("hostile", parameters, rows, claims)
