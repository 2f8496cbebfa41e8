"""Routes that publish: a context by its vid, and the rules that say who may see it.

A request is answered when its effect would survive a crash: the service awaits the disk, and the
replicas that are current (decision 0078).
"""

import asyncio
import re
from typing import Annotated, Any, Final, cast

import msgspec
from litestar import Response
from litestar.params import Parameter
from msgspec import Meta

from roamcast.errors import (
    ConflictError,
    ContextError,
    InputError,
    LimitError,
    NotFoundError,
    RoamcastError,
)
from roamcast.identity.rules import Rules, decode_rules
from roamcast.live.http.routes import Asked, route, service_of, viewer_of
from roamcast.live.http.shapes import (
    GEOJSON,
    VID_PATTERN,
    Count,
    FeatureBatch,
    FeaturePatch,
    as_json,
)
from roamcast.model import json_text
from roamcast.model.contexts import (
    Context,
    FeatureOutput,
    LocatedFeature,
    context_of,
    decode_feature,
    encode,
    explained,
    to_context,
)

LIFETIME_S_MIN: Final = 0.001
BATCH_MAX: Final = 1_000
"""Features of one POST /contexts; each counts as a request."""
BATCH_SLICE: Final = 25
"""So many of a batch are read, and are on their way to the disk, before others have their turn."""

