"""Routes of webhooks: changes are posted to those who cannot hold a connection."""

import base64
import secrets
from typing import Annotated, Any

import msgspec
from litestar import Response
from litestar.params import Parameter
from msgspec import Meta

from roamcast.channels.sessions.webhooks import SECRET, Webhook
from roamcast.errors import InputError, LimitError
from roamcast.live.http.routes import Asked, route, service_of, viewer_of
from roamcast.live.http.shapes import as_json
from roamcast.live.service.webhooks import check_url
from roamcast.model import json_text
from roamcast.model.contexts import Instant
from roamcast.model.time import format_instant
from roamcast.transport.outward import URL_LENGTH_MAX

WebhookName = Annotated[str, Parameter(min_length=1, max_length=64, description="its id")]


class WebhookWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook to be made."""

    url: Annotated[
        str,
        Meta(
            max_length=URL_LENGTH_MAX,
            description="begins with https:// and has neither a user nor a fragment",
            extra_json_schema={"format": "uri", "examples": ["https://example.org/hook"]},
        ),
    ]
    filter: Annotated[
        str, Meta(min_length=1, description="CQL2", extra_json_schema={"format": "cql2"})
    ] = "TRUE"


class MadeWebhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A webhook; its secret is shown once, to who made it."""

    id: str
    url: str
    filter: str
    expires: Annotated[Instant, Meta(description="when the token that made it expires")]
    secret: Annotated[str, Meta(description="signs every message (Standard Webhooks)")] = ""
    failures: Annotated[int, Meta(ge=0, description="failed attempts since the last success")] = 0


@route("POST", "/webhooks", scope="subscribe", tag="webhooks", body=WebhookWish,
       answer=MadeWebhook, answers={201: "made"},
       summary="Have the changes of a filter's set posted to an address")  # fmt: skip
async def make_webhook(request: Asked) -> Response[bytes]:
    """Make a webhook; answered when the receiver has agreed and it would survive a crash."""
    service, grant = service_of(request), request.auth
    try:
        wish = msgspec.convert(json_text.read(await request.body(), InputError), WebhookWish)
    except msgspec.ValidationError as error:
        raise InputError(str(error)) from None
    most = service.settings.limits.filter_length_max
    if len(wish.filter) > most:
        raise LimitError(f"a filter has at most {most} characters")
    check_url(wish.url, service.settings.webhooks)
    service.reader.charge(grant.subject, wish.filter)
    wanted = grant.bound(await service.reader.read(wish.filter))
    service.charge(viewer_of(request), wanted)
    name = secrets.token_hex(12)
    secret = SECRET + base64.b64encode(secrets.token_bytes(24)).decode()
    await service.make_webhook(grant, name, wish.url, secret, wanted.text)
    expires = format_instant(grant.expires_us)
    answer = as_json(MadeWebhook(name, wish.url, wanted.text, expires, secret))
    answer.status_code = 201
    answer.headers["Cache-Control"] = "no-store"
    return answer


@route("GET", "/webhooks", scope="subscribe", tag="webhooks", answer=list[MadeWebhook],
       summary="One's own webhooks")  # fmt: skip
async def get_webhooks(request: Asked) -> Response[bytes]:
    """List the webhooks of the token's subject."""
    return as_json([_shown(one) for one in service_of(request).broker.webhooks_of(_owner(request))])


@route("DELETE", "/webhooks/{webhook:str}", scope="subscribe", tag="webhooks",
       summary="End a webhook")  # fmt: skip
async def delete_webhook(request: Asked, webhook: WebhookName) -> None:
    """End a webhook of one's own."""
    any_owner = "admin" in request.auth.scopes
    await service_of(request).end_webhook(_owner(request), webhook, any_owner=any_owner)


def _owner(request: Any) -> str:
    return str(request.auth.subject)


def _shown(webhook: Webhook) -> MadeWebhook:
    stored = webhook.stored
    expires = format_instant(stored.expires_us)
    return MadeWebhook(webhook.id, stored.url, stored.filter, expires, failures=webhook.failures)
