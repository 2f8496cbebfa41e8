"""A program of the SDK roams between real services: by place, by order, and when one is killed."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from roamcast.client import EventStream, Session, connect
from roamcast.commands._demo_brokers import _free_ports
from roamcast.errors import UnreachableError
from roamcast.live.auth.admission import TokenKeys
from tests.live.overlay.test_neighbours import key_of, until, up
from tests.processes import roamcast
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

DEADLINE_S = 60.0
ROOMS = {"a": "campus/a/1", "b": "campus/b/1"}


def places() -> dict[str, Any]:
    """Two buildings with a door between them."""

    def place(path: str, kind: str, *neighbours: str) -> dict[str, Any]:
        properties = {"path": path, "kind": kind, "neighbours": list(neighbours)}
        return {"type": "Feature", "geometry": None, "properties": properties}

    return {
        "type": "FeatureCollection",
        "features": [
            place("campus", "campus"),
            place("campus/a", "building"),
            place("campus/b", "building"),
            place("campus/a/1", "room", "campus/b/1"),
            place("campus/b/1", "room", "campus/a/1"),
        ],
    }


def settings(node: str, ports: dict[str, int], keys: dict[str, str], file: Path) -> str:
    text = (
        f'[server]\nplaces = "{file}"\nport = {ports[node]}\n'
        f'[overlay]\nnode = "{node}"\nareas = ["campus/{node}"]\n'
        f'url = "http://127.0.0.1:{ports[node]}"\n'
    )
    for other in ports:
        if other != node:
            text += f'[overlay.neighbours.{other}]\nkey = "{keys[other]}"\n'
            text += f'urls = ["http://127.0.0.1:{ports[other]}"]\n'
    return text


@contextmanager
def two_nodes(
    folder: Path, more: str = "", only_a: str = ""
) -> Iterator[tuple[RunningService, RunningService]]:
    """Run two linked nodes that accept the same tokens: each has a copy of the keys."""
    file = folder / "places.geojson"
    file.write_text(json.dumps(places()), encoding="utf-8")
    folders = {name: folder / name for name in ROOMS}
    for one in folders.values():
        (one / "data").mkdir(parents=True)
    TokenKeys.open(folders["a"] / "data")
    shutil.copy(folders["a"] / "data" / "keys.json", folders["b"] / "data" / "keys.json")
    keys = {name: key_of(one) for name, one in folders.items()}
    ports = dict(zip(ROOMS, _free_ports(2), strict=True))
    services = [
        RunningService(folders[name], settings(name, ports, keys, file) + more + own)
        for name, own in zip(ROOMS, (only_a, ""), strict=True)
    ]
    for service, port in zip(services, ports.values(), strict=True):
        service.port = port
    with services[0] as a, services[1] as b:
        until(lambda: up(a) == {"b"}, "the nodes are not linked")
        yield a, b


@asynccontextmanager
async def people(
    a: RunningService, b: RunningService
) -> AsyncIterator[tuple[Session, Session, EventStream]]:
    """Let one program publish at a, and another read from wherever it is."""
    urls = f"{a.url},{b.url}"
    async with (
        connect(a.url, a.operator, device="producer") as producer,
        connect(urls, a.operator, device="walker", near="place") as walker,
    ):
        stream = await walker.subscribe("within(place, 'campus')")
        while {"a", "b"} - stream.vector.keys():
            await asyncio.sleep(0.01)
        yield producer, walker, stream


async def numbers(stream: EventStream, count: int) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(stream)).context.attributes["number"] for _ in range(count)]


def test_a_walker_misses_nothing_between_brokers_of_which_one_is_drained(tmp_path: Path) -> None:
    async def scene(a: RunningService, b: RunningService) -> None:
        async with (
            people(a, b) as (producer, walker, stream),
            connect(b.url, a.operator, device="other") as other,
        ):
            publishing = asyncio.create_task(publish(producer))
            for turn in range(4):
                await walker.report(ROOMS["ab"[turn % 2]])
                await asyncio.sleep(0.2)  # the next node prepares
                await walker.report(ROOMS["ba"[turn % 2]])
                async with asyncio.timeout(DEADLINE_S):
                    while walker.broker != (b, a)[turn % 2].url:
                        await asyncio.sleep(0.01)
            await publishing
            assert await numbers(stream, COUNT) == list(range(COUNT))
            assert stream.resumed
            assert [(move.why, move.gap_s) for move in walker.moves] == [("place", 0.0)] * 4
            pages = [one.ask("GET", "/metrics", one.operator).body.decode() for one in (a, b)]
            assert any('what="handoff: attached"' in page for page in pages)
            assert all('steps_total{what="handoff: moved: place"} 2.0' in page for page in pages)

            await producer.close()
            publishing = asyncio.create_task(publish(other))
            told = await asyncio.to_thread(command, a, "drain", "a")
            assert (told["moved"], told["lost"]) == (1, 0)
            assert walker.broker == b.url
            late = await connect(a.url, a.operator, device="late")
            with pytest.raises(UnreachableError, match="refuses"):
                await late.subscribe("true")
            await late.close()
            found = await asyncio.to_thread(command, a, "where", "operator#walker")
            assert [one["node"] for one in found] == ["b"]
            await publishing
            assert await numbers(stream, COUNT) == list(range(COUNT))
            assert (walker.moves[-1].why, walker.moves[-1].gap_s) == ("told", 0.0)
            page = b.ask("GET", "/metrics", b.operator).body.decode()
            assert 'steps_total{what="handoff: moved: told"} 1.0' in page
            assert not (await asyncio.to_thread(command, a, "undrain", "a"))["draining"]

    with two_nodes(tmp_path) as (a, b):
        asyncio.run(scene(a, b))


COUNT = 200


async def publish(producer: Session) -> None:
    for number in range(COUNT):
        await producer.publish_event("campus/a/1", number=number)
        await asyncio.sleep(0.005)


@pytest.mark.soak
def test_a_killed_broker_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async def scene(a: RunningService, b: RunningService) -> None:
        async with people(a, b) as (producer, walker, stream):
            publishing = asyncio.create_task(publish(producer))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(a.kill)  # both are there
            await asyncio.to_thread(a.start)
            async with asyncio.timeout(DEADLINE_S):
                await publishing
            assert await numbers(stream, COUNT) == list(range(COUNT))
            assert {move.why for move in walker.moves} == {"lost"}

    with two_nodes(tmp_path) as (a, b):
        asyncio.run(scene(a, b))


def test_who_was_away_longer_than_the_log_is_told_and_sees_what_is_there(tmp_path: Path) -> None:
    async def scene(a: RunningService, b: RunningService) -> None:
        async with (
            connect(a.url, a.operator, device="producer") as producer,
            connect(b.url, a.operator, device="reader") as reader,
        ):
            stream = await reader.subscribe("true")
            view = reader.watch("type = 'lamp'")
            while {"a", "b"} - stream.vector.keys():
                await asyncio.sleep(0.01)
            await producer.publish_event("campus/a/1", number=1)
            assert await numbers(stream, 1) == [1]
            await asyncio.to_thread(b.kill)
            await producer.publish_event("campus/a/1", number=2)
            assert a.put("lamp", ROOMS["a"], type="lamp").status == 201
            await asyncio.sleep(4)
            await asyncio.to_thread(b.start)
            async with asyncio.timeout(DEADLINE_S):
                while stream.resumed:
                    await asyncio.sleep(0.01)
                await producer.publish_event("campus/a/1", number=3)
                assert await numbers(stream, 1) == [3]
                async for change in view:
                    if change.vid == "lamp":
                        break
            (gap,) = stream.gaps
            assert (gap.origin, gap.events_max) == ("a", 1)
            assert "no longer reaches back" in gap.reason
            page = b.ask("GET", "/metrics", b.operator).body.decode()
            assert 'steps_total{what="flows: lost"} 1.0' in page

    with two_nodes(tmp_path, "[events]\nlog_s = 2\n") as (a, b):
        asyncio.run(scene(a, b))


def command(service: RunningService, *words: str) -> Any:
    with roamcast(*words, "--json", "--data", str(service.data)) as asked:
        return asked.answer()
