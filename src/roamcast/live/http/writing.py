"""How do people without a machine of their own publish? PUT a Feature, answered when on disk."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.params import Parameter

from roamcast.errors import InputError, LimitError, NotFoundError
from roamcast.identity.rules import Rule, check_rules
from roamcast.live.http.access import granted, service_of, viewer_of
from roamcast.live.http.answers import GEOJSON, as_json, feature
from roamcast.live.http.described import LISTED, READING, WRITING, ok
from roamcast.live.http.feature_input import read_feature
from roamcast.live.http.filtering import check_vid
from roamcast.model import json_text

Asked = Request[Any, Any, Any]
Vid = Annotated[str, Parameter(min_length=1, max_length=256, description="the context's vid")]
Lifetime = Annotated[
    str | None,
    Parameter(query="lifetime", description="seconds until it leaves by itself", required=False),
]


def _lifetime_us(request: Asked) -> int | None:
    given = request.query_params.getall("lifetime", [])
    if not given:
        return None
    try:
        (seconds,) = map(float, given)
    except ValueError:
        raise InputError("lifetime is a number of seconds, given once") from None
    if not 0 < seconds < 1e12:
        raise LimitError("a lifetime is more than 0 seconds")
    return max(1, int(seconds * 1_000_000))


@put("/contexts/{vid:str}", operation_id="putContext",
     summary="Publish a context, or change it", tags=["publish"],
     responses={**WRITING, **ok(GEOJSON, "changed"), **ok(GEOJSON, "published", 201)})  # fmt: skip
async def put_context(request: Asked, vid: Vid, lifetime: Lifetime = None) -> Response[bytes]:
    """Put a context on the map; answered when it would survive a crash."""
    grant = granted(request, "publish")
    service = service_of(request)
    del lifetime
    lifetime_us = _lifetime_us(request)
    given = json_text.read(await request.body(), InputError)
    context = read_feature(given, service.clock(), service.settings.limits, vid=check_vid(vid))
    fresh = await service.publish(grant.subject, context, lifetime_us=lifetime_us)
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
    await service.unpublish(grant.subject, vid, any_owner="admin" in grant.scopes)


@put("/contexts/{vid:str}/rules", operation_id="putRules",
     summary="Say who may see a context, and how precisely", tags=["publish"],
     responses={**WRITING, **LISTED})  # fmt: skip
async def put_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Set the privacy rules of a vid; they hold when this is answered."""
    grant = granted(request, "publish")
    service = service_of(request)
    rules = read_rules(json_text.read(await request.body(), InputError))
    await service.set_rules(grant.subject, check_vid(vid), rules, any_owner="admin" in grant.scopes)
    return as_json(rules)


@get("/contexts/{vid:str}/rules", operation_id="getRules", responses={**READING, **LISTED},
     tags=["publish"], summary="Read the rules one has set")  # fmt: skip
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
