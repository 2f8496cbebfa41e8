"""How is the service started, and how does it end? Open what it needs, serve, close in order."""

import asyncio
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

import uvicorn

from roamcast.errors import InputError, RoamcastError, SettingsError
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.auth.operator import OperatorToken
from roamcast.live.config.settings import (
    STORE_FILE,
    ServerSection,
    Settings,
    check_listening,
)
from roamcast.live.http.app import make_gate
from roamcast.live.http.connections import http_protocol
from roamcast.live.links.groups import groups_of
from roamcast.live.links.links import Links
from roamcast.live.links.sockets import WebSocket, binary_frame
from roamcast.live.observe.journaling import JOURNAL_FOLDER, journaling_of
from roamcast.live.observe.metrics import Metrics
from roamcast.live.overlay.node import node_of
from roamcast.live.service.collecting import Collector, give_back
from roamcast.live.service.service import Service
from roamcast.live.store.store import SqliteStore
from roamcast.live.trust.host import RunningTrust
from roamcast.model.places import Places
from roamcast.model.places_geojson import read_places

ADDRESS_FILE: Final = "roamcast.json"
TRUST_FOLDER: Final = "trust"
SWITCH_S: Final = 0.001
"""After so long the loop has the interpreter again from a thread that reads a filter, runs a module
or writes to disk. Python's own is 5 ms, and a request gives the interpreter away several times."""

Started = Callable[[str, str], None]
"""Called with the address and a token when requests are taken."""

Attend = Callable[[Service], Coroutine[Any, Any, None]]
"""Runs along with the service and speaks with its machines: whoever keeps it does."""


class Parting(Protocol):
    """Who has something to say before the connections are closed."""

    async def goodbye(self) -> None:
        """Take nothing more, and tell everybody who is connected."""


class UvicornServer(uvicorn.Server):
    """uvicorn, with our own beginning and end."""

    def __init__(self, config: uvicorn.Config, service: Parting, began: Callable[[int], None]):
        super().__init__(config)
        self._service = service
        self._began = began

    async def startup(self, sockets: Any = None) -> None:
        """Listen, then tell that we do."""
        await super().startup(sockets)
        if self.started:
            assert sockets
            self._began(sockets[0].getsockname()[1])

    async def shutdown(self, sockets: Any = None) -> None:
        """Say good-bye before the connections are closed, and let nobody in meanwhile."""
        for server in self.servers:
            server.close()
        await self._service.goodbye()
        await super().shutdown(sockets)

    def leave(self) -> None:
        """Go down: another host serves."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Go down; a second Ctrl-C does not wait for anybody."""
        del frame
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


