"""Routes about the service itself: landing page, API description, templates, health, metrics."""

from typing import Any, Final

import msgspec
from litestar import MediaType, Response

import roamcast
from roamcast.live.http.openapi import document_of, page_of
from roamcast.live.http.page import map_page
from roamcast.live.http.problems import problem
from roamcast.live.http.routes import Asked, base, route, service_of
from roamcast.live.http.shapes import GEOJSON, Health, Landing, Link, TemplateOutput, as_json
from roamcast.live.observe.metrics import CONTENT_TYPE
from roamcast.model.templates import STANDARD

OPENAPI_31: Final = "application/vnd.oai.openapi+json;version=3.1"
OPENAPI_30: Final = "application/vnd.oai.openapi+json;version=3.0"
ITEMS: Final = "/collections/contexts/items"
SCHEMA_30: Final = ("type", "minimum", "maximum", "maxLength", "default", "enum", "format")
"""What a parameter's schema may say in OpenAPI 3.0 as in 3.1."""


class Description(msgspec.Struct, frozen=True):
    """The OpenAPI document, and its encodings."""

    document: dict[str, Any]
    encoded: bytes
    page: bytes


def _description(request: Asked) -> Description:
    """Give the description, made once: anybody may ask, as often as they like."""
    state = request.app.state
    made: Description | None = state.get("description")
    if made is None:
        document = document_of(request.app)
        made = Description(document, msgspec.json.encode(document), page_of(document))
        state.description = made
    return made


@route("GET", "/", scope=None, summary="Links to everything", answer=Landing)
async def get_landing(request: Asked) -> Response[bytes]:
    """Give the links, as JSON for programs, or the map page for browsers."""
    if "text/html" in request.headers.get("accept", ""):
        return map_page(request)
    root = base(request)
    links = [
        Link(f"{root}/", "self"),
        Link(f"{root}/api", "service-desc", OPENAPI_30),
        Link(f"{root}/openapi.json", "service-desc", OPENAPI_31),
        Link(f"{root}/docs", "service-doc", "text/html"),
        Link(f"{root}/conformance", "conformance"),
        Link(f"{root}/collections", "data"),
        Link(root + ITEMS, "items", GEOJSON),
        Link(f"{root}/places", "places", GEOJSON),
    ]
    return as_json(Landing("Roamcast", "People and things by where they are", links))


@route("GET", "/docs", scope=None, summary="This description as a page", answer=bytes,
       kind="text/html")  # fmt: skip
async def get_docs(request: Asked) -> Response[bytes]:
    """Show every route on a page that loads nothing from elsewhere."""
    return Response(_description(request).page, media_type=MediaType.HTML)


@route("GET", "/openapi.json", scope=None, answer=dict[str, Any], listed=False)
async def get_openapi(request: Asked) -> Response[bytes]:
    """Give the API's description, OpenAPI 3.1."""
    return Response(_description(request).encoded, media_type=MediaType.JSON)


@route("GET", "/api", scope=None, answer=dict[str, Any], kind=OPENAPI_30, listed=False)
async def get_openapi30(request: Asked) -> Response[bytes]:
    """Give as much of the description as GDAL reads, in OpenAPI 3.0."""
    operation = _description(request).document["paths"][ITEMS]["get"]
    parameters = [
        {
            "name": parameter["name"],
            "in": "query",
            "required": False,
            "schema": {
                key: value for key, value in parameter["schema"].items() if key in SCHEMA_30
            },
        }
        for parameter in operation["parameters"]
    ]
    answer = {"description": "contexts", "content": {GEOJSON: {"schema": {"type": "object"}}}}
    get = {
        "operationId": operation["operationId"],
        "parameters": parameters,
        "responses": {"200": answer},
    }
    document = {
        "openapi": "3.0.3",
        "info": {"title": "Roamcast", "version": roamcast.__version__},
        "servers": [{"url": base(request)}],
        "paths": {ITEMS: {"get": get}},
    }
    return as_json(document, OPENAPI_30)


@route("GET", "/templates", scope="read", tag="map", summary="Standard queries",
       answer=list[TemplateOutput])  # fmt: skip
async def get_templates(request: Asked) -> Response[bytes]:
    """List the standard query templates and the values each one takes."""
    del request
    return as_json(
        [
            TemplateOutput(template.name, template.text, template.says, tuple(template.parameters))
            for template in STANDARD.values()
        ]
    )


@route("GET", "/healthz", scope=None, summary="Whether the process lives", answer=Health)
async def get_health() -> Response[bytes]:
    """Answer as long as the process does."""
    return as_json(Health("alive"))


@route("GET", "/readyz", scope=None, summary="Whether requests are taken", answer=Health,
       problems=(503,))  # fmt: skip
async def get_readiness(request: Asked) -> Response[bytes]:
    """Answer 200 while writes would be taken, 503 otherwise."""
    if service_of(request).ready:
        return as_json(Health("ready"))
    detail = "the service is starting or stopping, or the disk refuses writes: see its log"
    return problem(503, "not ready", detail)


@route("GET", "/metrics", scope="admin", summary="Metrics for Prometheus", answer=bytes,
       kind="text/plain")  # fmt: skip
async def get_metrics(request: Asked) -> Response[bytes]:
    """Give counts of the whole service."""
    return Response(service_of(request).metrics.page(), media_type=CONTENT_TYPE)
