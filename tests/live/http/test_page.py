"""What the service does for the page, asked without a browser."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from roamcast.live.http import page
from roamcast.live.http.page import POLICY, PageFile
from roamcast.live.http.places import document_of
from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places_geojson import read_places
from tests.live.in_process import gate

PLACES = campus("campus", 1, 1, FloorPlan(cells=1, meeting_rooms=0, kitchens=0))
FILES = {
    "index.html": PageFile("text/html; charset=utf-8", gzip.compress(b"<p>map</p>")),
    "index-abc.js": PageFile("text/javascript; charset=utf-8", gzip.compress(b"let a;")),
}


def test_the_page_and_its_assets_are_served_with_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "built", lambda: FILES)

    async def body() -> None:
        async with gate(tmp_path) as asked:
            answer = await asked.ask("GET", "/", headers={"accept": "text/html,*/*"})
            assert (answer.status, answer.body) == (200, b"<p>map</p>")
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "no-cache"
            packed = {"accept-encoding": "br, gzip"}
            script = await asked.ask("GET", "/assets/index-abc.js", headers=packed)
            assert gzip.decompress(script.body) == b"let a;"
            assert script.headers["content-encoding"] == "gzip"
            assert script.headers["content-security-policy"] == POLICY
            assert "immutable" in script.headers["cache-control"]
            assert script.headers["content-type"].startswith("text/javascript")
            for name in ("nothing.js", "..%2f..%2fkeys.json", "index.html.gz"):
                assert (await asked.ask("GET", f"/assets/{name}")).status == 404
            programs = await asked.ask("GET", "/", headers={"accept": "application/json"})
            assert programs.json["title"] == "Roamcast"
            docs = await asked.ask("GET", "/docs", headers={"accept": "text/html"})
            assert b"/openapi.json" in docs.body

    asyncio.run(body())


def test_without_the_page_the_root_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "built", dict)
    monkeypatch.setattr(page, "why_missing", lambda: "npm <failed>")

    async def body() -> None:
        async with gate(tmp_path) as asked:
            answer = await asked.ask("GET", "/", headers={"accept": "text/html"})
            assert answer.status == 200
            assert b"not built" in answer.body
            assert b"make web" in answer.body
            assert b"npm &lt;failed&gt;" in answer.body
            assert answer.headers["content-security-policy"] == POLICY

    asyncio.run(body())


def test_places_have_a_tag_by_which_they_are_not_sent_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            assert (await asked.ask("GET", "/places")).json["features"] == []
        async with gate(tmp_path) as asked:
            asked.service.places = PLACES
            first = await asked.ask("GET", "/places")
            assert read_places(first.body) == PLACES
            tag = first.headers["etag"]
            assert tag == document_of(PLACES).tag
            for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
                again = await asked.ask("GET", "/places", headers={"if-none-match": known})
                assert (again.status, again.body) == (304, b"")
            other = await asked.ask("GET", "/places", headers={"if-none-match": '"other"'})
            assert other.body == first.body
            packed = await asked.ask("GET", "/places", headers={"accept-encoding": "gzip"})
            assert json.loads(gzip.decompress(packed.body)) == first.json

    asyncio.run(body())


def test_a_wrong_filter_says_where(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            answer = await asked.ask("GET", "/count", filter="type = 'abc")
            assert answer.status == 400
            assert answer.json["position"] == 8
            assert "position" not in (await asked.ask("GET", "/count", bbox="x")).json

    asyncio.run(body())
