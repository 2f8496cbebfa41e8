"""Does somebody who walks from broker to broker miss an event, get one twice, or out of order?

Three nodes of one overlay are processes of this machine. Producers publish at them, some of whom
walk as well; walkers go to and fro over doors between the nodes' areas and want everything. Judged
by the producers' own record of what was acknowledged. A second run kills nodes with -9 and cuts
links between them at random moments; there, links run through relays of this bench.
"""

import asyncio
import contextlib
import json
import random
import re
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench._producers import Producers
from bench.takeover import free_port
from roamcast.client import EventStream, Session, connect
from roamcast.errors import RoamcastError
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.auth.admission import SCOPES, TokenKeys
from roamcast.live.overlay.node import NODE_KEY_FILE, public_text

TITLE = (
    "walk from broker to broker: what is lost, twice or out of order, and how long nobody served"
)

NODES = ("a", "b", "c")
WALKERS = 4
TRAVEL_S = 0.5
"""From a border place into the next area: longer than it takes to prepare there."""
PATIENCE_S = 120.0
CUT_S = 2.0
"""How long a link is cut, at most."""


def room(node: str) -> str:
    """Give the room of a node; its door leads to both others."""
    return f"campus/{node}/1"


class Node:
    """One host of a node as a process."""

    def __init__(self, name: str, folder: Path, host: str = "") -> None:
        self.name = name
        self.data = folder / f"{name}{host}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command: tuple[str, ...] = ("-m", "roamcast", "serve")
        self.environment: dict[str, str] | None = None
        self.process: asyncio.subprocess.Process | None = None

    @property
    def settings(self) -> Path:
        """The file of its settings."""
        return self.data / "roamcast.toml"

    async def begin(self) -> None:
        """Start it."""
        where = ("--data", str(self.data), "--settings", str(self.settings))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *self.command, "--json", "--port", str(self.port), *where,
            stdout=asyncio.subprocess.PIPE, env=self.environment,
        )  # fmt: skip

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        await self.begin()
        assert self.process is not None
        assert self.process.stdout is not None
        if not await self.process.stdout.readline():
            raise RoamcastError(f"node {self.name} did not start")

    async def end(self, *, at_once: bool = False) -> None:
        """End it, as kill -9 does if at once."""
        if self.process is not None and self.process.returncode is None:
            (self.process.kill if at_once else self.process.terminate)()
            await self.process.wait()

    def ask(self, path: str, token: str, *, method: str = "GET", body: bytes | None = None) -> str:
        """Ask it something over HTTP."""
        asked = urllib.request.Request(self.url + path, data=body, method=method)  # noqa: S310
        asked.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:  # noqa: S310
            found: bytes = answer.read()
        return found.decode()


class Wire:
    """A relay before one node, through which another one dials it; it can be cut."""

    def __init__(self, to: Node) -> None:
        self.to = to
        self.port = free_port()
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Begin to relay."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    async def cut(self, seconds: float) -> None:
        """End every connection at once, and let none through for a while."""
        self._is_cut = True
        for writer in [*self._open]:
            writer.transport.abort()
        await asyncio.sleep(seconds)
        self._is_cut = False

    async def end(self) -> None:
        """Relay no more."""
        if self._server is not None:
            self._server.close()
        for writer in [*self._open]:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.to.port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far}
        await asyncio.gather(self._pump(reader, far), self._pump(far_reader, writer))
        self._open -= {writer, far}

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


Wires = dict[tuple[str, str], Wire]
"""(who dials, whom) → the relay between them."""


