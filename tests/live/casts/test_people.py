"""Twenty people without a name walk about a real service; casts reach exactly who was meant.

The record of who was where is the test's own, made by the people themselves. Everybody moves
between two barriers, and every window of a filter begins and ends while nobody moves.
"""

import asyncio
import random
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from roamcast.client import Session, connect
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

PEOPLE, ROOMS, PHASES = 20, 5, 4
STILL_S = 0.05
DEADLINE_S = 60.0


def text_of(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def during(room: int, begin: float, end: float) -> str:
    window = f"INTERVAL('{text_of(begin)}', '{text_of(end)}')"
    return f"within(place, 'hq/{room}') AND overlaps(time, {window})"


class Walk:
    """The people, where each of them was in every phase, and the mail that each of them got."""

    def __init__(self, running: RunningService, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.people: list[Session] = []
        self.rooms: list[list[int]] = []
        """By phase, then by person."""
        self.stills: list[float] = []
        """A moment within each phase at which nobody moves."""
        self.mails: defaultdict[int, list[str]] = defaultdict(list)
        self.expected: defaultdict[int, set[str]] = defaultdict(set)
        self._drawn = random.Random(7)
        self._reading: list[asyncio.Task[None]] = []

    async def come(self) -> None:
        for number in range(PEOPLE):
            token = self.running.token(f"person-{number}", ("subscribe",))
            keys = self.folder / f"{number}.keys"
            me = await connect(self.running.url, token, anonymous=True, keys=keys)
            self.people.append(me)
            self._reading.append(asyncio.create_task(self._read(number, me)))

    async def _read(self, number: int, me: Session) -> None:
        async for mail in me.inbox():
            self.mails[number].append(mail.text)

    async def phase(self) -> None:
        """Let everybody go somewhere else, and stand still."""
        rooms = [self._drawn.randrange(ROOMS) for _ in range(PEOPLE)]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(
                *(
                    me.appear(f"hq/{room}/desk-{number}", type="person")
                    for number, (me, room) in enumerate(zip(self.people, rooms, strict=True))
                )
            )
        self.rooms.append(rooms)
        await asyncio.sleep(STILL_S)
        self.stills.append(time.time())
        await asyncio.sleep(STILL_S)

    def expect(self, cast: str, room: int, phases: range) -> None:
        """Write down who was or will be in a room during some phases; call at the end."""
        for phase in phases:
            for number, at in enumerate(self.rooms[phase]):
                if at == room:
                    self.expected[number].add(cast)

    async def settle(self) -> None:
        """Wait until everybody has what they should, and then for what nobody should have."""
        async with asyncio.timeout(DEADLINE_S):
            while any(self.expected[n] - set(self.mails[n]) for n in range(PEOPLE)):
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)

    async def leave(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        for me in self.people:
            await me.close()


@pytest.mark.parametrize(
    "killed",
    [pytest.param(False, marks=pytest.mark.soak), True],  # who is killed goes the calm way, too
    ids=["calm", "killed"],
)
def test_casts_to_past_present_future_and_both_reach_exactly_who_was_meant(
    tmp_path: Path, killed: bool
) -> None:
    with RunningService(tmp_path) as running:
        asyncio.run(_casts_reach_exactly_who_was_meant(Walk(running, tmp_path), killed))


async def _casts_reach_exactly_who_was_meant(walk: Walk, killed: bool) -> None:
    running = walk.running
    await walk.come()
    await walk.phase()
    await walk.phase()
    first, second = walk.stills
    async with connect(running.url, running.operator) as sender:
        later = time.time() + 3_600
        tenses = [
            await sender.cast(during(2, first, first + STILL_S / 2), "past"),
            await sender.cast(during(3, first, second), "two phases"),
            await sender.cast("within(place, 'hq/1')", "present"),
            await sender.cast(during(4, time.time() + 0.2, later), "future"),
            await sender.cast(during(0, first, later), "both"),
        ]
        assert [one.tense for one in tenses] == [
            "historic", "historic", "present", "future", "hybrid",
        ]  # fmt: skip
        await asyncio.sleep(0.3)
        if killed:
            running.kill()
            running.start()
        for _ in range(PHASES - 2):
            await walk.phase()
        walk.expect("past", 2, range(1))
        walk.expect("two phases", 3, range(2))
        walk.expect("present", 1, range(1, 2))
        walk.expect("future", 4, range(1, PHASES))
        walk.expect("both", 0, range(PHASES))
        await walk.settle()
        for number in range(PEOPLE):
            assert sorted(walk.mails[number]) == sorted(walk.expected[number]), number
        told = await sender.casts.progress(tenses[-1].id)
        assert told.found % 5 == told.delivered % 5 == 0
    await walk.leave()
