"""A small map service for the SDK's tests: the real machine behind a bare WebSocket."""

import asyncio
import contextlib
import functools
import random
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any, ParamSpec

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as Asked
from websockets.http11 import Response

from roamcast.channels.client.link_messages import (
    LINK_PROTOCOL,
    Goodbye,
    Grouped,
    LinkWelcome,
    Tune,
    settings_bytes,
)
from roamcast.channels.server.desk import Policy
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.settings import MapSettings
from roamcast.model.addresses import Client
from roamcast.model.machine import Effect, Multicast, Received, Send
from roamcast.model.wire import Message, Unreadable
from roamcast.sim.workloads._map_parts import ScanMatcher
from roamcast.transport.driver import Driver, wall_clock

TOKEN = "a key"
QUICK = MapSettings(
    repeat_us=20_000,
    heartbeat_us=200_000,
    server_here_us=200_000,
    restart_spread_us=50_000,
    client_timeout_us=2_000_000,
)


class Service:
    """One `MapServer` on a loopback port that can be killed, restarted and made deaf."""

    def __init__(
        self, settings: MapSettings = QUICK, policy: Policy | None = None, name: str = "server"
    ) -> None:
        self.name = name
        self.hosts: tuple[str, ...] = ()
        self.seats: tuple[str, ...] = ()
        self.settings = settings
        self.policy = policy
        self.port = 0
        self.token = TOKEN
        self.welcomes = 0
        self.clock = wall_clock()
        self.ahead_us = 0
        self.sockets: dict[str, ServerConnection] = {}
        self.tuned: dict[str, set[str]] = {}
        self.loses: Callable[[Message], bool] = lambda _: False
        self.driver: Driver | None = None
        self.tls: ssl.SSLContext | None = None
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def machine(self) -> MapServer:
        assert self.driver is not None
        assert isinstance(self.driver.machine, MapServer)
        return self.driver.machine

    def now(self) -> int:
        return self.clock() + self.ahead_us

    async def start(self, epoch: int | None = None) -> None:
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            self.port,
            process_request=self._admit,
            compression=None,
            ping_interval=None,
            ssl=self.tls,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        now = self.now()
        machine = MapServer(
            self.name,
            epoch=epoch or now,
            now=now,
            settings=self.settings,
            policy=self.policy,
            make_matcher=ScanMatcher,
            replicas=self.seats,
        )
        self.driver = Driver(machine, clock=self.now, carry=self._carry)
        self.driver.start()

    async def kill(self) -> None:
        """End as kill -9 does: no goodbye, no closing frames, everything forgotten."""
        assert self._server is not None
        assert self.driver is not None
        self.driver.close()
        for socket in self.sockets.values():
            socket.transport.abort()
        self._server.close(close_connections=False)
        for socket in list(self._server.connections):
            socket.transport.abort()
        await self._server.wait_closed()
        self.sockets.clear()
        self.tuned.clear()

    def cut(self) -> None:
        """Break every link; the service lives on."""
        for socket in list(self.sockets.values()):
            socket.transport.abort()

    async def part(self, name: str, goodbye: Goodbye) -> None:
        await self.sockets[name].send(LINK_PROTOCOL.encode(goodbye))
        await self.sockets[name].close()

    def _admit(self, socket: ServerConnection, asked: Asked) -> Response | None:
        if asked.headers.get("Authorization") != f"Bearer {self.token}":
            answer = socket.respond(HTTPStatus.UNAUTHORIZED, "")
            answer.body = b'{"title": "Unauthorized", "status": 401, "detail": "make a token"}'
            del answer.headers["Content-Length"]
            answer.headers["Content-Length"] = str(len(answer.body))
            return answer
        return None

    async def _handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        name = "ada#" + socket.request.path.rpartition("device=")[2]
        self.sockets[name] = socket
        self.tuned[name] = set()
        self.welcomes += 1
        welcome = LinkWelcome(
            name,
            self.name,
            self.machine.epoch,
            settings_bytes(self.settings),
            now=self.now(),
            hosts=self.hosts,
        )
        with contextlib.suppress(ConnectionClosed):
            await socket.send(LINK_PROTOCOL.encode(welcome))
            while True:
                message = LINK_PROTOCOL.decode(await socket.recv(decode=False))
                assert not isinstance(message, Unreadable), message
                if isinstance(message, Tune):
                    tuned = self.tuned[name]
                    (tuned.add if message.on else tuned.discard)(message.group)
                else:
                    assert self.driver is not None
                    self.driver.give(Received(name, message))
        if self.sockets.get(name) is socket:
            del self.sockets[name], self.tuned[name]

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(Client(to), message):
                self._write(to, message)
            case Multicast(group, message):
                grouped = Grouped(group, LINK_PROTOCOL.encode(message))
                for name, tuned in self.tuned.items():
                    if group in tuned and not self.loses(message):
                        self._write(name, grouped)

    def _write(self, name: str, message: Message) -> None:
        socket = self.sockets.get(name)
        if socket is None or self.loses(message):
            return
        with contextlib.suppress(ConnectionClosed):
            socket.protocol.send_binary(LINK_PROTOCOL.encode(message))
            socket.send_data()


@contextlib.asynccontextmanager
async def running(
    settings: MapSettings = QUICK, policy: Policy | None = None
) -> AsyncIterator[Service]:
    """Run a service for one test."""
    service = Service(settings, policy)
    await service.start()
    try:
        yield service
    finally:
        await service.kill()


def lossy(part: float, seed: int) -> Callable[[Message], bool]:
    """Lose this part of all messages."""
    draw = random.Random(seed).random
    return lambda _: draw() < part


async def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is so; generous, for a busy machine."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


Given = ParamSpec("Given")


def in_loop(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """Run an asynchronous test in a loop of its own."""

    @functools.wraps(test)
    def run(*given: Given.args, **named: Given.kwargs) -> None:
        asyncio.run(test(*given, **named))

    return run
