"""The process of a relay: its port, its start and its end.

On the port are the links of clients, the relay's own health and numbers, and for all other requests
the service behind it.
"""

import asyncio
import hmac
import random
import ssl
from collections.abc import Callable
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
from roamcast.live.config.settings import Settings, check_secured
from roamcast.live.http.problems import PROBLEM_TYPE, details, reject
from roamcast.live.http.routes import device_of, token_of
from roamcast.live.links.sockets import EXTENSION, WebSocket
from roamcast.live.observe.metrics import CONTENT_TYPE
from roamcast.live.relay.forward import ForwardedAnswer, Forwarding
from roamcast.live.relay.relay import LiveRelay
from roamcast.live.service.running import UvicornServer, listen, url_of, uvicorn_config
from roamcast.transport.address import ServiceAddress
from roamcast.transport.service_link import SUBPROTOCOL

STREAMS: Final = ("/session", "/changes")
"""Paths that need a hub, which only the service has (decision 0076)."""

OPEN_S: Final = 10.0
"""For connections to the service."""

JSON: Final = [(b"content-type", b"application/json")]


class RelayGate:
    """The ASGI application of a relay."""

    def __init__(self, relay: LiveRelay, forwarding: Forwarding) -> None:
        self.relay = relay
        self._forwarding = forwarding

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection or request."""
        if scope["type"] == "websocket":
            await receive()
            try:
                await self._websocket(scope, send)
            except RoamcastError as error:
                await reject(send, _for_client(error))
            return
        try:
            status, headers, body = await self._http(scope, receive)
        except RoamcastError as error:
            status, headers, body = _problem(_for_client(error))
        headers = [*headers, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _websocket(self, scope: Any, send: Any) -> None:
        """Let a client in if the service does."""
        relay, path = self.relay, scope["path"]
        if path != "/link":
            raise NotFoundError(f"a relay has /link only, not {path[:100]}: ask the service")
        if not relay.ready:
            raise MissingError("the service is away: come again in a moment")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        guest = await relay.admit(token_of(scope), device_of(query))
        try:
            relay.connections.open(guest.subject)
            try:
                chosen = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
                await send({"type": "websocket.accept", "subprotocol": chosen})
                socket: WebSocket = scope["extensions"][EXTENSION]
                await relay.serve(socket, guest)
            finally:
                relay.connections.close(guest.subject)
        finally:
            await guest.close()

    async def _http(self, scope: Any, receive: Any) -> ForwardedAnswer:
        relay, path = self.relay, scope["path"]
        if path == "/healthz":
            return 200, JSON, b'{"status":"alive"}'
        if path == "/readyz":
            if not relay.ready:
                raise MissingError("the relay has no link to its service: see its log")
            return 200, JSON, b'{"status":"ready"}'
        if path == "/metrics":
            token = token_of(scope)
            if not hmac.compare_digest(token.encode(), relay.address.key.encode()):
                raise AuthError("a relay's numbers need the relay's own token")
            return 200, [(b"content-type", CONTENT_TYPE.encode())], relay.metrics.page()
        if path in STREAMS:
            raise NotFoundError(f"a relay has no {path}: use /link, or ask the service")
        most = relay.settings.limits.body_bytes_max
        return await self._forwarding.ask(scope, receive, most)


def _for_client(error: RoamcastError) -> RoamcastError:
    """Say to a client what an error between relay and service means for it."""
    if isinstance(error, UnreachableError) and not isinstance(error, RateError):
        return MissingError(str(error))
    return error


def _problem(error: RoamcastError) -> ForwardedAnswer:
    headers = [(b"content-type", PROBLEM_TYPE.encode())]
    if isinstance(error, AuthError) and error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="roamcast"'))
    return error.status, headers, details(error)


async def serve(
    address: ServiceAddress,
    settings: Settings,
    *,
    started: Callable[[str], None],
    interface: str = "",
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run a relay until a signal ends it, or its own token expires."""
    check_secured(settings.server)
    listening = listen(settings.server)
    relay = LiveRelay(
        address,
        settings,
        draw=random.SystemRandom().random,
        open_s=OPEN_S,
        interface=interface,
        tls=tls,
    )
    forwarding = Forwarding(address.url, timeout_s=OPEN_S, tls=tls)

    def began(port: int) -> None:
        started(url_of(settings.server, port))

    server = UvicornServer(uvicorn_config(settings, RelayGate(relay, forwarding)), relay, began)
    try:
        await relay.start()
        assert relay.ended is not None
        relay.ended.add_done_callback(lambda _: server.handle_exit(0, None))
        await server.serve(sockets=[listening])
        if relay.ended.done():
            await relay.ended  # raises why
    finally:
        listening.close()
        forwarding.close()
        await relay.stop()


def run(
    address: ServiceAddress,
    settings: Settings,
    *,
    started: Callable[[str], None],
    interface: str = "",
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run a relay in this process until it ends."""
    import uvloop

    try:
        uvloop.run(serve(address, settings, started=started, interface=interface, tls=tls))
    except (OSError, asyncio.CancelledError) as error:
        raise RoamcastError(f"the relay could not start: {error}") from None