def write_settings(
    nodes: Sequence[Node],
    folder: Path,
    wires: Wires | None = None,
    more: Callable[[Node], str] = lambda _: "",
) -> str:
    """Write the nodes' settings and keys; give a token that holds at all of them."""
    features: list[dict[str, Any]] = [{"path": "campus", "kind": "campus"}]
    for name in NODES:
        others = [room(other) for other in NODES if other != name]
        features.append({"path": f"campus/{name}", "kind": "building"})
        features.append({"path": room(name), "kind": "room", "neighbours": others})
    made = [{"type": "Feature", "geometry": None, "properties": one} for one in features]
    places = folder / "places.geojson"
    places.write_text(json.dumps({"type": "FeatureCollection", "features": made}))
    keys = TokenKeys.open(nodes[0].data)
    first: dict[str, Node] = {}
    for node in nodes:
        node.data.mkdir(exist_ok=True, mode=0o700)
        if node is not nodes[0]:
            _copy("keys.json", nodes[0], node)
        public_text(first.setdefault(node.name, node).data)  # makes the key
        if first[node.name] is not node:  # all hosts of one node have one key
            _copy(NODE_KEY_FILE, first[node.name], node)
    for node in nodes:
        lines = [
            "[journal]\non = false\n[limits]\nframes_per_s = 10000\nframes_burst = 100000",
            f'[server]\nplaces = "{places}"\n{more(node)}',
            f'[overlay]\nnode = "{node.name}"\nareas = ["campus/{node.name}"]\nurl = "{node.url}"',
        ]
        for other in NODES:
            if other == node.name:
                continue
            urls = [one.url for one in nodes if one.name == other]
            if wires is not None:
                urls = [f"http://127.0.0.1:{wires[node.name, other].port}"]
            lines.append(
                f'[overlay.neighbours.{other}]\nkey = "{public_text(first[other].data)}"\n'
                f"urls = {json.dumps(urls)}"
            )
        node.settings.write_text("\n".join(lines))
    now = int(nodes[0].data.stat().st_mtime) * 1_000_000
    return keys.issue("operator", SCOPES, lifetime_s=86_400, now=now)


def _copy(file: str, source: Node, to: Node) -> None:
    (to.data / file).write_bytes((source.data / file).read_bytes())
    (to.data / file).chmod(0o600)


@contextlib.asynccontextmanager
async def overlay(folder: Path, *, wired: bool) -> AsyncIterator[tuple[list[Node], str, Wires]]:
    """Run three linked nodes; `wired`: their links can be cut."""
    nodes = [Node(name, folder) for name in NODES]
    pairs = [(one, to) for one in nodes for to in nodes if one is not to] if wired else []
    wires = {(one.name, to.name): Wire(to) for one, to in pairs}
    token = write_settings(nodes, folder, wires if wired else None)
    try:
        await asyncio.gather(*(wire.start() for wire in wires.values()))
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes, token, wires
    finally:
        for node in nodes:
            await node.end()
        for wire in wires.values():
            await wire.end()


class Walker:
    """Goes to and fro, and writes down what it gets."""

    def __init__(self, session: Session, stream: EventStream, at: int) -> None:
        self.session = session
        self.stream = stream
        self.at = at
        self.found: list[tuple[Any, Any]] = []
        self.silence_s = 0.0
        """The longest time without an event since it was last set to 0."""
        self._last_s = 0.0

    async def read(self) -> None:
        """Take events until cancelled."""
        now = asyncio.get_running_loop().time
        self._last_s = now()
        async for event in self.stream:
            at = now()
            self.silence_s = max(self.silence_s, at - self._last_s)
            self._last_s = at
            attributes = event.context.attributes
            self.found.append((attributes["who"], attributes["number"]))

    async def cross(self, urls: dict[str, list[str]], draw: random.Random) -> None:
        """Go from the border place that it is in to the next node."""
        await self.session.report(room(NODES[self.at]))
        await asyncio.sleep(TRAVEL_S)
        self.at = (self.at + draw.choice((1, 2))) % len(NODES)
        async with asyncio.timeout(PATIENCE_S):
            while self.session.broker not in urls[NODES[self.at]]:
                await self.session.report(room(NODES[self.at]))
                await asyncio.sleep(0.05)


