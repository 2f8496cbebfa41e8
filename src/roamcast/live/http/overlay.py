"""`GET /overlay` and `GET /placement`: this node, its neighbours, and where filters are."""

from litestar import Response

from roamcast.live.http.problems import problem
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
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
