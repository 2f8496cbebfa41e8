"""A session outlives its links and its server: nothing twice, nothing stale, nothing forgotten."""

import asyncio
import random

import msgspec
import pytest

from roamcast.channels.client import session as client_session
from roamcast.channels.client.link_messages import Goodbye
from roamcast.channels.server.settings import MapSettings
from roamcast.client import Change, Session, View, connect
from roamcast.client.connecting import Connecting
from roamcast.errors import AuthError, UnreachableError
from tests.strategies_service import QUICK, TOKEN, Service, in_loop, lossy, running, until

PATIENT = msgspec.structs.replace(QUICK, client_timeout_us=60_000_000)
"""Nobody counts as gone because a busy machine let them wait."""


def session(service: Service, device: str) -> Connecting:
    return connect(service.url, TOKEN, device=device)


async def collect(view: View, told: list[Change]) -> None:
    async for change in view:
        told.append(change)  # noqa: PERF401 — others look at it meanwhile


def mirror_of(told: list[Change]) -> dict[str, str | None]:
    """Apply changes as a user would; one that is told twice, or out of turn, is an error."""
    mirror: dict[str, str | None] = {}
    for change in told:
        if change.context is None:
            continue
        if change.kind == "appeared":
            assert change.vid not in mirror
            mirror[change.vid] = change.context.place
        elif change.kind == "changed":
            assert mirror[change.vid] != change.context.place
            mirror[change.vid] = change.context.place
        else:
            del mirror[change.vid]
    return mirror


async def people(service: Service, count: int) -> list[Session]:
    return [await session(service, f"device-{number}") for number in range(count)]