class Crowd:
    """Producers and walkers of one overlay, and the record of what was acknowledged."""

    def __init__(self, nodes: Sequence[Node], token: str, stack: contextlib.AsyncExitStack) -> None:
        self.walkers: list[Walker] = []
        self.published: dict[str, int] = {}
        """Producers → events that were acknowledged; known once they rest."""
        self.urls: dict[str, list[str]] = {}
        """Nodes → the addresses of their hosts, that of who serves first."""
        for node in nodes:
            self.urls.setdefault(node.name, []).append(node.url)
        self._token = token
        self._stack = stack
        self._producers: Producers | None = None
        self._reading: list[asyncio.Task[None]] = []

    @property
    def total(self) -> int:
        """How many events were acknowledged."""
        return sum(self.published.values())

    async def walk_in(self, count: int) -> None:
        """Let walkers subscribe to everything, until everything stands."""
        for number in range(count):
            made = joined(self.urls, self._token, f"w{number}", number)
            session = await self._stack.enter_async_context(made)
            stream = await session.subscribe("within(place, 'campus')", expires_s=60)
            async with asyncio.timeout(PATIENCE_S):
                while {*NODES} - stream.vector.keys():
                    await asyncio.sleep(0.01)
            self.walkers.append(Walker(session, stream, number % len(NODES)))
        self._reading = [asyncio.create_task(one.read()) for one in self.walkers]

    async def produce(self, count: int, rate: float) -> None:
        """Begin to publish."""
        self._producers = Producers("bench.roam", self.urls, self._token, count, rate)
        self._stack.callback(self._producers.kill)
        await self._producers.begun()

    async def rest(self) -> None:
        """Publish no more, and wait until walkers have everything, or long enough."""
        if self._producers is not None:
            async with asyncio.timeout(PATIENCE_S):
                self.published = await self._producers.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S / 2):
                while self.judged()["lost"]:
                    await asyncio.sleep(0.2)
        for task in self._reading:
            task.cancel()

    def judged(self) -> dict[str, int]:
        """Compare what walkers got with what producers have acknowledged."""
        return judged([one.found for one in self.walkers], self.published)


def joined(
    urls: dict[str, list[str]], token: str, name: str, at: int
) -> contextlib.AbstractAsyncContextManager[Session]:
    """Join the overlay at a node; its other nodes may serve, too."""
    own = urls[NODES[at % len(NODES)]]
    every = [url for node in NODES for url in urls[node]]
    ordered = sorted(every, key=lambda url: url not in own)
    return connect(",".join(ordered), token, device=name, near="place", timeout_s=PATIENCE_S)


