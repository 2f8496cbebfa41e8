"""A real service, a real relay and SDK clients behind it: nobody can tell the difference (AMS 17).

What was said of relays in the simulator is held here against processes, sockets and tokens: after a
kill -9 of the service every view is the service's again, nobody sees through a relay what rules
forbid them, and a token is worth as much before a relay as before the service.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from roamcast.channels.client.link_messages import LINK_PROTOCOL, Goodbye
from roamcast.channels.server.messages import Hello, Request
from roamcast.cli import build
from roamcast.client import connect
from roamcast.client.session import Session
from roamcast.client.views import View
from roamcast.errors import AuthError, InputError, SettingsError
from roamcast.journal.segments import read_entries
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.config.settings import ServerSection, check_secured
from roamcast.model.records import Transmission
from tests.running_relay import RunningRelay
from tests.running_service import RunningService

pytestmark = pytest.mark.process

DEADLINE_S = 120.0
LAB = "within(place, 'lab')"
STAFF_ONLY = [{"viewers": ["staff"], "precision": "exact"}]
OBJECTS = 10
MOVES = 20


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Person:
    """A session that moves its objects about, follows the lab and remembers all it ever saw."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self.session = session
        self.view: View = session.watch(LAB)
        self.seen: set[str] = set()
        self._follows = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for change in self.view:
            if change.context is not None:
                self.seen.add(change.vid)

    async def publish(self, moves: range) -> None:
        for step in moves:
            await asyncio.gather(
                *(
                    self.session.publish(
                        f"{self.name}-{number}", f"lab/{(step * 7 + number) % 5}", step=step
                    )
                    for number in range(OBJECTS)
                )
            )

    async def shows(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it shows, and what the service answers to it."""
        shown = dict(self.view.contexts)
        answered = {one.vid: one for one in await self.session.who(LAB)}
        return tuple({vid: (one.place, one.attributes) for vid, one in these.items()}
                     for these in (shown, answered))  # type: ignore[return-value]  # fmt: skip

    async def until_equal(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                shown, answered = await self.shows()
                if shown == answered and len(shown) == count:
                    return
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        self._follows.cancel()
        await asyncio.gather(self._follows, return_exceptions=True)
        await self.session.close()


async def people_of(service: RunningService, relay: RunningRelay) -> list[Person]:
    """Four behind the relay, two of them staff and one on a narrow link; and one without it."""
    found = []
    for name, url, groups, limit in (
        ("ada", relay.url, ("staff",), 0),
        ("bob", relay.url, (), 0),
        ("cleo", relay.url, (), 20_000),
        ("dan", relay.url, ("staff",), 0),
        ("eve", service.url, (), 0),
    ):
        token = service.token(name, groups=groups)
        session = await connect(url, token, device="test", limit_bytes=limit, timeout_s=60.0)
        found.append(Person(name, session))
    return found


async def moving_on_a_killed_service(service: RunningService, relay: RunningRelay) -> None:
    people = await people_of(service, relay)
    for one in people:  # of each one's objects the first is for the staff
        await one.session.rules(f"{one.name}-0", STAFF_ONLY)
    await asyncio.gather(*(one.publish(range(MOVES)) for one in people))
    assert relay.held("clients served") == 2
    assert relay.held("clients passed through") == 2
    moving = [asyncio.create_task(one.publish(range(MOVES, 2 * MOVES))) for one in people]
    await asyncio.sleep(0)
    await asyncio.to_thread(service.kill)
    await asyncio.to_thread(service.start)
    await asyncio.gather(*moving)
    hidden = {f"{one.name}-0" for one in people}
    for _ in range(2):  # the second time everything was published before the first question
        for one in people:
            staff = one.name in ("ada", "dan")
            await one.until_equal(len(people) * OBJECTS - (0 if staff else len(hidden)))
    for one in people:
        assert (hidden <= one.seen) if one.name in ("ada", "dan") else not hidden & one.seen
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(relay.held, "groups by UDP or NATS"):
            await asyncio.sleep(0.1)
    await asyncio.gather(*(one.close() for one in people))
    ready = await asyncio.to_thread(relay.ask, "GET", "/readyz")
    assert ready.json == {"status": "ready"}
    await asyncio.to_thread(service.end)  # its journal is whole only then
    sent = [record for _, _, record in read_entries(service.data / "journal")
            if isinstance(record, Transmission)]  # fmt: skip
    assert {"link.welcome", "map.answer", "map.batch"} <= {one.message for one in sent}
    assert any(one.channel and one.message == "channel.data" for one in sent)


PORT = free_udp_port()
SETTINGS = """
[limits]
requests_per_s = 10_000
[channels]
udp = "239.192.79.0/29:{port}"
udp_interface = "127.0.0.1"
probe_s = 0.1
relays = ["edge"]
"""


@pytest.mark.soak  # the relay workload does the same in every run, and below is what a relay serves
def test_after_a_kill_of_the_service_every_view_behind_the_relay_equals_its_own(
    tmp_path: Path,
) -> None:
    with RunningService(tmp_path, SETTINGS.format(port=PORT)) as service:
        (tmp_path / "relay").mkdir()
        token = service.token("edge", ["subscribe"])
        with RunningRelay(
            tmp_path / "relay", service, "", "--interface", "127.0.0.1", token=token
        ) as relay:
            asyncio.run(moving_on_a_killed_service(service, relay))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("service")) as one:
        yield one


@pytest.fixture(scope="module")
def relay(
    service: RunningService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningRelay]:
    limits = "[limits]\nconnections_per_subject_max = 2\nbody_bytes_max = 2_000\n"
    with RunningRelay(tmp_path_factory.mktemp("relay"), service, limits) as one:
        yield one


def test_a_token_is_worth_as_much_before_a_relay_as_before_the_service(
    service: RunningService, relay: RunningRelay, tmp_path: Path
) -> None:
    now = time.time_ns() // 1000
    head, claims, signature = service.token().split(".")
    foreign = TokenKeys.open(tmp_path).issue("ada", ["admin"], lifetime_s=60, now=now)
    for token, reason in (
        (f"{head}.{claims}.{signature[::-1]}", "not a token of this service"),
        (foreign, "not a token of this service"),
        (service.token(lifetime_s=1, late_s=-600), "expired"),
        (service.token(scopes=["read"]), "scope"),
    ):

        async def dial(token: str = token) -> None:
            async with connect(relay.url, token):
                raise AssertionError("it was let in")

        with pytest.raises(AuthError, match=reason):
            asyncio.run(dial())
        answer = relay.ask("GET", "/count", token)
        assert answer.status == service.ask("GET", "/count", token).status
    assert relay.ask("GET", "/count").status == 401
    assert relay.ask("GET", "/metrics").status == 401
    assert relay.ask("GET", "/metrics", service.token("admin")).status == 401


def test_what_a_revoked_token_opened_through_a_relay_is_ended(
    service: RunningService, relay: RunningRelay
) -> None:
    async def scene() -> None:
        token = service.token("leaked")
        async with connect(relay.url, token) as leaked, connect(relay.url, service.token()) as ada:
            view, stays = leaked.watch(LAB), ada.watch(LAB)
            await ada.publish("first", "lab/1")
            for one in (view, stays):
                await until(one, "first")
            TokenKeys.open(service.data).revoke(token, time.time_ns() // 1000)
            with pytest.raises(AuthError, match="revoked"):
                await until(view, "what never comes")
            await ada.publish("second", "lab/1")
            await until(stays, "first", "second")

    asyncio.run(scene())


async def until(view: View, *vids: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while set(view.contexts) != set(vids):
            await anext(view)


def test_who_is_named_by_a_rule_is_served_no_more_but_passed_through(
    service: RunningService, relay: RunningRelay
) -> None:
    async def scene() -> None:
        async with (
            connect(relay.url, service.token("gil")) as gil,
            connect(relay.url, service.token("hana")) as hana,
        ):
            views = [one.watch("type = 'lamp'") for one in (gil, hana)]
            await gil.publish("lamp", "lab/1", type="lamp")
            for view in views:
                await until(view, "lamp")
            assert await asyncio.to_thread(relay.held, "clients passed through") == 0
            rules: list[dict[str, Any]] = [{"viewers": ["hana"], "precision": "exact"}]
            await gil.rules("lamp", rules)  # its owner may, although it came through a relay
            await until(views[0])
            await gil.publish("lamp", "lab/2", type="lamp")
            async with asyncio.timeout(DEADLINE_S):
                while [one.place for one in views[1].contexts.values()] != ["lab/2"]:
                    await anext(views[1])
            assert views[0].contexts == {}
            assert await asyncio.to_thread(relay.held, "clients passed through") == 1

    asyncio.run(scene())


def test_what_a_session_published_through_a_relay_leaves_with_it_at_once(
    service: RunningService, relay: RunningRelay
) -> None:
    async def scene() -> None:
        async with connect(service.url, service.token("ivo")) as ivo:
            view = ivo.watch("type = 'kite'")
            async with connect(relay.url, service.token("jan")) as jan:
                await jan.publish("kite", "lab/1", type="kite")
                await until(view, "kite")
            await until(view)  # the relay has told the service, which nobody waits for
            owner = await asyncio.to_thread(service.ask, "GET", "/contexts/kite", service.token())
            assert owner.status == 404

    asyncio.run(scene())


def test_a_relay_keeps_its_own_limits_and_says_what_it_does_not_have(
    service: RunningService, relay: RunningRelay
) -> None:
    token = service.token("kim")
    with relay.session(token, "/link?device=a"), relay.session(token, "/link?device=b"):
        with pytest.raises(InvalidStatus, match="429"), relay.session(token, "/link?device=c"):
            pass
        answer = relay.ask("PUT", "/contexts/x", token, b"x" * 2_001)
        assert "at most 2000 bytes" in answer.problem
        assert relay.ask("PUT", "/contexts/x", token, b"x" * 2_000).status == 400
        for path in ("/session", "/changes"):
            assert "ask the service" in relay.ask("GET", path, token).problem
        with pytest.raises(InvalidStatus, match="404"), relay.session(token):
            pass
        assert relay.ask("GET", "/healthz").json == {"status": "alive"}
        landing = relay.ask("GET", "/", token)
        assert f"127.0.0.1:{relay.port}" in landing.body.decode()


def test_only_who_the_settings_name_may_stand_for_others(service: RunningService) -> None:
    with service.session(service.token("lea", ["subscribe"]), "/link") as held:
        welcome = LINK_PROTOCOL.decode(bytes(held.recv(DEADLINE_S)))
        claim = Request(welcome.epoch, 1, 1, (Hello(relay=True),))  # type: ignore[union-attr]
        held.send(LINK_PROTOCOL.encode(claim))
        said = LINK_PROTOCOL.decode(bytes(held.recv(DEADLINE_S)))
        assert isinstance(said, Goodbye)
        assert "relay" in said.reason


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:65536", ":8081"])
def test_where_a_relay_listens_is_a_host_and_a_port(listen: str) -> None:
    done = CliRunner().invoke(build(), ["relay", "--listen", listen])
    assert isinstance(done.exception, InputError)
    assert "HOST:PORT" in str(done.exception)


def test_a_relay_says_in_one_line_why_it_cannot_run(service: RunningService) -> None:
    command = [sys.executable, "-m", "roamcast", "relay", service.url, "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--token", "x"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2
    assert "not a token of this service" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_tls_nobody_listens_beyond_loopback() -> None:
    check_secured(ServerSection(host="::1"))
    with pytest.raises(SettingsError, match=r"0\.0\.0\.0 without TLS"):
        check_secured(ServerSection(host="0.0.0.0"))
