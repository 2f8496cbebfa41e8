"""Errors as RFC 9457 problem details: ours, litestar's own, and our mistakes.

Status and title of our errors stand in `errors.py`, on the classes.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from msgspec import UnsetType

from roamcast.errors import (
    AuthError,
    FilterError,
    ForbiddenError,
    MovedError,
    RateError,
    RoamcastError,
)
from roamcast.live.observe.logs import Log

PROBLEM_TYPE: Final = "application/problem+json"
MISTAKE: Final = "our mistake"
"""Title and log event of an exception that nobody foresaw."""

SEE_LOG: Final = "the service could not do this; see its log"

_LOG = Log("http")


class ProblemDetails(msgspec.Struct, frozen=True):
    """RFC 9457: what went wrong, for a program and for a person."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    position: int | UnsetType = msgspec.UNSET
    """Where in a filter the mistake is: the number of a character, from 1."""
    url: str | UnsetType = msgspec.UNSET
    """With status 421: the service of the node that serves the place."""


def details(error: RoamcastError) -> bytes:
    """Encode an error of ours."""
    return msgspec.json.encode(_details(error))


def _details(error: RoamcastError) -> ProblemDetails:
    return ProblemDetails(
        error.title, error.status, str(error), position=position_in(error), url=url_in(error)
    )


def position_in(error: RoamcastError) -> int | UnsetType:
    """Give the character at which a filter is wrong."""
    found = error.position if isinstance(error, FilterError) else None
    return msgspec.UNSET if found is None else found


def url_in(error: RoamcastError) -> str | UnsetType:
    """Give where the node is that serves a place."""
    return (error.url if isinstance(error, MovedError) else "") or msgspec.UNSET


def problem(status: int, title: str, detail: str, **headers: str) -> Response[bytes]:
    """Answer with problem details."""
    return _answer(ProblemDetails(title, status, detail), headers)


def _answer(found: ProblemDetails, headers: Mapping[str, str]) -> Response[bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = msgspec.json.encode(found)
    return Response(body, status_code=found.status, media_type=PROBLEM_TYPE, headers=names)


def ours(request: Request[Any, Any, Any], error: RoamcastError) -> Response[bytes]:
    """Answer for an error of ours."""
    _count(request, error.title)
    headers = {}
    if isinstance(error, AuthError) and not isinstance(error, ForbiddenError):
        headers["WWW_Authenticate"] = 'Bearer realm="roamcast"'
    if isinstance(error, RateError):
        headers["Retry_After"] = str(max(1, round(error.retry_us / 1_000_000)))
    return _answer(_details(error), headers)


def litestars(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer for an error that litestar found: a path, a method, a parameter, a size."""
    detail = error.detail
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        detail = (
            f"a body has at most {request.app.state.service.settings.limits.body_bytes_max} bytes"
        )
    if isinstance(error, ValidationException) and error.extra:
        found = error.extra if isinstance(error.extra, list) else [error.extra]
        parts = [
            f"{part.get('key', '')}: {part.get('message', '')}"
            if isinstance(part, dict)
            else str(part)
            for part in found
        ]
        detail = "; ".join(parts)
    headers = {name.replace("-", "_"): value for name, value in (error.headers or {}).items()}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods: str | None = request.app.state.methods_of(request.scope["path"])
        headers["Allow"] = methods or headers.get("Allow", "")
    phrase = HTTPStatus(error.status_code).phrase
    _count(request, phrase)
    return problem(error.status_code, phrase, detail or phrase, **headers)


def mistake(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer for a mistake of our own; the log says where, the client only that."""
    _count(request, MISTAKE)
    _LOG.error(MISTAKE, error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, MISTAKE, SEE_LOG)


def _count(request: Request[Any, Any, Any], reason: str) -> None:
    request.app.state.service.metrics.refused.labels(reason).inc()


async def reject(send: Any, error: RoamcastError) -> None:
    """Refuse a WebSocket's upgrade with problem details, like any request."""
    headers = [(b"content-type", PROBLEM_TYPE.encode())]
    start = {"type": "websocket.http.response.start", "status": error.status, "headers": headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": details(error)})
