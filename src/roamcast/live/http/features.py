"""How is the map read? As OGC API – Features, so that GDAL and QGIS open it as a layer."""

from bisect import bisect_right
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from litestar import Request, Response, get
from litestar.params import Parameter

from roamcast.errors import LimitError, NotFoundError
from roamcast.live.http.access import granted, service_of, viewer_of
from roamcast.live.http.answers import GEOJSON, as_json, collection, feature, link, linked
from roamcast.live.http.described import READING, ok
from roamcast.live.http.filtering import CRS84, wanted
from roamcast.model import time
from roamcast.model.contexts import VID_LENGTH_MAX
from roamcast.model.nearest import COUNT_MAX

Asked = Request[Any, Any, Any]
OFFSET_MAX: Final = 10_000_000
CONFORMS: Final = [
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/geojson",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/oas30",
    "http://www.opengis.net/spec/ogcapi-features-3/1.0/conf/filter",
    "http://www.opengis.net/spec/ogcapi-features-3/1.0/conf/features-filter",
    "http://www.opengis.net/spec/cql2/1.0/conf/cql2-text",
    "http://www.opengis.net/spec/cql2/1.0/conf/cql2-json",
    "http://www.opengis.net/spec/cql2/1.0/conf/basic-cql2",
    "http://www.opengis.net/spec/cql2/1.0/conf/basic-spatial-functions",
    "http://www.opengis.net/spec/cql2/1.0/conf/temporal-functions",
]

FilterParameter = Annotated[
    str | None,
    Parameter(query="filter", description="CQL2: what a context must satisfy", required=False),
]
FilterLanguage = Annotated[
    str | None,
    Parameter(
        query="filter-lang", description="cql2-text (the default) or cql2-json", required=False
    ),
]
Box = Annotated[
    str | None,
    Parameter(query="bbox", description="west,south,east,north in degrees", required=False),
]
Span = Annotated[
    str | None,
    Parameter(query="datetime", description="an instant, or start/end with ..", required=False),
]

After = Annotated[
    str,
    Parameter(
        description="begin behind this vid; what has come or gone meanwhile shifts nothing",
        max_length=VID_LENGTH_MAX,
        required=False,
    ),
]


def base(request: Asked) -> str:
    """Give the service's own address as the client knows it."""
    return str(request.base_url).rstrip("/")


@get("/conformance", operation_id="getConformance", summary="What the service conforms to",
     responses=READING, tags=["map"])  # fmt: skip
async def conformance(request: Asked) -> Response[bytes]:
    """List the OGC conformance classes."""
    granted(request, "read")
    return as_json({"conformsTo": CONFORMS})


def _contexts(root: str) -> dict[str, Any]:
    here = f"{root}/collections/contexts"
    return {
        "id": "contexts",
        "title": "Contexts",
        "description": "People and things on the map now, as far as this token may see them",
        "itemType": "feature",
        "crs": [CRS84],
        "extent": {
            "spatial": {"bbox": [[-180.0, -90.0, 180.0, 90.0]], "crs": CRS84},
            "temporal": {"interval": [[None, None]]},
        },
        "links": [
            link(here, "self"),
            link(f"{here}/items", "items", GEOJSON),
            link(
                f"{here}/queryables",
                "http://www.opengis.net/def/rel/ogc/1.0/queryables",
                "application/schema+json",
            ),
        ],
    }


@get("/collections", operation_id="getCollections", summary="The collections: one, contexts",
     responses=READING, tags=["map"])  # fmt: skip
async def collections(request: Asked) -> Response[bytes]:
    """List the collections."""
    granted(request, "read")
    root = base(request)
    return as_json(
        {"collections": [_contexts(root)], "links": [link(f"{root}/collections", "self")]}
    )


@get("/collections/contexts", operation_id="describeContexts", responses=READING, tags=["map"],
     summary="The collection of contexts")  # fmt: skip
async def contexts(request: Asked) -> Response[bytes]:
    """Describe the collection."""
    granted(request, "read")
    return as_json(_contexts(base(request)))


@get("/collections/contexts/queryables", operation_id="getQueryables", tags=["map"],
     summary="What filters may name",
     responses={**READING, **ok("application/schema+json")})  # fmt: skip
async def queryables(request: Asked) -> Response[bytes]:
    """Describe the properties; attributes are open."""
    granted(request, "read")
    return as_json(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{base(request)}/collections/contexts/queryables",
            "type": "object",
            "properties": {
                "vid": {"type": "string", "description": "the context's pseudonym"},
                "place": {"type": "string", "description": "a path such as campus/b35/2"},
                "geometry": {"$ref": "https://geojson.org/schema/Point.json"},
                "time": {"type": "string", "description": "the interval the context lasts"},
            },
            "additionalProperties": True,
        },
        "application/schema+json",
    )


