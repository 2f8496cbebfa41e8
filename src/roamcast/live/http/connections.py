"""Limits of HTTP connections: slow and oversized requests, and connections without a token.

A connection is a `Newcomer` until it says something: thousands that stay silent must cost little,
for whoever comes after them waits until each of them is accepted (0381).
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice, takewhile
from typing import Any, ClassVar, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from roamcast.live.config.settings import Limits
from roamcast.live.http.problems import PROBLEM_TYPE, ProblemDetails

CONNECTION: Final = "roamcast.connection"
"""Stands for the connection in the scope of its requests."""

HEAD_LATE: Final = "the head of the request did not arrive in time"

OVERDUE_AT_ONCE: Final = 64
"""Silent connections that are closed before others have their turn."""


class Strangers:
    """Open connections that have shown no valid token yet, the oldest first.

    They have a limit of their own, in all and for each address. Beyond it the oldest is closed: who
    has a token shows it with the first request, so newcomers are served however many wait.
    """

    def __init__(self, total_max: int, per_address_max: int) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._open: dict[Newcomer, str] = {}
        self._at: dict[str, dict[Newcomer, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: "Newcomer", address: str) -> None:
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

    def leave(self, connection: "Newcomer") -> None:
        """Count a connection out: it has shown a token, or is over."""
        address = self._open.pop(connection, None)
        if address is not None:
            here = self._at[address]
            del here[connection]
            if not here:
                del self._at[address]


class Silent:
    """Connections that have sent nothing yet, the oldest first, with one timer for all of them."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._due: dict[Newcomer, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def enter(self, connection: "Newcomer", loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a connection's first bytes."""
        self._due[connection] = loop.time() + self._wait_s
        self._watch(loop)

    def leave(self, connection: "Newcomer") -> float | None:
        """Wait no more; give until when its head may take."""
        return self._due.pop(connection, None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._due:
            self._timer = loop.call_at(next(iter(self._due.values())), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the overdue, some at a time."""
        self._timer = None
        now = loop.time()
        some = islice(self._due.items(), OVERDUE_AT_ONCE)
        for connection, _ in [*takewhile(lambda entry: entry[1] <= now, some)]:
            del self._due[connection]
            connection.end("408 Request Timeout", HEAD_LATE)
        self._watch(loop)


class Newcomer(asyncio.Protocol):
    """A connection until its first bytes: then uvicorn's HTTP takes it over."""

    limits = Limits()
    strangers = Strangers(10_000, 10_000)
    silent = Silent(limits.first_bytes_s)
    http: "ClassVar[type[LimitedHttp]]"
    transport: asyncio.Transport

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: Any,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = _loop or asyncio.get_running_loop()
        self._connections = server_state.connections
        self._make: Callable[[], LimitedHttp] = partial(
            self.http, config, server_state, app_state, _loop
        )
        self._taken_over: LimitedHttp | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a connection in, and wait for its first bytes."""
        self.transport = transport
        self._connections.add(self)
        self.silent.enter(self, self._loop)
        address = transport.get_extra_info("peername")
        self.strangers.enter(self, address[0] if isinstance(address, tuple) else "")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that said nothing."""
        del exc
        self.leave()
        self.part()

    def data_received(self, data: bytes) -> None:
        """Let HTTP take over."""
        due = self.leave()
        made = self._taken_over = self._make()
        made.newcomer = self
        if due is not None:
            made.first_bytes_s = max(0.0, due - self._loop.time())
        self.transport.set_protocol(made)
        made.connection_made(self.transport)
        made.data_received(data)

    def leave(self) -> float | None:
        """Be no newcomer any more; give until when the head may take."""
        self._connections.discard(self)
        return self.silent.leave(self)

    def part(self) -> None:
        """Be no stranger any more: it has shown a token, or is over."""
        self.strangers.leave(self)
        self._taken_over = None  # no cycle stays behind

    def shutdown(self) -> None:
        """Close: the service ends."""
        self.transport.close()

    def refuse(self, problem: str) -> None:
        """Close a connection in favour of others."""
        self.end("503 Service Unavailable", problem)

    def end(self, status: str, problem: str) -> None:
        """Say why, and close."""
        if self._taken_over is not None:
            self._taken_over.end(status, problem)
        elif not self.transport.is_closing():
            self.transport.write(_last_words(status, problem))
            self.transport.close()


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's HTTP with time limits for a request's head and body, and a size limit for its head.

    uvicorn alone waits for the end of a head without limit (slow loris), whatever its length.
    """

    limits = Limits()
    strangers = Newcomer.strangers
    newcomer: Newcomer
    first_bytes_s = limits.first_bytes_s
    """What is left for the first head."""
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._wait(self.first_bytes_s, HEAD_LATE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        self.newcomer.part()
        super().connection_lost(exc)
        self._untie()

    def data_received(self, data: bytes) -> None:
        """Count the head's bytes; beyond the limit they are not parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            limit = self.limits.header_bytes_max
            # one read can hold the end of the head and the start of the body
            if self._head_bytes > limit + 65_536:
                self.end("431 Request Header Fields Too Large", f"at most {limit} bytes")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Start the timer of the next head."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._in_head = True
        if self._timer is None:
            self._wait(self.limits.first_bytes_s, HEAD_LATE)

    def on_headers_complete(self) -> None:
        """Stop the head's timer and start the body's; refuse a head above the limit."""
        limit = self.limits.header_bytes_max
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > limit:
            self.end("431 Request Header Fields Too Large", f"at most {limit} bytes")
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
        self.end("400 Bad Request", msg)

    def handle_websocket_upgrade(self) -> None:
        """Stop the timer: a WebSocket has its own pings."""
        if self.transport.is_closing():  # its head was refused
            return
        self._stop()
        self.newcomer.part()  # its token is checked before it is accepted
        super().handle_websocket_upgrade()
        self._untie()

    def _untie(self) -> None:
        """Refer to nothing that refers to this connection: what is over needs no collector."""
        self.parser = self.cycle = self.scope = None  # type: ignore[assignment]

    def prove(self) -> None:
        """Count this connection among those with a token from now on."""
        self.newcomer.part()

    def _wait(self, seconds: float, problem: str) -> None:
        self._timer = self.loop.call_later(seconds, self.end, "408 Request Timeout", problem)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self, status: str, problem: str) -> None:
        """Say why, and close."""
        self._stop()
        if not self.transport.is_closing():
            self.transport.write(_last_words(status, problem))
            self.transport.close()


Newcomer.http = LimitedHttp


@lru_cache(16)
def _last_words(status: str, problem: str) -> bytes:
    code, _, title = status.partition(" ")
    body = msgspec.json.encode(ProblemDetails(title, int(code), problem))
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {PROBLEM_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def http_protocol(limits: Limits) -> type[Any]:
    """Give the protocol class with a service's limits."""
    most = limits.anonymous_connections_max
    strangers = Strangers(most, min(most, limits.anonymous_per_address_max))
    shared = {"limits": limits, "strangers": strangers}
    http = type("LimitedHttp", (LimitedHttp,), shared)
    own = {**shared, "silent": Silent(limits.first_bytes_s), "http": http}
    return type("Newcomer", (Newcomer,), own)
