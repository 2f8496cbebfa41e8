"""How are five thousand WebSockets written to in one go? One frame's bytes, shared by all of them.

uvicorn speaks WebSocket through ASGI, a coroutine and a message for each write. A server's frames
are not masked, so the same bytes are right for every client: they are made once and given to each
transport. Incoming messages go straight to the endpoint, without a queue and a task for each.
"""

import asyncio
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

EXTENSION: Final = "roamcast.socket"
"""The key of a connection's `WebSocket` in the ASGI scope's extensions."""

GOING_AWAY: Final = 1001
INVALID: Final = 1007
POLICY: Final = 1008
TRY_AGAIN: Final = 1013
RESTART: Final = 1012

GATHERED_BYTES_MAX: Final = 65_536
"""Frames of one turn of the loop that wait for its end; more leave at once."""

_PROBLEM: Final = (
    b'{"title":"Bad Request","status":400,"type":"about:blank",'
    b'"detail":"the head of this WebSocket request is too large or malformed"}'
)
_REFUSED: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_PROBLEM), _PROBLEM)
)


class Socket(Protocol):
    """What endpoints need of a connection."""

    @property
    def waiting_bytes(self) -> int:
        """How much is written and not yet taken by the network."""

    def write(self, framed: bytes) -> None:
        """Write a whole frame."""

    def close(self, code: int, reason: str) -> None:
        """Say why, and close."""


class Sink(Protocol):
    """Where a session's frames go."""

    def write(self, framed: bytes, /) -> None:
        """Write one frame."""

    def cut(self, reason: str) -> None:
        """End the session, and say why."""


class Endpoint(Protocol):
    """Who talks on a connection."""

    def received(self, data: bytes | str) -> None:
        """A message came."""

    def paused(self) -> None:
        """The connection takes no more for now."""

    def resumed(self) -> None:
        """The connection takes more again."""


def text_frame(payload: bytes) -> bytes:
    """Frame a text for any client."""
    return _head(0x81, len(payload)) + payload


def binary_frame(payload: bytes) -> bytes:
    """Frame bytes for any client."""
    return _head(0x82, len(payload)) + payload


