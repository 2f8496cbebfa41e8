"""POST /contexts publishes many Features: all are read first, then each stands for itself."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roamcast.live.config.settings import Limits, Settings
from roamcast.live.http.writing import BATCH_MAX
from tests.live.in_process import Asked, gate


def feature(vid: str, place: str = "hq") -> dict[str, Any]:
    return {"type": "Feature", "id": vid, "geometry": None, "properties": {"place": place}}


def batch(*features: Any) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": list(features)}


def told(
    folder: Path, story: Callable[[Asked], Awaitable[None]], settings: Settings | None = None
) -> None:
    async def body() -> None:
        async with gate(folder, settings) as asked:
            await story(asked)

    asyncio.run(body())


async def count(asked: Asked) -> int:
    found = (await asked.ask("GET", "/count")).json["count"]
    assert isinstance(found, int)
    return found


def test_each_is_published_as_its_own_put_would_be(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        service = asked.service
        bobs = service.keys.issue("bob", ["publish"], lifetime_s=60, now=service.clock())
        mine, asked.token = asked.token, bobs
        assert (await asked.ask("PUT", "/contexts/b", feature("b"))).status == 201
        asked.token = mine
        answer = await asked.ask("POST", "/contexts", batch(feature("a"), feature("b")))
        assert [one["status"] for one in answer.json["outcomes"]] == [201, 409]
        assert "somebody else" in answer.json["outcomes"][1]["detail"]
        lines = "\n".join(json.dumps(feature(vid, "lab")) for vid in ("a", "c")).encode()
        answer = await asked.ask("POST", "/contexts?lifetime=60", lines)
        assert answer.json["outcomes"] == [{"id": "a", "status": 200}, {"id": "c", "status": 201}]
        assert await count(asked) == 3

    told(tmp_path, story)


def test_one_that_can_not_be_read_leaves_everything_as_it_was(tmp_path: Path) -> None:
    wrong: list[Any] = [
        batch(feature("a"), {**feature("b"), "properties": {"place": 7}}),
        batch(feature("a"), feature("a")),
        batch(feature("a"), {**feature("b"), "id": None}),
        batch(feature("a"), feature("b/c")),
        batch(),
        b"",
        b'{"type": "Feature"',
        b"[" * 100_000,
        [feature("a")],
    ]

    async def story(asked: Asked) -> None:
        for body in wrong:
            assert (await asked.ask("POST", "/contexts", body)).status == 400, body
        answer = await asked.ask("POST", "/contexts", batch(feature("a")), lifetime="1e9")
        assert answer.status == 400
        assert await count(asked) == 0

    told(tmp_path, story)


@pytest.mark.limit("batch.features_max")
def test_a_batch_is_bounded_and_costs_as_many_requests_as_it_has_features(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        for number, status in ((BATCH_MAX, 200), (BATCH_MAX + 1, 400)):
            many = batch(*(feature(f"p{one}") for one in range(number)))
            assert (await asked.ask("POST", "/contexts", many)).status == status
        assert await count(asked) == BATCH_MAX

    told(tmp_path / "bound", story)

    async def poor(asked: Asked) -> None:
        assert (await asked.ask("POST", "/contexts", batch(*map(feature, "abc")))).status == 200
        answer = await asked.ask("POST", "/contexts", batch(*map(feature, "def")))
        assert answer.status == 429
        assert asked.service.broker.held()["contexts"] == 3

    limits = Limits(requests_per_s=0.01, requests_burst=4)
    told(tmp_path / "price", poor, Settings(limits=limits))
