"""What a client must not do, or does by mistake, between two real nodes: refused with a reason."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from roamcast.client import connect
from roamcast.errors import InputError
from roamcast.model.time import format_instant
from tests.live.overlay.test_roaming import ROOMS, two_nodes
from tests.processes import roamcast
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

WALKER = "/session?device=walker"
Pair = tuple[RunningService, RunningService]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_nodes(tmp_path_factory.mktemp("refusals")) as found:
        yield found


def ask(held: ClientConnection, re: str, **more: Any) -> None:
    held.send(json.dumps({"type": "subscribe_events", "re": re, **more}))


def hears(held: ClientConnection, *kinds: str) -> dict[str, Any]:
    """Give the next message of one of these kinds."""
    while True:
        found: dict[str, Any] = json.loads(held.recv(timeout=60))
        if found["type"] in kinds:
            return found


def publish(node: RunningService, number: int, **more: Any) -> Any:
    feature = {"type": "Feature", "properties": {"place": ROOMS["a"], "number": number, **more}}
    return node.ask("POST", "/events", node.operator, {"feature": feature})


def numbers(held: ClientConnection, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        events = hears(held, "events")["events"]
        found += [one["feature"]["properties"]["number"] for one in events]
    return found


class Reading:
    """Server-sent events, one after the other."""

    def __init__(self, node: RunningService, last: str = "") -> None:
        headers = {"authorization": f"Bearer {node.operator}"}
        if last:
            headers["last-event-id"] = last
        asked = urllib.request.Request(f"{node.url}/events", headers=headers)
        self.body = urllib.request.urlopen(asked, timeout=60)

    def __iter__(self) -> Iterator[dict[str, str]]:
        found: dict[str, str] = {}
        for line in self.body:
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key:
                found[key] = value
            elif found:
                yield found
                found = {}

    def hears(self, *kinds: str) -> dict[str, str]:
        return next(one for one in self if one.get("event") in kinds)

    def numbers(self, count: int) -> list[int]:
        found = [json.loads(self.hears("event")["data"]) for _ in range(count)]
        return [one["feature"]["properties"]["number"] for one in found]


def test_a_stream_goes_on_from_its_last_id_at_any_node_and_as_a_session(nodes: Pair) -> None:
    a, b = nodes
    with Reading(a).body:
        pass  # who leaves at once leaves nothing
    stream = Reading(a)
    with stream.body:
        assert "a:" in next(one["id"] for one in stream if "id" in one)
        for number in (11, 12, 13):
            assert publish(a, number).status == 200
        last = stream.hears("event")["id"]
    assert publish(b, 14).status == 200
    for node in (a, b):
        again = Reading(node, last)
        with again.body:
            assert sorted(again.numbers(3)) == [12, 13, 14]
    parts = (one.split(":") for one in last.split(","))
    vector = {origin: [int(epoch), int(number)] for origin, epoch, number in parts}
    with b.session(b.operator) as held:
        ask(held, "e", vector=vector)
        assert sorted(numbers(held, 3)) == [12, 13, 14]
    assert a.ask("GET", "/events", a.operator, headers={"last-event-id": "a:1"}).status == 400


def test_a_drain_tells_streams_where_to_go_and_waits_for_nobody_who_sleeps(nodes: Pair) -> None:
    a, b = nodes
    with a.session(a.operator, WALKER) as held:
        ask(held, "asleep", expires_s=60, attachment=[20, 1])
        hears(held, "standing")
    stream = Reading(a)
    with stream.body:
        assert any("id" in one for one in stream)
        assert publish(a, 21).status == 200
        last = stream.hears("event")["id"]
        with roamcast("drain", "a", "--json", "--data", str(a.data), "--patience", "20") as asked:
            told = asked.answer()
        assert (told["lost"], told["consumers"], told["streams"]) == (0, 0, 1)
        moved = json.loads(stream.hears("moved")["data"])
        assert (moved["to"], moved["url"]) == ("b", b.url)
        assert "go on at" in stream.hears("error")["data"]
        assert list(stream) == []
    refused = a.ask("GET", "/events", a.operator)
    assert (refused.status, b.url in refused.problem) == (503, True)
    assert publish(a, 22).status == 200
    again = Reading(b, last)
    with again.body:
        assert again.numbers(1) == [22]
    with roamcast("undrain", "a", "--json", "--data", str(a.data)) as asked:
        assert not asked.answer()["draining"]
    with Reading(a).body as body:
        assert body.status == 200


def test_a_vector_of_the_far_future_is_told_and_set_right(nodes: Pair) -> None:
    a, _ = nodes
    with a.session(a.operator) as held:
        ask(held, "e")
        epoch = hears(held, "standing")["vector"]["a"][0]
    with a.session(a.operator) as held:
        ask(held, "e", vector={"a": [epoch, 10**12]})
        assert "beyond the end" in hears(held, "lost")["reason"]
        assert publish(a, 1).status == 200
        assert numbers(held, 1) == [1]


@pytest.mark.parametrize(
    "vector", [{"a": [-1, 0]}, {"a": ["x", 0]}, {"": [0, 0]}, {"a": [0]}, [], {"a": [0, 2**70]}]
)
def test_a_forged_vector_is_refused_and_the_session_goes_on(nodes: Pair, vector: Any) -> None:
    a, _ = nodes
    with a.session(a.operator) as held:
        ask(held, "e", vector=vector)
        assert hears(held, "error", "standing")["status"] == 400
        ask(held, "e", vector={"nobody": [1, 7]})  # no node is called so: it says nothing
        hears(held, "standing")
        assert publish(a, 2).status == 200
        assert numbers(held, 1) == [2]


def test_what_is_held_for_somebody_is_nobody_elses(nodes: Pair) -> None:
    """The same device, subscription and attachment, and another's token."""
    a, _ = nodes
    with a.session(a.operator, WALKER) as held:
        ask(held, "s1", attachment=[5, 1], expires_s=60)
        vector = hears(held, "standing")["vector"]
    assert publish(a, 3).status == 200
    with a.session(a.token("mallory"), WALKER) as thief:
        ask(thief, "s1", attachment=[5, 2], previous="b")
        hears(thief, "standing")
        with a.session(a.operator, WALKER) as held:
            ask(held, "s1", attachment=[5, 2], vector=vector)
            assert numbers(held, 1) == [3]
            assert publish(a, 4).status == 200
            assert numbers(thief, 1) == [4]  # what came before she did is not hers


