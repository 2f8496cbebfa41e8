"""Does somebody who walks from broker to broker miss an event, get one twice, or out of order?

Three nodes of one overlay are processes of this machine. Producers publish at them, some of whom
walk as well; walkers go to and fro over doors between the nodes' areas and want everything. Judged
by the producers' own record of what was acknowledged. A second run kills nodes with -9 meanwhile.
"""

import asyncio
import base64
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.takeover import free_port
from roamcast.client import EventStream, Session, connect
from roamcast.errors import RoamcastError
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.auth.admission import SCOPES, TokenKeys
from roamcast.live.overlay.node import private_key
from roamcast.overlay.links.proof import signer

TITLE = (
    "walk from broker to broker: what is lost, twice or out of order, and how long nobody served"
)

NODES = ("a", "b", "c")
TRAVEL_S = 0.5
"""From a border place into the next area: longer than it takes to prepare there."""
PATIENCE_S = 120.0


def room(node: str) -> str:
    """Give the room of a node; its door leads to both others."""
    return f"campus/{node}/1"


class Node:
    """One node as a process."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.data = folder / name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        command = ("-m", "roamcast", "serve", "--json", "--port", str(self.port))
        where = ("--data", str(self.data), "--settings", str(self.data / "roamcast.toml"))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *where, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        if not await self.process.stdout.readline():
            raise RoamcastError(f"node {self.name} did not start")

    async def end(self, *, at_once: bool = False) -> None:
        """End it, as kill -9 does if at once."""
        if self.process is not None and self.process.returncode is None:
            (self.process.kill if at_once else self.process.terminate)()
            await self.process.wait()


def _write(nodes: Sequence[Node], folder: Path) -> str:
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
    public = {}
    for node in nodes:
        node.data.mkdir(exist_ok=True, mode=0o700)
        if node is not nodes[0]:
            (node.data / "keys.json").write_bytes((nodes[0].data / "keys.json").read_bytes())
            (node.data / "keys.json").chmod(0o600)
        public[node.name] = base64.b64encode(signer(private_key(node.data))[1]).decode()
    for node in nodes:
        lines = [
            "[journal]\non = false\n[limits]\nframes_per_s = 10000\nframes_burst = 100000",
            f'[server]\nplaces = "{places}"',
            f'[overlay]\nnode = "{node.name}"\nareas = ["campus/{node.name}"]\nurl = "{node.url}"',
        ]
        lines += [
            f"[overlay.neighbours.{other.name}]\n"
            f'key = "ed25519:{public[other.name]}"\nurls = ["{other.url}"]'
            for other in nodes
            if other is not node
        ]
        (node.data / "roamcast.toml").write_text("\n".join(lines))
    now = int(nodes[0].data.stat().st_mtime) * 1_000_000
    return keys.issue("operator", SCOPES, lifetime_s=86_400, now=now)


@contextlib.asynccontextmanager
async def overlay(folder: Path) -> AsyncIterator[tuple[list[Node], str]]:
    """Run three linked nodes."""
    nodes = [Node(name, folder, free_port()) for name in NODES]
    token = _write(nodes, folder)
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes, token
    finally:
        for node in nodes:
            await node.end()


class Walker:
    """Goes to and fro, and writes down what it gets."""

    def __init__(self, session: Session, stream: EventStream, at: int) -> None:
        self.session = session
        self.stream = stream
        self.at = at
        self.found: list[tuple[Any, Any]] = []

    async def read(self) -> None:
        """Take events until cancelled."""
        async for event in self.stream:
            attributes = event.context.attributes
            self.found.append((attributes["who"], attributes["number"]))

    async def cross(self, nodes: Sequence[Node], draw: random.Random) -> None:
        """Go from the border place that it is in to the next node."""
        await self.session.report(room(NODES[self.at]))
        await asyncio.sleep(TRAVEL_S)
        self.at = (self.at + draw.choice((1, 2))) % len(NODES)
        async with asyncio.timeout(PATIENCE_S):
            while self.session.broker != nodes[self.at].url:
                await self.session.report(room(NODES[self.at]))
                await asyncio.sleep(0.02)


def judged(walkers: Sequence[Walker], published: dict[str, int]) -> dict[str, int]:
    """Compare what walkers got with what producers have acknowledged."""
    lost = twice = reordered = 0
    for walker in walkers:
        for who, count in published.items():
            own = [number for other, number in walker.found if other == who]
            twice += len(own) - len({*own})
            lost += len({*range(count)} - {*own})
            reordered += sum(one > two for one, two in pairwise(own))
    return {"lost": lost, "twice": twice, "reordered": reordered}


async def walk(
    folder: Path,
    *,
    crossings: int,
    producers: int,
    rate: float,
    kills: int,
    step: Callable[..., None],
) -> dict[str, Any]:
    """Let producers publish and walkers cross; `kills` nodes die meanwhile."""
    draw = random.Random(7)
    async with overlay(folder) as (nodes, token), contextlib.AsyncExitStack() as stack:
        urls = ",".join(node.url for node in nodes)

        async def join(name: str, at: int) -> Session:
            ordered = ",".join(
                [nodes[at].url, *(one for one in urls.split(",") if one != nodes[at].url)]
            )
            made = connect(ordered, token, device=name, near="place", timeout_s=PATIENCE_S)
            return await stack.enter_async_context(made)

        walkers: list[Walker] = []
        for number in range(4):
            session = await join(f"w{number}", number % 3)
            stream = await session.subscribe("within(place, 'campus')", expires_s=60)
            async with asyncio.timeout(PATIENCE_S):
                while {*NODES} - stream.vector.keys():
                    await asyncio.sleep(0.01)
            walkers.append(Walker(session, stream, number % 3))
        sources = [await join(f"p{number}", number % 3) for number in range(producers)]
        published: dict[str, int] = {}
        going = asyncio.Event()

        async def produce(number: int) -> None:
            name = f"p{number}"
            published[name] = 0
            while not going.is_set():
                at = published[name]
                await sources[number].publish_event(room("a"), who=name, number=at)
                published[name] += 1
                if number % 5 == 0 and at % 40 == 39:  # some walk, too
                    await sources[number].report(room(NODES[(at // 40) % 3]))
                await asyncio.sleep(1 / rate)

        async def die() -> None:
            for _ in range(kills):
                await asyncio.sleep(1 + draw.random())
                node = draw.choice(nodes)
                await node.end(at_once=True)
                await node.start()

        reading = [asyncio.create_task(one.read()) for one in walkers]
        producing = [asyncio.create_task(produce(number)) for number in range(producers)]
        dying = asyncio.create_task(die())
        for turn in range(crossings):
            await walkers[turn % len(walkers)].cross(nodes, draw)
            step(1)
        await dying
        going.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*producing)
        total = sum(published.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S / 4):
                while any(len(one.found) < total for one in walkers):
                    await asyncio.sleep(0.05)
        for task in reading:
            task.cancel()
        moves = [move for one in walkers for move in one.session.moves]
        return {
            "kills": kills,
            "crossings": crossings,
            "published": total,
            **judged(walkers, published),
            "moves": len(moves),
            "prepared gap_s": max((m.gap_s for m in moves if m.why == "place"), default=0.0),
            "gaps told": sum(len(one.stream.gaps) for one in walkers),
        }


def run(quick: bool, progress: Steps) -> Report:
    """Walk with and without kills."""
    crossings, producers, rate = (12, 6, 10.0) if quick else (200, 50, 20.0)
    rows: list[dict[str, Any]] = []
    for kills in (0, 1 if quick else 10):
        with tempfile.TemporaryDirectory() as folder, progress("crossings", crossings) as step:
            rows.append(
                asyncio.run(
                    walk(
                        Path(folder),
                        crossings=crossings,
                        producers=producers,
                        rate=rate,
                        kills=kills,
                        step=step,
                    )
                )
            )
    wrong = {what: sum(row[what] for row in rows) for what in ("lost", "twice", "reordered")}
    claims = [
        Claim(f"events {what}, of all that walkers should have", count, count == 0, bar=0)
        for what, count in wrong.items()
    ]
    gap = rows[0]["prepared gap_s"]
    claims.append(
        Claim("longest time without a broker, without kills, in seconds", gap, gap == 0, bar=0.0)
    )
    parameters = {
        "nodes": 3,
        "walkers": 4,
        "producers": producers,
        "rate": rate,
        "travel_s": TRAVEL_S,
    }
    return Report("roam", parameters, rows, claims)
