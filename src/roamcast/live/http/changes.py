"""Server-sent events, so that `curl -N` can follow the map: the current set, then every change.

`EventSink` holds what waits for one connection, of changes or of events.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Final, Literal

from litestar.params import Parameter
from litestar.response import Stream

from roamcast.live.http.filtering import FilterLanguage, FilterParameter, charged_filter
from roamcast.live.http.routes import Asked, route, service_of, viewer_of
from roamcast.live.service.answering import answered
from roamcast.live.service.service import Service

WatchScope = Annotated[
    Literal["everywhere", "here"],
    Parameter(
        query="scope",
        description="the maps of all nodes of the overlay, or of this one alone",
        required=False,
    ),
]

COMMENT_S: Final = 15.0
"""Interval of comment lines on an idle stream, by which both sides notice a dead connection."""


class EventSink:
    """The frames that wait for one SSE connection."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._event = asyncio.Event()
        self._over = False

    def write(self, framed: bytes) -> None:
        """Queue a frame; above the high mark the hub coalesces changes for this connection."""
        self._waiting.append(framed)
        before = self._bytes
        self._bytes += len(framed)
        high = self._service.settings.limits.socket_high_bytes
        if before <= high < self._bytes:
            asyncio.get_running_loop().call_soon(self._service.slow, self._name)
        self._event.set()

    def cut(self, reason: str) -> None:
        """End the stream, and say why."""
        line = b"event: error\ndata: " + reason.encode() + b"\n\n"
        self._waiting.append(line)
        self._over = True
        self._event.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Give the frames as they come, until the stream is cut or the client leaves."""
        yield b"retry: 2000\n\n"
        while True:
            while self._waiting:
                data = b"".join(self._waiting)
                self._waiting.clear()
                was_slow = self._bytes > self._service.settings.limits.socket_high_bytes
                self._bytes = 0
                yield data
                if was_slow:
                    self._service.drained(self._name)
            if self._over:
                return
            self._event.clear()
            try:
                await asyncio.wait_for(self._event.wait(), COMMENT_S)
            except TimeoutError:
                yield b": still here\n\n"


@route("GET", "/changes", scope="subscribe", answer=bytes, kind="text/event-stream",
       listed=False, endless=True)  # fmt: skip
async def get_changes(
    request: Asked,
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
    maps: WatchScope = "everywhere",
) -> Stream:
    """Give the current set (event `current`), then every change (event `change`, a CloudEvent).

    What is on the maps of other nodes follows as changes, as everybody may see it there.
    """
    del filter_text, filter_language
    grant = request.auth
    service = service_of(request)
    wanted = await charged_filter(request)
    prepared = service.broker.prepared(viewer_of(request), service.clock())
    if prepared is not None:
        await answered(prepared)
    name = f"{grant.subject}#sse-{secrets.token_hex(8)}"
    everywhere = maps == "everywhere"  # `scope` itself is Litestar's name for something else
    return stream_of(
        request, name, "changes", lambda: service.subscribe(name, "changes", wanted, everywhere)
    )


def stream_of(request: Asked, name: str, what: str, subscribe: Callable[[], None]) -> Stream:
    """Open a session whose frames are server-sent events, subscribe, and stream until its end."""
    grant = request.auth
    service = service_of(request)
    sink = EventSink(service, name)
    service.count_connection(grant.subject, +1)
    try:
        service.open_session(name, viewer_of(request), sink, "sse")
        subscribe()
    except BaseException:
        service.close_session(name, sink)
        service.count_connection(grant.subject, -1)
        raise

    async def stream() -> AsyncIterator[bytes]:
        try:
            open_streams = service.metrics.sockets.labels(what)
            with service.standing.held(grant, sink.cut), open_streams.track_inprogress():
                async for data in sink.frames():
                    yield data
        finally:
            service.close_session(name, sink)
            service.count_connection(grant.subject, -1)

    return Stream(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