def test_a_client_at_two_brokers_at_once_is_at_the_later_one(nodes: Pair) -> None:
    a, b = nodes
    with a.session(a.operator, WALKER) as first, b.session(a.operator, WALKER) as second:
        ask(first, "two", attachment=[9, 1])
        hears(first, "standing")
        ask(second, "two", attachment=[9, 2], previous="a")
        hears(second, "standing")
        assert hears(first, "moved")["to"] == "b"
        ask(first, "two", attachment=[9, 1])
        problem = hears(first, "error")
        assert (problem["status"], "attached elsewhere later" in problem["detail"]) == (409, True)
        assert publish(a, 5).status == 200
        assert numbers(second, 1) == [5]


def test_an_event_of_a_clock_ninety_seconds_ahead_is_refused(nodes: Pair) -> None:
    a, _ = nodes
    ahead = format_instant(time.time_ns() // 1_000 + 90_000_000)
    answer = publish(a, 6, t_r=ahead)
    assert answer.status == 400, answer.body
    assert b"ahead" in answer.body or b"future" in answer.body


def test_programs_of_one_name_are_ordered_by_their_own_clocks_wherever_they_are(
    nodes: Pair,
) -> None:
    """Who is ninety seconds ahead is the later one, also for a node that has not heard of it."""
    a, b = nodes
    now = time.time_ns() // 1_000
    with a.session(a.operator, WALKER) as ahead, b.session(a.operator, WALKER) as right:
        ask(ahead, "clock", attachment=[now + 90_000_000, 1])
        hears(ahead, "standing")
        ask(right, "clock", attachment=[now, 1], previous="a")
        assert hears(right, "moved")["to"] == "a"
        ask(right, "clock", attachment=[now, 2])
        problem = hears(right, "error")
        assert (problem["status"], "attached elsewhere later" in problem["detail"]) == (409, True)
        assert publish(a, 7).status == 200
        assert numbers(ahead, 1) == [7]
    with b.session(a.operator, WALKER) as behind:  # alone, any clock will do
        ask(behind, "slow clock", attachment=[now - 90_000_000, 1])
        hears(behind, "standing")
        assert publish(a, 8).status == 200
        assert numbers(behind, 1) == [8]


def test_a_program_of_a_device_that_is_elsewhere_by_now_is_told_so(nodes: Pair) -> None:
    a, b = nodes
    later = time.time_ns() // 1_000 + 90_000_000

    def comes() -> None:
        with a.session(a.operator, "/session?device=twin") as other:
            ask(other, "s1", attachment=[later, 1], previous="b")
            hears(other, "standing")
            time.sleep(1)

    async def scene() -> None:
        async with connect(b.url, a.operator, device="twin") as me:
            stream = await me.subscribe("true")
            other = asyncio.create_task(asyncio.to_thread(comes))
            with pytest.raises(InputError, match="attached elsewhere later"):
                async with asyncio.timeout(60):
                    await anext(stream)
            await other

    asyncio.run(scene())


def test_what_a_program_shows_and_watches_goes_where_its_place_is_served(nodes: Pair) -> None:
    a, b = nodes

    async def scene() -> None:
        async with connect(f"{a.url},{b.url}", a.operator, device="me", near="place") as me:
            view = me.watch("type = 'walker'")
            await me.appear(place=ROOMS["a"], type="walker")
            async with asyncio.timeout(60):
                assert {(await anext(view)).kind for _ in range(2)} == {"current", "appeared"}
                await me.change(place=ROOMS["b"])  # a sends it to b, and it goes
                change = await anext(view)
                while change.context is None or change.context.place != ROOMS["b"]:
                    change = await anext(view)
                found = await me.who("type = 'walker'")
            assert [one.place for one in found] == [ROOMS["b"]]
            assert [one.place for one in view.contexts.values()] == [ROOMS["b"]]

    asyncio.run(scene())


def test_here_means_the_place_where_one_is_at_each_node(nodes: Pair) -> None:
    a, b = nodes

    async def scene() -> None:
        async with connect(f"{a.url},{b.url}", a.operator, device="here", near="place") as me:
            await me.report(ROOMS["a"])
            stream = await me.subscribe("within(place, here('building'))")
            while {"a", "b"} - stream.vector.keys():
                await asyncio.sleep(0.01)

            async def hears(*published: tuple[str, int]) -> int:
                for node, number in published:
                    await me.publish_event(ROOMS[node], number=number)
                async with asyncio.timeout(60):
                    return int(str((await anext(stream)).context.attributes["number"]))

            assert await hears(("b", 31), ("a", 32)) == 32
            await me.report(ROOMS["b"])
            async with asyncio.timeout(60):
                while me.broker != b.url:
                    await asyncio.sleep(0.01)
            assert await hears(("a", 33), ("b", 34)) == 34

    asyncio.run(scene())


@pytest.mark.soak
def test_a_sleeper_of_a_minute_gets_all_events_and_past_the_log_the_gap(tmp_path: Path) -> None:
    with two_nodes(tmp_path, "[events]\nlog_s = 90\n") as (a, _):
        with a.session(a.operator, WALKER) as held:
            ask(held, "s", expires_s=120, attachment=[1, 1])
            vector = hears(held, "standing")["vector"]
        for number in range(60):
            assert publish(a, number).status == 200
            time.sleep(1)
        with a.session(a.operator, WALKER) as held:
            ask(held, "s", vector=vector, attachment=[1, 2])
            assert numbers(held, 60) == list(range(60))
        a.put("lamp", ROOMS["a"], type="lamp")
        time.sleep(100)
        with a.session(a.operator, WALKER) as held:
            ask(held, "s", vector=vector, attachment=[1, 3])
            assert "no longer reaches back" in hears(held, "lost")["reason"]
            held.send(json.dumps({"type": "subscribe", "re": "now", "filter": "type = 'lamp'"}))
            assert [one["id"] for one in hears(held, "subscribed")["features"]] == ["lamp"]
