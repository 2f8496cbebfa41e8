"""The ASGI application: WebSockets are served here, everything else by litestar.

HEAD is answered as GET is, without the body (RFC 9110 wants it of every server); only streams
without an end have none.
"""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute

import roamcast
from roamcast.errors import AuthError, InputError, RoamcastError
from roamcast.live.auth.keys import Grant
from roamcast.live.http import about, changes, features, writing
from roamcast.live.http.problems import litestars, mistake, ours, reject
from roamcast.live.http.routes import ROUTES, route_of
from roamcast.live.links.session import SessionSocket
from roamcast.live.links.sockets import EXTENSION, TRY_AGAIN, WebSocket
from roamcast.live.service.service import Service

MODULES: Final = (about, features, writing, changes)
"""Importing them registers their routes."""

DEVICE_LENGTH_MAX: Final = 64
DEVICE_LETTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
)
MethodsOf = Callable[[str], str | None]
"""Names the methods of a path, as the header `Allow` does; None where there is no such path."""


def make_http(service: Service) -> Litestar:
    """Make the HTTP part from the registered routes."""
    made = Litestar(
        list(ROUTES),
        state=State({"service": service}),
        exception_handlers={RoamcastError: ours, HTTPException: litestars, Exception: mistake},
        request_max_body_size=service.settings.limits.body_bytes_max,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Roamcast",
            version=roamcast.__version__,
            description="Reach people by where they are, without learning who they are. Two ways "
            "to follow changes are not on this page: GET /changes?filter=… (server-sent events) "
            "and WS /session (JSON, components SessionMessage and SessionAnswer); docs/service.md "
            "shows both.",
            path="/schema",
            components=Components(
                security_schemes={
                    "token": SecurityScheme(type="http", scheme="bearer", bearer_format="JWT")
                }
            ),
            security=[{"token": []}],
            use_handler_docstrings=True,
            render_plugins=[],
        ),
    )
    made.state.methods_of = methods_of(made)
    return made


def methods_of(app: Litestar) -> MethodsOf:
    """Look up the methods of an application's paths: its routes', and HEAD wherever GET ends."""
    known: list[tuple[re.Pattern[str], str]] = []
    for path in app.routes:
        if not isinstance(path, HTTPRoute):
            continue
        methods = {str(method) for method in path.methods} | {"OPTIONS"}
        found = [route_of(handler) for handler in path.route_handlers]
        if "GET" in methods and not any(route is not None and route.endless for route in found):
            methods.add("HEAD")
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path.path_format))
        known.append((re.compile(pattern), ", ".join(sorted(methods))))

    def look_up(path: str) -> str | None:
        path = path.rstrip("/") or "/"
        return next((methods for pattern, methods in known if pattern.fullmatch(path)), None)

    return look_up


class Gate:
    """The ASGI application of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.http = make_http(service)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection or request."""
        if scope["type"] != "websocket":
            await self._http(scope, receive, send)
            return
        await receive()
        try:
            await self._websocket(scope, send)
        except RoamcastError as error:
            await reject(send, error)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in ("HEAD", "OPTIONS"):
            await self.http(scope, receive, send)
            return
        methods = self.http.state.methods_of(scope["path"])
        if scope["method"] == "HEAD":
            asked = "GET" if methods is None or "HEAD" in methods else "HEAD"
            scope = {**scope, "method": asked}
            await self.http(scope, receive, without_body(send))
        elif methods is None:
            await self.http(scope, receive, send)
        else:
            headers = [(b"allow", methods.encode())]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async def _websocket(self, scope: Any, send: Any) -> None:
        """Admit a client by its token; its scopes are checked again with each message."""
        service = self.service
        path = scope["path"]
        if path == "/replica":
            await self._replica(scope, send)
            return
        if path not in ("/session", "/link"):
            raise InputError(f"there is no WebSocket at {path[:100]}: /session and /link are")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        grant = service.keys.check(token_of(scope, query), service.clock())
        grant.require("subscribe" if "publish" not in grant.scopes else "publish")
        name = f"{grant.subject}#{device_of(query)}"
        service.count_connection(grant.subject, +1)
        try:
            wanted = "roamcast.json.v1" if path == "/session" else "roamcast.link.v1"
            chosen = wanted if wanted in scope["subprotocols"] else None
            await send({"type": "websocket.accept", "subprotocol": chosen})
            socket: WebSocket = scope["extensions"][EXTENSION]
            try:
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
        await self.service.serve_replica(socket, caller)

    async def _serve(self, path: str, socket: WebSocket, grant: Grant, name: str) -> None:
        if path == "/session":
            await SessionSocket(self.service, socket, grant, name).run()
        else:
            await self.service.serve_link(socket, grant, name)


def without_body(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Leave the body out of an answer, but not what its headers say of it."""

    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


def token_of(scope: Any, query: dict[str, list[str]]) -> str:
    """Give the token of a WebSocket, from its header or its query."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            if kind.lower() == "bearer":
                return str(token.strip())
    token = query.get("access_token", [""])[0]
    if not token:
        raise AuthError("a token is needed: `Authorization: Bearer …` or ?access_token=…")
    return str(token)


def device_of(query: dict[str, list[str]]) -> str:
    """Give the name of a subject's device, a random one where the query has none."""
    device = query.get("device", [""])[0] or secrets.token_hex(8)
    if len(device) > DEVICE_LENGTH_MAX or not DEVICE_LETTERS.issuperset(device):
        raise InputError(f"device has at most {DEVICE_LENGTH_MAX} letters, digits, '_', '.', '-'")
    return device
