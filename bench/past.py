"""Is what was acknowledged found after kill -9, with the right interval, and at once?

Writers put, change and remove contexts by HTTP, sessions of the SDK move about; then kill -9, and
the service starts again. Right after that everything acknowledged since the last kill is asked for:
the last state of each vid by one question about the time since, earlier states by questions about
some moments of it, each of which tells where everybody was then.

A second table has the time of an answer against the length of the log: a store with so many steps
is made and opened anew, and asked for ten seconds in the middle of its time.
"""

import asyncio
import contextlib
import os
import random
import signal
import tempfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path
from time import monotonic, process_time, time_ns
from typing import Any

import msgspec

from bench._placement_parts import exponent
from bench.kill import Ready, kept
from roamcast.channels.past.asking import Asked, found
from roamcast.channels.past.part import Lives, Step, encode_step, key_of
from roamcast.channels.past.spans import ReachedTime
from roamcast.client import Session, connect
from roamcast.client.asking import Asking
from roamcast.errors import RoamcastError
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.store.store import SqliteStore
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter
from roamcast.model.time import format_instant
from roamcast.transport.address import ServiceAddress
from roamcast.transport.http import HttpClient

TITLE = "past: kill -9 under load; what was acknowledged is found, and right"
WRITERS = 4
PEOPLE = 3
LOAD_S = 0.6
MOMENTS = 3
"""Earlier moments that are asked for after each kill."""

BAR_S = 1.0
LENGTHS = (10_000, 100_000, 1_000_000)
LENGTHS_QUICK = (5_000, 20_000)
STEP_US = 10_000
"""Between two steps of a log that is made: 100 a second."""
OPEN_VIDS = 500
"""Vids that are there all the time; each other one comes, changes once and goes."""
WINDOW_US = 10_000_000
GROWTH_MAX = 0.2
"""An answer's time grows at most with this power of the log's length."""
ASKED_TIMES = 5
SLACK_US = 1_000_000
"""How far the session's clock may be from the service's; both are this machine's."""


class Told(msgspec.Struct):
    """What was acknowledged of one vid, in its order; `sure`: nothing else was asked."""

    states: list[tuple[int, int, str]]
    """(step, t_r, place)"""
    removed: tuple[int, int] | None = None
    """When its removal was asked for, and acknowledged."""
    sure: bool = True

    def at(self, moment: int) -> tuple[int, int, str] | None:
        """Give its state at a moment; None if there was none, or if nobody is sure."""
        which = bisect_right(self.states, moment, key=lambda state: state[1]) - 1
        if which < 0:
            return None
        last = which == len(self.states) - 1
        if last and (not self.sure or self.removed is not None):
            return None
        return self.states[which]


class Crowd:
    """Everybody who writes, and what they were told since the last kill."""

    def __init__(self, sessions: list[Session], seed: int, steps: Iterator[int]) -> None:
        """`steps`: one count for all rounds.

        What comes again in the same state is the same piece, with its earlier begin.
        """
        self._sessions = sessions
        self._draw = random.Random(seed)
        self._steps = steps
        self.first = next(steps)
        """All that is acknowledged has higher steps."""
        self.told: dict[str, Told] = {}
        self.acknowledged = 0

    async def write(self, number: int) -> None:
        """Put, change and remove contexts, until the service is gone."""
        me = self._sessions[number % len(self._sessions)]
        while True:
            vid = f"thing-{number}-{next(self._steps)}"
            one = self.told[vid] = Told([])
            for _ in range(self._draw.randrange(1, 4)):
                if not await self._put(me, vid, one):
                    return
            if self._draw.random() < 0.5:
                asked = _now()
                if not await _try(me.remove(vid), one):
                    return
                one.removed = asked, _now()
                self.acknowledged += 1

    async def _put(self, me: Session, vid: str, one: Told) -> bool:
        step, place, t_r = next(self._steps), f"hq/{self._draw.randrange(10)}", _now()
        context = Context(vid, place, None, {"type": "thing", "step": step}, t_r)
        if not await _try(me.put(context), one):
            return False
        one.states.append((step, t_r, place))
        self.acknowledged += 1
        return True

    async def walk(self, number: int) -> None:
        """Publish over a link, as people do."""
        me, vid = self._sessions[number], f"person-{number}"
        one = self.told[vid] = Told([])
        while True:
            step, place = next(self._steps), f"hq/{self._draw.randrange(10)}"
            one.sure = False
            made = await me.publish(vid, place=place, type="person", step=step)
            one.states.append((step, made.t_r, place))
            one.sure = True
            self.acknowledged += 1
            await asyncio.sleep(0.02)