Vid = Annotated[
    str,
    Parameter(
        min_length=1,
        max_length=256,
        description="the context's vid",
        schema_extra={"pattern": f"^{VID_PATTERN}$"},
    ),
]
AnyVid = Annotated[
    str, Parameter(min_length=1, max_length=256, description="the vid, of a session's, too")
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
    feature = decode_feature(await request.body())
    context = to_context(
        feature,
        service.clock(),
        vid=_checked(vid),
        ahead_us_max=int(service.settings.limits.clock_skew_s_max * 1_000_000),
    )
    request.auth.check_within(context)
    fresh = await service.publish(
        request.auth.subject, context, lifetime_us=microseconds(request, lifetime)
    )
    return as_feature(context, 201 if fresh else 200)


@route("PATCH", "/contexts/{vid:str}", scope="publish", tag="publish", body=FeaturePatch,
       answer=FeatureOutput, kind=GEOJSON, problems=(404, 409),
       summary="Change parts of a context (JSON merge patch)")  # fmt: skip
async def patch_context(request: Asked, vid: Vid) -> Response[bytes]:
    """Change a context of one's own by a JSON merge patch (RFC 7396): null removes a member.

    What the patch leaves out stays, the time that the context is on the map included.
    """
    service = service_of(request)
    patch = decode_patch(await request.body())
    service.check_own(request.auth, vid)
    # From here to the broker nothing is awaited, so that no other change comes between.
    known = service.broker.publication_for(request.auth.subject, vid)
    if known is None:
        raise NotFoundError(f"you have published no context {vid[:100]!r}")
    now = service.clock()
    before = msgspec.json.decode(encode(context_of(known.body)))
    after = merge_patch(before, patch)
    point = after.get("geometry")
    if point is not None and not {"type", "coordinates"} <= point.keys():
        raise ConflictError("the context has no point yet: give its type and coordinates")
    context = to_context(
        decode_feature(msgspec.json.encode(after)),
        now,
        vid=vid,
        ahead_us_max=int(service.settings.limits.clock_skew_s_max * 1_000_000),
    )
    if context.place is None and context.point is None:  # the patch alone is not wrong
        raise ConflictError("the patch would leave neither a place nor a point")
    request.auth.check_within(context)
    left_us = max(known.expires_us - now, 1) if known.expires_us else None
    await service.publish(request.auth.subject, context, session=known.session, lifetime_us=left_us)
    return as_feature(context)


class BatchOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one Feature of a batch."""

    id: str
    status: Annotated[int, Meta(description="as the PUT of this Feature alone")]
    detail: Annotated[str, Meta(description="why it was refused")] = ""


class BatchOutcomes(msgspec.Struct, frozen=True):
    """What became of each Feature of a batch, in their order."""

    outcomes: list[BatchOutcome]


@route("POST", "/contexts", scope="publish", tag="publish", body=FeatureBatch,
       answer=BatchOutcomes, summary="Publish or change many contexts")  # fmt: skip
async def put_contexts(request: Asked, lifetime: Lifetime = LIFETIME_S_MIN) -> Response[bytes]:
    """Put Features with ids on the map: a FeatureCollection, or one Feature a line (NDJSON).

    If one can not be read, nothing is done. Else each is published as its own PUT would be, and
    counts as one request: a refusal of one changes nothing for the others.
    """
    service = service_of(request)
    features = decode_batch(await request.body())
    now, ahead_us = service.clock(), service.settings.limits.clock_skew_s_max * 1_000_000
    made = []
    for number, feature in enumerate(features, 1):
        made.append(to_context(feature, now, ahead_us_max=int(ahead_us)))
        _checked(made[-1].vid)
        if number % BATCH_SLICE == 0:
            await asyncio.sleep(0)
    lifetime_us = microseconds(request, lifetime)
    service.count_request(request.auth.subject, len(made) - 1)

    async def put(context: Context) -> BatchOutcome:
        try:
            request.auth.check_within(context)
            fresh = await service.publish(request.auth.subject, context, lifetime_us=lifetime_us)
        except RoamcastError as error:
            return BatchOutcome(context.vid, error.status, str(error))
        return BatchOutcome(context.vid, 201 if fresh else 200)

    outcomes: list[BatchOutcome] = []
    for first in range(0, len(made), BATCH_SLICE):
        outcomes += await asyncio.gather(*map(put, made[first : first + BATCH_SLICE]))
    return as_json(BatchOutcomes(outcomes))


def decode_batch(body: bytes) -> list[Any]:
    """Decode a FeatureCollection, or Features one a line."""
    try:
        whole = json_text.read(body, ContextError)
        lines = whole["features"] if whole.get("type") == "FeatureCollection" else [whole]
        texts = [msgspec.json.encode(line) for line in lines]
    except (ContextError, KeyError, TypeError, AttributeError):
        texts = [line for line in body.splitlines() if line.strip()]
    if not 0 < len(texts) <= BATCH_MAX:
        raise LimitError(f"a batch has 1 to {BATCH_MAX} Features")
    features = []
    for number, text in enumerate(texts, 1):
        try:
            features.append(decode_feature(text))
        except InputError as error:
            raise ContextError(f"Feature {number}: {error}") from None
    vids = [str(getattr(feature, "id", "")) for feature in features]
    if len(set(vids)) < len(vids):
        raise ContextError("a batch names each id once")
    return features


@route("GET", "/contexts/{vid:str}", scope="read", tag="publish", answer=FeatureOutput,
       kind=GEOJSON, summary="Read a context")  # fmt: skip
async def read_context(request: Asked, vid: Vid) -> Response[bytes]:
    """Give one context, as far as this token may see it."""
    service = service_of(request)
    seen = service.broker.get(viewer_of(request), vid, service.clock())
    if seen is None or not request.auth.sees(seen):
        raise NotFoundError(f"there is no context {vid[:100]!r} on the map that you may see")
    return as_feature(seen)


@route("DELETE", "/contexts/{vid:str}", scope="publish", tag="publish",
       summary="Take a context off the map")  # fmt: skip
async def delete_context(request: Asked, vid: Vid) -> None:
    """Unpublish a context; answered when that would survive a crash."""
    service = service_of(request)
    service.check_own(request.auth, vid)
    await service.unpublish(request.auth.subject, vid, any_owner=_is_admin(request))


@route("DELETE", "/contexts/{vid:str}/past", scope="admin", tag="publish", answer=Count,
       summary="Forget what was known of a vid")  # fmt: skip
async def delete_past(request: Asked, vid: AnyVid) -> Response[bytes]:
    """Delete a vid's past from the store and the archive; give how many rows that were.

    What the map shows of it now stays, and its past begins anew with the next change.
    """
    return as_json(Count(await service_of(request).erase_past(vid)))


@route("PUT", "/contexts/{vid:str}/rules", scope="publish", tag="publish", body=Rules,
       answer=Rules, summary="Set who may see a context, and how precisely")  # fmt: skip
async def put_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Set the privacy rules of a vid; they are in force when this is answered."""
    request.auth.require_unbound("set rules")
    rules = decode_rules(await request.body())
    await service_of(request).set_rules(
        request.auth.subject, _checked(vid), rules, any_owner=_is_admin(request)
    )
    return as_json(rules)


@route("GET", "/contexts/{vid:str}/rules", scope="publish", tag="publish", answer=Rules,
       summary="Read the rules of a vid")  # fmt: skip
async def get_rules(request: Asked, vid: Vid) -> Response[bytes]:
    """Give the rules to the subject that set them, and to nobody else."""
    request.auth.require_unbound("read rules")
    return as_json(_own_rules(request, vid))


@route("DELETE", "/contexts/{vid:str}/rules", scope="publish", tag="publish",
       summary="Go back to the service's default rules")  # fmt: skip
async def delete_rules(request: Asked, vid: Vid) -> None:
    """Remove the rules of a vid."""
    request.auth.require_unbound("set rules")
    _own_rules(request, vid)
    await service_of(request).set_rules(
        request.auth.subject, vid, None, any_owner=_is_admin(request)
    )


def decode_patch(body: bytes) -> dict[str, Any]:
    """Decode a merge patch of a Feature."""
    patch = json_text.read(body, ContextError)
    try:
        msgspec.convert(patch, FeaturePatch)
        merge_patch({}, patch)  # deep enough to fail here is too deep
    except RecursionError:
        raise ContextError(json_text.TOO_DEEP) from None
    except msgspec.ValidationError as error:
        raise ContextError(explained(str(error), body, "a merge patch of a Feature")) from None
    return cast("dict[str, Any]", patch)


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def as_feature(context: Context, status: int = 200) -> Response[bytes]:
    """Answer with a context as a Feature."""
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


def microseconds(request: Asked, lifetime: float) -> int | None:
    """Give the lifetime in microseconds; one that is too long is refused for a whole batch."""
    given = request.query_params.getall("lifetime", [])
    if not given:  # the setting `context_lifetime_s` holds
        return None
    if len(given) > 1:
        raise InputError("lifetime is given more than once")
    most = service_of(request).settings.limits.context_lifetime_s_max
    if not lifetime <= most:  # so written, it refuses what is not a number, too
        raise LimitError(f"lifetime is a number of seconds, at most {most}")
    return int(lifetime * 1_000_000)
