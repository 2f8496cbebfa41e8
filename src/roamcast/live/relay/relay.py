"""A relay under asyncio: one machine, one link to the service, and the connections of its guests.

AMS 17, live: `roamcast relay`. To the service it is a client of the SDK's kind, which joins groups
by UDP multicast or NATS where it can. To clients on unicast links it is the service. All decisions
are the machine's (`channels.relay.admission`): who is served, who is passed through, who must come
again. Here are the sockets.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Coroutine
from itertools import count
from typing import Any, Final

from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.session import silence_us
from roamcast.channels.relay.admission import RENEWED, RelayAdmission
from roamcast.channels.relay.guests import (
    CloseGuest,
    EndGuest,
    GoingDown,
    GuestArrived,
    GuestGone,
    GuestLinkEnded,
    OwnLinkDown,
    OwnLinkUp,
    PassThrough,
    Serve,
    ServingBegan,
    Withheld,
)
from roamcast.channels.relay.publishers import SendUp
from roamcast.channels.server.messages import Batch
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import UnreachableError
from roamcast.live.auth.admission import SCOPES, Connections, Rates
from roamcast.live.config.settings import Settings
from roamcast.live.links.links import Links
from roamcast.live.links.sockets import WebSocket, binary_frame
from roamcast.live.observe.metrics import Metrics
from roamcast.live.relay.guest import BySubject, Guest
from roamcast.live.relay.tunnel import Tunnel, say_goodbye
from roamcast.live.service.reading import FilterReader
from roamcast.matching import FilterSet
from roamcast.model.addresses import Client
from roamcast.model.machine import Draw, Effect, Ignore, Input, Listen, Received, Send
from roamcast.model.records import Drop, Record
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message
from roamcast.transport.address import ServiceAddress, scopes_of
from roamcast.transport.driver import Driver, RemoteClock
from roamcast.transport.groups import SOCKET
from roamcast.transport.service_link import ServiceLink
from roamcast.transport.ways import Ways

NAME: Final = "relay"
DIALS_MAX: Final = 64
"""Guests' own links that are dialled at once; after a restart everybody comes together."""

_LOG = logging.getLogger("roamcast.relay")


