"""What is this service, and is it well? Landing page, API description, health and measurements."""

from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get

import roamcast
from roamcast.live.http.access import granted, service_of
from roamcast.live.http.answers import GEOJSON, as_json, link
from roamcast.live.http.described import LISTED, READING, ok
from roamcast.live.http.features import base
from roamcast.live.http.openapi import described
from roamcast.live.http.page import page_of
from roamcast.live.http.problems import problem
from roamcast.model.templates import STANDARD

Asked = Request[Any, Any, Any]
OPENAPI_31 = "application/vnd.oai.openapi+json;version=3.1"
OPENAPI_30 = "application/vnd.oai.openapi+json;version=3.0"


def _described(request: Asked) -> tuple[bytes, bytes]:
    """Give the description and its page, made once: anybody may ask, as often as they like."""
    state = request.app.state
    made: tuple[bytes, bytes] | None = state.get("described")
    if made is None:
        document = described(request.app)
        made = state.described = msgspec.json.encode(document), page_of(document)
    return made


@get("/", operation_id="getLanding", summary="Where everything is", tags=["about"],
     responses=READING)  # fmt: skip
async def landing(request: Asked) -> Response[bytes]:
    """Give the links, as JSON for programs or as a page for browsers."""
    if "text/html" in request.headers.get("accept", ""):
        return Response(_described(request)[1], media_type=MediaType.HTML)
    root = base(request)
    return as_json(
        {
            "title": "Roamcast",
            "description": "People and things by where they are",
            "links": [
                link(f"{root}/", "self"),
                link(f"{root}/api", "service-desc", OPENAPI_30),
                link(f"{root}/openapi.json", "service-desc", OPENAPI_31),
                link(f"{root}/docs", "service-doc", "text/html"),
                link(f"{root}/conformance", "conformance"),
                link(f"{root}/collections", "data"),
                link(f"{root}/collections/contexts/items", "items", GEOJSON),
            ],
        }
    )


@get("/docs", operation_id="getDocs", summary="This description as a page", tags=["about"],
     responses=ok("text/html"))  # fmt: skip
async def docs(request: Asked) -> Response[bytes]:
    """Show every route on a page that needs nothing from elsewhere."""
    return Response(_described(request)[1], media_type=MediaType.HTML)


@get("/openapi.json", include_in_schema=False)
async def openapi(request: Asked) -> Response[bytes]:
    """Give the API's description, OpenAPI 3.1."""
    return Response(_described(request)[0], media_type=MediaType.JSON)


@get("/api", include_in_schema=False)
async def openapi_30(request: Asked) -> Response[bytes]:
    """Give as much of the description as GDAL reads, in OpenAPI 3.0."""
    names = ("bbox", "limit", "offset", "datetime", "filter", "filter-lang", "after")
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in names
    ]
    parameters[1]["schema"] = {"type": "integer", "minimum": 1, "maximum": 100_000, "default": 10}
    parameters[5]["schema"] = {"type": "string", "enum": ["cql2-text", "cql-text", "cql2-json"]}
    answer = {"description": "contexts", "content": {GEOJSON: {"schema": {"type": "object"}}}}
    return as_json(
        {
            "openapi": "3.0.3",
            "info": {"title": "Roamcast", "version": roamcast.__version__},
            "servers": [{"url": base(request)}],
            "paths": {
                "/collections/contexts/items": {
                    "get": {
                        "operationId": "getContexts",
                        "parameters": parameters,
                        "responses": {"200": answer},
                    }
                }
            },
        },
        OPENAPI_30,
    )


@get("/templates", operation_id="getTemplates", summary="Questions people ask again and again",
     responses={**READING, **LISTED}, tags=["map"])  # fmt: skip
async def templates(request: Asked) -> Response[bytes]:
    """List the standard query templates and their holes."""
    granted(request, "read")
    return as_json(
        [
            {"name": one.name, "filter": one.text, "says": one.says, "takes": one.parameters}
            for one in STANDARD.values()
        ]
    )


@get("/healthz", operation_id="getHealth", summary="Whether the process lives", tags=["about"],
     responses=ok("application/json"))  # fmt: skip
async def healthz() -> Response[bytes]:
    """Answer as long as the process does."""
    return as_json({"status": "alive"})


@get("/readyz", operation_id="getReadiness", summary="Whether requests are taken", tags=["about"],
     responses={**ok("application/json"), 503: READING[400]})  # fmt: skip
async def readyz(request: Asked) -> Response[bytes]:
    """Answer 200 when everything that was asked would be done, 503 otherwise."""
    if service_of(request).ready:
        return as_json({"status": "ready"})
    detail = "the service starts or goes down, or the disk refuses writes: see its log"
    return problem(503, "not ready", detail)


@get("/metrics", operation_id="getMetrics", summary="Measurements for Prometheus", tags=["about"],
     responses={**READING, **ok("text/plain")})  # fmt: skip
async def metrics(request: Asked) -> Response[bytes]:
    """Give counts of the whole service, which only an admin may see."""
    granted(request, "admin")
    text, kind = service_of(request).measured()
    return Response(text, media_type=kind)


ROUTES = [landing, docs, openapi, openapi_30, templates, healthz, readyz, metrics]
