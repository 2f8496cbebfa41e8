"""Homes between real services: modulators go where their events are, with what they know."""

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from roamcast.client import EventStream, Session, connect
from roamcast.errors import ModulatorError
from tests.live.overlay.test_neighbours import overlay
from tests.live.overlay.test_roaming import two_nodes
from tests.processes import roamcast
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

DEADLINE_S = 60.0
QUICK = "[homes]\ndwell_s = 0.1\ndelay_s = 0.1\nhop_ms = 1000\n"
EXAMPLES = Path(__file__).parents[3] / "examples" / "modulators"
THIRD = [{"type": "every", "n": 3}]
Two = tuple[RunningService, RunningService]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two linked nodes whose clients look for better homes often."""
    with two_nodes(tmp_path_factory.mktemp("homes"), QUICK) as both:
        yield both


async def publish(producer: Session, place: str, numbers: range) -> None:
    for number in numbers:
        await producer.publish_event(place, number=number)


async def numbers(stream: EventStream, count: int) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(stream)).context.attributes["number"] for _ in range(count)]


async def served_by(stream: EventStream, service: RunningService) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while stream.broker != service.url:
            await asyncio.sleep(0.02)


async def knows(stream: EventStream, *origins: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while set(origins) - stream.vector.keys():
            await asyncio.sleep(0.01)


def came(service: RunningService) -> list[tuple[str, str, str]]:
    """Why those who are served here came."""
    return [
        (one["moved_from"], one["moved_because"], one["moved_way"])
        for one in overlay(service)["homes"]
    ]


def test_modulators_move_to_where_their_events_come_from_by_each_variant(two: Two) -> None:
    variants = [(True, True), (True, False), (False, True), (False, False)]

    async def scene(a: RunningService, b: RunningService) -> None:
        async with (
            connect(b.url, a.operator, device="producer") as producer,
            connect(f"{a.url},{b.url}", a.operator, device="reader", near="home") as reader,
        ):
            wanted = "within(place, 'campus/b')"
            streams = [
                await reader.subscribe(
                    wanted, modulators=THIRD, keeps_events=events, keeps_state=state
                )
                for events, state in variants
            ]
            for stream in streams:
                assert stream.broker == a.url
                await knows(stream, "b")
            await publish(producer, "campus/b/1", range(4))
            for stream in streams:
                assert await numbers(stream, 1) == [2]
            for stream in streams:
                await served_by(stream, b)
            await publish(producer, "campus/b/1", range(4, 12))
            for stream, (events, state) in zip(streams, variants, strict=True):
                first, second = await numbers(stream, 2)
                # Without its state it begins anew, before or behind the fourth event.
                assert first in ((5,) if state else (5, 6))
                assert second == first + 3
                assert not stream.begun_anew
                assert not stream.gaps or not events
            assert await asyncio.to_thread(came, b) == [("a", "shorter path", "upstream")] * 4
            with roamcast("brokers", "--data", str(b.data)) as asked:
                shown = b"".join(iter(asked.line, b"")).decode()
            assert "every" in shown
            assert "upstream" in shown
            assert "loads: " in shown

    asyncio.run(scene(*two))


def test_a_module_is_fetched_once_from_the_node_that_has_it(two: Two) -> None:
    async def scene(a: RunningService, b: RunningService) -> None:
        async with (
            connect(a.url, a.operator, device="owner") as owner,
            connect(b.url, a.operator, device="reader") as reader,
        ):
            code = (EXAMPLES / "steps.wasm").read_bytes()
            name = await owner.put_module(code)
            kept = b.data / "modules" / f"{name}.wasm"
            assert not kept.exists()
            both = await asyncio.gather(
                *(
                    reader.subscribe("true", modulators=[{"type": "wasm", "module": name}])
                    for _ in range(2)
                )
            )
            assert len(both) == 2
            assert sha256(kept.read_bytes()).hexdigest() == name
            pages = await asyncio.to_thread(b.ask, "GET", "/metrics", b.operator)
            assert b'what="modules: fetched"} 1.0' in pages.body
            absent = [{"type": "wasm", "module": "0" * 64}]
            with pytest.raises(ModulatorError, match="no node in reach has this module"):
                await reader.subscribe("true", modulators=absent)

    asyncio.run(scene(*two))


@pytest.mark.soak
def test_a_home_that_is_killed_goes_on_counting_wherever_its_client_comes_back(two: Two) -> None:
    async def scene(a: RunningService, b: RunningService) -> None:
        async with (
            connect(b.url, a.operator, device="producer") as producer,
            connect(f"{a.url},{b.url}", a.operator, device="strict", near="place") as reader,
        ):
            stream = await reader.subscribe("within(place, 'campus/b')", modulators=THIRD)
            await knows(stream, "b")
            await publish(producer, "campus/b/1", range(100))
            assert await numbers(stream, 20) == list(range(2, 60, 3))
            publishing = asyncio.create_task(publish(producer, "campus/b/1", range(100, 200)))
            await asyncio.to_thread(a.kill)
            await asyncio.to_thread(a.start)
            await publishing
            assert await numbers(stream, 46) == list(range(62, 200, 3))
            assert not stream.begun_anew
            assert not stream.gaps

    asyncio.run(scene(*two))


@pytest.mark.soak
def test_an_overloaded_home_hands_over_though_it_is_nearer(tmp_path: Path) -> None:
    async def scene(a: RunningService, b: RunningService) -> None:
        async with (
            connect(a.url, a.operator, device="producer") as producer,
            connect(f"{a.url},{b.url}", a.operator, device="reader", near="home") as reader,
        ):
            stream = await reader.subscribe("true", modulators=THIRD)
            await knows(stream, "a", "b")
            publishing = asyncio.create_task(publish(producer, "campus/a/1", range(300)))
            await served_by(stream, b)
            await publishing
            assert await numbers(stream, 100) == list(range(2, 300, 3))
            assert [because for _, because, _ in await asyncio.to_thread(came, b)] == [
                "old home overloaded"
            ]

    with two_nodes(tmp_path, QUICK, "high = 0.002\nlow = 0.001\n") as (a, b):
        asyncio.run(scene(a, b))
