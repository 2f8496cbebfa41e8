"""The host that serves is gone: another one has everything, and there is one map again later.

Hosts are data folders and ports of this machine, or network namespaces that are parted and joined.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.typing import Subprotocol

from bench.kill import Crowd
from bench.takeover import Host, Pair, pair
from roamcast.channels.failover.replica_messages import ReplicaHere
from roamcast.channels.sessions.publications import PREFIX
from roamcast.client import connect
from roamcast.errors import RoamcastError, SettingsError, UnreachableError
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.cluster.keeper import Keeper
from roamcast.live.config.settings import STORE_FILE, load_settings, with_server
from roamcast.live.store.store import SqliteStore
from roamcast.model.contexts import Context
from tests.live import namespaces
from tests.live.members import DEADLINE_S, OBJECTS, PRIVATE, members, wait_until_equal
from tests.live.namespaces import Namespaces
from tests.live.parted import Parted

pytestmark = pytest.mark.process

WATCHED = "within(place, 'own')"
PEOPLE = 4
PATIENT = "silent_s = 5.0"
"""A busy machine must not look like one that is gone."""


class Page:
    """A page of a browser: a JSON session that finds the service again, as docs/service.md says."""

    def __init__(self, url: str, token: str) -> None:
        self._hosts = [url]
        self._token = token
        self.shown: dict[str, str] = {}
        self.hosts_seen: list[str] = []

    async def run(self) -> None:
        while True:
            for url in list(self._hosts):
                with contextlib.suppress(OSError, websockets.WebSocketException):
                    await self._talk(url)
            await asyncio.sleep(0.1)

    async def _talk(self, url: str) -> None:
        where = f"ws{url.removeprefix('http')}/session?device=page"
        spoken = [Subprotocol("roamcast.json.v1"), Subprotocol(f"roamcast.token.{self._token}")]
        async with websockets.connect(
            where, subprotocols=spoken, open_timeout=5, proxy=None
        ) as socket:
            welcome = json.loads(await socket.recv())
            self._hosts = list(dict.fromkeys([url, *welcome["hosts"]]))
            feature = {"type": "Feature", "id": "page", "geometry": None}
            feature["properties"] = {"place": "own/1"}  # type: ignore[assignment]
            await socket.send(json.dumps({"type": "publish", "re": "a", "feature": feature}))
            await socket.send(json.dumps({"type": "subscribe", "re": "s", "filter": WATCHED}))
            self.hosts_seen.append(url)
            async for text in socket:
                self._take(json.loads(text))

    def _take(self, said: dict[str, Any]) -> None:
        if said["type"] == "subscribed":
            self.shown = {one["id"]: one["properties"]["place"] for one in said["features"]}
        for event in said.get("events", ()):
            vid = event["subject"]
            if event["type"].endswith("left"):
                self.shown.pop(vid, None)
            else:
                self.shown[vid] = event["data"]["properties"]["place"]


async def until(true: Any, what: Any = None) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, what() if what else "waited for too long"
        await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_host_that_takes_over_has_everything_and_one_that_wakes_up_later_merges(
    tmp_path: Path,
) -> None:
    asyncio.run(_take_over_and_merge(tmp_path))


async def _take_over_and_merge(folder: Path) -> None:
    async with pair(folder, PATIENT) as both, contextlib.AsyncExitStack() as stack:
        one, two = both.hosts
        asking = both.asking(one)
        stranger = _token(one, "stranger", "read")
        people = [
            await stack.enter_async_context(connect(one.url, both.token, device=f"d{number}"))
            for number in range(PEOPLE)
        ]
        me, crowd = people[0], Crowd(people, seed=5)
        view = me.watch(WATCHED)
        page = Page(one.url, both.token)
        running = asyncio.create_task(page.run())
        stack.callback(running.cancel)
        await me.publish("mine", place="own/2", type="me")
        for vid in ("kept", "hidden", "removed"):
            await asking.put(Context(vid, "own/1", None, {}, me.now()))
        await asking.rules("hidden", [{"viewers": ["operator"], "precision": "exact"}])
        await asking.remove("removed")
        expected = {"mine": "own/2", "kept": "own/1", "hidden": "own/1", "page": "own/1"}

        def right() -> bool:
            seen = {vid: context.place for vid, context in view.contexts.items()}
            return seen == page.shown == expected and crowd.right()

        def differ() -> str:
            return f"{view.contexts} {page.shown}, not {expected}; the crowd: {crowd.right()}"

        crowd.start()
        await until(lambda: crowd.acknowledged > 100)
        await one.die()
        resting = asyncio.create_task(crowd.rest())
        await two.ready()
        await resting
        assert await crowd.lost() == 0
        await until(lambda: page.hosts_seen[-1] == two.url)
        await until(right, differ)
        await _known(crowd)
        assert await _count(two, stranger, WATCHED) == len(expected) - 1
        await both.asking(two).remove("kept")
        del expected["kept"]
        # Now the host that serves only sleeps, and wakes with an older map than the other's.
        await one.keep(both.settings)
        await both.followed(two)
        assert two.process is not None
        sleepers = [two.process.pid, two.pid]
        for pid in sleepers:
            os.kill(pid, signal.SIGSTOP)
        await one.ready()
        await me.publish("mine", place="own/3", type="me")
        await both.asking(one).put(Context("late", "own/1", None, {}, me.now()))
        expected |= {"mine": "own/3", "late": "own/1"}
        for pid in sleepers:
            os.kill(pid, signal.SIGCONT)
        await both.followed(one)  # it stands by: it has stepped down
        with pytest.raises(UnreachableError):
            await both.asking(two).count()
        await until(right, differ)
        await _known(crowd)
        assert await _count(one, stranger, WATCHED) == len(expected) - 1


async def _known(crowd: Crowd) -> None:
    """Wait until the service has everything; views show longer what may only be on its way."""
    async with asyncio.timeout(DEADLINE_S):
        while not await crowd.known():
            await asyncio.sleep(0.05)


def _token(host: Host, subject: str, *scopes: str) -> str:
    now = time.time_ns() // 1000
    return TokenKeys.open(host.data).issue(subject, scopes, lifetime_s=3_600, now=now)


async def _count(host: Host, token: str, where: str) -> int:
    from roamcast.client.asking import Asking
    from roamcast.transport.address import ServiceAddress
    from roamcast.transport.http import HttpClient

    return await Asking(HttpClient(ServiceAddress(host.url, token))).count(where)


def test_a_host_with_other_keys_says_what_to_copy(tmp_path: Path) -> None:
    async def body() -> None:
        both = Pair(tmp_path)
        one, two = both.hosts
        settings = with_server(load_settings(both.settings), name="b", data=str(two.data))
        key_id = TokenKeys.open(one.data).current()
        keeper = Keeper(settings, ready=lambda *_: None)
        keeper._keys = TokenKeys.open(two.data)
        keeper._over = asyncio.get_running_loop().create_future()
        keeper._compare_keys(ReplicaHere("a", 1, key_id, b""))
        assert not keeper._over.done()
        keeper._compare_keys(ReplicaHere("a", 1, "another", b""))
        with pytest.raises(SettingsError, match=r"copy its keys\.json into"):
            await keeper._over

    asyncio.run(body())


def test_a_service_of_several_hosts_is_not_served_without_a_keeper(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from roamcast.cli import build

    done = CliRunner().invoke(build(), ["serve", "--settings", str(Pair(tmp_path).settings)])
    assert isinstance(done.exception, SettingsError)
    assert "roamcast keep" in str(done.exception)


@pytest.mark.soak  # the simulated brokers part and join in every run
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing() or "ready")
def test_sides_that_are_parted_each_have_a_server_and_joined_they_have_one(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(2))
        parted = Parted(tmp_path, network)
        parted.make()
        sides = []
        for name, around in (("ada", "server"), ("bob", "client1")):
            token = parted.token(name)
            given = {
                "url": parted.urls,
                "certificate": str(parted.bundle),
                "members": {name: [token, "type = 'person'"]},
            }
            sides.append((given, network.around(around)))
        for name in ("a", "b"):
            stack.enter_context(parted.keep(name))
            if name == "a":
                parted.serves("a")
        parted.followed("a")
        processes = [stack.enter_context(members(*side)) for side in sides]
        for process in processes:
            assert process.answer() == "ready"
            process.ask("publish", OBJECTS)
        wait_until_equal(processes, "socket")
        parted.put("a", "before")
        parted.cut()
        parted.serves("b")
        # Each side goes on with a server of its own.
        wait_until_equal(processes, "socket")
        for process in processes:
            process.ask("publish", 2 * OBJECTS)
        for process in processes:
            wait_until_equal([process], "socket")
        assert parted.vids("a") & parted.vids("b")
        for name in ("a", "b"):
            parted.put(name, f"at-{name}")
        parted.remove("b", "before")
        parted.join()
        parted.followed("b")  # the newer one; the other has handed over and stands by
        wait_until_equal(processes, "socket")
        reports = wait_until_equal(processes, "socket")
        assert len(reports["ada"]["shown"]) == len(reports["bob"]["shown"])
        assert len(reports["ada"]["shown"]) == 2 * (OBJECTS - PRIVATE)
        assert {step for _, step in reports["ada"]["shown"].values()} == {1}
        there = parted.vids("b")
        assert {"at-a", "at-b"} <= there
        assert "before" not in there
        with pytest.raises(AssertionError):
            parted.vids("a")


@pytest.mark.soak  # simulated brokers hand over in every run, and above a real host takes over
def test_a_host_that_is_asked_to_end_has_given_the_other_all_it_acknowledged(
    tmp_path: Path,
) -> None:
    asyncio.run(_end_under_load(tmp_path))


async def _end_under_load(folder: Path) -> None:
    acknowledged: list[str] = []
    async with pair(folder, PATIENT) as both:
        one, two = both.hosts
        asking = both.asking(one)

        async def put(writer: int) -> None:
            for number in range(1_000_000):
                vid = f"v{writer}-{number}"
                try:
                    await asking.put(Context(vid, "own/1", None, {}, time.time_ns() // 1000))
                except RoamcastError:
                    return
                acknowledged.append(vid)

        writing = [asyncio.create_task(put(writer)) for writer in range(16)]
        await until(lambda: len(acknowledged) > 300)
        for host in (one, two):  # the other one before it serves: what it has, it has by following
            assert host.process is not None
            host.process.terminate()
            await host.process.wait()
        await asyncio.gather(*writing)
    disk = SqliteStore.open(two.data / STORE_FILE, copied=True)
    stored = disk.load(PREFIX)
    await disk.close()
    assert {PREFIX + vid for vid in acknowledged} <= stored.keys()
