"""How soon is a historic cast in the last mailbox, and how many casts go through three nodes?

Three brokers and a trusted node are processes of this machine, as `serve --demo --brokers 3` lays
them out. The audience is enrolled at the trusted node before it starts; the keys of its pseudonyms
are put into the brokers' stores as registrations would. Everybody is then published live, a third
at each node, and everybody's attribute says which audience they belong to. A cast to the past is
posted at one node; it is over when the trusted node's disk has the last mail. Then many casts to
ten people each are posted at all three nodes.
"""

import asyncio
import contextlib
import http.client
import json
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa

from roamcast.commands._demo_brokers import SETTINGS_FILE, TRUST, DemoNode, nodes_of
from roamcast.identity.pseudonyms import HANDLE, seal
from roamcast.identity.sealing import VidSecrets
from roamcast.identity.trusted.node import TrustedNode
from roamcast.identity.vid_keys import PREFIX, VidKey
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.auth.admission import SCOPES, TokenKeys
from roamcast.live.config.settings import STORE_FILE
from roamcast.live.store.store import SqliteStore
from roamcast.live.trust.host import RunningTrust
from roamcast.model.time import MICROSECONDS, format_instant
from roamcast.transport.address import ServiceAddress
from roamcast.transport.driver import wall_clock
from roamcast.transport.http import HttpClient

TITLE = "cast: historic casts a second through three nodes, and from POST to the last mailbox"

SIZES, SIZES_QUICK = (10, 1_000, 100_000), (10, 1_000)
CASTS, CASTS_QUICK = 300, 60
SENDERS: Final = 10
"""Casts of one sender are limited to one a second, in bursts of 60."""

TOGETHER: Final = 8
THREADS: Final = 4
"""Connections to each node that publish."""

BATCH: Final = 1_000
PATIENCE_S: Final = 900.0
LIMITS: Final = (
    "\n[limits]\npublications_per_client_max = 1000000\nrequests_per_s = 100000.0\n"
    "steps_per_s = 1e12\nsteps_burst = 1000000000000\n"
)
REACHED: Final = re.compile(r'roamcast_trust[a-z_]*\{[^}]*"deposit, reached"\} (\S+)')
"""Mails that came into a mailbox."""

CLOCK: Final = wall_clock()


def run(quick: bool, progress: Steps) -> Report:
    sizes, count = (SIZES_QUICK, CASTS_QUICK) if quick else (SIZES, CASTS)
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_measured(Path(folder), sizes, count, progress))
    parameters = {
        "nodes": "3 brokers, 1 trusted node, a process each",
        "policy": "NH",
        "audience": "a third at each node",
        "seconds": "by the wall: everything shares this machine",
        "cores": os.cpu_count(),
    }
    last = rows[-1]
    claims = [
        Claim("mails lost or twice", sum(row["wrong"] for row in rows), not any(
            row["wrong"] for row in rows), bar=0),
        Claim("casts a second, ten people each", last["casts_a_second"],
              last["casts_a_second"] >= 1, bar=1, note="what one sender may send"),
    ]  # fmt: skip
    return Report("cast", parameters, rows, claims)


