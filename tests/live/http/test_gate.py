"""What HTTP answers where a real process would not let us look: our own mistakes, odd methods."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roamcast.errors import InputError
from tests.live.in_process import Asked, gate
from tests.running_service import feature

ITEMS = "/collections/contexts/items"


def run(folder: Path, scene: Callable[[Asked], Awaitable[None]]) -> None:
    async def body() -> None:
        async with gate(folder) as asked, asyncio.timeout(60):
            await scene(asked)

    asyncio.run(body())


def test_a_mistake_of_our_own_is_a_problem_for_the_client_and_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("ada is at hq/2")

    async def scene(asked: Asked) -> None:
        monkeypatch.setattr(asked.service.broker, "page", broken)
        caplog.clear()
        answer = await asked.ask("GET", ITEMS)
        assert answer.status == 500
        assert "log" in answer.problem
        assert b"ada" not in answer.body

    run(tmp_path, scene)
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("roamcast.http", "our mistake")
    assert isinstance(record.__dict__["problem"], ZeroDivisionError)


def following(page: dict[str, Any]) -> str | None:
    links = [one["href"] for one in page["links"] if one["rel"] == "next"]
    return links[0].removeprefix("http://maps.example") if links else None


async def publish(asked: Asked, *vids: str) -> None:
    for vid in vids:
        assert (await asked.ask("PUT", f"/contexts/{vid}", feature(type="p"))).status == 201


@pytest.mark.parametrize("gone", [("b", "c"), ("a", "e", "f", "g")])
def test_who_stays_is_on_exactly_one_page_whoever_leaves_or_comes_meanwhile(
    tmp_path: Path, gone: tuple[str, ...]
) -> None:
    async def scene(asked: Asked) -> None:
        await publish(asked, *"abcdefg")
        page = (await asked.ask("GET", ITEMS, limit=2, type="p", access_token="secret")).json
        found = [one["id"] for one in page["features"]]
        assert found == ["a", "b"]
        for vid in gone:
            assert (await asked.ask("DELETE", f"/contexts/{vid}")).status == 204
        await publish(asked, "a2", "a3", "z")
        while (path := following(page)) is not None:
            assert "secret" not in path
            page = (await asked.ask("GET", path)).json
            found += [one["id"] for one in page["features"]]
        assert found == ["a", "b", *(vid for vid in "cdefg" if vid not in gone), "z"]

    run(tmp_path, scene)


def test_a_page_begins_behind_a_vid_that_need_not_be_there(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        await publish(asked, "a", "b", "d")
        for query, expected in (
            ({"after": "b"}, ["d"]),
            ({"after": "c"}, ["d"]),
            ({"after": ""}, ["a", "b", "d"]),
            ({"after": "a", "offset": 1}, ["d"]),
            ({"after": "d"}, []),
            ({"offset": 2}, ["d"]),
            ({"after": "v" * 256}, []),
        ):
            page = (await asked.ask("GET", ITEMS, **query)).json
            assert [one["id"] for one in page["features"]] == expected, query
            assert page["numberMatched"] == 3
            assert following(page) is None
        assert (await asked.ask("GET", ITEMS, after="v" * 257)).status == 400

    run(tmp_path, scene)


def test_one_item_leads_back_to_itself_and_its_collection(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        await publish(asked, "a+b@c")
        one = (await asked.ask("GET", f"{ITEMS}/a+b@c")).json
        links = {link["rel"]: (link["href"], link["type"]) for link in one.pop("links")}
        here = "http://maps.example/collections/contexts"
        assert links == {
            "self": (f"{here}/items/a%2Bb%40c", "application/geo+json"),
            "collection": (here, "application/json"),
        }
        (listed,) = (await asked.ask("GET", ITEMS)).json["features"]
        assert one == listed

    run(tmp_path, scene)


def test_queryables_have_attributes_with_frequent_values_of_what_the_viewer_may_see(
    tmp_path: Path,
) -> None:
    async def scene(asked: Asked) -> None:
        for number in range(12):
            level: Any = number if number % 2 else float(number)
            one = feature(type="p" if number else "q", name=f"n{number}", level=level, on=True)
            assert (await asked.ask("PUT", f"/contexts/v{number}", one)).status == 201
        hidden = feature(type="secret", other="x")
        assert (await asked.ask("PUT", "/contexts/h", hidden)).status == 201
        assert (await asked.ask("PUT", "/contexts/h/rules", [])).status == 200
        known = (await asked.ask("GET", "/collections/contexts/queryables")).json["properties"]
        assert known["type"] == {"type": "string", "examples": ["p", "q"]}
        assert known["level"] == {"type": ["integer", "number"]}
        assert known["on"] == {"type": "boolean"}
        assert len(known["name"]["examples"]) == 10
        assert {"vid", "place", "geometry", "time"} < set(known)
        assert "other" not in known

    run(tmp_path, scene)


def test_head_is_answered_as_get_is_without_the_body(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        now = asked.service.clock()
        asked.service.clock = lambda: now  # both answers say the same time
        for path, status in (
            ("/", 200),
            ("/healthz", 200),
            ("/readyz", 200),
            ("/openapi.json", 200),
            (ITEMS, 200),
            (f"{ITEMS}?filter=type+%3D", 400),
            (f"{ITEMS}/nobody", 404),
            ("/nowhere", 404),
        ):
            whole, head = [await asked.ask(method, path) for method in ("GET", "HEAD")]
            assert whole.status == head.status == status
            assert head.headers == whole.headers
            assert int(head.headers["content-length"]) == len(whole.body) > 0
            assert head.body == b""

    run(tmp_path, scene)


def test_what_a_path_does_not_do_is_refused_with_what_it_does(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        options = (await asked.ask("OPTIONS", "/contexts/a")).headers["allow"]
        assert options == "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"
        for path, methods in (
            ("/contexts/a", options),
            (ITEMS, "GET, HEAD, OPTIONS"),
            ("/openapi.json", "GET, HEAD, OPTIONS"),
            ("/changes", "GET, OPTIONS"),
        ):
            answer = await asked.ask("POST", path)
            assert answer.status == 405
            assert answer.problem
            assert answer.headers["allow"] == methods

    run(tmp_path, scene)


def test_a_stream_without_end_has_no_head(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        for path in ("/changes", "/changes/"):
            answer = await asked.ask("HEAD", path)
            assert answer.status == 405
            assert answer.headers["allow"] == "GET, OPTIONS"
            assert answer.body == b""
        assert not asked.service.broker._hub.sessions

    run(tmp_path, scene)


def test_the_description_is_made_once_however_often_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(asked: Asked) -> None:
        first = [await asked.ask("GET", path) for path in ("/openapi.json", "/docs")]
        assert first[0].json["openapi"].startswith("3.1")
        monkeypatch.setattr("roamcast.live.http.about.document_of", None)
        assert [await asked.ask("GET", path) for path in ("/openapi.json", "/docs")] == first

    run(tmp_path, scene)


def test_a_devices_name_has_at_most_so_many_letters_and_no_others() -> None:
    # After `in_process`, which imports the application apart from the guard of warnings.
    from roamcast.live.http.routes import DEVICE_LENGTH_MAX, device_of

    longest = "d" * DEVICE_LENGTH_MAX
    assert device_of({"device": [longest]}) == longest
    for wrong in (longest + "d", "a b", "#"):
        with pytest.raises(InputError, match="device has at most 64 letters"):
            device_of({"device": [wrong]})
