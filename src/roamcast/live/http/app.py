"""Which program answers on the port? litestar for HTTP, sessions' and links' sockets beside it."""

import secrets
from typing import Any
from urllib.parse import parse_qs

import msgspec
from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

import roamcast
from roamcast.errors import AuthError, InputError, RoamcastError
from roamcast.live.auth.keys import Grant
from roamcast.live.http import about, changes, features, writing
from roamcast.live.http.methods import allowed, as_get
from roamcast.live.http.problems import (
    PROBLEM_TYPE,
    ProblemDetails,
    litestars,
    ours,
    status_of,
    title_of,
)
from roamcast.live.http.problems import unexpected as mistake
from roamcast.live.links.session import SessionSocket
from roamcast.live.links.sockets import EXTENSION, TRY_AGAIN, WebSocket
from roamcast.live.service.service import Service

DEVICE_LENGTH_MAX = 64
DEVICE_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def make_http(service: Service) -> Litestar:
    """Make the HTTP part."""
    made = Litestar(
        [*about.ROUTES, *features.ROUTES, *writing.ROUTES, *changes.ROUTES],
        state=State({"service": service}),
        exception_handlers={RoamcastError: ours, HTTPException: litestars, Exception: mistake},
        request_max_body_size=service.settings.limits.body_bytes_max,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Roamcast",
            version=roamcast.__version__,
            description="Reach people by where they are, without learning who they are. Two ways "
            "to follow changes are not on this page: GET /changes?filter=… (server-sent events) "
            "and WS /session (JSON messages); docs/service.md shows both.",
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
    made.state.methods_of = allowed(made)
    return made


class Gate:
    """The ASGI application: WebSockets here, everything else by litestar."""

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
        if scope["method"] == "HEAD":
            scope, send = as_get(scope, send)
        options = scope["method"] == "OPTIONS"
        methods = self.http.state.methods_of(scope["path"]) if options else None
        if methods is None:
            await self.http(scope, receive, send)
        else:
            headers = [(b"allow", methods.encode())]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async def _websocket(self, scope: Any, send: Any) -> None:
        """Let a client in that may come in; what it may do is checked again as it asks."""
        service = self.service
        path = scope["path"]
        if path == "/replica":
            await self._peer(scope, send)
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

    async def _peer(self, scope: Any, send: Any) -> None:
        """Let another host of the cluster in."""
        said = next((v for name, v in scope["headers"] if name == b"authorization"), b"")
        caller = self.service.replicas.check(said.decode("latin-1"))
        await send({"type": "websocket.accept", "subprotocol": None})
        socket: WebSocket = scope["extensions"][EXTENSION]
        await self.service.serve_replica(socket, caller)

    async def _serve(self, path: str, socket: WebSocket, grant: Grant, name: str) -> None:
        if path == "/session":
            await SessionSocket(self.service, socket, grant, name).run()
        else:
            await self.service.serve_link(socket, grant, name)


def token_of(scope: Any, query: dict[str, list[str]]) -> str:
    """Give the token a connection shows, in its head or its address."""
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
    """Give the name of a subject's device, drawn where none is said."""
    device = query.get("device", [""])[0] or secrets.token_hex(8)
    if len(device) > DEVICE_LENGTH_MAX or not DEVICE_LETTERS.issuperset(device):
        raise InputError(f"device has at most {DEVICE_LENGTH_MAX} letters, digits, '_', '.', '-'")
    return device


async def reject(send: Any, error: RoamcastError) -> None:
    """Answer an upgrade that is refused like any request."""
    status = status_of(error)
    body = msgspec.json.encode(ProblemDetails(title_of(error), status, str(error)))
    headers = [(b"content-type", PROBLEM_TYPE.encode())]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
