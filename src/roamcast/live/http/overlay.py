"""`GET /overlay` and `GET /placement`: this node, its neighbours, and where filters are."""

from typing import Annotated

import msgspec
from litestar import Response
from msgspec import Meta

from roamcast.live.http.problems import problem
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.overlay.filters.planning import PlacementView
from roamcast.overlay.overlay import OverlayView


class NodeFilter(msgspec.Struct, frozen=True):
    """This node's filter, and the whole placement where this node plans it."""

    node: str
    state: Annotated[str, Meta(description="of this node's filter")]
    root: Annotated[str, Meta(description="the node that plans: ask it for the placement")]
    placement: PlacementView | None


@route("GET", "/overlay", scope="admin", tag="overlay", answer=OverlayView, problems=(404,),
       summary="This node and its neighbours")  # fmt: skip
async def get_overlay(request: Asked) -> Response[bytes]:
    """Show the node's links and why one is down, the graph of all nodes, and what waits."""
    view = service_of(request).broker.overlay_view()
    if view is None:
        return problem(404, "no overlay", "this service is no node: see [overlay] in the settings")
    return as_json(view)


@route("GET", "/placement", scope="admin", tag="overlay", answer=NodeFilter, problems=(404,),
       summary="Which nodes match what passes through them")  # fmt: skip
async def get_placement(request: Asked) -> Response[bytes]:
    """Show the state of every node's filter, what it spares, and what one more would."""
    overlay = service_of(request).broker.overlay
    if overlay is None:
        return problem(404, "no overlay", "this service is no node: see [overlay] in the settings")
    filters = overlay.filters
    return as_json(NodeFilter(filters.node, filters.state.value, filters.root, filters.view()))
