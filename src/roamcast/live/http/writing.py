"""Routes that publish: a context by its vid, and the rules that say who may see it.

A request is answered when its effect would survive a crash: the service awaits the disk, and the
replicas that are current (decision 0078).
"""

import re
from typing import Annotated, Final

from litestar import Response
from litestar.params import Parameter

from roamcast.errors import InputError, LimitError, NotFoundError
from roamcast.identity.rules import Rules, decode_rules
from roamcast.live.http.routes import Asked, route, service_of, viewer_of
from roamcast.live.http.shapes import GEOJSON, as_json
from roamcast.model import features
from roamcast.model.contexts import Context, encode
from roamcast.model.features import FeatureOutput, LocatedFeature

LIFETIME_S_MIN: Final = 0.001
VID_PATTERN: Final = "[A-Za-z0-9_~@:+-][A-Za-z0-9_.~@:+-]{0,255}"
"""Vids that a path can carry without being taken for another path; sessions may use any text."""

Vid = Annotated[
    str,
    Parameter(
        min_length=1,
        max_length=256,
        description="the context's vid",
        schema_extra={"pattern": f"^{VID_PATTERN}$"},
    ),
]
Lifetime = Annotated[
    float,
    Parameter(ge=LIFETIME_S_MIN, description="seconds until the context leaves by itself"),
]


@route("PUT", "/contexts/{vid:str}", scope="publish", tag="publish", body=LocatedFeature,
       answer=FeatureOutput, kind=GEOJSON, answers={200: "changed", 201: "published"},
       summary="Publish a context, or change it")  # fmt: skip
async def put_context(
    request: Asked, vid: Vid, lifetime: Lifetime = LIFETIME_S_MIN
) -> Response[bytes]:
    """Put a context on the map; answered when it would survive a crash."""
    service = service_of(request)
    feature = features.decode(await request.body())
    context = features.to_context(
        feature,
        service.clock(),
        vid=_checked(vid),
        ahead_us_max=int(service.settings.limits.clock_skew_s_max * 1_000_000),
    )
    fresh = await service.publish(
        request.auth.subject, context, lifetime_us=_microseconds(request, lifetime)
    )
    return _as_feature(context, 201 if fresh else 200)


@route("GET", "/contexts/{vid:str}", scope="read", tag="publish", answer=FeatureOutput,
       kind=GEOJSON, summary="Read a context")  # fmt: skip
async def read_context(request: Asked, vid: Vid) -> Response[bytes]:
    """Give one context, as far as this token may see it."""
    service = service_of(request)
    seen = service.broker.get(viewer_of(request), vid, service.clock())
    if seen is None:
        raise NotFoundError(f"there is no context {vid[:100]!r} on the map that you may see")
    return _as_feature(seen)


@route("DELETE", "/contexts/{vid:str}", scope="publish", tag="publish",
       summary="Take a context off the map")  # fmt: skip
async def delete_context(request: Asked, vid: Vid) -> None:
    """Unpublish a context; answered when that would survive a crash."""
    await service_of(request).unpublish(request.auth.subject, vid, any_owner=_is_admin(request))


@route("PUT", "/contexts/{vid:str}/rules", scope="publish", tag="publish", body=Rules,
       answer=Rules, summary="Set who may see a context, and how precisely")  # fmt: skip
async def put_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Set the privacy rules of a vid; they are in force when this is answered."""
    rules = decode_rules(await request.body())
    await service_of(request).set_rules(
        request.auth.subject, _checked(vid), rules, any_owner=_is_admin(request)
    )
    return as_json(rules)


@route("GET", "/contexts/{vid:str}/rules", scope="publish", tag="publish", answer=Rules,
       summary="Read the rules of a vid")  # fmt: skip
async def get_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Give the rules to the subject that set them, and to nobody else."""
    return as_json(_own_rules(request, vid))


@route("DELETE", "/contexts/{vid:str}/rules", scope="publish", tag="publish",
       summary="Go back to the service's default rules")  # fmt: skip
async def delete_rules(request: Asked, vid: Vid) -> None:
    """Remove the rules of a vid."""
    _own_rules(request, vid)
    await service_of(request).set_rules(
        request.auth.subject, vid, None, any_owner=_is_admin(request)
    )


def _as_feature(context: Context, status: int = 200) -> Response[bytes]:
    return Response(encode(context), media_type=GEOJSON, status_code=status)


def _own_rules(request: Asked, vid: str) -> Rules:
    rules = service_of(request).broker.rules_for(request.auth.subject, vid, _is_admin(request))
    if rules is None:
        raise NotFoundError(f"you have set no rules for {vid[:100]!r}")
    return rules


def _is_admin(request: Asked) -> bool:
    return "admin" in request.auth.scopes


def _checked(vid: str) -> str:
    """Return a vid that a path can carry."""
    if not re.fullmatch(VID_PATTERN, vid):
        raise InputError("a vid in an address has letters, digits and _ . ~ @ : + - alone")
    return vid


def _microseconds(request: Asked, lifetime: float) -> int | None:
    """Give the lifetime in microseconds; the broker checks it against the settings."""
    given = request.query_params.getall("lifetime", [])
    if not given:  # the setting `context_lifetime_s` holds
        return None
    if len(given) > 1:
        raise InputError("lifetime is given more than once")
    if not lifetime < 1e12:  # infinite, or not a number: int() could not take it
        raise LimitError("lifetime is a number of seconds")
    return int(lifetime * 1_000_000)
