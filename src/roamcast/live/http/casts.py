"""Routes of casts: preview, send, follow, stop, update, and ask why.

A sender needs the scope `cast` and a token that grants the place (docs/casts.md). Whoever did not
send a cast is told that there is none.
"""

from base64 import b64encode
from typing import Annotated

import msgspec
from litestar import Response
from litestar.params import Parameter
from msgspec import Meta

from roamcast.channels.sessions.messages import CastOrder
from roamcast.live.casts.office import NAMES, Preview, pending_view
from roamcast.live.casts.why import Why, why
from roamcast.live.casts.wishes import CastWish, payload_of, wish_of
from roamcast.live.http.mail import Base64, CastId, read_body
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.model.casts import ID_LENGTH_MAX, Priority, Tense
from roamcast.model.contexts import Instant
from roamcast.model.time import format_instant
from roamcast.overlay.casts.consents import ConsentRequest
from roamcast.overlay.casts.messages import NAME_LENGTH_MAX, CastState, CastView

WantsPreview = Annotated[
    bool, Parameter(query="preview", description="only say about how many it would reach")
]
Id = Annotated[str, Meta(pattern="^[A-Za-z0-9._:@-]+$", max_length=ID_LENGTH_MAX)]
Kind = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class UpdateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is said: a text, or bytes in base64 with their media type."""

    text: str = ""
    payload: Base64 = ""
    media_type: Annotated[str, Meta(min_length=1, max_length=100)] = "text/plain; charset=utf-8"
    kind: Kind = "text"
    id: Annotated[
        Id | None, Meta(description="its own id, for repeats; without one, it gets one")
    ] = None


class CastRequest(UpdateRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cast: to everybody who satisfies the filter, was there, is there, or will be."""

    filter: Annotated[
        str, Meta(min_length=1, description="CQL2", extra_json_schema={"format": "cql2"})
    ]
    priority: Priority = "routine"
    expires: Annotated[Instant | None, Meta(description="the last moment that counts")] = None
    lifetime_s: Annotated[float, Meta(ge=1, le=60 * 86_400)] | None = None
    policy: Annotated[str, Meta(pattern="^(NH|FBTH|BTH[1-9][0-9]?)$")] = "NH"


class CastAnswer(msgspec.Struct, frozen=True, tag="cast"):
    """What its sender may know of a cast: counts of pseudonyms, with noise."""

    id: str
    tense: Tense
    state: CastState
    expires: Instant
    nodes_asked: int
    nodes_answered: int
    found: int
    delivered: int
    waiting: int
    unreachable: int
    refused: int


class UpdateAnswer(msgspec.Struct, frozen=True):
    """The id of the update."""

    id: str


@route("POST", "/casts", scope="cast", tag="casts", body=CastRequest, answer=CastAnswer | Preview,
       answers={201: "sent", 202: "it waits for consent", 200: "counted"}, problems=(403, 409, 429),
       summary="Send a cast, or preview it")  # fmt: skip
async def post_cast(request: Asked, preview: WantsPreview = False) -> Response[bytes]:
    """Send a message to everybody who satisfies a filter; answered when it is on disk."""
    service, grant = service_of(request), request.auth
    given = read_body(await request.body(), CastRequest)
    wish = wish_of(CastOrder(**msgspec.structs.asdict(given)), service.clock())
    if preview:
        answer = as_json(await service.casts.preview(grant, wish))
        answer.status_code = 200
        return answer
    sent = await service.casts.send(grant, wish)
    answer = as_json(shown_cast(sent))
    answer.status_code = 202 if sent.state == "pending" else 201
    return answer


class ConsentAnswer(msgspec.Struct, frozen=True):
    """A cast that waits for a second person's consent."""

    id: str
    sender: str
    filter: str
    tense: Tense
    kind: str
    priority: Priority
    about: Annotated[int, Meta(description="pseudonyms it would reach, with noise; 0: not known")]
    media_type: str
    payload: str
    asked: Instant
    until: Instant
    own: Annotated[bool, Meta(description="whether you sent it: then another consents")]


class ConsentAnswers(msgspec.Struct, frozen=True):
    """The casts that wait for consent."""

    consents: list[ConsentAnswer]


