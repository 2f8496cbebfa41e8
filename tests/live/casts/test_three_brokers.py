"""Three brokers, a trusted node and archives as processes; people walk between them.

Casts to past, present, future and both are sent at different nodes and compared with a record that
the people made themselves, no broker. Everybody moves between two barriers, and every window of a
filter begins and ends while nobody moves. The same with brokers and the trusted node killed, and
with a broker that stands still, so that its links are silent, or whose links are cut.
"""

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from roamcast.client.asking import Asking
from roamcast.client.inbox import MailInbox
from roamcast.client.own_vids import OwnVids, registered
from roamcast.commands._demo_brokers import (
    SETTINGS_FILE,
    DemoNode,
    _keep,
    described,
    nodes_of,
)
from roamcast.errors import RoamcastError
from roamcast.identity.key_store import KeyStore
from roamcast.live.auth.admission import TokenKeys
from roamcast.model.contexts import Context
from roamcast.transport.address import ServiceAddress
from roamcast.transport.driver import wall_clock
from roamcast.transport.http import HttpClient
from tests.live.casts.test_people import text_of

BUILDINGS, ROOMS, PHASES = 3, 4, 4
STILL_S = 0.05
DEADLINE_S = 300.0
TOGETHER = 8
"""People who move at a time: two cores serve them all."""

CLOCK = wall_clock()


class Walker:
    """Somebody without a name, with keys of their own."""

    def __init__(self, number: int, folder: Path, trust: dict[str, Any]) -> None:
        name = f"walker-{number}"
        keys = TokenKeys.open(Path(trust["data"]))
        token = keys.issue(name, ("subscribe",), lifetime_s=3_600, now=CLOCK())
        self.store = KeyStore.open(folder / f"{name}.keys")
        self._trust = HttpClient(ServiceAddress(trust["url"], token))
        self._vids = OwnVids(
            self.store, self._trust, draw=random.Random(number).random, hybrid=False
        )
        self._here: tuple[Asking, str] | None = None

    async def go(self, url: str, place: str) -> None:
        """Leave, and be there under a vid that was never used."""
        if self._here is not None:
            asking, vid = self._here
            await patiently(lambda: asking.remove(vid))
        own = await patiently(lambda: self._vids.fresh(CLOCK()))
        stranger = HttpClient(ServiceAddress(url, ""))
        token = (await patiently(lambda: registered(own, url, stranger))).token
        asking = Asking(HttpClient(ServiceAddress(url, token)))
        made = Context(own.vid, place, None, {"type": "person"}, CLOCK())
        await patiently(lambda: asking.put(made, lifetime_s=3_600))
        self._here = asking, own.vid

    async def mails(self) -> list[str]:
        inbox = MailInbox(self.store, self._trust, CLOCK)
        return [mail.text async for mail in inbox.mails(follow=False, keep=True)]


