"""How do people without a machine of their own publish? PUT a Feature, answered when on disk."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.openapi.spec import Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.openapi.spec.media_type import OpenAPIMediaType
from litestar.openapi.spec.request_body import RequestBody
from litestar.params import Parameter

from roamcast.errors import InputError, NotFoundError
from roamcast.identity.rules import LEVELS, RULES_MAX, Rule, check_rules
from roamcast.live.feature_input import read_feature
from roamcast.live.http.access import granted, service_of, viewer_of
from roamcast.live.http.answers import GEOJSON, as_json, feature
from roamcast.live.http.described import READING, WRITING, ok
from roamcast.model import json_text

Asked = Request[Any, Any, Any]
Vid = Annotated[str, Parameter(min_length=1, max_length=256, description="the context's vid")]
Lifetime = Annotated[
    float | None,
    Parameter(
        query="lifetime",
        description="seconds until it leaves by itself",
        gt=0,
        le=1e10,
        required=False,
    ),
]
_POINT = Schema(
    type=OpenAPIType.OBJECT,
    required=["type", "coordinates"],
    properties={
        "type": Schema(type=OpenAPIType.STRING, enum=["Point"]),
        "coordinates": Schema(
            type=OpenAPIType.ARRAY,
            items=Schema(type=OpenAPIType.NUMBER),
            min_items=2,
            max_items=2,
            description="lon, lat in degrees",
        ),
    },
)
_FEATURE = Schema(
    type=OpenAPIType.OBJECT,
    title="Feature",
    required=["type", "properties"],
    properties={
        "type": Schema(type=OpenAPIType.STRING, enum=["Feature"]),
        "id": Schema(type=OpenAPIType.STRING, description="the vid, as in the path"),
        "geometry": Schema(one_of=[_POINT, Schema(type=OpenAPIType.NULL)]),
        "properties": Schema(
            type=OpenAPIType.OBJECT,
            properties={
                "place": Schema(type=OpenAPIType.STRING, description="a path such as campus/b35/2"),
                "t_r": Schema(
                    type=OpenAPIType.STRING, description="since when, RFC 3339; now if missing"
                ),
            },
            description="place or geometry is needed; everything else is an attribute: a string, "
            'a number, a boolean, or {"timestamp": "…"}',
        ),
    },
)
_RULES = Schema(
    type=OpenAPIType.ARRAY,
    title="Rules",
    max_items=RULES_MAX,
    items=Schema(
        type=OpenAPIType.OBJECT,
        required=["viewers", "precision"],
        properties={
            "viewers": Schema(
                type=OpenAPIType.ARRAY,
                items=Schema(type=OpenAPIType.STRING),
                description="subjects or groups; * is everyone",
            ),
            "precision": Schema(type=OpenAPIType.STRING, enum=list(LEVELS)),
        },
    ),
)


def _body(schema: Schema, *kinds: str) -> RequestBody:
    return RequestBody(
        content={kind: OpenAPIMediaType(schema=schema) for kind in kinds}, required=True
    )


@dataclass
class PutsFeature(Operation):
    """An operation whose body is a Feature, read by hand so that each error says what to do."""

    request_body: Any = field(
        default_factory=lambda: _body(_FEATURE, "application/geo+json", "application/json")
    )


@dataclass
class PutsRules(Operation):
    """An operation whose body is a list of rules."""

    request_body: Any = field(default_factory=lambda: _body(_RULES, "application/json"))


@put("/contexts/{vid:str}", operation_id="putContext", operation_class=PutsFeature,
     summary="Publish a context, or change it", tags=["publish"],
     responses={**WRITING, **ok(GEOJSON, "changed"), **ok(GEOJSON, "published", 201)})  # fmt: skip
async def put_context(request: Asked, vid: Vid, lifetime: Lifetime = None) -> Response[bytes]:
    """Put a context on the map; answered when it would survive a crash."""
    grant = granted(request, "publish")
    service = service_of(request)
    given = json_text.read(await request.body(), InputError)
    context = read_feature(given, service.clock(), service.settings.limits, vid=vid)
    lifetime_us = None if lifetime is None else max(1, int(lifetime * 1_000_000))
    fresh = await service.keep(grant.subject, context, lifetime_us=lifetime_us)
    return Response(feature(context), media_type=GEOJSON, status_code=201 if fresh else 200)


@get("/contexts/{vid:str}", operation_id="readContext", summary="Read a context", tags=["publish"],
     responses={**READING, **ok(GEOJSON)})  # fmt: skip
async def get_context(request: Asked, vid: Vid) -> Response[bytes]:
    """Give one context, as far as this token may see it."""
    grant = granted(request, "read")
    service = service_of(request)
    seen = service.broker.get(viewer_of(grant), vid, service.clock())
    if seen is None:
        raise NotFoundError(f"there is no context {vid[:100]!r} on the map that you may see")
    return Response(feature(seen), media_type=GEOJSON)


@delete("/contexts/{vid:str}", operation_id="deleteContext", responses=WRITING, tags=["publish"],
        summary="Take a context off the map", status_code=204)  # fmt: skip
async def delete_context(request: Asked, vid: Vid) -> None:
    """Cancel a publication; answered when that would survive a crash."""
    grant = granted(request, "publish")
    service = service_of(request)
    if vid not in service.broker.kept.objects:
        raise NotFoundError(f"the service keeps no context {vid[:100]!r}")
    await service.release(grant.subject, vid, any_owner="admin" in grant.scopes)


@put("/contexts/{vid:str}/rules", operation_id="putRules", operation_class=PutsRules,
     summary="Say who may see a context, and how precisely", tags=["publish"],
     responses=WRITING)  # fmt: skip
async def put_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Set the privacy rules of a vid; they hold when this is answered."""
    grant = granted(request, "publish")
    service = service_of(request)
    rules = read_rules(json_text.read(await request.body(), InputError))
    await service.set_rules(grant.subject, vid, rules, any_owner="admin" in grant.scopes)
    return as_json(rules)


@get("/contexts/{vid:str}/rules", operation_id="getRules", responses=READING, tags=["publish"],
     summary="Read the rules one has set")  # fmt: skip
async def get_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Give the rules to who set them, and to nobody else."""
    grant = granted(request, "publish")
    rules = service_of(request).broker.rules_for(grant.subject, vid, "admin" in grant.scopes)
    if rules is None:
        raise NotFoundError(f"you have set no rules for {vid[:100]!r}")
    return as_json(rules)


@delete("/contexts/{vid:str}/rules", operation_id="deleteRules", responses=WRITING,
        summary="Go back to the service's default rules", status_code=204,
        tags=["publish"])  # fmt: skip
async def delete_rules(request: Asked, vid: Vid) -> None:
    """Take the rules of a vid away."""
    grant = granted(request, "publish")
    service = service_of(request)
    admin = "admin" in grant.scopes
    if service.broker.rules_for(grant.subject, vid, admin) is None:
        raise NotFoundError(f"you have set no rules for {vid[:100]!r}")
    await service.set_rules(grant.subject, vid, None, any_owner=admin)


def read_rules(given: Any) -> tuple[Rule, ...]:
    """Read rules that were decoded from JSON."""
    try:
        rules = msgspec.convert(given, tuple[Rule, ...])
    except msgspec.ValidationError as error:
        raise InputError(f"these are no rules: {error}") from None
    return tuple(check_rules(rules))


ROUTES = [put_context, get_context, delete_context, put_rules, get_rules, delete_rules]