async def _measured(
    folder: Path, sizes: Sequence[int], count: int, progress: Steps
) -> list[dict[str, Any]]:
    nodes = nodes_of(folder, 3, trust_apart=True)
    *brokers, trust = nodes
    for node in brokers:
        with (node.folder / SETTINGS_FILE).open("a", encoding="utf-8") as file:
            file.write(LIMITS)
    with progress("people enrolled", sum(sizes)) as step:
        vids = await _enrolled(trust.folder, sum(sizes), step)
    await _keys_stored(brokers, vids)
    async with _running(nodes):
        tokens = [
            TokenKeys.open(node.folder).issue(
                f"sender-{number}", SCOPES, lifetime_s=86_400, now=CLOCK()
            )
            for node in brokers
            for number in range(SENDERS)
        ]
        clients = [
            HttpClient(ServiceAddress(brokers[number // SENDERS].url, token), timeout_s=60)
            for number, token in enumerate(tokens)
        ]
        begun = CLOCK()
        with progress("contexts published", sum(sizes)) as step:
            await _published(brokers, sizes, vids, step)
        await _linked(clients[::SENDERS])
        box = Mailboxes(trust)
        rows = []
        for size in sizes:
            with progress("mails", size) as step:
                rows.append(await _one(clients[0], box, size, begun, step))
        with progress("casts", count) as step:
            rows.append(await _many(clients, box, count, begun, step))
    return rows


class Mailboxes:
    """Counts what lies in the mailboxes, as the trusted node's metrics tell."""

    def __init__(self, trust: DemoNode) -> None:
        self._port, self._token = trust.port, trust.token

    async def count(self) -> int:
        """Count the mails."""
        return await asyncio.to_thread(self._counted)

    def _counted(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {self._token}"})
        page = connection.getresponse().read().decode()
        connection.close()
        found = REACHED.search(page)
        return 0 if found is None else int(float(found[1]))

    async def until(self, count: int, step: Any) -> int:
        """Wait until so many are there; give how many came too few or too many."""
        end, last = time.monotonic() + PATIENCE_S, await self.count()
        while (now := await self.count()) < count and time.monotonic() < end:
            step(now - last)
            last = now
            await asyncio.sleep(0.005 if count - now < 2_000 else 0.5)
        return abs(await self.count() - count)


async def _enrolled(folder: Path, count: int, step: Any) -> list[str]:
    """Enrol people at the trusted node, before it runs, and seal a pseudonym for each."""
    trust = RunningTrust.open(folder, TRUST)
    trust.start()
    names = [f"person-{number}" for number in range(count)]
    handles: list[bytes] = []
    for first in range(0, count, BATCH):
        page = names[first : first + BATCH]
        found = await asyncio.gather(*(trust.enrol([name]) for name in page))
        handles += [handle for one in found for handle in one]
        step(len(page))
    node: TrustedNode = trust.node
    sealed = seal(pa.array(handles, HANDLE), node._epochs.keys, os.urandom)  # noqa: SLF001
    await trust.stop()
    found_vids: list[str] = sealed.to_pylist()
    return found_vids


async def _keys_stored(brokers: Sequence[DemoNode], vids: Sequence[str]) -> None:
    """Store the sealing keys as registrations would; all seal to one key, which costs the same."""
    own = VidSecrets(os.urandom(32)).public
    value = msgspec.msgpack.encode(VidKey(own.sealing, CLOCK() + 30 * 86_400 * MICROSECONDS))
    for number, node in enumerate(brokers):
        disk = SqliteStore.open(node.folder / STORE_FILE)
        mine = vids[number::3]
        for first in range(0, len(mine), BATCH):
            writes = tuple((PREFIX + vid, value) for vid in mine[first : first + BATCH])
            await disk.write(writes)
        await disk.close()


@contextlib.asynccontextmanager
async def _running(nodes: Sequence[DemoNode]) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield
    finally:
        await asyncio.gather(*(node.end() for node in nodes))


async def _published(
    brokers: Sequence[DemoNode], sizes: Sequence[int], vids: Sequence[str], step: Any
) -> None:
    """Publish everybody under their own vid: the n-th at the n-th node, and so on around."""
    audience = [str(size) for size in sizes for _ in range(size)]
    loop = asyncio.get_running_loop()

    def at(number: int, thread: int) -> None:
        node = brokers[number]
        keys = TokenKeys.open(node.folder)
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE_S)
        for one in range(number + 3 * thread, len(vids), 3 * THREADS):
            token = keys.issue(vids[one], ("publish",), lifetime_s=86_400, now=CLOCK())
            properties = {"place": f"campus/b{number + 1}/1", "crowd": audience[one]}
            feature = {
                "type": "Feature", "id": vids[one], "geometry": None, "properties": properties
            }  # fmt: skip
            path = f"/contexts/{quote(vids[one], safe='')}?lifetime=86000"
            headers = {"authorization": f"Bearer {token}", "content-type": "application/geo+json"}
            connection.request("PUT", path, json.dumps(feature), headers)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 201, said
            loop.call_soon_threadsafe(step, 1)

    threads = [(number, thread) for number in range(3) for thread in range(THREADS)]
    with ThreadPoolExecutor(len(threads)) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, at, *one) for one in threads))


async def _linked(clients: Sequence[HttpClient]) -> None:
    end = time.monotonic() + PATIENCE_S
    for client in clients:
        while len((await client.ask("GET", "/overlay"))["graph"]) < 3:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)


def _cast(crowd: int, begun: int, name: str) -> dict[str, Any]:
    until = format_instant(CLOCK() - MICROSECONDS // 10)
    window = f"overlaps(time, INTERVAL('{format_instant(begun)}', '{until}'))"
    where = f"within(place, 'campus') AND crowd = '{crowd}' AND {window}"
    return {"filter": where, "text": "The minutes are at the usual place.", "id": name}


async def _one(
    client: HttpClient, box: Mailboxes, size: int, begun: int, step: Any
) -> dict[str, Any]:
    before = await box.count()
    await asyncio.sleep(0.2)
    began = time.perf_counter()
    sent = await client.ask("POST", "/casts", body=_cast(size, begun, f"one-{size}"))
    posted = time.perf_counter() - began
    assert sent["tense"] == "historic", sent
    wrong = await box.until(before + size, step)
    taken = time.perf_counter() - began
    return {
        "audience": size,
        "post_s": posted,
        "last_mailbox_s": taken,
        "mails_a_second": size / taken,
        "casts_a_second": 1 / taken,
        "wrong": wrong,
    }


async def _many(
    clients: Sequence[HttpClient], box: Mailboxes, count: int, begun: int, step: Any
) -> dict[str, Any]:
    """Post casts to ten people each at all nodes, from several senders."""
    before = await box.count()
    gate = asyncio.Semaphore(TOGETHER)

    async def send(number: int) -> None:
        async with gate:
            body = _cast(10, begun, f"many-{number}")
            await clients[number % len(clients)].ask("POST", "/casts", body=body)
            step(1)

    began = time.perf_counter()
    await asyncio.gather(*(send(number) for number in range(count)))
    posted = time.perf_counter() - began
    wrong = await box.until(before + 10 * count, lambda _: None)
    taken = time.perf_counter() - began
    return {
        "audience": 10,
        "casts": count,
        "post_s": posted,
        "last_mailbox_s": taken,
        "mails_a_second": 10 * count / taken,
        "casts_a_second": count / taken,
        "wrong": wrong,
    }