async def _try(work: Any, one: Told) -> bool:
    """Ask once; without an answer nobody is sure any more."""
    try:
        await work
    except RoamcastError:
        one.sure = False
        return False
    except asyncio.CancelledError:
        one.sure = False
        raise
    return True


def _now() -> int:
    return time_ns() // 1000


class Round(msgspec.Struct):
    """What one kill showed."""

    acknowledged: int = 0
    looked_for: int = 0
    missing: int = 0
    wrong: int = 0
    twice: int = 0
    answer_s: float = 0.0


async def storm(data: Path, *, kills: int, seed: int, step: Any) -> list[Round]:
    """Kill the service so many times under load, and ask for the past each time."""
    found = []
    draw = random.Random(seed)
    steps = count(1)
    async with kept(data) as ready:
        service: Ready = await ready()
        for number in range(kills):
            async with _sessions(service) as sessions:
                crowd = Crowd(sessions, seed + number, steps)
                began = _now()
                busy = [
                    *(asyncio.create_task(crowd.write(one)) for one in range(WRITERS)),
                    *(asyncio.create_task(crowd.walk(one)) for one in range(PEOPLE)),
                ]
                await asyncio.sleep(LOAD_S * (0.5 + draw.random()))
                os.kill(service.pid, signal.SIGKILL)
                service = await ready()
                for task in busy:
                    task.cancel()
                await asyncio.gather(*busy, return_exceptions=True)
            try:
                found.append(await _looked(service, crowd, began, draw))
            except RoamcastError:  # its keeper ended it, too: on a busy machine it may seem to hang
                service = await ready()
                found.append(await _looked(service, crowd, began, draw))
            step(1)
    return found


@contextlib.asynccontextmanager
async def _sessions(service: Ready) -> AsyncIterator[list[Session]]:
    async with contextlib.AsyncExitStack() as stack:
        made = [
            connect(service.url, service.token, device=f"d{n}", timeout_s=60)
            for n in range(max(PEOPLE, WRITERS))
        ]
        yield [await stack.enter_async_context(one) for one in made]


async def _looked(service: Ready, crowd: Crowd, began: int, draw: random.Random) -> Round:
    """Ask for everything that was acknowledged."""
    round_ = Round(crowd.acknowledged)
    asking = Asking(HttpClient(ServiceAddress(service.url, service.token)))
    since = f"step > {crowd.first}"
    asked_at = monotonic()
    answers = await asking.who(since, at=f"{format_instant(began)}/..", limit=100_000)
    round_.answer_s = monotonic() - asked_at
    by_vid = {one.vid: one for one in answers}
    round_.twice = len(answers) - len(by_vid)
    begins = []
    for vid, told in crowd.told.items():
        if not told.states:
            continue
        round_.looked_for += 1
        last = by_vid.get(vid)
        round_.missing += last is None
        if last is not None and told.sure:
            round_.wrong += not _right(last, told)
        begins += [t_r for _, t_r, _ in told.states[:-1]]
    for moment in draw.sample(begins, min(MOMENTS, len(begins))):
        then = await asking.who(since, at=format_instant(moment), limit=100_000)
        there = {one.vid: (one.attributes["step"], one.t_r, one.place) for one in then}
        round_.twice += len(then) - len(there)
        for vid, told in crowd.told.items():
            state = told.at(moment)
            if state is not None:
                round_.looked_for += 1
                round_.missing += vid not in there
                round_.wrong += vid in there and there[vid] != state
    return round_


def _right(last: Context, told: Told) -> bool:
    number, t_r, place = told.states[-1]
    if (last.attributes["step"], last.place, last.t_r) != (number, place, t_r):
        return False
    if last.vid.startswith("person-"):
        return True  # its session ended after the kill, and said so or not
    if told.removed is None:
        return last.t_d is None
    asked, answered = told.removed
    return last.t_d is not None and asked - SLACK_US <= last.t_d <= answered + SLACK_US


