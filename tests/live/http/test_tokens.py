"""POST /tokens makes tokens that can do no more than the one that asks, and not for longer."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roamcast.errors import ForbiddenError, LimitError
from roamcast.live.auth import admission
from roamcast.live.auth.admission import NarrowerToken, TokenKeys
from tests.live.in_process import Asked, gate

NOW = 1_700_000_000_000_000
HQ = "within(place, 'hq')"


def feature(place: str) -> dict[str, Any]:
    return {"type": "Feature", "geometry": None, "properties": {"place": place}}


def told(folder: Path, story: Callable[[Asked], Awaitable[None]]) -> None:
    async def body() -> None:
        async with gate(folder) as asked:
            await story(asked)

    asyncio.run(body())


async def minted(asked: Asked, **wanted: Any) -> Any:
    answer = await asked.ask("POST", "/tokens", wanted)
    assert answer.status == 201, answer.body
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


def test_a_token_with_a_filter_reads_and_publishes_within_it_alone(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        for vid, place in (("in", "hq/1"), ("out", "lab")):
            assert (await asked.ask("PUT", f"/contexts/{vid}", feature(place))).status == 201
        scopes = ["read", "publish", "subscribe"]
        asked.token = (await minted(asked, filter=HQ, scopes=scopes))["token"]
        items = await asked.ask("GET", "/collections/contexts/items")
        assert [one["id"] for one in items.json["features"]] == ["in"]
        assert (await asked.ask("GET", "/count", filter="vid = 'out'")).json["count"] == 0
        for path in ("/contexts/", "/collections/contexts/items/"):
            assert (await asked.ask("GET", path + "in")).status == 200
            assert (await asked.ask("GET", path + "out")).status == 404
        assert (await asked.ask("PUT", "/contexts/new", feature("lab"))).status == 403
        assert (await asked.ask("PUT", "/contexts/new", feature("hq/2"))).status == 201
        assert (await asked.ask("DELETE", "/contexts/out")).status == 404
        moved = {"properties": {"place": "lab"}}
        assert (await asked.ask("PATCH", "/contexts/in", moved)).status == 403
        assert (await asked.ask("PATCH", "/contexts/out", moved)).status == 404
        assert (await asked.ask("PUT", "/contexts/in/rules", [])).status == 403
        both = await minted(asked, filter="place = 'hq/2'")
        asked.token = both["token"]
        assert (await asked.ask("GET", "/count")).json["count"] == 1

    told(tmp_path, story)


def test_a_narrower_token_ends_with_the_one_it_was_made_from(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        first = await minted(asked, scopes=["read", "publish"])
        operator, asked.token = asked.token, first["token"]
        second = await minted(asked, lifetime_s=1e6)
        assert second["expires"] <= first["expires"]
        assert (await asked.ask("POST", "/tokens", {"scopes": ["admin"]})).status == 403
        assert (await asked.ask("POST", "/tokens", {"groups": ["staff"]})).status == 403
        assert (await asked.ask("POST", "/tokens", {"scope": ["read"]})).status == 400
        assert (await asked.ask("POST", "/tokens", {"filter": "place ="})).status == 400
        asked.token = operator
        assert (await asked.ask("POST", "/tokens", {"filter": HQ})).status == 400  # with admin
        revoked = {"token": first["token"]}
        assert (await asked.ask("POST", "/tokens/revoke", revoked)).status == 204
        for ended in (first, second):
            asked.token = ended["token"]
            assert (await asked.ask("GET", "/count")).status == 401

    told(tmp_path, story)


def test_nobody_revokes_anothers_token(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        keys, now = asked.service.keys, asked.service.clock()
        bobs = keys.issue("bob", ["read"], lifetime_s=60, now=now)
        eves = keys.issue("eve", ["read"], lifetime_s=60, now=now)
        asked.token = eves
        assert (await asked.ask("POST", "/tokens/revoke", {"token": bobs})).status == 403
        assert (await asked.ask("POST", "/tokens/revoke", {"token": eves})).status == 204
        assert (await asked.ask("GET", "/count")).status == 401
        asked.token = bobs
        assert (await asked.ask("GET", "/count")).status == 200

    told(tmp_path, story)


@pytest.mark.limit("token.filter_length_max", "token.ancestors_max")
def test_lifetime_filters_and_descent_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = TokenKeys.open(tmp_path)
    grant = keys.check(keys.issue("ada", ["read"], lifetime_s=60, now=NOW), NOW)
    for _ in range(admission.ANCESTORS_MAX):
        _, grant = keys.narrowed(grant, NarrowerToken(), NOW)
    with pytest.raises(LimitError, match="descends"):
        keys.narrowed(grant, NarrowerToken(), NOW)
    keys.refuse(grant.ancestors[0], NOW + 10**9)
    assert keys.ended([grant], NOW)[0] is not None
    monkeypatch.setattr(admission, "BOUND_LENGTH_MAX", 20)
    fresh = keys.check(keys.issue("ada", ["read"], lifetime_s=60, now=NOW), NOW)
    _, bound = keys.narrowed(fresh, NarrowerToken(filter="a = 'xxxxxxxxxxxx'"), NOW)
    assert len(bound.filter) == 20
    with pytest.raises(LimitError, match="characters"):
        keys.narrowed(fresh, NarrowerToken(filter="a = 'xxxxxxxxxxxxx'"), NOW)
    with pytest.raises(ForbiddenError, match="link"):
        bound.require_unbound("use a link")
