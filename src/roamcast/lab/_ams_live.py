"""The clients of a live meeting: SDK machines in a process of their own, optionally in a namespace.

`python -m roamcast.lab._ams_live JSON` connects everybody, prints how they receive channels, waits
for a line, lets them arrive, and prints how long each update took to reach each of them, as JSON
lines. `Namespace` is a network namespace in which multicast goes over loopback.
"""

import asyncio
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from types import TracebackType
from typing import Any, Final

import msgspec
import uvloop

from roamcast.channels.client.session import Shown
from roamcast.channels.client.watching import Current
from roamcast.client.runner import Runner
from roamcast.model.contexts import Attribute, Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.transport.address import ServiceAddress

ROOM: Final = "lab/1/meeting"
NOTE: Final = "n" * 330
"""Contexts have 400 to 500 bytes (AMS, figure 2)."""
CONNECTING_MAX: Final = 32
WAY_S: Final = 30.0
LATE_S: Final = 30.0
"""Maximum wait for updates after the last arrival; beyond it the meeting counts as overloaded."""


class Meeting(msgspec.Struct, frozen=True):
    """Parameters of the process."""

    url: str
    token: str
    people: int
    seconds: float
    way: str
    interface: str
    seed: int


class Person(Runner):
    """One of the people: the SDK's machine and link, timing updates when the machine has them."""

    def __init__(self, meeting: Meeting, number: int, delays_ms: list[float]) -> None:
        super().__init__(
            ServiceAddress(meeting.url, meeting.token),
            f"p{number}",
            draw=random.Random(number).random,
            open_s=120.0,
            interface=meeting.interface,
        )
        self.listed = False
        self.seen: dict[str, int] = {}
        self._delays_ms = delays_ms

    def _carry_view(self, effect: Effect) -> None:
        match effect:
            case Shown(_, context):
                sent = int(context.attributes["sent"])  # type: ignore[arg-type]
                if context.vid not in self.seen:
                    self._delays_ms.append((time.monotonic_ns() - sent) / 1e6)
                self.seen[context.vid] = sent
            case Current():
                self.listed = True
            case _:
                super()._carry_view(effect)

    def arrive(self, number: int, sent: int) -> None:
        """Publish this person; `sent` is the planned time, so that lateness counts as delay."""
        attributes: dict[str, Attribute] = {"sent": sent, "type": "person", "note": NOTE}
        self.publish(Context(f"p{number}", ROOM, None, attributes, self.clock.now()))


async def meet(meeting: Meeting) -> None:
    """Connect, wait for the start signal, arrive."""
    delays_ms: list[float] = []
    people = [Person(meeting, number, delays_ms) for number in range(meeting.people)]
    door = asyncio.Semaphore(CONNECTING_MAX)

    async def come(person: Person) -> None:
        async with door:
            await person.start()
            person.subscribe(Filter.parse(f"place = '{ROOM}'"))

    await asyncio.gather(*(come(person) for person in people))
    while not all(person.listed for person in people):
        await asyncio.sleep(0.05)
    end = time.monotonic() + WAY_S
    while time.monotonic() < end and any(one.ways.using != meeting.way for one in people):
        await asyncio.sleep(0.05)
    _print({"ways": dict(Counter(person.ways.using for person in people))})
    await asyncio.to_thread(sys.stdin.readline)
    _print(await _converge(meeting, people, delays_ms))
    await asyncio.gather(*(person.stop() for person in people))


async def _converge(
    meeting: Meeting, people: list[Person], delays_ms: list[float]
) -> dict[str, Any]:
    """Let everybody arrive at a random moment, and wait until everybody has seen everybody."""
    draw = random.Random(meeting.seed)
    moments = sorted(draw.random() * meeting.seconds for _ in people)
    spent, began = _processor_s(), time.monotonic_ns()
    for number, moment in enumerate(moments):
        due = began + int(moment * 1e9)
        await asyncio.sleep((due - time.monotonic_ns()) / 1e9)
        people[number].arrive(number, due)
    end = time.monotonic() + LATE_S
    while len(delays_ms) < len(people) ** 2 and time.monotonic() < end:
        await asyncio.sleep(0.02)
    seconds = (time.monotonic_ns() - began) / 1e9
    # An update not seen yet has taken at least until now.
    missing = len(people) ** 2 - len(delays_ms)
    waited = [seconds * 1e3 - moment * 1e3 for moment in moments]
    delays = sorted([*delays_ms, *random.Random(1).choices(waited, k=missing)])
    return {
        "seconds": seconds,
        "missing": missing,
        "clients_busy": (_processor_s() - spent) / seconds,
        "mean_ms": sum(delays) / len(delays),
        "p95_ms": delays[len(delays) * 95 // 100],
    }


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


class Namespace:
    """A network namespace with nothing but loopback, which carries multicast; needs root.

    If it cannot be created, `around` is empty and `missing` is the reason.
    """

    def __init__(self) -> None:
        self.around: list[str] = []
        self.missing = ""
        self._name = f"roamcast-figure-{os.getpid()}"

    def __enter__(self) -> "Namespace":
        if os.geteuid() != 0:
            self.missing = "a namespace needs root"
        elif shutil.which("ip") is None:
            self.missing = "a namespace needs ip (Debian: iproute2)"
        elif not self._made():
            self._remove()
            self.missing = "no namespace can be made here"
        else:
            self.around = ["ip", "netns", "exec", self._name]
        return self

    def _made(self) -> bool:
        inside = ["ip", "-n", self._name]
        commands = (
            ["ip", "netns", "add", self._name],
            [*inside, "link", "set", "lo", "up", "multicast", "on"],
            [*inside, "route", "add", "224.0.0.0/4", "dev", "lo"],
        )
        return all(_done(command) for command in commands)

    def _remove(self) -> None:
        _done(["ip", "netns", "del", self._name])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.around:
            self._remove()


def _done(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - ours
    return done.returncode == 0


if __name__ == "__main__":
    _soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
    uvloop.run(meet(msgspec.json.decode(sys.argv[1], type=Meeting)))