@route("GET", "/consents", scope="cast", tag="casts", answer=ConsentAnswers,
       summary="Casts that wait for consent")  # fmt: skip
async def get_consents(request: Asked) -> Response[bytes]:
    """Give the casts that wait for a second person: your own, and those you might send."""
    grant = request.auth
    shown = [_consent(one, grant.subject) for one in service_of(request).casts.waiting(grant)]
    return as_json(ConsentAnswers(shown))


@route("POST", "/consents/{cast:str}", scope="cast", tag="casts", answer=CastAnswer,
       answers={201: "sent"}, problems=(403, 404, 409, 429),
       summary="Consent to a cast")  # fmt: skip
async def post_consent(request: Asked, cast: CastId) -> Response[bytes]:
    """Send a cast of somebody else that you might send yourself; answered when it is on disk."""
    answer = as_json(shown_cast(await service_of(request).casts.consent(request.auth, cast)))
    answer.status_code = 201
    return answer


@route("DELETE", "/consents/{cast:str}", scope="cast", tag="casts", problems=(404,),
       summary="Refuse a cast that waits for consent")  # fmt: skip
async def delete_consent(request: Asked, cast: CastId) -> None:
    """Refuse a cast, or take your own back: it is forgotten, and nothing is sent."""
    await service_of(request).casts.refuse(request.auth, cast)


@route("GET", "/casts/{cast:str}", scope="cast", tag="casts", answer=CastAnswer, problems=(404,),
       summary="What became of a cast")  # fmt: skip
async def get_cast(request: Asked, cast: CastId) -> Response[bytes]:
    """Give a cast's progress in counts with noise, to its sender."""
    return as_json(shown_cast(service_of(request).casts.view(request.auth, cast)))


@route("GET", "/casts/{cast:str}/why", scope="cast", tag="casts", answer=Why, problems=(404,),
       summary="Why a cast reached whom it did")  # fmt: skip
async def get_why(request: Asked, cast: CastId) -> Response[bytes]:
    """Say which node, filter, rule or limit decided, to the cast's sender."""
    service = service_of(request)
    view = service.casts.view(request.auth, cast)
    return as_json(why(view, service.casts.receipt_of(cast)[0], service.clock()))


@route("DELETE", "/casts/{cast:str}", scope="cast", tag="casts", problems=(404, 409),
       summary="Cancel a cast")  # fmt: skip
async def delete_cast(request: Asked, cast: CastId) -> None:
    """Stop a cast wherever it has gone; mail that was delivered stays."""
    await service_of(request).casts.cancel(request.auth, cast)


@route("POST", "/casts/{cast:str}/updates", scope="cast", tag="casts", body=UpdateRequest,
       answer=UpdateAnswer, answers={201: "sent"}, problems=(404, 409),
       summary="Update a cast")  # fmt: skip
async def post_update(request: Asked, cast: CastId) -> Response[bytes]:
    """Stop a cast, and write to exactly those whom it has reached."""
    given = read_body(await request.body(), UpdateRequest)
    service = service_of(request)
    wish = CastWish(
        filter="",
        payload=payload_of(given.text, given.payload),
        media_type=given.media_type,
        kind=given.kind,
        id=given.id or "",
    )
    answer = as_json(UpdateAnswer(await service.casts.update(request.auth, cast, wish)))
    answer.status_code = 201
    return answer


def _consent(request: ConsentRequest, subject: str) -> ConsentAnswer:
    cast = request.cast
    return ConsentAnswer(
        cast.id,
        request.sender,
        cast.filter,
        pending_view(request).tense,
        request.kind,
        NAMES[request.priority],  # type: ignore[arg-type]
        request.about,
        cast.media_type,
        b64encode(cast.payload).decode(),
        format_instant(request.asked_us),
        format_instant(request.until_us),
        request.sender == subject,
    )


def shown_cast(view: CastView) -> CastAnswer:
    """Give a cast's progress as it is written."""
    return CastAnswer(
        view.cast,
        view.tense,
        view.state,
        format_instant(view.expires_us),
        view.nodes_asked,
        view.nodes_answered,
        view.found,
        view.delivered,
        view.waiting,
        view.unreachable,
        view.refused,
    )