def _head(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 65_536:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


class _Turn:
    """One turn of a loop after the other, and the connections that gather frames in this one."""

    def __init__(self) -> None:
        self.number = 0
        self.gathering: list[WebSocket] = []
        self.begun = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notice the end of this turn, once for all connections that write in it."""
        self.begun = True
        loop.call_soon(self._end)

    def _end(self) -> None:
        self.number += 1
        self.begun = False
        gathering, self.gathering = self.gathering, []
        for socket in gathering:
            socket.flush()


_TURNS: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn]" = WeakKeyDictionary()


def _turn_of(loop: asyncio.AbstractEventLoop) -> _Turn:
    turn = _TURNS.get(loop)
    if turn is None:
        turn = _TURNS[loop] = _Turn()
    return turn


class WebSocket(WebSocketsSansIOProtocol):
    """A connection of uvicorn's that endpoints attach to."""

    endpoint: Endpoint | None = None
    _over: "asyncio.Future[None] | None" = None
    _held_until = 0.0
    _hold_timer: asyncio.TimerHandle | None = None
    _halted = False
    _gathered_bytes = 0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._gathered: list[bytes] = []
        self._turn = _turn_of(self.loop)
        self._wrote_in = -1
        self._bursts = False

    def handle_connect(self, event: Any) -> None:
        """Give the application this connection beside the ASGI calls."""
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"][EXTENSION] = self

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head the library refuses, as too large perhaps, is not left unanswered."""
        super().data_received(data)
        refused = self.conn.handshake_exc is not None and not self.handshake_initiated
        if refused and not self.transport.is_closing():
            self.transport.write(_REFUSED)
            self.transport.close()

    def shutdown(self) -> None:
        """Go down with the service; a connection that was closed already only ends."""
        if self.conn.state is State.CLOSING:
            self.transport.close()
        else:
            super().shutdown()

    async def send(self, message: Any) -> None:
        """Send for ASGI; an upgrade that was answered otherwise is complete as well."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # uvicorn would log an error for each

    async def serve(self, endpoint: Endpoint, *, high_bytes: int, low_bytes: int) -> None:
        """Let an endpoint talk on the accepted connection until it is over."""
        try:
            await self._serve(endpoint, high_bytes, low_bytes)
        finally:  # what is over refers to nothing that refers to it, and needs no collector (0380)
            self.endpoint = None
            self.scope["extensions"].pop(EXTENSION, None)
            if self.disconnected:
                self.conn.parser.close()

    async def _serve(self, endpoint: Endpoint, high_bytes: int, low_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self.transport.set_write_buffer_limits(high=high_bytes, low=low_bytes)
        self.endpoint = endpoint
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        while not self.queue.empty():  # what came before the endpoint was ready
            message: dict[str, Any] = self.queue.get_nowait()  # type: ignore[assignment]
            if message["type"] == "websocket.receive":
                data = message.get("bytes")
                endpoint.received(message["text"] if data is None else data)
            elif message["type"] == "websocket.disconnect":
                return
        if self.disconnected:
            return
        await self._over

    @property
    def waiting_bytes(self) -> int:
        """How much is written and not yet taken by the network."""
        return self._gathered_bytes + int(self.transport.get_write_buffer_size())

    def write(self, framed: bytes) -> None:
        """Write a whole frame; what is written to a connection that closes is lost with it.

        The first frame of a turn of the loop leaves at once, and what follows it leaves together:
        the updates that one commit acknowledges would else cost a system call each, for each
        session that hears of them. A connection with several frames in the last turn waits for
        those of this one from the start.
        """
        turn = self._turn
        if not turn.begun:
            turn.begin(self.loop)
        if not self._bursts and self._wrote_in != turn.number:
            self._wrote_in = turn.number
            if not (self.close_sent or self.transport.is_closing()):
                self.transport.write(framed)
            return
        if not self._gathered:
            turn.gathering.append(self)
        self._gathered.append(framed)
        self._gathered_bytes += len(framed)
        if self._gathered_bytes > GATHERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Let go of what this turn of the loop has gathered."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            self._bursts = len(gathered) > 1 or not self._bursts
            if not (self.close_sent or self.transport.is_closing()):
                self.transport.write(b"".join(gathered))

    def close(self, code: int, reason: str) -> None:
        """Say why, and close; a peer that does not answer is dropped after a while."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.flush()
        self.conn.send_close(code, _short(reason))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """Hand a message to the endpoint, or to ASGI while there is none."""
        if self.endpoint is None:
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "bytes":
            self.endpoint.received(bytes(data))
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.close(INVALID, "a text message must be UTF-8")
            return
        self.endpoint.received(text)

    def pause_writing(self) -> None:
        """Tell the endpoint that its peer is slow; later, for a write may be what told us."""
        super().pause_writing()
        if self.endpoint is not None:
            self.loop.call_soon(self.endpoint.paused)

    def resume_writing(self) -> None:
        """Tell the endpoint that its peer takes more again."""
        super().resume_writing()
        if self.endpoint is not None:
            self.loop.call_soon(self.endpoint.resumed)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        super().connection_lost(exc)
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def hold(self, seconds: float) -> None:
        """Read nothing for a while: the peer sends faster than it may. The longest while counts."""
        end = self.loop.time() + seconds
        if end <= self._held_until:
            return
        self._held_until = end
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        self._hold_timer = self.loop.call_later(seconds, self._held_enough)
        self._read()

    def halt(self, halted: bool) -> None:
        """Read nothing until told otherwise."""
        if halted != self._halted:
            self._halted = halted
            self._read()

    def _held_enough(self) -> None:
        self._hold_timer = None
        self._read()

    def _read(self) -> None:
        """Read, or not, whatever the reason."""
        if self.transport.is_closing():
            return
        if self._halted or self._hold_timer is not None:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


def _short(reason: str) -> str:
    """Cut a reason to what a close frame can carry."""
    return reason.encode()[:120].decode(errors="ignore")