async def publish(
    urls: dict[str, list[str]],
    token: str,
    count: int,
    rate: float,
    *,
    begun: Callable[[], None],
    over: asyncio.Event,
) -> dict[str, int]:
    """Publish with so many producers, so many events a second each (`_producers.Publish`)."""
    published: dict[str, int] = {}
    now = asyncio.get_running_loop().time

    async def produce(number: int, source: Session) -> None:
        name = f"p{number}"
        published[name] = 0
        due = now() + random.Random(number).random() / rate
        while not over.is_set():
            await asyncio.sleep(max(0.0, due - now()))
            at = published[name]
            await source.publish_event(room("a"), who=name, number=at)
            published[name] += 1
            if number % 5 == 0 and at % 40 == 39:  # some walk, too
                await source.report(room(NODES[(at // 40) % 3]))
            due = max(due + 1 / rate, now() - 1.0)  # who is late catches up, but not for ever

    async with contextlib.AsyncExitStack() as stack:
        made = [joined(urls, token, f"p{number}", number) for number in range(count)]
        sources = [await stack.enter_async_context(one) for one in made]
        begun()
        await asyncio.gather(*(produce(number, one) for number, one in enumerate(sources)))
    return published


def judged(found: Sequence[list[tuple[Any, Any]]], published: dict[str, int]) -> dict[str, int]:
    """Compare what readers got, in their order, with what was published."""
    lost = twice = reordered = 0
    for had in found:
        by_producer: dict[Any, list[int]] = {}
        for who, number in had:
            by_producer.setdefault(who, []).append(number)
        for who, count in published.items():
            own = by_producer.get(who, [])
            twice += len(own) - len({*own})
            lost += len({*range(count)} - {*own})
            reordered += sum(one > two for one, two in pairwise(own))
    return {"lost": lost, "twice": twice, "reordered": reordered}


async def _hurt(nodes: Sequence[Node], wires: Wires, faults: int, draw: random.Random) -> None:
    """Kill a node, or cut the links between two, at random moments."""
    for number in range(faults):
        await asyncio.sleep(0.5 + 2 * draw.random())
        if number % 2:
            one, other = draw.sample([node.name for node in nodes], 2)
            cut_s = CUT_S * draw.random()
            await asyncio.gather(wires[one, other].cut(cut_s), wires[other, one].cut(cut_s))
        else:
            node = draw.choice(nodes)
            await node.end(at_once=True)
            await node.start()


def _came(nodes: Sequence[Node], token: str, how: str) -> int:
    """Count who came to a node prepared for, or not, in the lives that still run."""
    pages = "\n".join(node.ask("/metrics", token) for node in nodes)
    found = re.findall(rf'what="handoff: {how}"[^\n]*\}} ([0-9.e+]+)', pages)
    return round(sum(map(float, found)))


async def walk(
    folder: Path, *, crossings: int, producers: int, rate: float, faults: int,
    step: Callable[..., None],
) -> dict[str, Any]:  # fmt: skip
    """Let producers publish and walkers cross while so much breaks."""
    now = asyncio.get_running_loop().time
    async with (
        overlay(folder, wired=bool(faults)) as (nodes, token, wires),
        contextlib.AsyncExitStack() as stack,
    ):
        crowd = Crowd(nodes, token, stack)
        await crowd.walk_in(WALKERS)
        began = now()
        await crowd.produce(producers, rate)

        async def go(number: int) -> None:
            draw = random.Random(number)
            for _ in range(crossings // WALKERS):
                await crowd.walkers[number].cross(crowd.urls, draw)
                step(1)

        work: list[Awaitable[None]] = [go(number) for number in range(WALKERS)]
        await asyncio.gather(*work, _hurt(nodes, wires, faults, random.Random(7)))
        took = now() - began
        await crowd.rest()
        moves = [move for one in crowd.walkers for move in one.session.moves]
        return {
            "faults": faults,
            "crossings": crossings,
            "published": crowd.total,
            "events_per_s": round(crowd.total / took),
            **crowd.judged(),
            "moves": len(moves),
            "prepared": await asyncio.to_thread(_came, nodes, token, "attached"),
            "not prepared": await asyncio.to_thread(_came, nodes, token, "normal"),
            "gap_s": max((m.gap_s for m in moves if m.why == "place"), default=0.0),
            "outage_s": round(max((m.gap_s for m in moves if m.why == "lost"), default=0.0), 2),
            "gaps told": sum(len(one.stream.gaps) for one in crowd.walkers),
        }


def run(quick: bool, progress: Steps) -> Report:
    """Walk, calmly and while nodes die and links are cut."""
    crossings, producers, rate = (12, 6, 10.0) if quick else (200, 50, 20.0)
    rows: list[dict[str, Any]] = []
    for faults in (0, 2 if quick else 20):
        with tempfile.TemporaryDirectory() as folder, progress("crossings", crossings) as step:
            made = walk(
                Path(folder), crossings=crossings, producers=producers, rate=rate, faults=faults,
                step=step,
            )  # fmt: skip
            rows.append(asyncio.run(made))
    wrong = {what: sum(row[what] for row in rows) for what in ("lost", "twice", "reordered")}
    claims = [
        Claim(f"events {what}, of all that walkers should have", count, count == 0, bar=0)
        for what, count in wrong.items()
    ]
    gap = rows[0]["gap_s"]
    claims.append(
        Claim("longest time without a broker, without faults, in seconds", gap, gap == 0, bar=0.0)
    )
    parameters = {
        "nodes": len(NODES),
        "walkers": WALKERS,
        "producers": producers,
        "rate": rate,
        "travel_s": TRAVEL_S,
    }
    return Report("roam", parameters, rows, claims)
