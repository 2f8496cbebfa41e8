"""Routes: one decorated handler is the whole of a route.

`@route` states the method, the path, the scope a token needs, the body and the answer. The token
check, `Allow` and HEAD, the OpenAPI document and the page all derive from it:

    @route("GET", "/count", scope="read", tag="map", answer=Count, summary="Count contexts")
    async def count_contexts(request: Asked) -> Response[bytes]:
        ...
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_type_hints

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import ParameterKwarg

from roamcast.errors import AuthError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.keys import Grant, Scope
from roamcast.live.http.shapes import JSON
from roamcast.live.service.service import Service

Asked = Request[Any, Grant, Any]
Connection = ASGIConnection[Any, Any, Any, Any]
Method = Literal["GET", "PUT", "DELETE", "POST"]
Handler = Callable[..., Any]

NO_CONTENT: Final = 204


class Route(NamedTuple):
    """What a handler's decorator says of it."""

    scope: Scope | None
    """The scope its token needs; None: anybody may ask, without a token."""
    body: Any
    """The type of the request's body; None: it has none."""
    answer: Any
    """The type of a successful answer's body; None: it has none. `bytes`: it is not JSON."""
    kind: str
    """The media type of a successful answer."""
    answers: Mapping[int, str]
    """Successful statuses, each with its description."""
    problems: tuple[int, ...]
    """Statuses of problem details beyond those every route may give."""
    endless: bool
    """Whether the answer is a stream without end, which has no HEAD."""


ROUTES: Final[list[HTTPRouteHandler]] = []
"""Every handler there is, in the order of the documentation; `@route` adds to it."""

PARAMETERS: Final[set[str]] = set()
"""The query parameters of all handlers; any other names an attribute (`filtering.py`)."""


def route(
    method: Method,
    path: str,
    *,
    scope: Scope | None,
    summary: str = "",
    tag: str = "about",
    body: Any = None,
    answer: Any = None,
    kind: str = JSON,
    answers: Mapping[int, str] | None = None,
    problems: tuple[int, ...] = (),
    listed: bool = True,
    endless: bool = False,
) -> Callable[[Handler], HTTPRouteHandler]:
    """Make a handler a route; its name becomes the operation's id, its docstring the description.

    `listed` false leaves it out of the OpenAPI document: tools that try every route would hang on a
    stream, and the document need not describe itself.
    """
    usual = {200: "as asked"} if answer is not None else {NO_CONTENT: "done"}
    described = Route(scope, body, answer, kind, answers or usual, problems, endless)

    def decorate(handler: Handler) -> HTTPRouteHandler:
        made = HTTPRouteHandler(
            path,
            http_method=method,
            status_code=next(iter(described.answers)),
            operation_id=_camel_case(handler.__name__),
            summary=summary,
            tags=[tag],
            before_request=None if scope is None else _admit,
            include_in_schema=listed,
            opt={"route": described},
        )(handler)
        ROUTES.append(made)
        PARAMETERS.update(_query_names(handler))
        return made

    return decorate


def route_of(handler: BaseRouteHandler) -> Route | None:
    """Give what a handler's decorator says; None for litestar's own OPTIONS handlers."""
    found: Route | None = handler.opt.get("route")
    return found


async def _admit(connection: Connection) -> None:
    """Check the token, its scope and its rate before a parameter or a body is read.

    Not a guard: litestar copies the handler for each of those, on every request. A coroutine,
    though it awaits nothing: litestar runs plain functions in a thread.
    """
    described = route_of(connection.route_handler)
    assert described is not None
    assert described.scope is not None
    service = service_of(connection)
    grant = service.keys.check(_token(connection), service.clock())
    grant.require(described.scope)
    service.count_request(grant.subject)
    connection.scope["auth"] = grant


def service_of(connection: Connection) -> Service:
    """Give the service behind an application."""
    service: Service = connection.app.state.service
    return service


def viewer_of(request: Asked) -> Viewer:
    """Give the viewer behind a request's token."""
    return Viewer(request.auth.subject, request.auth.groups)


def base(request: Asked) -> str:
    """Give the service's own address as the client knows it."""
    return str(request.base_url).rstrip("/")


def _token(connection: Connection) -> str:
    """Find the token: in the header, or in the query where a browser cannot set headers."""
    header = connection.headers.get("authorization", "")
    kind, _, token = header.partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    token = connection.query_params.get("access_token", "")
    if token:
        return str(token)
    raise AuthError("a token is needed: send it as `Authorization: Bearer …` (roamcast token)")


def _query_names(handler: Handler) -> Iterator[str]:
    for name, annotation in get_type_hints(handler, include_extras=True).items():
        for meta in getattr(annotation, "__metadata__", ()):
            if isinstance(meta, ParameterKwarg):
                yield meta.query or name


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
