"""WebSockets: frames of one turn of the loop leave together, in order and before the close."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from roamcast.live.links.sockets import (
    EXTENSION,
    GATHERED_BYTES_MAX,
    TRY_AGAIN,
    WebSocket,
    text_frame,
)


def heard(talk: Callable[[WebSocket], None]) -> tuple[list[str], str]:
    """Let a server talk on one connection: what its client heard, and why it was closed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        talk(scope["extensions"][EXTENSION])
        await receive()  # that it is over

    async def scene() -> tuple[list[str], str]:
        server = uvicorn.Server(uvicorn.Config(app, ws=WebSocket, lifespan="off", log_config=None))
        listening = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listening]))
        try:
            async with connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/") as link:
                texts = []
                with suppress(ConnectionClosed):
                    while True:
                        texts.append(str(await link.recv()))
                return texts, link.close_reason or ""
        finally:
            server.should_exit = True
            await serving

    return asyncio.run(scene())


def test_frames_of_a_turn_come_in_order_and_before_the_close() -> None:
    def talk(link: WebSocket) -> None:
        for number in range(3):
            link.write(text_frame(str(number).encode()))
        assert link.waiting_bytes == 6, "the first has left, the others leave together"
        link.close(TRY_AGAIN, "enough")
        link.write(text_frame(b"too late"))

    assert heard(talk) == (["0", "1", "2"], "enough")


def test_a_service_goes_down_while_a_client_has_not_answered_its_close() -> None:
    went_down: list[WebSocket] = []

    def talk(link: WebSocket) -> None:
        link.close(TRY_AGAIN, "enough")
        link.shutdown()  # as uvicorn does with every connection
        went_down.append(link)

    assert heard(talk) == ([], "enough")
    assert went_down


def test_more_than_the_limit_leaves_at_once() -> None:
    head = len(text_frame(bytes(60_000))) - 60_000
    rest = GATHERED_BYTES_MAX - 60_000 - 2 * head
    waited: list[int] = []

    def talk(link: WebSocket) -> None:
        link.write(text_frame(b"first"))
        link.write(text_frame(b"a" * 60_000))
        link.write(text_frame(b"b" * rest))
        waited.append(link.waiting_bytes)
        link.write(text_frame(b"c"))
        waited.append(link._gathered_bytes)
        link.close(TRY_AGAIN, "enough")

    texts, _ = heard(talk)
    assert [len(text) for text in texts] == [5, 60_000, rest, 1]
    assert waited == [GATHERED_BYTES_MAX, 0]


def test_who_gets_several_frames_a_turn_waits_for_them_and_who_gets_one_does_not() -> None:
    waited: list[int] = []

    def talk(link: WebSocket, turns: list[int]) -> None:
        for _ in range(turns[0]):
            link.write(text_frame(b"."))
        waited.append(link.waiting_bytes)
        if turns[1:]:
            link.loop.call_later(0.01, talk, link, turns[1:])
        else:
            link.close(TRY_AGAIN, "enough")

    texts, _ = heard(lambda link: talk(link, [1, 2, 2, 1, 1]))
    assert len(texts) == 7
    assert waited == [0, 3, 6, 3, 0]
