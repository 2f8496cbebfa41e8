"""Groups by a real NATS server: who listens hears, through restarts of the server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from roamcast.channels.client.link_messages import GROUP_FRAME_BYTES_MAX
from roamcast.errors import GroupsUnavailable
from roamcast.transport.groups_nats import WAITING_MAX, NatsGroups
from roamcast.transport.sealing import class_key, seal_of_client, seals_of_classes
from tests.nats_server import BINARY, MISSING, NatsServer

pytestmark = [pytest.mark.process, pytest.mark.skipif(BINARY is None, reason=MISSING)]

SECRET = bytes(32)
DEADLINE_S = 60.0
PREFIX = "roamcast.test"


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as one:
        yield one


class Listener:
    """A client's groups and what it heard."""

    def __init__(self, url: str, view_class: str = "", prefix: str = "roamcast") -> None:
        self.heard: dict[tuple[str, bytes], int] = {}
        self.groups = NatsGroups(
            url,
            prefix=prefix,
            seal_of=seal_of_client(class_key(SECRET, view_class), b"clie"),
            deliver=self._deliver,
        )

    def _deliver(self, group: str, frame: bytes) -> None:
        self.heard[group, frame] = self.heard.get((group, frame), 0) + 1


def source(url: str, prefix: str = "roamcast") -> NatsGroups:
    return NatsGroups(
        url,
        prefix=prefix,
        seal_of=seals_of_classes(SECRET, b"serv"),
        deliver=lambda *_: None,
    )


async def say_until_heard(
    sender: NatsGroups, group: str, frame: bytes, *listeners: Listener, key_class: str = ""
) -> None:
    """Say it again and again, as a channel does, until all have heard it."""
    async with asyncio.timeout(DEADLINE_S):
        while not all((group, frame) in one.heard for one in listeners):
            sender.send(group, frame, key_class)
            await asyncio.sleep(0.02)


def test_listeners_hear_their_groups_and_nothing_else(nats: NatsServer) -> None:
    async def scene() -> None:
        sender, one, guest = source(nats.url), Listener(nats.url), Listener(nats.url, "guest")
        elsewhere = Listener(nats.url, prefix="another")
        everyone = (one, guest, elsewhere)
        for each in (sender, *(listener.groups for listener in everyone)):
            await each.start()
        for each in everyone:
            for group in ("a", "b"):
                each.groups.listen(group)
        one.groups.ignore("b")
        await say_until_heard(sender, "a", b"to all", one)
        await say_until_heard(sender, "a", b"to guests", guest, key_class="guest")
        sender.send("b", b"left")
        largest = bytes(GROUP_FRAME_BYTES_MAX)
        sender.send("a", largest + b"\0")
        await say_until_heard(sender, "a", largest, one)
        assert {frame for _, frame in one.heard} == {b"to all", largest}
        assert {frame for _, frame in guest.heard} == {b"to guests"}
        assert elsewhere.heard == {}
        assert sender.counts["too large"] == 1
        for each in (sender, *(listener.groups for listener in everyone)):
            await each.close()

    asyncio.run(scene())


def test_it_begins_before_its_server_and_survives_the_servers_death(nats: NatsServer) -> None:
    async def scene() -> None:
        nats.kill()
        sender, one = source(nats.url), Listener(nats.url)
        await sender.start()
        await one.groups.start()
        one.groups.listen("a")
        sender.send("a", b"lost")
        await asyncio.to_thread(nats.start)
        await say_until_heard(sender, "a", b"first life", one)
        nats.kill()
        one.groups.listen("b")  # while nobody is there
        one.groups.ignore("a")
        for number in range(100):
            sender.send("a", b"meanwhile %d" % number)
        await asyncio.to_thread(nats.start)
        await say_until_heard(sender, "b", b"second life", one)
        sender.send("a", b"no longer listened to")
        await say_until_heard(sender, "b", b"end", one)
        assert {frame for _, frame in one.heard} == {b"first life", b"second life", b"end"}
        await sender.close()
        await one.groups.close()

    asyncio.run(scene())


def test_the_documented_settings_let_only_the_service_publish(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    settings = tmp_path / "nats.conf"
    settings.write_text(page.split("```\n# nats.conf\n")[1].split("```")[0])

    async def scene(url: str) -> None:
        sender, one = source(url, PREFIX), Listener(url, prefix=PREFIX)
        sender._login = {"user": "roamcast", "password": "change me"}
        forger = source(url, PREFIX)  # who has a key, and no login
        for each in (sender, one.groups, forger):
            await each.start()
        one.groups.listen("a")
        await say_until_heard(sender, "a", b"by the service", one)
        async with asyncio.timeout(DEADLINE_S):
            while not forger.counts["NATS: Error"]:  # a permissions violation
                forger.send("a", b"forged")
                await asyncio.sleep(0.02)
        await say_until_heard(sender, "a", bytes(GROUP_FRAME_BYTES_MAX), one)
        assert ("a", b"forged") not in one.heard
        for each in (sender, one.groups, forger):
            await each.close()

    with NatsServer(tmp_path, settings=settings) as nats:
        asyncio.run(scene(nats.url))


def test_what_waits_for_the_server_is_bounded(nats: NatsServer) -> None:
    async def scene() -> None:
        sender, one = source(nats.url), Listener(nats.url)
        await sender.start()
        await one.groups.start()
        one.groups.listen("a")
        await say_until_heard(sender, "a", b"here", one)
        for _ in range(WAITING_MAX + 10):  # nobody else gets a turn meanwhile
            sender.send("a", b"much")
        assert sender.counts["not sent"] >= 10
        await say_until_heard(sender, "a", b"after", one)
        await sender.close()
        await one.groups.close()

    asyncio.run(scene())


def test_closing_works_without_any_server(tmp_path: Path) -> None:
    async def scene() -> None:
        sender = source("nats://127.0.0.1:1")
        await sender.start()
        sender.listen("a")
        sender.send("a", b"x")
        await asyncio.sleep(0)
        await sender.close()
        assert sender.counts["not sent"] == 1

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("url", "prefix", "problem"),
    [
        ("http://127.0.0.1:4222", "roamcast", "no address of a NATS server"),
        ("nats://127.0.0.1:4222", "", "begins no NATS subject"),
        ("nats://127.0.0.1:4222", "a.*", "begins no NATS subject"),
    ],
)
def test_what_is_no_server_or_subject_is_said_so(url: str, prefix: str, problem: str) -> None:
    with pytest.raises(GroupsUnavailable, match=problem):
        asyncio.run(source(url, prefix).start())
