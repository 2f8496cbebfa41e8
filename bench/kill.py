"""How soon is everything well again when the service is killed under load?

`roamcast keep` runs the service; sessions of the SDK move about and watch everything, and others
put and remove contexts by HTTP. Then kill -9, ever again. Measured from the kill: when the service
takes requests, when all sessions are linked, and when every view equals what was acknowledged.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from roamcast.client import Session, View, connect
from roamcast.errors import NotFoundError, RoamcastError, UnreachableError
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.contexts import Context

TITLE = "kill -9 under load, again and again: how soon every view is right, and what is lost"

BAR_S = 5.0
WATCHED = "type = 'person' OR type = 'thing'"
THINGS = 20
LOAD_S = 2.0
PATIENCE_S = 300.0
"""A machine that is this busy does not tell anything about us."""

State = tuple[str | None, int]


class Ready(msgspec.Struct, frozen=True):
    """What `roamcast keep --json` prints when a service takes requests."""

    url: str
    token: str
    pid: int


class Round(msgspec.Struct, frozen=True):
    """One kill: seconds from it, what had been acknowledged, and what of that was gone."""

    restart_s: float
    linked_s: float
    equal_s: float
    acknowledged: int
    lost: int


class Crowd:
    """Everybody who uses the service, and what it has acknowledged to them."""

    def __init__(self, sessions: list[Session], seed: int) -> None:
        self.sessions = sessions
        self.views: list[View] = [one.watch(WATCHED) for one in sessions]
        self.truth: dict[str, State] = {}
        self.acknowledged = 0
        self._step = 0
        self._draw = random.Random(seed)
        self._going = asyncio.Event()
        self._busy: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to move and to write."""
        self._going.set()
        self._busy = [
            *(asyncio.create_task(self._walk(one, f"p{n}")) for n, one in enumerate(self.sessions)),
            *(asyncio.create_task(self._write(self.sessions[n], n)) for n in range(4)),
        ]

    async def rest(self) -> None:
        """Let everybody finish what they are about, and begin nothing more."""
        self._going.clear()
        await asyncio.gather(*self._busy)

    def seen(self, view: View) -> dict[str, State]:
        """Give what a view shows."""
        return {vid: _state(one) for vid, one in view.contexts.items()}

    def right(self) -> bool:
        """Tell whether every view shows what was acknowledged, no more and no less."""
        return all(self.seen(view) == self.truth for view in self.views)

    async def lost(self) -> int:
        """Count the things whose acknowledged state is not what the service has."""
        there = {one.vid: _state(one) for one in await self.sessions[0].who("type = 'thing'")}
        things = {vid: state for vid, state in self.truth.items() if vid.startswith("thing")}
        return sum(there.get(vid) != things.get(vid) for vid in {**there, **things})

    async def known(self) -> bool:
        """Tell whether the service has what was acknowledged, the sessions' own included."""
        there = await self.sessions[0].who(WATCHED)
        return {one.vid: _state(one) for one in there} == self.truth

    def _next(self) -> tuple[str, int]:
        self._step += 1
        return f"hq/{self._draw.randrange(10)}", self._step

    async def _walk(self, me: Session, vid: str) -> None:
        while self._going.is_set():
            place, step = self._next()
            await me.publish(vid, place=place, type="person", step=step)
            self.truth[vid] = (place, step)
            self.acknowledged += 1
            await asyncio.sleep(0.02)

    async def _write(self, me: Session, number: int) -> None:
        while self._going.is_set():
            vid = f"thing-{number}-{self._draw.randrange(THINGS)}"
            if vid in self.truth and self._draw.random() < 0.3:
                await _insist(me.remove, vid)
                self.truth.pop(vid)
            else:
                place, step = self._next()
                attributes = {"type": "thing", "step": step}
                await _insist(me.put, Context(vid, place, None, attributes, me.now()))
                self.truth[vid] = (place, step)
            self.acknowledged += 1
            await asyncio.sleep(0.01)


def _fields(one: Round) -> list[tuple[str, float]]:
    return [(name, getattr(one, name)) for name in one.__struct_fields__]


def _state(context: Context) -> State:
    step = context.attributes["step"]
    assert isinstance(step, int)
    return context.place, step


async def _insist(work: Callable[[Any], Any], what: Any) -> None:
    """Ask until it is acknowledged; who got no answer asks again."""
    while True:
        try:
            await work(what)
        except UnreachableError:
            await asyncio.sleep(0.05)
        except NotFoundError:  # removed, and the answer was lost
            return
        else:
            return


@contextlib.asynccontextmanager
async def kept(data: Path) -> AsyncIterator[Callable[[], Any]]:
    """Run `roamcast keep`; gives a function that waits for the next service to be ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "roamcast", "keep", "--json", "--port", "0", "--data", str(data)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    output = process.stdout

    async def ready() -> Ready:
        line = await output.readline()
        if not line:
            raise RoamcastError("the service did not start")
        return msgspec.json.decode(line, type=Ready)

    try:
        yield ready
    finally:
        process.terminate()
        await process.wait()


async def storm(
    data: Path, *, rounds: int, people: int, seed: int, step: Callable[[int], None]
) -> list[Round]:
    """Kill the service so many times under load."""
    draw = random.Random(seed)
    found: list[Round] = []
    async with kept(data) as ready, contextlib.AsyncExitStack() as stack:
        service = await ready()
        connections = [
            connect(service.url, service.token, device=f"d{n}", timeout_s=PATIENCE_S)
            for n in range(people)
        ]
        sessions = [await stack.enter_async_context(one) for one in connections]
        crowd = Crowd(sessions, seed)
        for _ in range(rounds):
            crowd.start()
            await asyncio.sleep(LOAD_S * (0.5 + draw.random()))
            os.kill(service.pid, signal.SIGKILL)
            killed_at = monotonic()
            resting = asyncio.create_task(crowd.rest())
            service = await ready()
            restart_s = monotonic() - killed_at
            await until(lambda: all(one.connected for one in sessions))
            linked_s = monotonic() - killed_at
            await resting
            lost = await crowd.lost()
            while not lost and not (crowd.right() and await crowd.known() and crowd.right()):
                await asyncio.sleep(0.01)
            equal_s = monotonic() - killed_at
            found.append(Round(restart_s, linked_s, equal_s, crowd.acknowledged, lost))
            step(1)
    return found


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.01)


def run(quick: bool, progress: Steps) -> Report:
    """Kill, and see how soon all is well."""
    rounds, people = (3, 10) if quick else (20, 50)
    with tempfile.TemporaryDirectory() as folder, progress("kills", rounds) as step:
        found = asyncio.run(storm(Path(folder), rounds=rounds, people=people, seed=1, step=step))
    slowest = max(one.equal_s for one in found)
    lost = sum(one.lost for one in found)
    claims = [
        Claim(
            "all clients are back and equal within so many seconds of every kill",
            round(slowest, 2),
            slowest <= BAR_S,
            bar=BAR_S,
        ),
        Claim("nothing acknowledged is lost", lost, lost == 0, bar=0),
    ]
    rows = [
        {
            "kill": number,
            **{name: round(value, 2) for name, value in msgspec.to_builtins(one).items()},
        }
        for number, one in enumerate(found, start=1)
    ]
    parameters = {"kills": rounds, "sessions": people, "writers": 4, "things": 4 * THINGS}
    return Report("kill", parameters, rows, claims)
