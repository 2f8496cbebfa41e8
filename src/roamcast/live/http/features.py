"""Routes that read the map, as OGC API – Features: GDAL and QGIS open it as a layer."""

from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import quote, unquote_plus, urlencode

from litestar import Response
from litestar.params import Parameter
from msgspec import structs

from roamcast.errors import LimitError, NotFoundError
from roamcast.live.http.filtering import (
    After,
    Box,
    FilterLanguage,
    FilterParameter,
    Position,
    Span,
    charged_filter,
    hint_of,
    position_of,
    window_of,
)
from roamcast.live.http.queryables import SAMPLE_CONTEXTS, attribute_schemas
from roamcast.live.http.routes import Asked, base, route, service_of, viewer_of
from roamcast.live.http.shapes import (
    GEOJSON,
    SCHEMA_JSON,
    Collection,
    Collections,
    Conformance,
    Count,
    FeatureCollection,
    Link,
    LinkedFeature,
    PastBegin,
    Queryables,
    as_collection,
    as_json,
    feature_at,
    linked,
)
from roamcast.live.service.answering import answered
from roamcast.matching.live.slices import ContextPage
from roamcast.model import time
from roamcast.model.contexts import encode
from roamcast.model.nearest import COUNT_MAX

LIMIT_MAX: Final = 100_000
OFFSET_MAX: Final = 10_000_000
QUERYABLES: Final = "http://www.opengis.net/def/rel/ogc/1.0/queryables"
CONFORMANCE: Final = Conformance(
    (
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
    )
)


@route("GET", "/conformance", scope="read", tag="map", answer=Conformance,
       summary="What the service conforms to")  # fmt: skip
async def get_conformance(request: Asked) -> Response[bytes]:
    """List the OGC conformance classes."""
    del request
    return as_json(CONFORMANCE)


def _contexts(request: Asked) -> Collection:
    here = _here(request)
    return Collection(
        links=[
            Link(here, "self"),
            Link(f"{here}/items", "items", GEOJSON),
            Link(f"{here}/queryables", QUERYABLES, SCHEMA_JSON),
        ]
    )


def _here(request: Asked) -> str:
    return f"{base(request)}/collections/contexts"


@route("GET", "/collections", scope="read", tag="map", answer=Collections,
       summary="The collections: one, contexts")  # fmt: skip
async def get_collections(request: Asked) -> Response[bytes]:
    """List the collections."""
    links = [Link(f"{base(request)}/collections", "self")]
    return as_json(Collections([_contexts(request)], links))


@route("GET", "/collections/contexts", scope="read", tag="map", answer=Collection,
       summary="The collection of contexts")  # fmt: skip
async def describe_contexts(request: Asked) -> Response[bytes]:
    """Describe the collection."""
    return as_json(_contexts(request))


@route("GET", "/collections/contexts/queryables", scope="read", tag="map", answer=Queryables,
       kind=SCHEMA_JSON, summary="What filters may name")  # fmt: skip
async def get_queryables(request: Asked) -> Response[bytes]:
    """Describe the properties that filters may name, with attributes and their frequent values.

    They are those of the first contexts that this token may see; others may be named as well.
    """
    service = service_of(request)
    wanted = await charged_filter(request)
    page = service.broker.page(
        viewer_of(request), wanted, service.clock(), after="", limit=SAMPLE_CONTEXTS
    )
    known = Queryables(id=f"{_here(request)}/queryables")
    attributes = attribute_schemas((await answered(page)).contexts)
    whole = structs.replace(known, properties=attributes | known.properties)
    return as_json(whole, SCHEMA_JSON)


@route("GET", "/collections/contexts/items", scope="read", tag="map", answer=FeatureCollection,
       kind=GEOJSON, summary="Query the map now, or as it was")  # fmt: skip
