"""A trusted node as its own process: its port, its keys, its database; no map, no past, no filter.

The routes are those of `live/http/mail.py`, but for registrations, which are a service's. It knows
people by name and brokers by tokens with the scope `deposit`.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from roamcast.errors import NotFoundError, RoamcastError
from roamcast.live.auth.admission import Connections, Grant, Rates, TokenKeys
from roamcast.live.auth.grants import OpenGrants
from roamcast.live.auth.operator import OperatorToken
from roamcast.live.config.settings import Settings, check_listening
from roamcast.live.http import about, mail
from roamcast.live.http.app import methods_of
from roamcast.live.http.problems import litestars, mistake, ours, reject
from roamcast.live.http.routes import answer_http, token_of
from roamcast.live.observe.metrics import Metrics
from roamcast.live.service.running import (
    ADDRESS_FILE,
    UvicornServer,
    listen,
    url_of,
    uvicorn_config,
)
from roamcast.live.trust.host import RunningTrust
from roamcast.live.trust.mail_socket import MAILBOX, serve_mailbox
from roamcast.overlay.links.proof import key_text

ROUTES: Final[tuple[HTTPRouteHandler, ...]] = (
    about.get_health,
    about.get_readiness,
    about.get_metrics,
    mail.post_pool,
    mail.get_mailbox,
    mail.get_mailbox_stream,
    mail.post_ack,
    mail.get_reach,
    mail.put_reach,
    mail.delete_me,
    mail.post_ingest,
    mail.post_handles,
    mail.post_departed,
    mail.delete_person,
    mail.get_push_key,
    mail.get_devices,
    mail.put_device,
    mail.delete_devices,
    mail.post_deposit,
)


class TrustService:
    """What the routes need: who asks, how often, and the node."""

    def __init__(
        self, settings: Settings, keys: TokenKeys, trust: RunningTrust, metrics: Metrics
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.trust = trust
        self.clock = trust.clock
        self.metrics = metrics
        self.standing = OpenGrants(keys, self.clock)
        limits = settings.limits
        self._rates = Rates(limits.requests_per_s, limits.requests_burst, what="requests")
        self._connections = Connections(limits.connections_max, limits.connections_per_subject_max)
        self._serving = True

    @property
    def ready(self) -> bool:
        """Whether what is asked now would be done."""
        return self._serving and self.trust.ready

    async def grant_of(self, token: str) -> Grant:
        """Check a token of this node."""
        return self.keys.check(token, self.clock())

    def count_request(self, subject: str, amount: int = 1) -> None:
        """Count requests of a subject; too many are refused."""
        self._rates.take(subject, self.clock(), amount)

    def count_connection(self, subject: str, by: int) -> None:
        """Count a connection of a subject in or out; too many are refused."""
        if by > 0:
            self._connections.open(subject)
        else:
            self._connections.close(subject)

    async def goodbye(self) -> None:
        """Take nothing more, and end everybody's stream."""
        self._serving = False
        self.trust.end_streams()


class TrustGate:
    """The ASGI application of a trusted node."""

    def __init__(self, service: TrustService) -> None:
        self.service = service
        self.http = Litestar(
            list(ROUTES),
            state=State({"service": service}),
            exception_handlers={RoamcastError: ours, HTTPException: litestars, Exception: mistake},
            request_max_body_size=service.settings.limits.body_bytes_max,
            logging_config=None,
            openapi_config=None,
        )
        self.http.state.methods_of = methods_of(self.http)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await receive()
            try:
                if scope["path"] != MAILBOX:
                    raise NotFoundError("a trusted node has one WebSocket: /mailbox")
                await serve_mailbox(self.service, scope, send, token_of(scope))
            except RoamcastError as error:
                await reject(send, error)
            return
        await answer_http(self.http, self.service.metrics, scope, receive, send)


async def serve(settings: Settings, *, started: Callable[[dict[str, str]], None]) -> None:
    """Run a trusted node until a signal ends it."""
    check_listening(settings.server)
    listening = listen(settings.server)
    data = Path(settings.server.data)
    metrics = Metrics()
    trust = RunningTrust.open(
        data,
        settings.identity.node,
        journal=settings.journal,
        metrics=metrics,
        push=settings.push,
    )
    keys = TokenKeys.open(data, skew_s=settings.limits.clock_skew_s_max)
    service = TrustService(settings, keys, trust, metrics)
    trust.start()
    service.standing.start()
    tasks: list[asyncio.Task[Any]] = []

    def began(port: int) -> None:
        url = url_of(settings.server, port)
        operator = OperatorToken(keys, data / ADDRESS_FILE, url)
        token = operator.renew(service.clock())
        key = key_text(trust.node.public_key)
        started({"url": url, "token": token, "node": trust.node.name, "key": key})
        tasks.append(asyncio.get_running_loop().create_task(operator.keep(service.clock)))

    server = UvicornServer(uvicorn_config(settings, TrustGate(service)), service, began)
    try:
        await server.serve(sockets=[listening])
    finally:
        (data / ADDRESS_FILE).unlink(missing_ok=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        service.standing.stop()
        await trust.stop()


def run(settings: Settings, *, started: Callable[[dict[str, str]], None]) -> None:
    """Run a trusted node in this process until it ends."""
    import uvloop

    try:
        uvloop.run(serve(settings, started=started))
    except OSError as error:
        raise RoamcastError(f"the trusted node could not start: {error}") from None