async def serve(
    settings: Settings,
    *,
    started: Started,
    beside: Sequence[Callable[[str, str], Any]] = (),
    attend: Attend | None = None,
    epoch: int | None = None,
    places: Places | None = None,
) -> None:
    """Run the service until a signal ends it; `beside` are coroutines that run along with it.

    `places` stand in where the settings name none.
    """
    check_listening(settings.server)
    listening = listen(settings.server)
    data = Path(settings.server.data)
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = TokenKeys.open(data, skew_s=settings.limits.clock_skew_s_max)
    metrics = Metrics()
    disk = SqliteStore.open(
        data / STORE_FILE,
        writes_waiting_max=settings.durability.writes_waiting_max,
        bytes_waiting_max=settings.durability.bytes_waiting_max,
        commit_writes_max=settings.durability.commit_writes_max,
        committed=metrics.committed,
        copied=bool(settings.cluster.replicas),
    )
    journal = None
    if settings.journal.on:
        journal = journaling_of(settings.journal, data / JOURNAL_FOLDER, settings.server.name)
    trust = None
    # With replicas the trusted node is a service of its own: its database is nobody's copy.
    if settings.identity.node and not settings.cluster.replicas:
        trust = RunningTrust.open(
            data / TRUST_FOLDER,
            settings.identity.node,
            journal=settings.journal,
            metrics=metrics,
            push=settings.push,
        )
    service = Service(
        settings,
        disk=disk,
        keys=keys,
        metrics=metrics,
        journal=journal,
        places=_places(settings) or places,
        epoch=epoch,
        trust=trust,
        node=node_of(settings.overlay, settings.past, data),
    )
    if trust is not None:
        trust.start()
    links = _links(settings, service)
    await links.start()
    service.start(links)
    tasks: list[asyncio.Task[Any]] = [asyncio.get_running_loop().create_task(give_back())]
    address_file = data / ADDRESS_FILE

    def began(port: int) -> None:
        url = url_of(settings.server, port)
        operator = OperatorToken(keys, address_file, url)
        token = operator.renew(service.clock())
        started(url, token)
        tasks.append(asyncio.get_running_loop().create_task(operator.keep(service.clock)))
        tasks.extend(asyncio.get_running_loop().create_task(one(url, token)) for one in beside)
        if attend is not None:
            tasks.append(asyncio.get_running_loop().create_task(attend(service)))

    server = UvicornServer(uvicorn_config(settings, make_gate(service)), service, began)
    collector = Collector(asyncio.get_running_loop().call_soon)
    collector.start()
    sys.setswitchinterval(SWITCH_S)
    service.on_over = server.leave
    try:
        await server.serve(sockets=[listening])
    finally:
        collector.stop()
        address_file.unlink(missing_ok=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.stop()
        if trust is not None:
            await trust.stop()


def listen(server: ServerSection) -> socket.socket:
    """Take the port, or say who to ask for another."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((server.host, server.port))
    except OSError as error:
        taken.close()
        raise SettingsError(
            f"can not listen on {server.host} port {server.port}: {error.strerror}; "
            "choose another with --port"
        ) from None
    taken.set_inheritable(False)
    return taken


def url_of(server: ServerSection, port: int) -> str:
    """Give the address at which this machine is reached."""
    scheme, host = "https" if server.tls_cert else "http", server.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _places(settings: Settings) -> Places | None:
    if not settings.server.places:
        return None
    path = Path(settings.server.places)
    try:
        return read_places(path.read_bytes())
    except OSError as error:
        raise InputError(f"the places can not be read: {error}", source=str(path)) from None


def _links(settings: Settings, service: Service) -> Links:
    secret, mark = secrets.token_bytes(32), secrets.token_bytes(4)
    prefix = f"roamcast.{settings.server.name}"
    groups = groups_of(settings.channels, prefix=prefix, secret=secret, mark=mark)
    broker = service.broker
    return Links(
        server=broker.name,
        epoch=broker.epoch,
        settings=broker.map_settings,
        limits=settings.limits,
        secret=secret,
        give=service.driver.give,
        class_of=broker.class_of_group,
        class_of_client=broker.class_of_client,
        clock=service.clock,
        frame_of=binary_frame,
        groups=groups,
        udp=settings.channels.udp,
        nats=settings.channels.nats,
        prefix=prefix,
        hosts=list(settings.cluster.replicas.values()),
        elsewhere=bool(settings.overlay.neighbours),
        probe_us=round(settings.channels.probe_s * 1_000_000),
        note=service.note if settings.journal.on and settings.journal.transmissions else None,
        reader=service.reader,
    )


def uvicorn_config(settings: Settings, app: Any) -> uvicorn.Config:
    """Set uvicorn up for an application under these limits."""
    limits = settings.limits
    return uvicorn.Config(
        app,
        host=settings.server.host,
        port=settings.server.port,
        http=http_protocol(limits),
        ws=WebSocket,
        ws_max_size=limits.frame_bytes_max,
        ws_ping_interval=limits.ping_s,
        ws_ping_timeout=limits.pong_s,
        ws_per_message_deflate=False,  # the same frame for everybody
        limit_concurrency=limits.connections_max + limits.anonymous_connections_max,
        timeout_keep_alive=int(limits.idle_s),
        timeout_graceful_shutdown=max(1, round(settings.server.shutdown_s)),
        ssl_certfile=settings.server.tls_cert or None,
        ssl_keyfile=settings.server.tls_key or None,
        lifespan="off",
        loop="uvloop",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=8_192,
    )


def run(
    settings: Settings,
    *,
    started: Started,
    beside: Sequence[Any] = (),
    attend: Attend | None = None,
    epoch: int | None = None,
    places: Places | None = None,
) -> None:
    """Run the service in this process until it ends."""
    import uvloop

    try:
        uvloop.run(
            serve(
                settings,
                started=started,
                beside=beside,
                attend=attend,
                epoch=epoch,
                places=places,
            )
        )
    except OSError as error:
        raise RoamcastError(f"the service could not start: {error}") from None
