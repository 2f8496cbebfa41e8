"""What answers on an agent's port? Links of clients, its own health, and the service behind it."""

import hmac
from typing import Any, Final
from urllib.parse import parse_qs

from roamcast.errors import (
    AuthError,
    MissingError,
    NotFoundError,
    RateError,
    RoamcastError,
    UnreachableError,
)
from roamcast.live.http.app import device_of, token_of
from roamcast.live.http.problems import PROBLEM_TYPE, details, reject
from roamcast.live.links.sockets import EXTENSION, WebSocket
from roamcast.live.observe.metrics import CONTENT_TYPE
from roamcast.live.relay.forward import Answered, Forwarding
from roamcast.live.relay.relay import LiveRelay

SUBPROTOCOL: Final = "roamcast.link.v1"
STREAMS: Final = ("/session", "/changes")
"""What needs a hub, which is the service's (decision 0076)."""

JSON: Final = [(b"content-type", b"application/json")]


class RelayGate:
    """The ASGI application of an agent."""

    def __init__(self, agent: LiveRelay, forwarding: Forwarding) -> None:
        self.agent = agent
        self._forwarding = forwarding

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection or request."""
        if scope["type"] == "websocket":
            await receive()
            try:
                await self._websocket(scope, send)
            except RoamcastError as error:
                await reject(send, _told(error))
            return
        try:
            status, headers, body = await self._http(scope, receive)
        except RoamcastError as error:
            status, headers, body = _problem(_told(error))
        headers = [*headers, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _websocket(self, scope: Any, send: Any) -> None:
        """Let a client in whom the service lets in."""
        agent, path = self.agent, scope["path"]
        if path != "/link":
            raise NotFoundError(f"an agent has /link only, not {path[:100]}: ask the service")
        if not agent.ready:
            raise MissingError("the service is away: come again in a moment")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        guest = await agent.admit(token_of(scope, query), device_of(query))
        try:
            agent.connections.open(guest.subject)
            try:
                chosen = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
                await send({"type": "websocket.accept", "subprotocol": chosen})
                socket: WebSocket = scope["extensions"][EXTENSION]
                await agent.serve(socket, guest)
            finally:
                agent.connections.close(guest.subject)
        finally:
            await guest.close()

    async def _http(self, scope: Any, receive: Any) -> Answered:
        agent, path = self.agent, scope["path"]
        if path == "/healthz":
            return 200, JSON, b'{"status":"alive"}'
        if path == "/readyz":
            if not agent.ready:
                raise MissingError("the agent has no link to its service: see its log")
            return 200, JSON, b'{"status":"ready"}'
        if path == "/metrics":
            token = token_of(scope, {})
            if not hmac.compare_digest(token.encode(), agent.address.key.encode()):
                raise AuthError("an agent's numbers are for who has the agent's own token")
            return 200, [(b"content-type", CONTENT_TYPE.encode())], agent.metrics.page()
        if path in STREAMS:
            raise NotFoundError(f"an agent has no {path}: use /link, or ask the service")
        most = agent.settings.limits.body_bytes_max
        return await self._forwarding.ask(scope, receive, most)


def _told(error: RoamcastError) -> RoamcastError:
    """Tell what went wrong behind the agent as what it means before it."""
    if isinstance(error, UnreachableError) and not isinstance(error, RateError):
        return MissingError(str(error))
    return error


def _problem(error: RoamcastError) -> Answered:
    headers = [(b"content-type", PROBLEM_TYPE.encode())]
    if isinstance(error, AuthError) and error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="roamcast"'))
    return error.status, headers, details(error)
