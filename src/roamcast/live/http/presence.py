"""You on the map: what the service publishes for you, who may see it, and a mirror.

A phone or the map page shows a token, and the service publishes its owner under vids that it draws
for them (decision 0128). Rules for a person hold for all these vids, those to come included: a vid
that has just been drawn has them before it is on the map. The mirror applies rules to what is on
the map now, before they are saved (decision 0190).
"""

from typing import Annotated, cast

import msgspec
from litestar import Response
from msgspec import Meta

from roamcast.errors import NotFoundError
from roamcast.identity.rules import (
    EVERYONE,
    VIEWER_LENGTH_MAX,
    Rule,
    Rules,
    Viewer,
    check_rules,
    decode_rules,
    visible,
)
from roamcast.live.auth.admission import GROUPS_MAX, Scope
from roamcast.live.http.mail import read_body
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.live.service.service import Service
from roamcast.live.trust.held import HeldKeys
from roamcast.model.contexts import Context, FeatureOutput, context_of, to_feature

Name = Annotated[str, Meta(min_length=1, max_length=VIEWER_LENGTH_MAX)]


class OwnPresence(msgspec.Struct, frozen=True):
    """Who asks, and where the map shows them."""

    subject: str
    scopes: tuple[Scope, ...]
    contexts: tuple[FeatureOutput, ...]
    node: Annotated[str, Meta(description="its name between brokers; empty: it is alone")]


class MirrorRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules to try, those in force if none are given, and whose eyes to look through."""

    rules: Rules | None = None
    viewer: Name = EVERYONE
    groups: Annotated[tuple[Name, ...], Meta(max_length=GROUPS_MAX)] = ()


class MirrorImage(msgspec.Struct, frozen=True):
    """One context of yours, and what a viewer would see of it; null: nothing."""

    yours: FeatureOutput
    theirs: FeatureOutput | None


class MirrorAnswer(msgspec.Struct, frozen=True):
    """Everything of yours that is on the map."""

    images: tuple[MirrorImage, ...]


@route(
    "GET", "/me", scope="any", tag="you", answer=OwnPresence, summary="Who you are to the service"
)
async def get_me(request: Asked) -> Response[bytes]:
    """Give your subject, your scopes, and what the service publishes for you."""
    grant, service = request.auth, service_of(request)
    shown = tuple(_feature(one) for one in await _own(service, grant.subject))
    overlay = service.broker.overlay_view()
    node = "" if overlay is None else overlay.node
    return as_json(OwnPresence(grant.subject, grant.scopes, shown, node))


@route("DELETE", "/me/contexts", scope="publish", tag="you", problems=(404,),
       summary="Leave the map")  # fmt: skip
async def delete_presence(request: Asked) -> None:
    """Remove what the service publishes for you; your phone's next fix brings you back."""
    service = service_of(request)
    for one in await _own(service, request.auth.subject):
        await service.unpublish(one.vid, one.vid)


@route("GET", "/me/rules", scope="publish", tag="you", answer=Rules, problems=(404,),
       summary="Read who may see you")  # fmt: skip
async def get_own_rules(request: Asked) -> Response[bytes]:
    """Give the rules for what the service publishes for you: yours, or else its default."""
    service = service_of(request)
    rules = await _held(service).rules_of(request.auth.subject)
    return as_json(service.broker.default_rules if rules is None else rules)


@route("PUT", "/me/rules", scope="publish", tag="you", body=Rules, answer=Rules, problems=(404,),
       summary="Say who may see you")  # fmt: skip
async def put_own_rules(request: Asked) -> Response[bytes]:
    """Set the rules for what the service publishes for you, now and later; answered in force."""
    request.auth.require_unbound("set rules")
    rules = decode_rules(await request.body())
    await _set(service_of(request), request.auth.subject, rules)
    return as_json(rules)


@route("DELETE", "/me/rules", scope="publish", tag="you", problems=(404,),
       summary="Go back to the service's default for you")  # fmt: skip
async def delete_own_rules(request: Asked) -> None:
    """Remove your rules."""
    request.auth.require_unbound("set rules")
    await _set(service_of(request), request.auth.subject, None)


@route("POST", "/me/mirror", scope="publish", tag="you", body=MirrorRequest, body_needed=False,
       answer=MirrorAnswer, problems=(404,), summary="See yourself as others do")  # fmt: skip
async def post_mirror(request: Asked) -> Response[bytes]:
    """Show what a viewer would see of you under rules that you try; nothing is saved."""
    service, subject = service_of(request), request.auth.subject
    request.auth.require_unbound("look into the mirror")
    given = read_body(await request.body() or b"{}", MirrorRequest)
    rules = await _held(service).rules_of(subject) if given.rules is None else given.rules
    if rules is not None:
        check_rules(rules)
    # `*` stands for a stranger, whom no rule names.
    viewer = Viewer("" if given.viewer == EVERYONE else given.viewer, frozenset(given.groups))
    images = tuple(
        MirrorImage(_feature(one), _seen(service, one, rules, viewer))
        for one in await _own(service, subject)
    )
    return as_json(MirrorAnswer(images))


def _seen(
    service: Service, context: Context, rules: tuple[Rule, ...] | None, viewer: Viewer
) -> FeatureOutput | None:
    tried = service.broker.default_rules if rules is None else rules
    seen = visible(context, tried, viewer, service.clock(), service.places)
    return None if seen is None else _feature(seen)


async def _set(service: Service, subject: str, rules: tuple[Rule, ...] | None) -> None:
    await _held(service).set_rules(subject, rules)
    for one in await _own(service, subject):
        await service.set_rules(one.vid, one.vid, rules)


async def _own(service: Service, subject: str) -> list[Context]:
    """Give what the service publishes for a person now."""
    if service.held_keys is None:
        return []
    vids = [one.vid for one in await service.held_keys.held_for(subject)]
    known = (service.broker.publication_for(vid, vid) for vid in vids)
    return [context_of(one.body) for one in known if one is not None]


def _feature(context: Context) -> FeatureOutput:
    return cast("FeatureOutput", to_feature(context))  # a dict with the same members


def _held(service: Service) -> HeldKeys:
    if service.held_keys is None:
        raise NotFoundError("this service publishes for nobody: it runs no trusted node")
    return service.held_keys
