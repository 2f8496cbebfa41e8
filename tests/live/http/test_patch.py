"""PATCH changes parts of a context of one's own, as JSON merge patch (RFC 7396) says."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.in_process import Asked, gate

BEFORE = {
    "type": "Feature",
    "geometry": {"type": "Point", "coordinates": [13.4, 52.5]},
    "properties": {"place": "hq/2", "type": "printer", "pages": 7},
}


def patched(folder: Path, patch: Any) -> tuple[Any, Any]:
    """Publish, patch, read: the answer to the patch, and what is on the map then."""

    async def body() -> tuple[Any, Any]:
        async with gate(folder) as asked:
            assert (await asked.ask("PUT", "/contexts/p", BEFORE)).status == 201
            answer = await asked.ask("PATCH", "/contexts/p", patch)
            return answer, (await asked.ask("GET", "/contexts/p")).json

    return asyncio.run(body())


def test_what_a_patch_names_is_changed_and_the_rest_stays(tmp_path: Path) -> None:
    answer, now = patched(tmp_path, {"properties": {"pages": 8, "type": None, "color": True}})
    assert answer.status == 200
    assert answer.json == now
    shown = {name: now["properties"].get(name) for name in ("place", "type", "pages", "color")}
    assert shown == {"place": "hq/2", "type": None, "pages": 8, "color": True}
    assert now["geometry"] == BEFORE["geometry"]


def test_a_point_is_moved_and_taken_away(tmp_path: Path) -> None:
    moved = {"type": "Point", "coordinates": [1.0, 2.0]}
    _, now = patched(tmp_path / "1", {"geometry": moved})
    assert now["geometry"] == moved
    _, now = patched(tmp_path / "2", {"geometry": None})
    assert now["geometry"] is None
    _, now = patched(tmp_path / "3", {"geometry": {"coordinates": [1.0, 2.0]}})
    assert now["geometry"] == moved


def test_a_part_of_a_point_needs_the_rest_of_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            await asked.ask("PUT", "/contexts/p", {**BEFORE, "geometry": None})
            for part in ({}, {"coordinates": [1.0, 2.0]}):
                assert (await asked.ask("PATCH", "/contexts/p", {"geometry": part})).status == 409

    asyncio.run(body())


@pytest.mark.parametrize(
    "patch",
    [
        [],
        7,
        {"id": "other"},
        {"properties": None},
        {"properties": {"pages": [1]}},
        {"properties": {"t_d": "2026-01-01T00:00:00Z"}},
        {"geometry": {"type": "Polygon"}},
    ],
)
def test_a_wrong_patch_is_refused_and_changes_nothing(tmp_path: Path, patch: Any) -> None:
    answer, now = patched(tmp_path, patch)
    assert answer.status == 400, answer.json
    assert now["properties"]["pages"] == 7
    assert now["geometry"] == BEFORE["geometry"]


def test_a_patch_that_leaves_a_context_nowhere_is_a_conflict(tmp_path: Path) -> None:
    answer, now = patched(tmp_path, {"geometry": None, "properties": {"place": None}})
    assert answer.status == 409
    assert now["properties"]["place"] == "hq/2"


def test_a_deep_patch_is_the_clients_mistake(tmp_path: Path) -> None:
    for depth in (300, 900, 50_000):
        nested = "{}" if not depth else '{"a":' * depth + "1" + "}" * depth

        async def body(nested: str = nested, depth: int = depth) -> int:
            async with gate(tmp_path / str(depth)) as asked:
                await asked.ask("PUT", "/contexts/p", BEFORE)
                return (await _raw(asked, '{"properties":' + nested + "}")).status

        assert asyncio.run(body()) == 400


async def _raw(asked: Asked, text: str) -> Any:
    """Send a body that Python's own encoder could not write."""
    return await asked.ask("PATCH", "/contexts/p", text.encode())


def test_the_lifetime_stays(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            publications = asked.service.broker
            await asked.ask("PUT", "/contexts/p", BEFORE, lifetime=60)
            first = publications.publication_for("ada", "p")
            await asked.ask("PATCH", "/contexts/p", {"properties": {"pages": 9}})
            second = publications.publication_for("ada", "p")
            assert first is not None
            assert second is not None
            assert abs(second.expires_us - first.expires_us) < 1_000_000

    asyncio.run(body())


def test_only_ones_own_context_is_patched(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            assert (await asked.ask("PATCH", "/contexts/p", {})).status == 404
            await asked.ask("PUT", "/contexts/p", BEFORE)
            now = asked.service.clock()
            asked.token = asked.service.keys.issue("bob", ["publish"], lifetime_s=60, now=now)
            answer = await asked.ask("PATCH", "/contexts/p", {"properties": {"pages": 1}})
            assert answer.status == 404
            assert "you have published no context" in json.dumps(answer.json)

    asyncio.run(body())
