"""Parcels through hosts that are killed: three services in a row, of two hosts each.

A cast into the past at one end is a parcel for each of the others, and each answers with a parcel
of its own. Casts are sent all the time, and again where no answer came, under the same id.
Meanwhile kill -9 of the host that serves each node, keeper included; its other host takes over. A
parcel is lost if some node never answers a cast that was acknowledged.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

from bench.kill import PATIENCE_S
from bench.takeover import Pair
from roamcast.errors import RoamcastError
from roamcast.live.auth.admission import SCOPES, TokenKeys
from roamcast.live.overlay.node import NODE_KEY_FILE, public_text
from roamcast.model.time import MICROSECONDS, format_instant
from roamcast.transport.address import ServiceAddress
from roamcast.transport.http import HttpClient

NODES = ("n1", "n2", "n3")
SENDERS = 4
LOAD_S = 3.0
"""How long casts are sent before, between and after the kills."""


class Node:
    """A service of two hosts, which is a node of the overlay."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.name = name
        self.pair = Pair(folder)
        first, second = (host.data for host in self.pair.hosts)
        self.key = public_text(first)
        shutil.copy(first / NODE_KEY_FILE, second / NODE_KEY_FILE)
        self.serving, self.other = self.pair.hosts
        now = time_ns() // 1_000
        keys = TokenKeys.open(first)
        self.tokens = [
            keys.issue(f"sender-{number}", SCOPES, lifetime_s=86_400, now=now)
            for number in range(SENDERS)
        ]

    def neighbours(self, near: list["Node"]) -> None:
        """Write who is beside it into its settings."""
        lines = ["", "[overlay]", f'node = "{self.name}"', f'areas = ["campus/{self.name}"]']
        for one in near:
            urls = ", ".join(f'"{host.url}"' for host in one.pair.hosts)
            lines += [f"[overlay.neighbours.{one.name}]", f'key = "{one.key}"', f"urls = [{urls}]"]
        with self.pair.settings.open("a", encoding="utf-8") as settings:
            settings.write("\n".join(lines) + "\n")

    async def start(self) -> None:
        """Run both hosts until the second one follows."""
        await self.serving.keep(self.pair.settings)
        await self.serving.ready()
        await self.other.keep(self.pair.settings)
        await self.pair.followed(self.serving)

    async def stop(self) -> None:
        """End both hosts."""
        for host in self.pair.hosts:
            if host.process is not None and host.process.returncode is None:
                host.process.terminate()
                await host.process.wait()

    async def lose_host(self) -> float:
        """Kill the host that serves; give the seconds until the other one does."""
        await self.serving.die()
        died = monotonic()
        await self.other.ready()
        self.serving, self.other = self.other, self.serving
        return monotonic() - died

    def client(self, token: str) -> HttpClient:
        """Ask whichever host serves."""
        urls = [host.url for host in self.pair.hosts]
        return HttpClient(ServiceAddress(urls[0], token, tuple(urls[1:])), timeout_s=10.0)

    async def overlay(self) -> dict[str, Any]:
        """Give what the node knows of the overlay."""
        found: dict[str, Any] = await self.client(self.pair.token).ask("GET", "/overlay")
        return found


@contextlib.asynccontextmanager
async def row(folder: Path) -> AsyncIterator[list[Node]]:
    """Run three nodes in a row until all know of all."""
    nodes = [Node(name, folder / name) for name in NODES]
    for at, node in enumerate(nodes):
        node.neighbours([nodes[n] for n in (at - 1, at + 1) if 0 <= n < len(nodes)])
    try:
        for node in nodes:
            await node.start()
        await _until(nodes, lambda one: len(one["graph"]) == len(NODES))
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


async def _until(nodes: list[Node], true: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for node in nodes:
            while True:
                with contextlib.suppress(RoamcastError):
                    if true(await node.overlay()):
                        break
                await asyncio.sleep(0.05)


class Casting:
    """Casts that are sent from one node, and which of them it acknowledged."""

    def __init__(self, node: Node) -> None:
        self.acknowledged: dict[str, int] = {}
        """Casts → who sent them."""
        self.longest_s = 0.0
        """The longest time that a cast waited for its acknowledgement."""
        self._numbers = count(1)
        self._clients = [node.client(token) for token in node.tokens]
        ago = format_instant(time_ns() // 1_000 - 3_600 * MICROSECONDS)
        soon = format_instant(time_ns() // 1_000 - 60 * MICROSECONDS)
        self._filter = f"within(place, 'campus') AND overlaps(time, INTERVAL('{ago}', '{soon}'))"

    async def send(self, sender: int) -> None:
        """Send one cast after the other, each again until it is acknowledged."""
        client = self._clients[sender]
        while True:
            cast, asked = f"cast-{next(self._numbers)}", monotonic()
            wish = {"id": cast, "filter": self._filter, "text": "hello", "lifetime_s": 3_600}
            while True:
                try:
                    await client.ask("POST", "/casts", body=wish)
                except RoamcastError:
                    await asyncio.sleep(0.1)
                else:
                    break
            self.acknowledged[cast] = sender
            self.longest_s = max(self.longest_s, monotonic() - asked)
            await asyncio.sleep(0.2)

    async def unanswered(self) -> list[str]:
        """Name the casts that some node has not answered."""
        lacking = []
        for cast, sender in self.acknowledged.items():
            try:
                view = await self._clients[sender].ask("GET", f"/casts/{cast}")
            except RoamcastError:
                lacking.append(cast)
            else:
                if view["nodes_answered"] < len(NODES):
                    lacking.append(cast)
        return lacking


async def _measure(folder: Path) -> dict[str, Any]:
    async with row(folder) as nodes:
        casting = Casting(nodes[0])
        busy = [asyncio.create_task(casting.send(number)) for number in range(SENDERS)]
        taken = []
        await asyncio.sleep(LOAD_S)
        for node in reversed(nodes):  # the origin last
            taken.append(await node.lose_host())
            await asyncio.sleep(LOAD_S)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        stopped = monotonic()
        lacking = await casting.unanswered()
        while lacking and monotonic() - stopped < PATIENCE_S:
            await asyncio.sleep(0.2)
            lacking = await casting.unanswered()
        answered_s = monotonic() - stopped
        await _until(nodes, lambda one: one["held"]["custody: parcels"][0] == 0)
        return {
            "nodes": len(NODES),
            "hosts": 2 * len(NODES),
            "hosts killed": len(taken),
            "taken over s": round(max(taken), 1),
            "parcels": 2 * (len(NODES) - 1) * len(casting.acknowledged),
            "parcels lost": len(lacking),
            "longest acknowledgement s": round(casting.longest_s, 1),
            "all answered s": round(answered_s, 1),
        }


def killed_hosts() -> dict[str, Any]:
    """Kill a host of each of three services under load, and look for what was lost."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder)))
