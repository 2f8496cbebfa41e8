"""Routes of the event plane: publish an event, and have every one that a filter matches."""

import asyncio
import secrets
from typing import Annotated, Final

import msgspec
from litestar import Response
from litestar.params import Parameter
from litestar.response import Stream

from roamcast.channels.sessions.messages import PARTS_BYTES_MAX, EventPublication, StoredEvent
from roamcast.errors import ContextError
from roamcast.live.http.changes import stream_of
from roamcast.live.http.filtering import FilterLanguage, FilterParameter, read_filter
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.model import json_text
from roamcast.overlay.consumers.events import SubscribeSessionEvents
from roamcast.overlay.consumers.frames import read_vector
from roamcast.overlay.modulators.sandbox import SandboxLimits

LastEventId = Annotated[
    str,
    Parameter(
        query="last-event-id",
        required=False,
        max_length=65_536,
        description="from where on, as the last `id:` line said; the header counts before it",
    ),
]
MODULE_BYTES_MAX: Final = SandboxLimits().module_bytes
_decode = msgspec.json.Decoder(EventPublication).decode


class StoredModule(msgspec.Struct, frozen=True):
    """A module that modulators may name."""

    module: str


@route("POST", "/events", scope="publish", tag="events", body=EventPublication,
       answer=StoredEvent, body_bytes_max=PARTS_BYTES_MAX,
       summary="Publish an event")  # fmt: skip
async def post_event(request: Asked) -> Response[bytes]:
    """Publish an event; answered when it would survive a crash.

    With a producer, a life and a number it can be sent again: it is delivered once.
    """
    service = service_of(request)
    body = await request.body()
    try:
        said = _decode(body)
    except msgspec.ValidationError as error:
        raise ContextError(f"not an event: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        json_text.read(body, ContextError)  # raises, with the position
        raise
    done = await service.events.publish(request.auth, said)
    return as_json(StoredEvent(done.origin, *msgspec.structs.astuple(done.at)))


@route("POST", "/modules", scope="subscribe", answer=StoredModule, listed=False,
       body_bytes_max=2 * MODULE_BYTES_MAX)  # fmt: skip
async def post_module(request: Asked) -> Response[bytes]:
    """Store a WebAssembly module for modulators; the answer is its name, the hash of its bytes."""
    shelf = service_of(request).events.modulators.shelf
    name = await asyncio.to_thread(shelf.put, await request.body())
    return as_json(StoredModule(name))


@route("GET", "/events", scope="subscribe", answer=bytes, kind="text/event-stream",
       listed=False, endless=True)  # fmt: skip
async def get_events(
    request: Asked,
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
    last_event_id: LastEventId = "",
) -> Stream:
    """Give every event that a filter matches (event `event`), from now on or from a vector on.

    Where a log was too short for that, the event `lost` says so.
    """
    del filter_text, filter_language
    service = service_of(request)
    service.broker.check_newcomer()
    wanted = await read_filter(request)
    vector = read_vector(request.headers.get("last-event-id", "") or last_event_id)
    name = f"{request.auth.subject}#sse-{secrets.token_hex(8)}"

    def subscribe() -> None:
        service.events.subscribe(
            lambda ticket: SubscribeSessionEvents(ticket, name, "events", wanted, vector)
        )

    return stream_of(request, name, "events", subscribe)
