"""The host that serves is gone: another one has everything, and there is one map again later.

Hosts are data folders and ports of this machine, or network namespaces that are parted and joined.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import websockets

from bench.takeover import Host, Pair, pair, storm
from roamcast.client import connect
from roamcast.errors import UnreachableError
from roamcast.live.keys import Keys
from roamcast.live.settings import KEY_FILE
from roamcast.model.contexts import Context
from tests.live.processes import DEADLINE_S

WATCHED = "place = 'hq/1' OR type = 'person'"


@pytest.mark.slow
def test_when_a_host_dies_under_load_the_other_has_everything_and_back(tmp_path: Path) -> None:
    found = asyncio.run(storm(tmp_path, rounds=2, people=6, seed=5, step=lambda _: None))
    assert [one.lost for one in found] == [0, 0]
    assert found[1].acknowledged > found[0].acknowledged > 0


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
        where = f"ws{url.removeprefix('http')}/session?device=page&access_token={self._token}"
        async with websockets.connect(where, open_timeout=5, proxy=None) as socket:
            welcome = json.loads(await socket.recv())
            self._hosts = list(dict.fromkeys([url, *welcome["hosts"]]))
            feature = {"type": "Feature", "id": "page", "geometry": None}
            feature["properties"] = {"place": "hq/1"}  # type: ignore[assignment]
            await socket.send(json.dumps({"type": "appear", "re": "a", "feature": feature}))
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
def test_sessions_rules_and_kept_objects_are_at_the_host_that_takes_over_and_merge_later(
    tmp_path: Path,
) -> None:
    asyncio.run(_sessions(tmp_path))


async def _sessions(folder: Path) -> None:
    async with pair(folder) as both, contextlib.AsyncExitStack() as stack:
        one, two = both.hosts
        asking = both.asking(one)
        stranger = _token(one, "stranger", "read")
        me = await stack.enter_async_context(connect(one.url, both.token, device="me"))
        view = me.watch(WATCHED)
        page = Page(one.url, both.token)
        running = asyncio.create_task(page.run())
        stack.callback(running.cancel)
        await me.publish("mine", place="hq/2", type="person")
        for vid in ("kept", "hidden", "removed"):
            await asking.put(Context(vid, "hq/1", None, {}, me.now()))
        await asking.rules("hidden", [{"viewers": ["operator"], "precision": "exact"}])
        await asking.remove("removed")
        expected = {"mine": "hq/2", "kept": "hq/1", "hidden": "hq/1", "page": "hq/1"}

        def right() -> bool:
            seen = {vid: context.place for vid, context in view.objects.items()}
            return seen == page.shown == expected

        def differ() -> str:
            return f"{view.objects} {page.shown}, not {expected}"

        await until(right, differ)
        await one.die()
        await two.ready()
        await until(lambda: page.hosts_seen == [one.url, two.url])
        await until(right, differ)
        assert await _count(two, stranger) == len(expected) - 1
        await both.asking(two).remove("kept")
        del expected["kept"]
        await until(right, differ)
        # Now the host that serves only sleeps, and wakes with an older map than the other's.
        await one.keep(both.settings)
        await both.followed(two)
        assert two.process is not None
        sleepers = [two.process.pid, two.pid]
        for pid in sleepers:
            os.kill(pid, signal.SIGSTOP)
        await one.ready()
        await me.publish("mine", place="hq/3", type="person")
        await both.asking(one).put(Context("late", "hq/1", None, {}, me.now()))
        expected |= {"mine": "hq/3", "late": "hq/1"}
        for pid in sleepers:
            os.kill(pid, signal.SIGCONT)
        await both.followed(one)  # it stands by: it has stepped down
        with pytest.raises(UnreachableError):
            await both.asking(two).count()
        await until(right, differ)
        assert await _count(one, stranger) == len(expected) - 1


def _token(host: Host, subject: str, *scopes: str) -> str:
    now = time.time_ns() // 1000
    return Keys.open(host.data).issue(subject, scopes, lifetime_s=3_600, now=now)


async def _count(host: Host, token: str) -> int:
    from roamcast.client.address import Address
    from roamcast.client.asking import Asking
    from roamcast.client.http import Http

    return await Asking(Http(Address(host.url, token))).count()


def test_a_host_with_other_keys_says_what_to_copy(tmp_path: Path) -> None:
    async def body() -> None:
        both = Pair(tmp_path)
        one, two = both.hosts
        (two.data / KEY_FILE).unlink()
        try:
            await one.keep(both.settings)
            await one.ready()
            await two.keep(both.settings)
            assert two.process is not None
            assert await asyncio.wait_for(two.process.wait(), DEADLINE_S) == 2
        finally:
            for host in both.hosts:
                if host.process is not None and host.process.returncode is None:
                    host.process.terminate()
                    await host.process.wait()

    asyncio.run(body())


def test_a_service_of_several_hosts_is_not_served_without_a_keeper(tmp_path: Path) -> None:
    both = Pair(tmp_path)
    command = [sys.executable, "-m", "roamcast", "serve", "--settings", str(both.settings)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert b"roamcast keep" in done.stderr
