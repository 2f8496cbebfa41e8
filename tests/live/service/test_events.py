"""Events on a broker of its own: every one, once, in order, whatever its session does."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roamcast.live.config.events import EventSection
from roamcast.live.config.settings import Settings
from roamcast.live.links.session import SessionSocket
from roamcast.overlay.consumers.frames import read_vector, vector_text
from tests.live.in_process import Asked, gate
from tests.live.links.test_session_limits import Socket

DEADLINE_S = 60.0


class EventTalk:
    """One session of a service, spoken to without a network."""

    def __init__(self, asked: Asked, name: str = "ada#one", token: str = "") -> None:
        self.service = asked.service
        self.socket = Socket()
        grant = self.service.keys.check(token or asked.token, self.service.clock())
        self.session = SessionSocket(self.service, self.socket, grant, name)  # type: ignore[arg-type]

    def say(self, kind: str, **more: Any) -> None:
        self.session.received(json.dumps({"type": kind, **more}))

    def heard(self) -> list[dict[str, Any]]:
        """Give what was said, with parts put together."""
        found: list[dict[str, Any]] = []
        text = ""
        for one in self.socket.said:
            if one["type"] != "part":
                found.append(one)
                continue
            text += one["text"]
            if one["last"]:
                found.append(json.loads(text))
                text = ""
        return found

    async def until(self, true: Callable[[], Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := true()):
                await asyncio.sleep(0.001)
        return found

    async def hears(self, kind: str, **wanted: Any) -> dict[str, Any]:
        def match() -> dict[str, Any] | None:
            for one in self.heard():
                if one["type"] == kind and all(one.get(k) == v for k, v in wanted.items()):
                    return one
            return None

        found: dict[str, Any] = await self.until(match)
        return found

    def events(self, re: str = "all") -> list[dict[str, Any]]:
        return [
            event
            for one in self.heard()
            if one["type"] == "events" and one["re"] == re
            for event in one["events"]
        ]

    async def has_events(self, count: int, re: str = "all") -> list[dict[str, Any]]:
        await self.until(lambda: len(self.events(re)) >= count)
        return self.events(re)


def event(number: int = 0, place: str = "campus/b35/2", **attributes: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": {"place": place, "number": number, **attributes}}


@asynccontextmanager
async def talking(asked: Asked, name: str = "ada#one", token: str = "") -> AsyncIterator[EventTalk]:
    talk = EventTalk(asked, name, token)
    running = asyncio.create_task(talk.session.run())
    await talk.hears("welcome")
    try:
        yield talk
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def run(
    folder: Path, scene: Callable[[Asked], Awaitable[None]], settings: Settings | None = None
) -> None:
    async def body() -> None:
        async with gate(folder, settings) as asked:
            await scene(asked)

    asyncio.run(body())


def test_every_event_comes_once_in_order_and_only_where_the_filter_matches(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            talk.say("subscribe_events", re="all", filter="within(place, 'campus')")
            talk.say("subscribe_events", re="odd", filter="number = 3")
            await talk.hears("standing", re="all")
            await talk.hears("standing", re="odd")
            for number in range(5):
                data = base64.b64encode(b"x" * number).decode()
                said = {"feature": event(number), "producer": "p", "number": number, "data": data}
                for _ in range(2):  # sent again, it is answered again and not repeated
                    talk.say("publish_event", re=str(number), **said)
                await talk.hears("published", re=str(number))
            found = await talk.has_events(5)
            assert [one["feature"]["properties"]["number"] for one in found] == [0, 1, 2, 3, 4]
            assert base64.b64decode(found[3]["data"]) == b"xxx"
            assert found[0]["producer"] not in ("p", "ada")
            assert [one["number"] for one in await talk.has_events(1, "odd")] == [3]
            talk.say("unsubscribe_events", re="odd")
            await talk.hears("done", re="odd")
            assert len(talk.socket.kinds("published")) == 10

    run(tmp_path, scene)


def test_events_are_no_transmissions_of_the_map(tmp_path: Path) -> None:
    """Transmissions an update are of the map: who reads events beside it makes them no more."""

    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            talk.say("subscribe_events", re="all", filter="within(place, 'campus')")
            talk.say("subscribe", re="map", filter="within(place, 'campus')")
            await talk.hears("standing", re="all")
            await talk.hears("subscribed", re="map")
            before = asked.service.numbers("n").transmissions
            for number in range(3):
                talk.say("publish_event", re=f"p{number}", feature=event(number))
            await talk.has_events(3)
            assert asked.service.numbers("n").transmissions == before
            await asked.ask("PUT", "/contexts/desk", event())
            await talk.hears("changes")
            assert asked.service.numbers("n").transmissions == before + 1

    run(tmp_path, scene)


def test_a_mebibyte_of_data_goes_and_comes_in_parts(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            talk.say("subscribe_events", re="all")
            await talk.hears("standing")
            data = base64.b64encode(bytes(1024 * 1024)).decode()
            text = json.dumps(
                {"type": "publish_event", "re": "x", "feature": event(), "data": data}
            )
            cuts = range(0, len(text), 500_000)
            for at in cuts:
                talk.say("part", text=text[at : at + 500_000], last=at == cuts[-1])
            await talk.hears("published", re="x")
            (found,) = await talk.has_events(1)
            assert found["data"] == data
            assert max(len(json.dumps(one)) for one in talk.socket.said) < 65_000
            talk.say("part", text="x" * 900_000, last=False)
            talk.say("part", text="x" * 900_000, last=False)
            talk.say("part", text="x" * 900_000, last=False, re="y")
            assert "at most" in (await talk.hears("error"))["detail"]

    run(tmp_path, scene)


def test_a_session_that_is_slow_or_away_misses_nothing(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        service = asked.service
        async with talking(asked) as talk:
            talk.say("subscribe_events", re="all", expires_s=30)
            await talk.hears("standing")
            service.slow("ada#one")
            for number in range(3):
                await asked.ask("POST", "/events", {"feature": event(number)})
            assert talk.events() == []
            service.drained("ada#one")
            assert [one["feature"]["properties"]["number"] for one in await talk.has_events(3)] == [
                0, 1, 2,
            ]  # fmt: skip
            last = [one for one in talk.heard() if one["type"] == "events"][-1]
        await asked.ask("POST", "/events", {"feature": event(3)})
        async with talking(asked) as talk:
            vector = {last["origin"]: last["upto"]}
            talk.say("subscribe_events", re="all", vector=vector, expires_s=30)
            (found,) = await talk.has_events(1)
            assert found["feature"]["properties"]["number"] == 3
        desk = service.broker.events
        assert desk is not None
        assert desk.occupancy()["asleep of one subject"][0] == 1

    run(tmp_path, scene)


def test_a_log_that_is_too_short_says_what_is_lost(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        for number in range(3):
            answer = await asked.ask("POST", "/events", {"feature": event(number)})
            assert answer.status == 200, answer.body
        where = answer.json
        async with talking(asked) as talk:
            old = {where["origin"]: [where["epoch"] - 1, 1]}
            talk.say("subscribe_events", re="all", vector=old)
            await talk.hears("lost", origin=where["origin"])
            future = {where["origin"]: [where["epoch"], 99]}
            talk.say("subscribe_events", re="far", filter="number = 1", vector=future)
            assert "beyond" in (await talk.hears("lost", re="far"))["reason"]

    run(tmp_path, scene)


def test_an_event_shows_what_everybody_may_see(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        service = asked.service
        rules = [{"viewers": ["bob"], "precision": "exact"}]
        assert (await asked.ask("PUT", "/contexts/secret/rules", rules)).status < 300
        answer = await asked.ask("POST", "/events", {"feature": {**event(), "id": "secret"}})
        assert answer.status == 403, answer.body
        assert (await asked.ask("PUT", "/contexts/coarse", event())).status == 201
        coarse = [{"viewers": ["*"], "precision": "presence"}]
        assert (await asked.ask("PUT", "/contexts/coarse/rules", coarse)).status < 300
        eve = service.keys.issue("eve", ("publish",), (), lifetime_s=60, now=service.clock())
        answer = await asked.ask(
            "POST", "/events", {"feature": {**event(), "id": "coarse"}},
            headers={"authorization": f"Bearer {eve}"},
        )  # fmt: skip
        assert answer.status == 409, answer.body
        async with talking(asked) as talk:
            talk.say("subscribe_events", re="all")
            await talk.hears("standing")
            answer = await asked.ask("POST", "/events", {"feature": {**event(), "id": "coarse"}})
            assert answer.status == 200, answer.body
            (found,) = await talk.has_events(1)
            assert "place" not in found["feature"]["properties"]

    run(tmp_path, scene)


def test_a_subject_publishes_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        data = base64.b64encode(bytes(1024 * 1024)).decode()
        statuses = [
            (await asked.ask("POST", "/events", {"feature": event(), "data": data})).status
            for _ in range(3)
        ]
        assert statuses == [200, 429, 429]

    settings = Settings(events=EventSection(bytes_per_s=1.0, bytes_burst=2 * 1024 * 1024))
    run(tmp_path, scene, settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "publish_event", "feature": event(), "data": "no base64"},
        {"type": "publish_event", "feature": event(), "life": -1},
        {"type": "subscribe_events", "re": "x", "filter": "within("},
        {"type": "subscribe_events", "re": "x", "filter": "within(place, here('floor'))"},
        {"type": "subscribe_events", "re": "x", "vector": {"a": [1]}},
        {"type": "unsubscribe_events", "re": "x"},
        {"type": "place", "place": "a//b"},
    ],
)
def test_what_is_wrong_gets_one_error_and_changes_nothing(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            talk.say(kind=wrong["type"], **{k: v for k, v in wrong.items() if k != "type"})
            assert 400 <= (await talk.hears("error"))["status"] < 500
            desk = asked.service.broker.events
            assert desk is not None
            assert desk.occupancy()["consumers"][0] == 0

    run(tmp_path, scene)


def test_a_vector_is_read_as_it_is_written() -> None:
    text = "a:1:2,b-2:17:0"
    assert vector_text(dict(read_vector(text))) == text
    for wrong in ("a", "a:1", "a:1:x", "a b:1:2", "a:-1:2", "a:²:1"):
        with pytest.raises(Exception, match="a position is"):
            read_vector(wrong)
