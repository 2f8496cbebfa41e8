"""A session of a real service hears its channels by NATS while that works, else by its socket."""

import asyncio
from collections.abc import Iterator

import pytest

from roamcast.client import Session, View, connect
from roamcast.client.session import Connecting
from roamcast.errors import AuthError
from tests.nats_server import BINARY, MISSING, NatsServer
from tests.running_service import RunningService
from tests.strategies_service import until

pytestmark = [pytest.mark.process, pytest.mark.skipif(BINARY is None, reason=MISSING)]
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as one:
        yield one


@pytest.fixture(scope="module")
def running(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    settings = f'[channels]\nnats = "{nats.url}"\nprobe_s = 0.1\n[journal]\non = false\n'
    with RunningService(tmp_path_factory.mktemp("ways"), settings) as one:
        yield one


def session(running: RunningService, device: str, token: str | None = None) -> Connecting:
    return connect(running.url, token or running.operator, device=device, timeout_s=PATIENCE_S)


async def moves(me: Session, views: list[View], steps: range) -> None:
    """Move about, and wait until everybody who watches has seen where to."""
    for step in steps:
        await me.publish("p", place=f"hq/{step}", type="person")
    last = f"hq/{steps[-1]}"
    await until(
        lambda: (
            all(view.contexts["p"].place == last for view in views if "p" in view.contexts)
            and all("p" in view.contexts for view in views)
        ),
        PATIENCE_S,
    )


def test_sessions_move_between_nats_and_their_sockets(
    running: RunningService, nats: NatsServer
) -> None:
    asyncio.run(_move_between(running, nats))


async def _move_between(running: RunningService, nats: NatsServer) -> None:
    async with session(running, "a") as me, session(running, "b") as b, session(running, "c") as c:
        watchers = [b, c]
        views = [one.watch("type = 'person'") for one in watchers]
        await moves(me, views, range(5))
        await until(lambda: all(one.way == "nats" for one in watchers), PATIENCE_S)
        await moves(me, views, range(5, 40))
        nats.kill()
        await until(lambda: all(one.way == "socket" for one in watchers), PATIENCE_S)
        await moves(me, views, range(40, 60))
        nats.start()
        await until(lambda: all(one.way == "nats" for one in watchers), PATIENCE_S)
        await moves(me, views, range(60, 80))


def test_whom_a_rule_begins_to_name_sees_less_and_may_do_what_its_token_says(
    running: RunningService,
) -> None:
    asyncio.run(_named(running, running.token("bob", ["subscribe"])))


async def _named(running: RunningService, token: str) -> None:
    async with session(running, "owner") as me, session(running, "bob", token) as bob:
        view = bob.watch("type = 'cart'")
        await me.publish("cart", place="hq/1/2/3", type="cart")
        await me.publish("other", place="hq/1", type="cart")
        await until(lambda: sorted(view.contexts) == ["cart", "other"], PATIENCE_S)
        hidden = {"viewers": ["bob"], "precision": "hidden"}
        await me.rules("cart", [hidden, {"viewers": ["*"], "precision": "exact"}])
        await until(lambda: list(view.contexts) == ["other"], PATIENCE_S)
        await me.publish("other", place="hq/2", type="cart")
        await until(lambda: view.contexts["other"].place == "hq/2", PATIENCE_S)
        assert list(view.contexts) == ["other"]
        for work in (bob.appear(place="hq/1"), bob.who("type = 'cart'")):
            with pytest.raises(AuthError) as caught:
                await work
            assert caught.value.status == 403
        assert bob.connected
