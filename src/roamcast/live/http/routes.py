"""The door: the gate of all connections, and the routes behind it.

One decorated handler is the whole of a route.

`@route` states the method, the path, the scope a token needs, the body and the answer. The token
check, `Allow` and HEAD, the OpenAPI document and the page all derive from it:

    @route("GET", "/count", scope="read", tag="map", answer=Count, summary="Count contexts")
    async def count_contexts(request: Asked) -> Response[bytes]:
        ...

HEAD is answered as GET is, without the body (RFC 9110 wants it of every server); only streams
without an end have none.
"""

import base64
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints
from urllib.parse import parse_qs

from litestar import Litestar, Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import ParameterKwarg
from litestar.types import Empty

from roamcast.errors import AuthError, InputError, RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import Grant, Scope
from roamcast.live.http.connections import CONNECTION
from roamcast.live.http.problems import reject
from roamcast.live.http.shapes import JSON
from roamcast.live.links.session import SessionSocket
from roamcast.live.links.sockets import EXTENSION, TRY_AGAIN, WebSocket
from roamcast.live.observe.metrics import Metrics
from roamcast.live.overlay.ways import OVERLAY_SUBPROTOCOL
from roamcast.live.service.service import Service
from roamcast.live.trust.mail_socket import MAILBOX, serve_mailbox

Asked = Request[Any, Grant, Any]
Connection = ASGIConnection[Any, Any, Any, Any]
Method = Literal["GET", "PUT", "PATCH", "DELETE", "POST"]
Handler = Callable[..., Any]
Send = Callable[[Any], Awaitable[None]]
METHODS: Final = frozenset({*get_args(Method), "HEAD", "OPTIONS"})

NO_CONTENT: Final = 204
BEARER: Final = "roamcast.token."
"""A browser offers it with its token behind, beside the protocol that it speaks."""

DEVICE_LENGTH_MAX: Final = 64
DEVICE_LETTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
)


class Route(NamedTuple):
    """What a handler's decorator says of it."""

    scope: Scope | Literal["any"] | None
    """The scope its token needs, if not any will do; None: anybody may ask, without a token."""
    body: Any
    """The type of the request's body; None: it has none."""
    body_needed: bool
    """Whether the body may not be left out."""
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
    scope: Scope | Literal["any"] | None,
    summary: str = "",
    tag: str = "about",
    body: Any = None,
    body_needed: bool = True,
    answer: Any = None,
    kind: str = JSON,
    answers: Mapping[int, str] | None = None,
    problems: tuple[int, ...] = (),
    listed: bool = True,
    endless: bool = False,
    body_bytes_max: int | None = None,
) -> Callable[[Handler], HTTPRouteHandler]:
    """Make a handler a route; its name becomes the operation's id, its docstring the description.

    `listed` false leaves it out of the OpenAPI document: tools that try every route would hang on a
    stream, and the document need not describe itself. `body_bytes_max`: where a body may be larger
    than the settings allow others.
    """
    usual = {200: "as asked"} if answer is not None else {NO_CONTENT: "done"}
    described = Route(scope, body, body_needed, answer, kind, answers or usual, problems, endless)

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
            request_max_body_size=Empty if body_bytes_max is None else body_bytes_max,
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
    grant = await service.grant_of(_token(connection))
    if described.scope != "any":
        grant.require(described.scope)
    stranger = connection.scope.get(CONNECTION)
    if stranger is not None:
        stranger.prove()  # type: ignore[attr-defined]
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
    if kind.lower() == "basic":  # what phones can send: the token is the password
        return basic_of(header)[1]
    token = connection.query_params.get("access_token", "")
    if token:
        return str(token)
    raise AuthError("a token is needed: send it as `Authorization: Bearer …` (roamcast token)")