class LiveRelay:
    """One relay under asyncio."""

    def __init__(
        self,
        address: ServiceAddress,
        settings: Settings,
        *,
        draw: Draw,
        open_s: float = 10.0,
        interface: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.settings = settings
        self.tls = tls
        self.metrics = Metrics()
        limits = settings.limits
        self.connections = Connections(limits.connections_max, limits.connections_per_subject_max)
        self.clock = RemoteClock()
        work = Rates(limits.steps_per_s, limits.steps_burst, what="steps of work")
        self.reader = FilterReader(work, self.clock.now, limits.filter_length_max)
        self.machine = RelayAdmission(
            NAME, draw=draw, policy=BySubject(), guests_max=limits.connections_max
        )
        self.driver = Driver(self.machine, clock=self.clock.now, carry=self._carry)
        self.guests: dict[int, Guest] = {}
        self.links: Links | None = None
        self.ended: asyncio.Future[None] | None = None
        """Done with the reason when the relay's own link has ended for good."""
        self.link = ServiceLink(
            address,
            f"relay-{secrets.token_hex(8)}",
            on_welcome=self._on_welcome,
            on_message=self._on_message,
            on_renewal=self._on_renewal,
            on_close=self._on_close,
            draw=draw,
            open_s=open_s,
            tls=tls,
        )
        self.ways = Ways(
            send=self.link.send,
            on_message=self._on_message,
            clock=self.clock.now,
            interface=interface,
        )
        self._draw = draw
        self._open_s = open_s
        self._server = ""
        self._next_guest = count(1)
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._closing: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._serving = False
        self._stopped = False
        self._watch_sizes()

    def _watch_sizes(self) -> None:
        held, machine = self.metrics.watch_held, self.machine
        held("clients served", lambda: len(machine.served))
        held("clients passed through", machine.passed)
        held("clients that publish", lambda: len(machine.publishers))
        held("groups by UDP or NATS", lambda: self.ways.using != SOCKET)
        held("contexts", lambda: len(machine.relay.down.map) if machine.relay else 0)
        held(
            "queries", lambda: len(machine.relay.down.subscriptions.upward) if machine.relay else 0
        )

    @property
    def ready(self) -> bool:
        """Whether clients are served now."""
        return self._serving and self.link.connected

    async def start(self) -> None:
        """Dial the service, and return when it has sent its welcome."""
        FilterSet().warm_up()  # the first client shall not wait for the compiled code
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self.ended = loop.create_future()
        self._task = asyncio.create_task(self.link.run(ready))
        await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task  # raises why
        self._task.add_done_callback(self._link_ended)
        self._serving = True

    async def goodbye(self) -> None:
        """Accept no more clients, and tell everybody who is connected."""
        self._serving = False
        self.driver.give(GoingDown())

    async def stop(self) -> None:
        """End everything."""
        self._stopped = True
        self.driver.close()
        self.reader.close()
        if self.links is not None:
            self._later(self.links.close())
        for guest in self.guests.values():
            guest.finish()
        if self._task is not None:
            self._task.remove_done_callback(self._link_ended)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.ways.close()
        await asyncio.gather(*self._closing)

    def _link_ended(self, task: asyncio.Task[None]) -> None:
        if self.ended is not None and not self.ended.done():
            why = None if task.cancelled() else task.exception()
            self.ended.set_exception(why or UnreachableError("the relay was stopped"))

    async def admit(self, token: str, device: str) -> Guest:
        """Open a client's own link to the service; raises why it is not let in."""
        guest = Guest(
            next(self._next_guest),
            self._give,
            ServiceAddress(self.address.url, token),
            device,
            draw=self._draw,
            open_s=self._open_s,
            tls=self.tls,
        )
        async with self._dials:
            await guest.open()
        return guest

    async def serve(self, socket: WebSocket, guest: Guest) -> None:
        """Let a client talk until its connection is over and its publications are taken."""
        assert guest.welcome is not None
        guest.socket = socket
        self.guests[guest.number] = guest
        limits = self.settings.limits
        try:
            self.driver.give(GuestArrived(guest.number, guest.welcome))
            guest.arrived()
            endpoint = await guest.decided
            if endpoint is not None:
                await socket.serve(
                    endpoint,
                    high_bytes=limits.socket_high_bytes,
                    low_bytes=limits.socket_low_bytes,
                )
        finally:
            if guest.served_by is not None and self.links is not None:
                self.links.disconnected(guest.served_by)
            self.driver.give(GuestGone(guest.number))
            try:
                if not self._stopped:
                    await guest.over
            finally:
                del self.guests[guest.number]

    def _give(self, given: Input) -> None:
        """Take what happened to a guest's own link."""
        if isinstance(given, GuestLinkEnded):
            self.metrics.cut_off.labels("its own link ended").inc()
        self.driver.give(given)

    def _on_welcome(self, welcome: LinkWelcome) -> float:
        """Take the first message of the relay's own link."""
        if welcome.now:
            self.clock.follow(welcome.now)
        self.ways.renew(welcome)
        self._server = welcome.server
        self.driver.give(OwnLinkUp(welcome))
        return silence_us(settings_of(welcome.settings)) / MICROSECONDS

    def _on_close(self) -> None:
        self.driver.give(OwnLinkDown())

    def _on_renewal(self, welcome: LinkWelcome) -> None:
        """The service has another key for what groups carry."""
        self.ways.renew(welcome)

    def _on_message(self, group: str, message: Message) -> None:
        self.driver.give(Received(self._server, message, group))

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(Client(name), message):
                self._send(name, message)
            case Send(_, message):
                self.link.send(message)
            case SendUp(number, message):
                if (guest := self.guests.get(number)) is not None:
                    guest.link.send(message)
            case Listen(group):
                self.ways.listen(group)
            case Ignore(group):
                self.ways.ignore(group)
            case ServingBegan(epoch, settings):
                self._renew_links(epoch, settings)
            case Withheld():
                self._count("not sure who may see it")
            case Drop():
                self._count("dropped by the machine")
            case Record():
                pass  # a relay writes no journal: the service records what it sends
            case _:
                self._carry_guest(effect)

    def _carry_guest(self, effect: Effect) -> None:
        match effect:
            case Serve(number):
                guest = self.guests[number]
                assert self.links is not None
                assert guest.socket is not None
                scopes = scopes_of(guest.link.key) or frozenset()
                granted = SCOPES if "admin" in scopes else scopes
                guest.served_by = self.links.connect(guest.socket, guest.name, "", granted)
                guest.decided.set_result(guest.served_by)
            case PassThrough(number):
                guest = self.guests[number]
                assert guest.socket is not None
                assert guest.welcome is not None
                guest.tunnel = Tunnel(
                    guest.socket,
                    guest.welcome,
                    send_up=guest.link.send,
                    limits=self.settings.limits,
                    clock=self.clock.now,
                    count=self._count,
                )
                guest.decided.set_result(guest.tunnel)
            case EndGuest(number, reason, retry_us):
                _LOG.info("a client's connection is ended: %s", reason)
                self._end(self.guests[number], reason, retry_us)
            case CloseGuest(number):
                if (closed := self.guests.get(number)) is not None:
                    closed.finish()
            case _:
                raise AssertionError(f"nobody carries {type(effect).__name__}")

    def _end(self, guest: Guest, reason: str, retry_us: int) -> None:
        if guest.tunnel is not None:
            guest.tunnel.end(reason, retry_us=retry_us)
        elif guest.served_by is not None:
            # Another connection of the same name may have taken its place.
            if self.links is not None and self.links.links.get(guest.name) is guest.served_by:
                self.links.goodbye(guest.name, reason, retry_us=retry_us)
        else:
            assert guest.socket is not None
            say_goodbye(guest.socket, reason, retry_us=retry_us)
            guest.decided.set_result(None)

    def _send(self, name: str, message: Message) -> None:
        assert self.links is not None
        if isinstance(message, Batch):
            self.metrics.deliveries.labels("link").inc()
            self.metrics.deliveries_bytes.labels("link").inc(len(message.payload))
        self.links.send(Send(Client(name), message))

    def _renew_links(self, epoch: int, settings: MapSettings) -> None:
        """Make the links of a new machine; those of an earlier one are over."""
        if self.links is not None:
            for name in list(self.links.links):
                self.links.goodbye(name, RENEWED, retry_us=1)
            self._later(self.links.close())
        self.links = Links(
            server=NAME,
            epoch=epoch,
            settings=settings,
            limits=self.settings.limits,
            secret=secrets.token_bytes(32),
            give=self.driver.give,
            class_of=lambda _: None,
            clock=self.clock.now,
            frame_of=binary_frame,
            reader=self.reader,
        )
        self._later(self.links.start())

    def _later(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _count(self, reason: str) -> None:
        self.metrics.refused.labels(reason).inc()