async def get_contexts(
    request: Asked,
    limit: Annotated[int, Parameter(ge=1, le=LIMIT_MAX)] = 1,
    offset: Annotated[int, Parameter(ge=0, le=OFFSET_MAX)] = 0,
    after: After = "",
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
    box: Box = None,
    span: Span = None,
) -> Response[bytes]:
    """Give the contexts that a filter, a box, a time span and attributes ask for, page by page.

    With `datetime` before now the map is asked as it was: of each vid its last context then.

    They are ordered by vid. `next` starts after the last context of a page: while contexts come and
    go, each one that stays is on exactly one page. `offset` counts, for clients that need it.
    """
    del filter_text, filter_language, box, span  # `filter_of` reads them with the attributes
    service = service_of(request)
    limits = service.settings.limits
    # Not typed `int | None`: litestar would take `limit=null` for no limit.
    limit = limit if "limit" in request.query_params else limits.items_default
    size = min(limit, limits.items_max)
    now = service.clock()
    viewer = viewer_of(request)
    window = window_of(request)
    wanted = await charged_filter(request, times=2, past=window)  # a page, and how many in all
    broker = service.broker
    if window is None:
        found = await answered(broker.page(viewer, wanted, now, after=after, limit=offset + size))
        matched = await answered(broker.count(viewer, wanted, now))
    else:
        everyone = await service.past.ask(viewer, wanted, window)
        following = [one for one in everyone if one.vid > after]
        more = len(following) > offset + size
        found, matched = ContextPage(following[: offset + size], more), len(everyone)
    page = found.contexts[offset:]
    here = _here(request)
    asked = _asked(request)
    begun = {name: value for name, value in (("after", after), ("offset", offset)) if value}
    links = [
        Link(f"{here}/items?{_joined(asked, begun)}", "self", GEOJSON),
        Link(here, "collection"),
    ]
    if page and found.more:
        onwards = _joined(asked, {"after": page[-1].vid})
        links.append(Link(f"{here}/items?{onwards}", "next", GEOJSON))
    return as_collection(
        map(encode, page),
        links=links,
        number_matched=matched,
        time_stamp=time.format_instant(now),
        hint=hint_of(request),
    )


def _asked(request: Asked) -> list[str]:
    """Give the parts of a query but for where its page begins and the token, spelled as they came.

    GDAL adds what its user asked for to a link that does not contain the same letters, and then
    everything would be given twice.
    """
    parts = request.scope["query_string"].decode("latin-1").split("&")
    names = [(unquote_plus(part.partition("=")[0]), part) for part in parts if part]
    return [part for name, part in names if name not in ("after", "offset", "access_token")]


def _joined(asked: list[str], begun: Mapping[str, object]) -> str:
    return "&".join([*asked, *([urlencode(begun)] if begun else [])])


@route("GET", "/collections/contexts/items/{vid:str}", scope="read", tag="map",
       answer=LinkedFeature, kind=GEOJSON, summary="One context of the map")  # fmt: skip
async def get_context(request: Asked, vid: str) -> Response[bytes]:
    """Give one context, as far as this token may see it."""
    service = service_of(request)
    seen = service.broker.get(viewer_of(request), vid, service.clock())
    if seen is None or not request.auth.sees(seen):
        raise NotFoundError(f"there is no context {vid[:100]!r} on the map that you may see")
    here = _here(request)
    links = [
        Link(f"{here}/items/{quote(vid, safe='')}", "self", GEOJSON),
        Link(here, "collection"),
    ]
    return Response(linked(encode(seen), links), media_type=GEOJSON)


@route("GET", "/nearest", scope="read", tag="map", answer=FeatureCollection, kind=GEOJSON,
       summary="The nearest contexts that satisfy a filter")  # fmt: skip
async def get_nearest(
    request: Asked,
    to: Position,
    count: Annotated[int, Parameter(ge=1, le=COUNT_MAX)] = 1,
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
) -> Response[bytes]:
    """Give contexts with a point by distance, each with `distance_m`."""
    del filter_text, filter_language
    service = service_of(request)
    limits = service.settings.limits
    if count > limits.nearest_max:
        raise LimitError(f"count is at most {limits.nearest_max}")
    now = service.clock()
    wanted = await charged_filter(request)
    question = service.broker.nearest(viewer_of(request), position_of(to), wanted, count, now)
    found = await answered(question)
    return as_collection(
        (feature_at(near.context, near.metres) for near in found),
        time_stamp=time.format_instant(now),
        hint=hint_of(request),
    )


@route("GET", "/count", scope="read", tag="map", answer=Count,
       summary="How many contexts satisfy a filter")  # fmt: skip
async def count_contexts(
    request: Asked,
    filter_text: FilterParameter = None,
    filter_language: FilterLanguage = None,
    box: Box = None,
    span: Span = None,
) -> Response[bytes]:
    """Count the contexts that this token may see; with `datetime` before now the vids of then."""
    del filter_text, filter_language, box, span
    service = service_of(request)
    viewer, window = viewer_of(request), window_of(request)
    wanted = await charged_filter(request, past=window)
    if window is not None:
        return as_json(Count(len(await service.past.ask(viewer, wanted, window)), hint_of(request)))
    question = service.broker.count(viewer, wanted, service.clock())
    return as_json(Count(await answered(question), hint_of(request)))


@route("GET", "/past", scope="read", tag="map", answer=PastBegin,
       summary="How far the past reaches")  # fmt: skip
async def get_past(request: Asked) -> Response[bytes]:
    """Give the horizon: what was before it is deleted, and so are the keys of its vids."""
    return as_json(PastBegin(time.format_instant(await service_of(request).past.begins())))
