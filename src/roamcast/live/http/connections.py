"""Time and size limits of HTTP requests: slow and oversized ones are closed by the connection."""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from roamcast.live.config.settings import Limits
from roamcast.live.http.problems import PROBLEM_TYPE, ProblemDetails


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's HTTP with time limits for a request's head and body, and a size limit for its head.

    uvicorn alone waits for the end of a head without limit (slow loris), whatever its length.
    """

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._wait(self.limits.first_bytes_s, "the head of the request did not arrive in time")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the head's bytes; beyond the limit they are not parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            limit = self.limits.header_bytes_max
            # one read can hold the end of the head and the start of the body
            if self._head_bytes > limit + 65_536:
                self._end("431 Request Header Fields Too Large", f"at most {limit} bytes")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Start the timer of the next head."""
        super().on_message_begin()
        self._in_head = True
        if self._timer is None:
            self._wait(self.limits.first_bytes_s, "the head of the request did not arrive in time")

    def on_headers_complete(self) -> None:
        """Stop the head's timer and start the body's."""
        self._in_head = False
        self._head_bytes = 0
        self._stop()
        self._wait(self.limits.body_s, "the body of the request did not arrive in time")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer: the request is complete."""
        self._stop()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP with problem details; uvicorn would send plain text."""
        self._end("400 Bad Request", msg)

    def handle_websocket_upgrade(self) -> None:
        """Stop the timer: a WebSocket has its own pings."""
        self._stop()
        super().handle_websocket_upgrade()

    def _wait(self, seconds: float, problem: str) -> None:
        self._timer = self.loop.call_later(seconds, self._end, "408 Request Timeout", problem)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: str, problem: str) -> None:
        self._stop()
        if self.transport.is_closing():
            return
        code, _, title = status.partition(" ")
        body = msgspec.json.encode(ProblemDetails(title, int(code), problem))
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: {PROBLEM_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def http_protocol(limits: Limits) -> type[Any]:
    """Give the protocol class with a service's limits."""
    return type("LimitedHttp", (LimitedHttp,), {"limits": limits})