@get("/collections/contexts/items", operation_id="getContexts", summary="Query the map now",
     responses={**READING, **ok(GEOJSON)}, tags=["map"])  # fmt: skip
async def items(
    request: Asked,
    limit: Annotated[int | None, Parameter(ge=1, le=100_000, required=False)] = None,
    offset: Annotated[int, Parameter(ge=0, le=OFFSET_MAX)] = 0,
    after: After = "",
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
    box: Box = None,
    span: Span = None,
) -> Response[bytes]:
    """Give the contexts a filter, a box, a time span and attributes ask for, a page at a time.

    They are ordered by vid. `next` begins behind the last one of a page: while people come and go,
    everybody who stays is on exactly one page. `offset` counts, for clients that do.
    """
    del filter_text, filter_language, box, span  # read together with the attributes
    grant = granted(request, "read")
    service = service_of(request)
    limits = service.settings.limits
    size = min(limit or limits.items_default, limits.items_max)
    now = service.clock()
    found = service.broker.find(viewer_of(grant), wanted(request, limits), now)
    start = bisect_right(found, after, key=lambda context: context.vid) + offset
    page = found[start : start + size]
    here = f"{base(request)}/collections/contexts"
    said = [(name, value) for name, value in request.query_params.multi_items()
            if name not in ("after", "offset", "access_token")]  # fmt: skip
    begun = [(name, value) for name, value in (("after", after), ("offset", offset)) if value]
    links = [
        link(f"{here}/items?{urlencode([*said, *begun])}", "self", GEOJSON),
        link(here, "collection"),
    ]
    if page and start + size < len(found):
        following = urlencode([*said, ("after", page[-1].vid)])
        links.append(link(f"{here}/items?{following}", "next", GEOJSON))
    return collection(
        map(feature, page),
        links=links,
        numberMatched=len(found),
        timeStamp=time.format_instant(now),
    )


@get("/collections/contexts/items/{vid:str}", operation_id="getContext", tags=["map"],
     summary="One context of the map", responses={**READING, **ok(GEOJSON)})  # fmt: skip
async def item(request: Asked, vid: str) -> Response[bytes]:
    """Give one context, as far as this token may see it."""
    grant = granted(request, "read")
    service = service_of(request)
    seen = service.broker.get(viewer_of(grant), vid, service.clock())
    if seen is None:
        raise NotFoundError(f"there is no context {vid[:100]!r} on the map that you may see")
    here = f"{base(request)}/collections/contexts"
    links = [
        link(f"{here}/items/{quote(vid, safe='')}", "self", GEOJSON),
        link(here, "collection"),
    ]
    return Response(linked(feature(seen), links), media_type=GEOJSON)


@get("/nearest", operation_id="getNearest", summary="The nearest contexts that a filter wants",
     responses={**READING, **ok(GEOJSON)}, tags=["map"])  # fmt: skip
async def nearest(
    request: Asked,
    to: Annotated[str, Parameter(description="lon,lat in degrees", max_length=100)],
    count: Annotated[int, Parameter(ge=1, le=COUNT_MAX)] = 1,
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
) -> Response[bytes]:
    """Give contexts with a point by distance, each with `distance_m`."""
    del filter_text, filter_language
    grant = granted(request, "read")
    service = service_of(request)
    limits = service.settings.limits
    if count > limits.nearest_max:
        raise LimitError(f"count is at most {limits.nearest_max}")
    now = service.clock()
    found = service.broker.nearest(
        viewer_of(grant), position(to), wanted(request, limits), count, now
    )
    return collection(
        (feature(one.context, distance_m=round(one.metres, 3)) for one in found),
        timeStamp=time.format_instant(now),
    )


@get("/count", operation_id="countContexts", summary="How many contexts a filter wants",
     responses=READING, tags=["map"])  # fmt: skip
async def count(
    request: Asked,
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
    box: Box = None,
) -> Response[bytes]:
    """Count the contexts that this token may see."""
    del filter_text, filter_language, box
    grant = granted(request, "read")
    service = service_of(request)
    found = service.broker.find(
        viewer_of(grant), wanted(request, service.settings.limits), service.clock()
    )
    return as_json({"count": len(found)})


def position(text: str) -> tuple[float, float]:
    """Read lon,lat."""
    from roamcast.errors import InputError

    try:
        lon, lat = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError("to is lon,lat in degrees, such as 13.4,52.5") from None
    if not (abs(lon) <= 180 and abs(lat) <= 90):
        raise InputError("to lies outside the earth: lon within ±180, lat within ±90")
    return lon, lat


ROUTES = [conformance, collections, contexts, queryables, items, item, nearest, count]
