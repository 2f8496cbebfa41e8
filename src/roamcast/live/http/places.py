"""The places of the service, for whoever draws a map of them: one GeoJSON document with an ETag."""

import gzip
import hashlib

import msgspec
from litestar import Response

from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import GEOJSON, PlaceCollection
from roamcast.model.places import Places
from roamcast.model.places_geojson import write_places


class PlacesDocument(msgspec.Struct, frozen=True):
    """The places encoded, compressed and named by their hash."""

    plain: bytes
    packed: bytes
    tag: str


def document_of(places: Places | None) -> PlacesDocument:
    """Encode places; a service without any has an empty collection."""
    plain = write_places(places if places is not None else Places([]))
    tag = hashlib.sha256(plain).hexdigest()[:32]
    return PlacesDocument(plain, gzip.compress(plain, mtime=0), f'"{tag}"')


@route("GET", "/places", scope="read", tag="map", answer=PlaceCollection, kind=GEOJSON,
       answers={200: "all places", 304: "unchanged since If-None-Match"},
       summary="The places contexts are in")  # fmt: skip
async def get_places(request: Asked) -> Response[bytes]:
    """Give every place with its kind, neighbours and polygon, as far as it has them.

    Places say where rooms are, not who is in them: every token with the scope `read` sees all.
    """
    state = request.app.state
    made: PlacesDocument | None = state.get("places_document")
    if made is None:
        made = state.places_document = document_of(service_of(request).places)
    headers = {"ETag": made.tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    known = [tag.strip().removeprefix("W/")
             for tag in request.headers.get("if-none-match", "").split(",")]  # fmt: skip
    if made.tag in known or "*" in known:
        return Response(b"", status_code=304, media_type=GEOJSON, headers=headers)
    body = made.plain
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = made.packed
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type=GEOJSON, headers=headers)
