"""Some members of a service in a process of their own: each publishes, and follows a query.

`python -m tests.live.members JSON` opens a session of the SDK for each member. It reads a command a
line and answers with a line of JSON: `publish` begins the updates, `views` tells what every member
shows and what the service answers to the same member when asked. Tests start it with `members`
and wait with `wait_until_equal`.
"""

import asyncio
import json
import os
import random
import ssl
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

from roamcast.client import connect
from roamcast.client.session import Session
from roamcast.client.views import View
from roamcast.errors import UnreachableError
from roamcast.model.contexts import Context
from tests.processes import Child

ROOMS = tuple(f"lab/{floor}/{room}" for floor in (1, 2) for room in "abc")
DEADLINE_S = 240.0
OBJECTS = 50
PRIVATE = 5
"""So many of a member's objects only the staff may see."""


class Member:
    """One session: what it asked for and what it was told."""

    def __init__(self, name: str, token: str, text: str, given: dict[str, Any]) -> None:
        tls = None
        if given.get("certificate"):
            tls = ssl.create_default_context(cafile=given["certificate"])
        self.name = name
        self.text = text
        self.changes = 0
        self._connecting = connect(
            given["url"],
            token,
            device="test",
            timeout_s=120.0,
            interface=given.get("interface", ""),
            tls=tls,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.session: Session = await self._connecting
        self.view: View = self.session.watch(self.text)
        self._begin(self._follow())

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(end_loudly)
        self._tasks.append(task)

    async def _follow(self) -> None:
        async for _ in self.view:
            self.changes += 1

    def publish(self, updates: int) -> None:
        self._publishing = [
            asyncio.create_task(self._move(number, updates // OBJECTS)) for number in range(OBJECTS)
        ]
        for task in self._publishing:
            task.add_done_callback(end_loudly)

    async def _move(self, number: int, updates: int) -> None:
        """Move one object about; the service takes each state before the next."""
        vid = f"{self.name}-{number}"
        draw = random.Random(vid)
        if number < PRIVATE:
            await self.session.rules(vid, [{"viewers": ["staff"], "precision": "exact"}])
        for step in range(updates):
            await self.session.publish(vid, draw.choice(ROOMS), type="person", step=step)

    async def report(self) -> dict[str, Any]:
        published = all(task.done() for task in self._publishing)
        shown = view_of(self.view.contexts.values())
        return {
            "published": published,
            "shown": shown,
            "answered": await self._answered() if published else {},
            "way": self.session.way,
            "changes": self.changes,
            "counts": {
                way.name: dict(way.groups.counts)  # type: ignore[attr-defined]
                for groups in [self.session._runner.ways._groups]
                if groups is not None
                for way in groups._ways
            },
        }

    async def _answered(self) -> dict[str, list[Any]]:
        try:
            return view_of(await self.session.who(self.text))
        except UnreachableError:
            return {"nobody answers": []}

    async def stop(self) -> None:
        for task in [*self._tasks, *getattr(self, "_publishing", [])]:
            task.cancel()
        await self.session.close()


def view_of(contexts: Iterable[Context]) -> dict[str, list[Any]]:
    return {one.vid: [one.place, one.attributes.get("step")] for one in contexts}


def end_loudly(task: "asyncio.Task[None]") -> None:
    """A member whose task failed must not look like one that is merely behind."""
    if not task.cancelled() and task.exception() is not None:
        traceback.print_exception(task.exception())
        os._exit(3)


def tell(said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def main(given: dict[str, Any]) -> None:
    """Start, then answer commands until the input ends."""
    members = [Member(name, *how, given) for name, how in given["members"].items()]
    for member in members:
        await member.start()
    tell("ready")
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        command, said = json.loads(line)
        if command == "publish":
            for member in members:
                member.publish(said)
            tell({})
        else:
            tell({member.name: await member.report() for member in members})
    for member in members:
        await member.stop()


def members(given: dict[str, Any], around: list[str] | None = None) -> Child:
    return Child(
        sys.executable,
        "-m",
        "tests.live.members",
        json.dumps(given),
        around=around or (),
        commands=True,
    )


def reports_of(processes: list[Child]) -> dict[str, Any]:
    """What every member shows, and what the service answers to it."""
    found: dict[str, Any] = {}
    for process in processes:
        found.update(process.ask("views"))
    return found


def wait_until_equal(processes: list[Child], way: str) -> dict[str, Any]:
    """Wait until every update was taken and every view equals the service's; give the reports."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = reports_of(processes)
        wrong = {
            name: one
            for name, one in found.items()
            if not one["published"] or one["way"] != way or one["shown"] != one["answered"]
        }
        if not wrong:
            return found
        assert time.monotonic() < end, "\n".join(map(_difference, wrong, wrong.values()))
        time.sleep(0.2)


def _difference(name: str, one: dict[str, Any]) -> str:
    shown, answered = one["shown"], one["answered"]
    lacks = [vid for vid in answered if shown.get(vid) != answered[vid]]
    beyond = [vid for vid in shown if vid not in answered]
    rest = {key: value for key, value in one.items() if key not in ("shown", "answered")}
    return f"{name}: {rest}; lacks {lacks[:5]}, shows beyond {beyond[:5]}"


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
