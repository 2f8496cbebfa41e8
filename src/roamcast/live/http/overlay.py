"""Routes of a node among others: its neighbours, where filters are, and its drain."""

from typing import Annotated

import msgspec
from litestar import Response
from litestar.params import Parameter
from msgspec import Meta

from roamcast.errors import InputError
from roamcast.live.http.problems import problem
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.model import json_text
from roamcast.overlay.consumers.drain import DrainView
from roamcast.overlay.filters.part import NodeFilterView
from roamcast.overlay.overlay import OverlayView


@route("GET", "/overlay", scope="admin", tag="overlay", answer=OverlayView, problems=(404,),
       summary="This node and its neighbours")  # fmt: skip
async def get_overlay(request: Asked) -> Response[bytes]:
    """Show the node's links and why one is down, the graph of all nodes, and what waits."""
    view = service_of(request).broker.overlay_view()
    if view is None:
        return problem(404, "no overlay", "this service is no node: see [overlay] in the settings")
    return as_json(view)


@route("GET", "/placement", scope="admin", tag="overlay", answer=NodeFilterView, problems=(404,),
       summary="Which nodes match what passes through them")  # fmt: skip
async def get_placement(request: Asked) -> Response[bytes]:
    """Show the state of every node's filter, what it spares, and what one more would."""
    view = service_of(request).broker.placement_view()
    if view is None:
        return problem(404, "no overlay", "this service is no node: see [overlay] in the settings")
    return as_json(view)


class DrainWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A drain to begin."""

    to: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=100)], ...],
        Meta(max_length=100, description="nodes that everybody goes to; none for all in reach"),
    ] = ()
    rate: Annotated[float, Meta(gt=0, le=100_000, description="sessions a second")] = 100.0


@route("POST", "/drain", scope="admin", tag="overlay", body=DrainWish, body_needed=False,
       answer=DrainView, summary="Hand everybody over, and refuse newcomers")  # fmt: skip
async def post_drain(request: Asked) -> Response[bytes]:
    """Begin a drain: sessions are told where to go once the next node is prepared for them."""
    body = await request.body()
    try:
        wish = msgspec.convert(json_text.read(body, InputError) if body else {}, DrainWish)
    except msgspec.ValidationError as error:
        raise InputError(f"not a drain: {error}") from None
    service = service_of(request)
    service.events.drain(wish.to, wish.rate)
    return as_json(_drain_view(request))


@route("GET", "/drain", scope="admin", tag="overlay", answer=DrainView,
       summary="How far the drain has come")  # fmt: skip
async def get_drain(request: Asked) -> Response[bytes]:
    """Count who is still here, who was moved, and who was lost."""
    return as_json(_drain_view(request))


@route("DELETE", "/drain", scope="admin", tag="overlay", answer=DrainView,
       summary="Take newcomers again")  # fmt: skip
async def delete_drain(request: Asked) -> Response[bytes]:
    """End a drain; who was moved stays where they are."""
    service_of(request).events.undrain()
    return as_json(_drain_view(request))


class ClientView(msgspec.Struct, frozen=True):
    """A client at one node."""

    node: str
    devices: Annotated[list[str], Meta(description="its open sessions here")]
    subscriptions: Annotated[int, Meta(ge=0, description="of events, of all of them")]


Client = Annotated[
    str, Parameter(min_length=1, max_length=512, description="`subject` or `subject#device`")
]


@route("GET", "/where", scope="admin", tag="overlay", answer=ClientView,
       summary="Whether this node serves a client")  # fmt: skip
async def get_where(request: Asked, client: Client) -> Response[bytes]:
    """Name the open sessions of a client here, and count its subscriptions of events."""
    broker = service_of(request).broker
    found = broker.sessions_of(client)
    return as_json(ClientView(broker.node, list(found), sum(found.values())))


def _drain_view(request: Asked) -> DrainView:
    return service_of(request).broker.drain_view()
