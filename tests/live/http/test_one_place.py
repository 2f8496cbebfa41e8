"""A route is added in one place: the decorator's arguments are all that any other part reads."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from litestar import Response
from litestar.params import Parameter

from roamcast.live.auth.admission import TokenKeys
from roamcast.live.http import routes
from roamcast.live.http.routes import Asked, route
from roamcast.live.http.shapes import as_json
from tests.live.in_process import Asked as Gate
from tests.live.in_process import gate


class Echo(msgspec.Struct, frozen=True):
    """What a route of this test answers."""

    word: Annotated[str, msgspec.Meta(max_length=8)]


@pytest.fixture
def echo() -> Iterator[None]:
    before = set(routes.PARAMETERS)

    @route("GET", "/echo/{word:str}", scope="cast", tag="test", answer=Echo, summary="Say it back")
    async def get_echo(
        request: Asked, word: str, times: Annotated[int, Parameter(ge=1, le=3)] = 1
    ) -> Response[bytes]:
        """Repeat a word."""
        del request
        return as_json(Echo(word * times))

    yield
    routes.ROUTES.remove(get_echo)
    routes.PARAMETERS.intersection_update(before)


@pytest.mark.usefixtures("echo")
def test_a_decorated_handler_is_served_described_listed_and_guarded(tmp_path: Path) -> None:
    async def scene(asked: Gate) -> None:
        answer = await asked.ask("GET", "/echo/ab", times=2)
        assert (answer.status, answer.json) == (200, {"word": "abab"})
        assert (await asked.ask("GET", "/echo/ab", times=4)).status == 400

        document = (await asked.ask("GET", "/openapi.json")).json
        operation = document["paths"]["/echo/{word}"]["get"]
        assert (operation["operationId"], operation["tags"]) == ("getEcho", ["test"])
        content = operation["responses"]["200"]["content"]["application/json"]
        assert content == {"schema": {"$ref": "#/components/schemas/Echo"}}
        assert {"401", "403", "429"} <= set(operation["responses"])
        described = document["components"]["schemas"]["Echo"]["properties"]["word"]
        assert described == {"type": "string", "maxLength": 8}
        times = next(one for one in operation["parameters"] if one["name"] == "times")
        assert (times["schema"]["minimum"], times["schema"]["maximum"]) == (1, 3)

        assert "/echo/{word}" in (await asked.ask("GET", "/docs")).body.decode()
        assert (await asked.ask("PUT", "/echo/ab")).headers["allow"] == "GET, HEAD, OPTIONS"
        assert (await asked.ask("OPTIONS", "/echo/ab")).headers["allow"] == "GET, HEAD, OPTIONS"
        head = await asked.ask("HEAD", "/echo/ab")
        assert (head.status, head.body) == (200, b"")

        # Its parameter names no attribute any more, and its scope is needed.
        found = await asked.ask("GET", "/collections/contexts/items", times=2)
        assert found.status == 200
        keys: TokenKeys = asked.service.keys
        asked.token = keys.issue("bob", ["read"], lifetime_s=60, now=asked.service.clock())
        refused = await asked.ask("GET", "/echo/ab")
        assert refused.status == 403
        assert "needs the scope cast" in refused.problem

    async def body() -> None:
        async with gate(tmp_path) as asked, asyncio.timeout(60):
            await scene(asked)

    asyncio.run(body())


def test_nothing_of_it_is_left_for_the_next_test(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked, asyncio.timeout(60):
            assert (await asked.ask("GET", "/echo/ab")).status == 404

    asyncio.run(body())
