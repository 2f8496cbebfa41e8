"""How is an error told over HTTP? As RFC 9457 problem details, for ours and for litestar's own."""

from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.status_codes import HTTP_500_INTERNAL_SERVER_ERROR

from roamcast.errors import (
    AuthError,
    ConflictError,
    LimitError,
    MissingError,
    NotFoundError,
    RateError,
    RoamcastError,
    StoreError,
)
from roamcast.live.observe.logs import Log

PROBLEM_TYPE = "application/problem+json"
MISTAKE = "our mistake"
"""What went wrong in a way nobody thought of is called so, to the client and in the log."""

SEE_LOG = "the service could not do this; see its log"

_LOG = Log("http")


class ProblemDetails(msgspec.Struct, frozen=True):
    """RFC 9457: what went wrong, for a program and for a person."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


def status_of(error: RoamcastError) -> int:
    """Give the status an error of ours means."""
    match error:
        case AuthError():
            return error.status
        case NotFoundError():
            return 404
        case ConflictError():
            return 409
        case RateError():
            return 429
        case MissingError() | StoreError():
            return 503
        case _:
            return 400


def title_of(error: RoamcastError) -> str:
    """Give the short name of an error of ours."""
    match error:
        case AuthError():
            return "no permission" if error.status == 403 else "no valid token"
        case LimitError():
            return "beyond a limit"
        case _:
            return HTTPStatus(status_of(error)).phrase


def problem(status: int, title: str, detail: str, **headers: str) -> Response[bytes]:
    """Give the answer for an error."""
    body = msgspec.json.encode(ProblemDetails(title, status, detail))
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status_code=status, media_type=PROBLEM_TYPE, headers=names)


def ours(request: Request[Any, Any, Any], error: RoamcastError) -> Response[bytes]:
    """Answer for an error of ours."""
    del request
    headers = {}
    if isinstance(error, AuthError) and error.status == 401:
        headers["WWW_Authenticate"] = 'Bearer realm="roamcast"'
    if isinstance(error, RateError):
        headers["Retry_After"] = str(max(1, round(error.retry_us / 1_000_000)))
    return problem(status_of(error), title_of(error), str(error), **headers)


def litestars(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer for an error that litestar found: a path, a method, a parameter, a size."""
    detail = error.detail
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        detail = (
            f"a body has at most {request.app.state.service.settings.limits.body_bytes_max} bytes"
        )
    if isinstance(error, ValidationException) and error.extra:
        said = error.extra if isinstance(error.extra, list) else [error.extra]
        parts = [
            f"{one.get('key', '')}: {one.get('message', '')}" if isinstance(one, dict) else str(one)
            for one in said
        ]
        detail = "; ".join(parts)
    headers = {name.replace("-", "_"): value for name, value in (error.headers or {}).items()}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods: str | None = request.app.state.methods_of(request.scope["path"])
        headers["Allow"] = methods or headers.get("Allow", "")
    phrase = HTTPStatus(error.status_code).phrase
    return problem(error.status_code, phrase, detail or phrase, **headers)


def unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer for a mistake of our own; the log has the rest."""
    del request
    _LOG.error(MISTAKE, error)
    return problem(HTTP_500_INTERNAL_SERVER_ERROR, MISTAKE, SEE_LOG)