@pytest.fixture
def long_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for those who are not back yet: how long that takes is the machine's load.

    By default a view believes after half a second that who is missing has left (0074). On a busy
    machine some are later, leave and come again: right, and not what these tests count.
    """
    monkeypatch.setattr(client_session, "DOUBT_US", 60_000_000)


@pytest.mark.usefixtures("long_doubt")
@in_loop
async def test_after_a_kill_everyone_is_back_and_nobody_is_told_anything_twice() -> None:
    service = Service(PATIENT)
    await service.start()
    sessions = await people(service, 6)
    for number, one in enumerate(sessions):
        await one.publish(f"p{number}", place="hq/1", type="person")
    told: list[Change] = []
    reader = asyncio.create_task(collect(sessions[0].watch("type = 'person'"), told))
    await until(lambda: len(told) == 7)
    for _ in range(3):
        await service.kill()
        await until(lambda: not any(one.connected for one in sessions))
        await service.start()
        await until(lambda: len(service.machine.map.contexts) == 6)
        await until(lambda: all(one.connected for one in sessions))
    # Registering again is no change of anything, and the marks are there once.
    await sessions[3].publish("p3", place="hq/2", type="person")
    await until(lambda: told[-1].vid == "p3" and told[-1].kind == "changed")
    assert len(told) == 8
    for one in sessions:
        await one.close()
    await reader
    await service.kill()


@in_loop
async def test_what_left_during_the_outage_is_told_as_left() -> None:
    service = Service()
    await service.start()
    you, me, gone = await people(service, 3)
    await me.publish("stays", place="hq/1", type="person")
    await gone.publish("goes", place="hq/1", type="person")
    view = you.watch("type = 'person'")
    told: list[Change] = []
    reader = asyncio.create_task(collect(view, told))
    await until(lambda: len(told) == 3)
    await service.kill()
    await gone.close()
    moved = asyncio.create_task(me.publish("stays", place="hq/9", type="person"))
    await service.start()
    await moved
    await until(lambda: mirror_of(told) == {"stays": "hq/9"})
    assert list(view.contexts) == ["stays"]
    for one in (you, me):
        await one.close()
    await reader
    await service.kill()


@in_loop
async def test_a_broken_link_is_mended_and_the_session_goes_on() -> None:
    async with running() as service:
        you, me = await people(service, 2)
        told: list[Change] = []
        reader = asyncio.create_task(collect(you.watch("type = 'person'"), told))
        await until(lambda: len(told) == 1)
        for step in range(5):
            service.cut()
            await me.publish("p", place=f"hq/{step}", type="person")
        await until(lambda: mirror_of(told) == {"p": "hq/4"})
        for one in (you, me):
            await one.close()
        await reader


@pytest.mark.parametrize("seed", range(2))
def test_under_loss_kills_and_cuts_every_view_ends_right(seed: int) -> None:
    asyncio.run(_storm(seed))


async def _storm(seed: int) -> None:
    draw = random.Random(seed)
    service = Service()
    await service.start()
    sessions = await people(service, 5)
    told: list[list[Change]] = [[] for _ in sessions]
    readers = [
        asyncio.create_task(collect(one.watch("type = 'person'"), heard))
        for one, heard in zip(sessions, told, strict=True)
    ]
    service.loses = lossy(0.1, seed)
    moves: list[asyncio.Task[object]] = []
    final: dict[str, str] = {}
    for step in range(60):
        who = draw.randrange(5)
        vid = f"p{who}{draw.randrange(4)}"
        final[vid] = f"hq/{step}"
        moves.append(
            asyncio.create_task(sessions[who].publish(vid, place=f"hq/{step}", type="person"))
        )
        await asyncio.sleep(0.005)
        if step % 20 == 10:
            service.cut()
        if step in (25, 45):
            await service.kill()
            await service.start()
    service.loses = lambda _: False
    async with asyncio.timeout(30):
        await asyncio.gather(*moves)
    await until(lambda: all(mirror_of(heard) == final for heard in told), 30)
    for one in sessions:
        await one.close()
    await asyncio.gather(*readers)
    await service.kill()


@pytest.mark.usefixtures("long_doubt")
@in_loop
async def test_a_service_that_returns_with_other_settings_is_served_by_them() -> None:
    service = Service(PATIENT)
    await service.start()
    you, me = await people(service, 2)
    await me.publish("p", place="hq/1", type="person")
    view = you.watch("type = 'person'")
    told: list[Change] = []
    reader = asyncio.create_task(collect(view, told))
    await until(lambda: len(told) == 2)
    await service.kill()
    service.settings = MapSettings(
        heartbeat_us=100_000, server_here_us=100_000, client_timeout_us=50_000_000
    )
    await service.start()
    await me.publish("p", place="hq/2", type="person")
    await until(lambda: mirror_of(told) == {"p": "hq/2"})
    assert [one.kind for one in told] == ["appeared", "current", "changed"]
    for one in (you, me):
        await one.close()
    await reader
    await service.kill()


@in_loop
async def test_a_silent_service_is_dialled_again() -> None:
    async with running() as service:
        (me,) = await people(service, 1)
        welcomes = service.welcomes
        service.loses = lambda _: True  # the link is up and says nothing
        await until(lambda: service.welcomes > welcomes)
        service.loses = lambda _: False
        await me.appear(place="hq/1")
        await me.close()


@in_loop
async def test_a_goodbye_says_when_to_come_again_or_never() -> None:
    async with running() as service:
        you, me = await people(service, 2)
        view = you.watch("type = 'person'")
        assert (await anext(view)).kind == "current"
        await service.part("ada#device-0", Goodbye("too slow", 1_000))
        await me.publish("p", place="hq/1", type="person")
        async with asyncio.timeout(20):
            assert (await anext(view)).vid == "p"
        await service.part("ada#device-0", Goodbye("replaced by another device", 0))
        with pytest.raises(UnreachableError, match="replaced"):
            await anext(view)
        with pytest.raises(UnreachableError, match="replaced"):
            await you.appear(place="hq/1")
        await you.close()
        await me.close()


@in_loop
async def test_a_key_that_expired_meanwhile_ends_the_session_and_a_fresh_one_goes_on() -> None:
    service = Service()
    await service.start()
    keys = [TOKEN]
    old = await connect(service.url, TOKEN, device="old")
    new = await connect(service.url, lambda: keys[-1], device="new")
    view = old.watch("type = 'person'")
    assert (await anext(view)).kind == "current"
    waiting = asyncio.create_task(_appear_when_away(old, service))
    await service.kill()
    service.token = "another"
    keys.append("another")
    await service.start()
    with pytest.raises(AuthError, match="make a token"):
        await anext(view)
    with pytest.raises(AuthError):
        await waiting
    await new.appear(place="hq/1")
    for one in (old, new):
        await one.close()
    await service.kill()


@in_loop
async def test_when_its_key_expires_a_session_goes_on_with_the_next_one_it_is_given() -> None:
    async with running() as service:
        keys = [TOKEN]
        fixed = await connect(service.url, TOKEN, device="fixed")
        late = await connect(service.url, lambda: TOKEN, device="late")
        fresh = await connect(service.url, lambda: keys[-1], device="fresh")
        views = [one.watch("type = 'person'") for one in (fixed, late, fresh)]
        for view in views:
            assert (await anext(view)).kind == "current"
        service.token = "another"
        keys.append("another")
        for name in ("fixed", "late", "fresh"):
            await service.part(f"ada#{name}", Goodbye("token: this token expired", 0))
        for one, view in ((fixed, views[0]), (late, views[1])):
            with pytest.raises(AuthError, match=r"^this token expired$") as caught:
                await anext(view)
            assert caught.value.status == 401
            with pytest.raises(AuthError, match="expired"):
                await one.appear(place="hq/1")
        await fresh.publish("p", place="hq/1", type="person")
        async with asyncio.timeout(20):
            assert (await anext(views[2])).vid == "p"
        for one in (fixed, late, fresh):
            await one.close()


async def _appear_when_away(one: Session, service: Service) -> None:
    await until(lambda: not one.connected)
    await one.appear(place="hq/1")


@in_loop
async def test_closing_while_the_service_is_away_ends_at_once() -> None:
    service = Service()
    await service.start()
    (me,) = await people(service, 1)
    view = me.watch("type = 'person'")
    await me.appear(place="hq/1", type="person")
    await service.kill()
    await until(lambda: not me.connected)
    await me.close()
    assert {change.kind async for change in view} == {"appeared", "current"}
    with pytest.raises(UnreachableError, match="closed"):
        await me.appear(place="hq/1")
