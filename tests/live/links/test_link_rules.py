"""A client whose rights change while it is connected sees what it may see from then on."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roamcast.client import connect
from roamcast.client.session import Session
from roamcast.client.views import View
from roamcast.errors import AuthError
from roamcast.live.auth.admission import TokenKeys
from tests.running_service import RunningService

pytestmark = pytest.mark.process

DEADLINE_S = 120.0
HERE = "within(place, 'hq')"
FOR_EVE = [{"viewers": ["eve"], "precision": "exact"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("service")) as one:
        yield one


async def until(view: View, *vids: str) -> None:
    """Wait until a view shows exactly these."""
    async with asyncio.timeout(DEADLINE_S):
        while set(view.contexts) != set(vids):
            await anext(view)


async def until_equal(session: Session, view: View) -> None:
    """Wait until a view is where the service says that everything is.

    Not since when: a rule without `past` hides that, and an answer says "now".
    """
    asked = {context.vid: context.place for context in await session.who(HERE)}
    async with asyncio.timeout(DEADLINE_S):
        while {vid: context.place for vid, context in view.contexts.items()} != asked:
            await anext(view)


async def dialled(session: Session, times: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while session._runner.link.dialled < times or not session.connected:
            await asyncio.sleep(0.01)


def test_who_is_named_by_a_rule_gets_a_class_of_its_own_and_its_channels(
    service: RunningService,
) -> None:
    async def scene() -> None:
        async with (
            connect(service.url, service.token("ada")) as ada,
            connect(service.url, service.token("eve"), device="phone") as eve,
            connect(service.url, service.token("eve"), device="watch") as also,
            connect(service.url, service.token("sam")) as sam,
        ):
            everyone = [one.watch(HERE) for one in (eve, also, sam)]
            await ada.publish("open", "hq/1")
            for view in everyone:
                await until(view, "open")
            await ada.rules("secret", FOR_EVE)  # names eve for the first time
            await ada.publish("secret", "hq/2")
            for device in (eve, also):
                await dialled(device, 2)
            for step in range(30):  # by channels of eve's own class, as she has two devices
                await ada.publish("open", f"hq/{step}")
                await ada.publish("secret", f"hq/{step}")
            await ada.publish("end", "hq/1")
            for view in everyone[:2]:
                await until(view, "open", "secret", "end")
            await until(everyone[2], "open", "end")
            for one, view in zip((eve, also, sam), everyone, strict=True):
                await until_equal(one, view)
            counts = eve._runner.link.dialled, sam._runner.link.dialled
            assert counts == (2, 2)  # eve has the key of the class they shared: sam gets another

    asyncio.run(scene())


def test_when_a_token_is_revoked_the_others_of_the_class_go_on_with_another_key(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = f"""
[channels]
udp = "239.192.78.0/29:{port}"
udp_interface = "127.0.0.1"
probe_s = 0.1
"""
        with RunningService(tmp_path, settings) as service:
            asyncio.run(outlive_another(service))


async def outlive_another(service: RunningService) -> None:
    here = {"interface": "127.0.0.1"}
    eves = service.token("eve")
    async with (
        connect(service.url, service.token("ada"), **here) as ada,
        connect(service.url, service.token("bob"), **here) as bob,
        connect(service.url, eves, **here) as eve,
    ):
        views = [one.watch(HERE) for one in (ada, bob)]
        ended = eve.watch(HERE)
        await ada.publish("first", "hq/1")
        for view in (*views, ended):
            await until(view, "first")
        async with asyncio.timeout(DEADLINE_S):
            while not all(one.way == "udp" for one in (ada, bob, eve)):
                await asyncio.sleep(0.01)
        before = bob._runner.ways._groups
        TokenKeys.open(service.data).revoke(eves, time.time_ns() // 1000)
        with pytest.raises(AuthError, match="revoked"):
            await until(ended, "what never comes")
        async with asyncio.timeout(DEADLINE_S):
            while bob._runner.ways._groups is before or bob.way != "udp":
                await asyncio.sleep(0.01)
        for number in range(20):
            await ada.publish(f"later-{number}", "hq/2")
        expected = ["first", *(f"later-{number}" for number in range(20))]
        for view in views:
            await until(view, *expected)
        assert bob.connected
        assert bob._runner.link.dialled == 1


def test_a_session_outlives_its_tokens_if_a_function_gives_the_next_one(tmp_path: Path) -> None:
    async def scene(service: RunningService) -> None:
        async with (
            connect(service.url, service.token("ada")) as ada,
            connect(service.url, lambda: service.token("eve", lifetime_s=5)) as eve,
        ):
            view = eve.watch(HERE)
            await dialled(eve, 2)
            await ada.publish("news", "hq/1")
            await until(view, "news")

    with RunningService(tmp_path, "[limits]\nclock_skew_s_max = 0\n") as service:
        asyncio.run(scene(service))