def basic_of(header: str) -> tuple[str, str]:
    """Give the user and the password of HTTP Basic, empty where they can not be read."""
    try:
        user, _, password = base64.b64decode(header[6:], validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return user, password


def _query_names(handler: Handler) -> Iterator[str]:
    for name, annotation in get_type_hints(handler, include_extras=True).items():
        for meta in getattr(annotation, "__metadata__", ()):
            if isinstance(meta, ParameterKwarg):
                yield meta.query or name


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class Gate:
    """The ASGI application of a service: WebSockets are served here, the rest by litestar."""

    def __init__(self, service: Service, http: Litestar) -> None:
        self.service = service
        self.http = http

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection or request."""
        if scope["type"] != "websocket":
            await answer_http(self.http, self.service.metrics, scope, receive, send)
            return
        await receive()
        try:
            await self._websocket(scope, send)
        except RoamcastError as error:
            self.service.metrics.refused.labels(error.title).inc()
            await reject(send, error)

    async def _websocket(self, scope: Any, send: Any) -> None:
        """Admit a client by its token; its scopes are checked again with each message."""
        service = self.service
        path = scope["path"]
        if path == "/replica":
            await self._replica(scope, send)
            return
        if path == "/overlay":
            await self._neighbour(scope, send)
            return
        if path == MAILBOX:
            await serve_mailbox(service, scope, send, token_of(scope))
            return
        if path not in ("/session", "/link"):
            known = "/session, /link and /mailbox are"
            raise InputError(f"there is no WebSocket at {path[:100]}: {known}")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        grant = await service.grant_of(token_of(scope))
        grant.require("subscribe" if "publish" not in grant.scopes else "publish")
        if path == "/session":
            service.broker.check_newcomer()
        name = f"{grant.subject}#{device_of(query)}"
        service.count_connection(grant.subject, +1)
        try:
            wanted = "roamcast.json.v1" if path == "/session" else "roamcast.link.v1"
            chosen = wanted if wanted in scope["subprotocols"] else None
            await send({"type": "websocket.accept", "subprotocol": chosen})
            socket: WebSocket = scope["extensions"][EXTENSION]
            try:
                with service.metrics.sockets.labels(path[1:]).track_inprogress():
                    await self._serve(path, socket, grant, name)
            except RoamcastError as error:  # too late for a status
                socket.close(TRY_AGAIN, str(error))
        finally:
            service.count_connection(grant.subject, -1)

    async def _replica(self, scope: Any, send: Any) -> None:
        """Admit another replica of this service."""
        shown = next((v for name, v in scope["headers"] if name == b"authorization"), b"")
        caller = self.service.replicas.check(shown.decode("latin-1"))
        await send({"type": "websocket.accept", "subprotocol": None})
        socket: WebSocket = scope["extensions"][EXTENSION]
        with self.service.metrics.sockets.labels("replica").track_inprogress():
            await self.service.serve_replica(socket, caller)

    async def _neighbour(self, scope: Any, send: Any) -> None:
        """Let a caller greet as a neighbour; its greeting is signed, so it needs no token."""
        if not self.service.settings.overlay.node:
            raise InputError("this service is no node of an overlay: see [overlay] in the settings")
        offered = OVERLAY_SUBPROTOCOL in scope["subprotocols"]
        chosen = OVERLAY_SUBPROTOCOL if offered else None
        await send({"type": "websocket.accept", "subprotocol": chosen})
        with self.service.metrics.sockets.labels("overlay").track_inprogress():
            await self.service.serve_neighbour(scope["extensions"][EXTENSION])

    async def _serve(self, path: str, socket: WebSocket, grant: Grant, name: str) -> None:
        if path == "/session":
            await SessionSocket(self.service, socket, grant, name).run()
        else:
            await self.service.serve_link(socket, grant, name)


async def answer_http(
    http: Litestar, metrics: Metrics, scope: Any, receive: Any, send: Send
) -> None:
    """Let litestar answer a request, and answer HEAD and OPTIONS by its routes."""
    scope = {**scope}  # litestar writes the route into it, and HEAD is asked as GET
    send = measured(metrics, scope, send)
    if scope["method"] not in ("HEAD", "OPTIONS") or is_preflight(scope):
        await http(scope, receive, send)
        return
    methods = http.state.methods_of(scope["path"])
    if scope["method"] == "HEAD":
        scope["method"] = "GET" if methods is None or "HEAD" in methods else "HEAD"
        await http(scope, receive, without_body(send))
    elif methods is None:
        await http(scope, receive, send)
    else:
        headers = [(b"allow", methods.encode())]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def is_preflight(scope: Any) -> bool:
    """Whether a browser asks before a request to another origin than its page's (CORS)."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def measured(metrics: Metrics, scope: Any, send: Send) -> Send:
    """Count a request and its time when its answer begins; the route is its template, or `none`."""
    began, method = perf_counter(), scope["method"]

    async def send_measured(message: Any) -> None:
        if message["type"] == "http.response.start":
            path = scope.get("path_template") or "none"
            asked = method if method in METHODS else "other"
            metrics.requests.labels(asked, path, str(message["status"])).inc()
            metrics.request_seconds.labels(path).observe(perf_counter() - began)
        await send(message)

    return send_measured


def without_body(send: Send) -> Send:
    """Leave the body out of an answer, but not what its headers say of it."""

    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


def token_of(scope: Any) -> str:
    """Give the token of a WebSocket, from its header or, in browsers, from its subprotocols.

    Not from the address: addresses are kept in logs and histories.
    """
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            if kind.lower() == "bearer":
                return str(token.strip())
    for offered in scope.get("subprotocols", ()):
        if offered.startswith(BEARER):
            return str(offered.removeprefix(BEARER))
    raise AuthError(f"a token is needed: `Authorization: Bearer …` or the subprotocol {BEARER}…")


def device_of(query: dict[str, list[str]]) -> str:
    """Give the name of a subject's device, a random one where the query has none."""
    device = query.get("device", [""])[0] or secrets.token_hex(8)
    if len(device) > DEVICE_LENGTH_MAX or not DEVICE_LETTERS.issuperset(device):
        raise InputError(f"device has at most {DEVICE_LENGTH_MAX} letters, digits, '_', '.', '-'")
    return device
