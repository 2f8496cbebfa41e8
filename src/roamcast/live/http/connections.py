"""Limits of HTTP connections: slow and oversized requests, and connections without a token."""

import asyncio
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from roamcast.live.config.settings import Limits
from roamcast.live.http.problems import PROBLEM_TYPE, ProblemDetails

CONNECTION: Final = "roamcast.connection"
"""Stands for the connection in the scope of its requests."""


class Strangers:
    """Open connections that have shown no valid token yet, the oldest first.

    They have a limit of their own, in all and for each address. Beyond it the oldest is closed: who
    has a token shows it with the first request, so newcomers are served however many wait.
    """

    def __init__(self, total_max: int, per_address_max: int) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._open: dict[LimitedHttp, str] = {}
        self._at: dict[str, dict[LimitedHttp, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: "LimitedHttp", address: str) -> None:
        """Count a connection in, and close another if there are too many."""
        here = self._at.setdefault(address, {})
        oldest = None
        if len(here) >= self._per_address_max:
            oldest = next(iter(here))
        elif len(self._open) >= self._total_max:
            oldest = next(iter(self._open))
        self._open[connection] = address
        here[connection] = None
        if oldest is not None:
            self.leave(oldest)
            oldest.refuse("too many connections without a token: send one with the first request")

    def leave(self, connection: "LimitedHttp") -> None:
        """Count a connection out: it has shown a token, or is over."""
        address = self._open.pop(connection, None)
        if address is not None:
            here = self._at[address]
            del here[connection]
            if not here:
                del self._at[address]


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's HTTP with time limits for a request's head and body, and a size limit for its head.

    uvicorn alone waits for the end of a head without limit (slow loris), whatever its length.
    """

    limits = Limits()
    strangers = Strangers(10_000, 10_000)
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self.strangers.enter(self, self.client[0] if self.client else "")
        self._wait(self.limits.first_bytes_s, "the head of the request did not arrive in time")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        self.strangers.leave(self)
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
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._in_head = True
        if self._timer is None:
            self._wait(self.limits.first_bytes_s, "the head of the request did not arrive in time")

    def on_headers_complete(self) -> None:
        """Stop the head's timer and start the body's; refuse a head above the limit."""
        limit = self.limits.header_bytes_max
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > limit:
            self._end("431 Request Header Fields Too Large", f"at most {limit} bytes")
            return
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
        if self.transport.is_closing():  # its head was refused
            return
        self._stop()
        self.strangers.leave(self)  # its token is checked before it is accepted
        super().handle_websocket_upgrade()

    def prove(self) -> None:
        """Count this connection among those with a token from now on."""
        self.strangers.leave(self)

    def refuse(self, problem: str) -> None:
        """Close a connection in favour of others."""
        self._end("503 Service Unavailable", problem)

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
    most = limits.anonymous_connections_max
    strangers = Strangers(most, min(most, limits.anonymous_per_address_max))
    return type("LimitedHttp", (LimitedHttp,), {"limits": limits, "strangers": strangers})