def steps_of(length: int) -> Iterator[tuple[str, bytes]]:
    """Make a log: some are there from the first moment on, others come, change and go."""
    for number in range(OPEN_VIDS):
        vid = f"there-{number}"
        yield key_of(number, vid), encode_step(Step(number, body_of(Context(vid, "hq/1"))))
    for number in range(length - OPEN_VIDS):
        at, vid, part = STEP_US * number + OPEN_VIDS, f"thing-{number // 3}", number % 3
        body = b"" if part == 2 else body_of(Context(vid, f"hq/{part}", None, {"n": number}))
        yield key_of(at, vid), encode_step(Step(at, body))


async def grown(folder: Path, length: int) -> dict[str, Any]:
    """Make a log of this length, open it again, and ask for a time in its middle."""
    path = folder / f"{length}.db"
    store = SqliteStore.open(path)
    began = process_time()
    batch: list[tuple[str, bytes]] = []
    for row in steps_of(length):
        batch.append(row)
        if len(batch) == 5_000:
            await store.write(batch)
            batch = []
    await store.write(batch)
    written_s = process_time() - began
    await store.close()
    store = SqliteStore.open(path)
    end = STEP_US * length
    window = (end - WINDOW_US) // 2, (end + WINDOW_US) // 2
    asked, known = Asked(Filter.parse("TRUE"), window), Lives(1, {}, (), end)
    times = []
    for _ in range(ASKED_TIMES):
        asked_at = monotonic()
        answers = found(
            asked,
            lambda one, _: one,
            waiting=(),
            log=store.steps,
            archive=tuple,
            known=known,
            whole=lambda *_: True,
        )
        times.append(monotonic() - asked_at)
    row = {
        "steps_in_log": length,
        "steps_read": store.steps.count_within(ReachedTime(*window)),
        "vids_found": len(answers),
        "first_ms": round(times[0] * 1e3, 2),
        "answer_ms": round(sorted(times)[ASKED_TIMES // 2] * 1e3, 2),
        "write_us_a_step": round(written_s / length * 1e6, 1),
    }
    await store.close()
    path.unlink()
    return row


def growth(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Fit how an answer's time grows with the log."""
    lengths = [float(row["steps_in_log"]) for row in rows]
    fitted = exponent(lengths, [row["answer_ms"] for row in rows])
    first_s = max(row["first_ms"] for row in rows) / 1e3
    return [
        Claim(
            "growth of an answer's time with the log, exponent",
            round(fitted, 2),
            fitted <= GROWTH_MAX,
            bar=GROWTH_MAX,
            note=f"{lengths[0]:,.0f} to {lengths[-1]:,.0f} steps",
        ),
        Claim(
            "slowest first answer of a store just opened, seconds",
            round(first_s, 3),
            first_s <= BAR_S,
            bar=BAR_S,
        ),
    ]


def run(quick: bool, progress: Steps) -> Report:
    """Kill, and look for what was acknowledged; then ask logs of several lengths."""
    kills = 10 if quick else 200
    with tempfile.TemporaryDirectory() as folder, progress("kills", kills) as step:
        found = asyncio.run(storm(Path(folder), kills=kills, seed=1, step=step))
    lengths = LENGTHS_QUICK if quick else LENGTHS
    with tempfile.TemporaryDirectory() as folder, progress("lengths", len(lengths)) as step:
        grew = []
        for length in lengths:
            grew.append(asyncio.run(grown(Path(folder), length)))
            step(1)
    total = {name: sum(getattr(one, name) for one in found) for name in Round.__struct_fields__}
    slowest = max(one.answer_s for one in found)
    claims = [
        Claim("acknowledged contexts not found", total["missing"], total["missing"] == 0, bar=0),
        Claim("found with another interval or state", total["wrong"], total["wrong"] == 0, bar=0),
        Claim("found twice", total["twice"], total["twice"] == 0, bar=0),
        Claim(
            "slowest answer after a restart, seconds",
            round(slowest, 2),
            slowest <= BAR_S,
            bar=BAR_S,
        ),
        *growth(grew),
    ]
    rows: list[dict[str, Any]] = [
        {"kill": number, **msgspec.to_builtins(one), "answer_s": round(one.answer_s, 3)}
        for number, one in enumerate(found, start=1)
    ]
    parameters = {"kills": kills, "writers": WRITERS, "people": PEOPLE, "load_s": LOAD_S}
    return Report("past", parameters, [*rows, *grew], claims)
