"""What stays of those who have gone? The service in this process, with a clock set by hand."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.takeover import Pair
from roamcast.errors import ContextError, LimitError, StoreError
from roamcast.identity.rules import Viewer
from roamcast.live.config.settings import Settings, load_settings, with_server
from roamcast.live.service.service import Service
from roamcast.model.contexts import Context, FeatureInput, to_context
from roamcast.transport import driver
from roamcast.transport.driver import Tickets
from tests.live.calls import CallSocket, followed
from tests.live.in_process import service_here
from tests.running_service import feature

START = 1_794_800_000_000_000
SECOND = 1_000_000


class Clock:
    """Time as a test sets it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class Listener:
    """A session's connection."""

    def __init__(self) -> None:
        self.cut_for = ""

    def write(self, framed: bytes) -> None:
        del framed

    def cut(self, reason: str) -> None:
        self.cut_for = reason


def with_service(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[Service, Clock], Coroutine[Any, Any, None]],
    settings: Settings | None = None,
) -> None:
    """Run a service without a port."""
    clock = Clock()
    monkeypatch.setattr("roamcast.live.service.service.wall_clock", lambda: clock)

    async def body() -> None:
        async with service_here(folder, settings, serving=False) as service:
            await use(service, clock)

    asyncio.run(body())


@pytest.mark.parametrize("how", ["cut off", "replaced and then closed", "closed"])
def test_what_a_session_published_leaves_however_it_ended(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service, clock: Clock) -> None:
        listener, later = Listener(), Listener()
        viewer = Viewer("ada")
        service.open_session("ada#1", viewer, listener)
        await service.publish("ada", Context("x", "hq/1", None, {}, START), session="ada#1")
        if how == "cut off":
            service.slow("ada#1")
            clock.now += round(service.settings.limits.slow_s_max * SECOND)
            service.driver._wake()
            assert listener.cut_for.startswith("too slow")
        elif how == "replaced and then closed":
            service.open_session("ada#1", viewer, later)
            assert listener.cut_for.startswith("replaced")
            clock.now += 100 * SECOND
            service.driver._wake()
            assert service.broker.get(viewer, "x", clock.now) is not None
            service.close_session("ada#1", later)
        service.close_session("ada#1", listener)
        clock.now += 29 * SECOND
        service.driver._wake()
        assert service.broker.get(viewer, "x", clock.now) is not None
        clock.now += 2 * SECOND
        service.driver._wake()
        assert service.broker.get(viewer, "x", clock.now) is None

    with_service(tmp_path, monkeypatch, use)


def test_what_the_disk_can_not_name_leaves_no_ticket_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service, clock: Clock) -> None:
        with pytest.raises(AssertionError):  # nobody gets so far: it would be our own mistake
            await service.publish("ada", Context("a\0", "hq/1", None, {}, clock.now))
        assert len(service._tickets) == 0
        assert await service.publish("ada", Context("a", "hq/1", None, {}, clock.now))

    with_service(tmp_path, monkeypatch, use)


@pytest.mark.parametrize("wrong", ["a\0", "\n", "a\x7fb", "a\x9f", "\U0010ffff"])
def test_a_vid_that_is_no_name_in_the_store_is_refused_where_it_is_read(wrong: str) -> None:
    def read(vid: str) -> Context:
        sent = msgspec.convert(feature(vid), FeatureInput)
        return to_context(sent, START, ahead_us_max=0)

    with pytest.raises(ContextError, match="control characters"):
        read(wrong)
    for right in ("a b", "äß/🙂", "\U0010fffe", "~" * 256):
        assert read(right).vid == right


def test_a_closed_disk_refuses_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service, clock: Clock) -> None:
        await service._disk.close()
        with pytest.raises(StoreError, match="closed"):
            await service.publish("ada", Context("a", "hq/1", None, {}, clock.now))
        assert len(service._tickets) == 0
        assert service.broker.occupancy()["replication: writes"][0] == 0
        assert not service.broker._publications._pending
        assert not service.broker._publications._writing

    with_service(tmp_path, monkeypatch, use)


def test_so_many_may_wait_for_the_disk_and_one_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "TICKETS_MAX", 2)

    async def body() -> None:
        waiting = Tickets()
        given: list[int] = []
        asking = [asyncio.ensure_future(waiting.ask(given.append)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LimitError, match="wait for the disk"):
            await waiting.ask(given.append)
        waiting.answer(given[1], True)
        waiting.refuse(given[0], StoreError("full"))
        assert await asking[1]
        with pytest.raises(StoreError, match="full"):
            await asking[0]
        assert len(waiting) == 0
        await waiting.close(0)
        with pytest.raises(StoreError, match="going down"):
            await waiting.ask(given.append)
        assert len(given) == 2

    asyncio.run(body())


def two_hosts(folder: Path) -> Settings:
    """Give the settings of the first of two hosts."""
    return with_server(load_settings(Pair(folder).settings), name="a")


def test_who_goes_down_takes_nothing_more_and_stays_until_what_it_took_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service, clock: Clock) -> None:
        follower = CallSocket(service, "b")
        follower.follow()
        await followed(service)
        follower.confirms = False
        listener = Listener()
        service.open_session("ada#1", Viewer("ada"), listener)
        taken = asyncio.ensure_future(
            service.publish("ada", Context("x", "hq/1", None, {}, clock.now), session="ada#1")
        )
        order: list[str] = []

        def answered(_: object) -> None:
            order.append(f"answered {not listener.cut_for} {not follower.closed}")

        taken.add_done_callback(answered)
        while not follower.changes():
            await asyncio.sleep(0.001)
        ending = asyncio.ensure_future(service.goodbye())
        await asyncio.sleep(0)
        with pytest.raises(StoreError, match="going down"):
            await service.publish("ada", Context("y", "hq/1", None, {}, clock.now))
        assert not taken.done()
        assert order == []
        follower.confirm()
        assert await taken
        await ending
        assert order == ["answered True True"]
        assert listener.cut_for
        assert follower.closed

    with_service(tmp_path, monkeypatch, use, two_hosts(tmp_path))


def test_who_goes_down_acknowledges_nothing_that_is_on_its_own_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service, clock: Clock) -> None:
        follower = CallSocket(service, "b")
        follower.follow()
        await followed(service)
        follower.confirms = False
        before = len(follower.changes())
        monkeypatch.setattr(service, "settings", with_server(service.settings, shutdown_s=0.05))
        taken = asyncio.ensure_future(
            service.publish("ada", Context("x", "hq/1", None, {}, clock.now))
        )
        while len(follower.changes()) == before:
            await asyncio.sleep(0.001)
        await service.goodbye()  # the followers go, too
        assert follower.closed
        service.replicas.disconnected(follower.call)
        follower.confirm()
        with pytest.raises(StoreError, match="look, and ask again"):
            await taken

    with_service(tmp_path, monkeypatch, use, two_hosts(tmp_path))
