"""A relay forwards plain requests to its service, so many at once and no more."""

import asyncio
from typing import Any

import pytest

from roamcast.errors import LimitError
from roamcast.live.relay.forward import FORWARDED_MAX, Forwarding
from tests.strategies_service import in_loop

SCOPE = {"method": "GET", "path": "/healthz", "query_string": b"", "headers": []}


async def request(body: bytes = b"") -> dict[str, Any]:
    return {"type": "http.request", "body": body}


@in_loop
async def test_requests_beyond_the_bound_wait_until_others_are_answered() -> None:
    waiting: list[asyncio.StreamWriter] = []
    full = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.append(writer)
        if len(waiting) == FORWARDED_MAX:
            full.set()

    async def answer() -> None:
        writer = waiting.pop()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    forwarding = Forwarding(f"http://127.0.0.1:{port}", timeout_s=60.0, tls=None)
    async with server:
        asked = [
            asyncio.create_task(forwarding.ask(SCOPE, request, 10))
            for _ in range(FORWARDED_MAX + 1)
        ]
        await full.wait()
        assert forwarding._threads._work_queue.qsize() == 1  # the one beyond the bound
        for _ in range(FORWARDED_MAX):
            await answer()
        while not waiting:
            await asyncio.sleep(0.01)
        await answer()
        answers = await asyncio.gather(*asked)
    assert [body for _, _, body in answers] == [b"ok"] * (FORWARDED_MAX + 1)
    forwarding.close()


@in_loop
async def test_a_body_at_the_limit_is_read_and_a_larger_one_refused_unsent() -> None:
    forwarding = Forwarding("http://127.0.0.1:9", timeout_s=1.0, tls=None)
    with pytest.raises(LimitError, match="a body has at most 3 bytes"):
        await forwarding.ask(SCOPE, lambda: request(b"four"), 3)
    with pytest.raises(Exception, match="no service answers"):
        await forwarding.ask(SCOPE, lambda: request(b"bye"), 3)
    forwarding.close()