async def patiently(work: Callable[[], Awaitable[Any]]) -> Any:
    """Do it again until it is done: a process may be down, or busy."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return await work()
        except (RoamcastError, TimeoutError):
            assert time.monotonic() < end
            await asyncio.sleep(0.2)


class Town:
    """The people and where they were."""

    def __init__(self, nodes: list[dict[str, Any]], folder: Path, people: int) -> None:
        *self.nodes, self.trust = nodes
        self.people = [Walker(number, folder, self.trust) for number in range(people)]
        self.rooms: list[list[tuple[int, int]]] = []
        """By phase, then by person: building and room."""
        self.stills: list[float] = []
        self.expected: defaultdict[int, set[str]] = defaultdict(set)
        self._drawn = random.Random(11)

    async def phase(self) -> None:
        """Let everybody go somewhere, and stand still."""
        draw = self._drawn.randrange
        rooms = [(draw(BUILDINGS), draw(ROOMS)) for _ in self.people]
        gate = asyncio.Semaphore(TOGETHER)

        async def go(walker: Walker, building: int, room: int) -> None:
            async with gate:
                place = f"campus/b{building + 1}/{room}"
                await walker.go(self.nodes[building]["url"], place)

        await asyncio.gather(*(go(one, *at) for one, at in zip(self.people, rooms, strict=True)))
        self.rooms.append(rooms)
        await asyncio.sleep(STILL_S)
        self.stills.append(time.time())
        await asyncio.sleep(STILL_S)

    async def cast(self, node: int, where: str, text: str, policy: str = "NH") -> str:
        """Send a cast at a node; give its tense."""
        at = self.nodes[node]
        body = {"filter": where, "text": text, "policy": policy}
        sent = await HttpClient(ServiceAddress(at["url"], at["token"])).ask(
            "POST", "/casts", body=body
        )
        return str(sent["tense"])

    def expect(self, cast: str, here: Callable[[int, int], bool], phases: range) -> None:
        for phase in phases:
            for number, at in enumerate(self.rooms[phase]):
                if here(*at):
                    self.expected[number].add(cast)

    async def mails(self) -> list[list[str]]:
        gate = asyncio.Semaphore(TOGETHER)

        async def read(walker: Walker) -> list[str]:
            async with gate:
                return sorted(await patiently(walker.mails))

        return await asyncio.gather(*map(read, self.people))

    async def settle(self) -> None:
        """Wait until everybody has what they should have, and then look at what they have."""
        right = [sorted(self.expected[number]) for number in range(len(self.people))]
        end = time.monotonic() + DEADLINE_S
        while await self.mails() != right and time.monotonic() < end:
            await asyncio.sleep(0.5)
        await asyncio.sleep(1.0)
        assert await self.mails() == right


def window(begin: float, end: float) -> str:
    return f"overlaps(time, INTERVAL('{text_of(begin)}', '{text_of(end)}'))"


async def alive(node: dict[str, Any]) -> None:
    client = HttpClient(ServiceAddress(node["url"], node["token"]))
    await patiently(lambda: client.ask("GET", "/readyz"))


async def linked(nodes: list[dict[str, Any]]) -> None:
    async def check() -> None:
        for node in nodes:
            client = HttpClient(ServiceAddress(node["url"], node["token"]))
            graph = (await client.ask("GET", "/overlay"))["graph"]
            if len(graph) < len(nodes):
                raise TimeoutError

    await patiently(check)


class Cable:
    """A TCP connection between two nodes that can be cut: it passes bytes on, or nothing."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    async def lay(self) -> int:
        """Listen; give the port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Break what is open, and let nothing through."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def remove(self) -> None:
        """Listen no more."""
        self.cut()
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            if self._is_cut:
                return
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._to)
            self._open |= {writer, far}
            await asyncio.gather(_pump(reader, far), _pump(far_reader, writer))
        except OSError:
            pass  # the node is down, or the cable was cut
        finally:
            for one in (writer, far):
                if one is not None:
                    self._open.discard(one)
                    one.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def cabled(nodes: list[DemoNode]) -> dict[str, list[Cable]]:
    """Lead all links between brokers through cables; give those that end at each broker."""
    ends: dict[str, list[Cable]] = defaultdict(list)
    for near in nodes:
        path = near.folder / SETTINGS_FILE
        text = path.read_text()
        for far in nodes:
            if far is not near:
                cable = Cable(far.port)
                old = f'urls = ["{far.url}"]'
                assert old in text
                text = text.replace(old, f'urls = ["http://127.0.0.1:{await cable.lay()}"]')
                ends[near.name].append(cable)
                ends[far.name].append(cable)
        path.write_text(text)
    return ends


async def walk_in_town(folder: Path, people: int, trouble: bool, cut_links: bool = False) -> None:
    """Lay out what `serve --demo --brokers 3` does, but with the trusted node as a process.

    With `cut_links` there are cables between the brokers, and they are cut.
    """
    nodes = nodes_of(folder / "data", 3, trust_apart=True)
    ends = await cabled(nodes[:-1]) if cut_links else {}
    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        tasks = [asyncio.create_task(_keep(node)) for node in nodes]
        town = Town(described(nodes), folder, people)
        await walk(town, trouble, cables=ends.get(nodes[2].name, ()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(node.end() for node in nodes))
        for cable in {cable for cables in ends.values() for cable in cables}:
            cable.remove()


async def walk(town: Town, trouble: bool, cables: Sequence[Cable] = ()) -> None:
    """`cables`: what leads to the last broker; without them it is stopped for a while instead."""
    nodes = town.nodes
    await linked(nodes)
    await town.phase()
    await town.phase()
    first, second = town.stills
    if trouble:
        for cable in cables:
            cable.cut()
        if not cables:
            os.kill(nodes[2]["pid"], signal.SIGSTOP)  # its links are silent
        os.kill(town.trust["pid"], signal.SIGKILL)
    later = time.time() + 3_600
    tenses = [
        await town.cast(0, f"within(place, 'campus') AND {window(first, first)}", "past"),
        await town.cast(
            1, f"within(place, 'campus/b3/2') AND {window(first, second)}", "two", "FBTH"
        ),
        await town.cast(1, "within(place, 'campus/b1')", "present"),
        await town.cast(
            0, f"within(place, 'campus/b2') AND {window(time.time() + 0.2, later)}", "future"
        ),
        await town.cast(
            0, f"within(place, 'campus/b3') AND {window(first, later)}", "both", "BTH2"
        ),
    ]
    assert tenses == ["historic", "historic", "present", "future", "hybrid"]
    await asyncio.sleep(0.3)
    if trouble:
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        await asyncio.sleep(1.0)
        for cable in cables:
            cable.mend()
        if not cables:
            os.kill(nodes[2]["pid"], signal.SIGCONT)
        await asyncio.gather(*(alive(node) for node in nodes))
    for _ in range(PHASES - 2):
        await town.phase()
    town.expect("past", lambda _building, _room: True, range(1))
    town.expect("two", lambda building, room: (building, room) == (2, 2), range(2))
    town.expect("present", lambda building, _: building == 0, range(1, 2))
    town.expect("future", lambda building, _: building == 1, range(1, PHASES))
    town.expect("both", lambda building, _: building == 2, range(PHASES))
    await town.settle()


QUICK, WHOLE = 8, 200


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("people", "trouble"),
    [
        # the simulated casts have this trouble, and test_people.py casts through a real service
        pytest.param(QUICK, True, id="trouble", marks=pytest.mark.soak),
        pytest.param(QUICK, False, id="calm", marks=pytest.mark.soak),
        pytest.param(WHOLE, False, id="calm-200", marks=pytest.mark.soak),
        pytest.param(WHOLE, True, id="trouble-200", marks=pytest.mark.soak),
    ],
)
def test_casts_reach_exactly_who_was_meant_at_three_brokers(
    tmp_path: Path, people: int, trouble: bool
) -> None:
    asyncio.run(walk_in_town(tmp_path, people, trouble))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("people", [QUICK, WHOLE])
def test_casts_reach_exactly_who_was_meant_though_links_are_cut(
    tmp_path: Path, people: int
) -> None:
    asyncio.run(walk_in_town(tmp_path, people, trouble=True, cut_links=True))
