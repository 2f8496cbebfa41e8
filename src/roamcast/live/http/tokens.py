"""Routes that make and revoke tokens: narrower and shorter ones, from the one that asks.

A share link or a phone gets a token of its own, bound to scopes, a time and a filter. It can do no
more than the token it was made from, and ends with that (decision 0099).
"""

from typing import Annotated, TypeVar

import msgspec
from litestar import Response
from msgspec import Meta

from roamcast.errors import InputError
from roamcast.live.auth.admission import TOKEN_LENGTH_MAX, NarrowerToken, Scope
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.model import json_text
from roamcast.model.contexts import Instant
from roamcast.model.time import format_instant

T = TypeVar("T")


class MadeToken(msgspec.Struct, frozen=True):
    """A token, and what it grants."""

    token: str
    id: Annotated[str, Meta(description="`roamcast token revoke` takes it, too")]
    subject: str
    scopes: tuple[Scope, ...]
    groups: tuple[str, ...]
    filter: Annotated[str, Meta(description="CQL2; empty: none")]
    expires: Instant


class RevokedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to revoke."""

    token: Annotated[str, Meta(min_length=1, max_length=TOKEN_LENGTH_MAX)]


@route("POST", "/tokens", scope="any", tag="tokens", body=NarrowerToken,
       body_needed=False, answer=MadeToken, answers={201: "made"},
       summary="Make a narrower token from the one that asks")  # fmt: skip
async def make_token(request: Asked) -> Response[bytes]:
    """Make a token that can do no more than the one that asks, and not for longer."""
    service = service_of(request)
    wanted = _read(await request.body() or b"{}", NarrowerToken)
    if wanted.filter is not None:
        service.reader.charge(request.auth.subject, wanted.filter)
        await service.reader.read(wanted.filter)  # remembered: it is at hand in a moment
    token, grant = service.keys.narrowed(request.auth, wanted, service.clock())
    made = MadeToken(
        token,
        grant.token_id,
        grant.subject,
        grant.scopes,
        tuple(sorted(grant.groups)),
        grant.filter,
        format_instant(grant.expires_us),
    )
    answer = as_json(made)
    answer.status_code = 201
    answer.headers["Cache-Control"] = "no-store"
    return answer


@route("POST", "/tokens/revoke", scope="any", tag="tokens", body=RevokedToken,
       summary="Revoke a token of one's own")  # fmt: skip
async def revoke_token(request: Asked) -> None:
    """Refuse a token, and all that were made from it, from now on."""
    service = service_of(request)
    given = _read(await request.body(), RevokedToken)
    service.keys.revoke_own(request.auth, given.token, service.clock())
    service.standing.check()


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.convert(json_text.read(body, InputError), kind)
    except msgspec.ValidationError as error:
        raise InputError(str(error)) from None
