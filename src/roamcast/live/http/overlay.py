"""`GET /overlay`: this node, its neighbours and what it knows of the others."""

from litestar import Response

from roamcast.live.http.problems import problem
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.overlay.overlay import OverlayView


@route("GET", "/overlay", scope="admin", tag="overlay", answer=OverlayView, problems=(404,),
       summary="This node and its neighbours")  # fmt: skip
async def get_overlay(request: Asked) -> Response[bytes]:
    """Show the node's links and why one is down, the graph of all nodes, and what waits."""
    view = service_of(request).broker.overlay_view()
    if view is None:
        return problem(404, "no overlay", "this service is no node: see [overlay] in the settings")
    return as_json(view)
