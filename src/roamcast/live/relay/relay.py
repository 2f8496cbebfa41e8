"""What runs while a relay runs? The relay machine, one link to the service, many to weak clients.

AMS 17, live: `roamcast relay`. To the service it is a client of the SDK's kind, which hears groups
by UDP multicast or NATS where it can. To clients on unicast links it is the service. Nobody sees
through it what the rules forbid them: only who is, by its own token, of the relay's own view class
is served by the machine, and only while the service says so; the others are passed through.
"""

import asyncio
import logging
import secrets
import ssl
from functools import partial
from typing import Any, Final

from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.watching import Overtaken, Refusal
from roamcast.channels.relay.relay import Heard, MapRelay, OnBehalf
from roamcast.channels.server.messages import Batch, ServerHere
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import UnreachableError
from roamcast.live.auth.keys import SCOPES
from roamcast.live.config.settings import Settings
from roamcast.live.links.links import Links
from roamcast.live.links.sockets import WebSocket, binary_frame
from roamcast.live.observe.metrics import Metrics
from roamcast.live.relay.guest import BySubject, Guest, Publisher
from roamcast.live.relay.tunnel import Tunnel
from roamcast.live.service.limits import Connections
from roamcast.matching import FilterSet
from roamcast.model.addresses import Client
from roamcast.model.machine import Draw, Effect, Ignore, Listen, Received, Send
from roamcast.model.records import Drop
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message
from roamcast.transport.address import ServiceAddress, scopes_of
from roamcast.transport.driver import Driver, steady_clock
from roamcast.transport.group_choice import SOCKET
from roamcast.transport.link import SILENCE_BEATS, ReconnectingLink
from roamcast.transport.ways import Ways

NAME: Final = "relay"
DIALS_MAX: Final = 64
"""Clients' own links that are dialled at once; after a restart everybody comes together."""
COMPARE_S: Final = 2.0
"""So long a new client waits for the relay's own link before it is passed through."""
UNSURE_US_MAX: Final = 10 * MICROSECONDS
"""Who is told nothing for so long, because its own link does not come back, must come again."""
SWEEP_S: Final = 1.0
AWAY: Final = "the relay is going down: connect again"
CHANGED: Final = "rules: what you may see has changed, connect again"

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
        self.guests: dict[str, Guest] = {}
        """Who is served by the machine, by name."""
        self.tunnels: dict[Guest, Tunnel] = {}
        self.publishers: dict[str, Publisher] = {}
        self.machine: MapRelay | None = None
        self.driver: Driver | None = None
        self.links: Links | None = None
        self.ended: asyncio.Future[None] | None = None
        """Done with the reason when the relay's own link has ended for good."""
        self.link = ReconnectingLink(
            address,
            f"relay-{secrets.token_hex(8)}",
            welcomed=self._welcomed,
            told=self._told,
            renewed=self._renewed,
            draw=draw,
            open_s=open_s,
            tls=tls,
        )
        self.ways = Ways(send=self.link.send, told=self._told, clock=self.now, interface=interface)
        self._draw = draw
        self._open_s = open_s
        self._wall = steady_clock()
        self._ahead_us = 0
        self._standing = (0, b"")
        self._sure_us: dict[str, int] = {}
        self._map_settings: MapSettings | None = None
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._serving = False
        self._watch_sizes()

    def _watch_sizes(self) -> None:
        held = self.metrics.watch_held
        held("clients served", lambda: len(self.guests))
        held("clients passed through", lambda: len(self.tunnels))
        held("clients that publish", lambda: len(self.publishers))
        held("groups by UDP or NATS", lambda: self.ways.using != SOCKET)
        held("contexts", lambda: len(self.machine.down.map) if self.machine else 0)
        held("queries", lambda: len(self.machine.down.subscriptions.upward) if self.machine else 0)

    def now(self) -> int:
        """Tell the service's time, as near as we know it; it never goes back."""
        return self._wall() + self._ahead_us

    @property
    def ready(self) -> bool:
        """Whether clients are served now."""
        return self._serving and self.link.connected

    async def start(self) -> None:
        """Dial the service, and come back when it has said welcome."""
        FilterSet().warm_up()  # the first client shall not wait for the compiled code
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self.ended = loop.create_future()
        self._task = asyncio.create_task(self.link.run(ready))
        await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task  # raises why
        self._task.add_done_callback(self._over)
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        self._serving = True

    async def goodbye(self) -> None:
        """Take nobody any more, and tell everybody who is connected."""
        self._serving = False
        if self.links is not None:
            for name in list(self.links.links):
                self.links.goodbye(name, AWAY, retry_us=MICROSECONDS)
        for tunnel in list(self.tunnels.values()):
            tunnel.end(AWAY, retry_us=MICROSECONDS)

    async def stop(self) -> None:
        """End everything."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._discard()
        if self._task is not None:
            self._task.remove_done_callback(self._over)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.ways.close()
        await asyncio.gather(*self._closing)

    def _over(self, task: asyncio.Task[None]) -> None:
        if self.ended is not None and not self.ended.done():
            why = None if task.cancelled() else task.exception()
            self.ended.set_exception(why or UnreachableError("the relay was stopped"))

    async def admit(self, token: str, device: str) -> Guest:
        """Let a client's own link to the service be opened; raises why it is not let in."""
        guest = Guest(
            self,
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
        """Let a client talk until its connection is over."""
        limits = self.settings.limits
        marks = {"high_bytes": limits.socket_high_bytes, "low_bytes": limits.socket_low_bytes}
        if await self._is_ours(guest):
            await self._serve(socket, guest, marks)
            return
        tunnel = Tunnel(socket, guest, limits, self.now, self._count)
        self.tunnels[guest] = tunnel
        try:
            await socket.serve(tunnel, **marks)
        finally:
            del self.tunnels[guest]

    async def _is_ours(self, guest: Guest) -> bool:
        """Whether a client is of the relay's own class; both must have been told by one service.

        And whether there is room in the machine: who finds none is passed through as well.
        """
        settings = self._map_settings
        assert settings is not None
        if guest.name not in self.guests and len(self.guests) >= settings.relay_clients_max:
            return False
        end = self._wall() + int(COMPARE_S * MICROSECONDS)
        while not guest.is_sure(*self._standing) and self._wall() < end:
            assert guest.welcome is not None
            if guest.link.connected and guest.welcome.epoch == self._standing[0]:
                return False
            await asyncio.sleep(0.02)
        return guest.is_sure(*self._standing)

    async def _serve(self, socket: WebSocket, guest: Guest, marks: dict[str, int]) -> None:
        links, name = self.links, guest.name
        assert links is not None
        scopes = scopes_of(guest.link.key) or frozenset()
        link = links.connect(socket, name, "", SCOPES if "admin" in scopes else scopes)
        self.guests[name] = guest
        if (publisher := self.publishers.get(name)) is not None:
            publisher.ride(guest)
        try:
            await socket.serve(link, **marks)
        finally:
            links.disconnected(link)
            if (publisher := self.publishers.get(name)) is not None and publisher.guest is guest:
                await publisher.settle()
            if self.guests.get(name) is guest:
                del self.guests[name]

    def welcomed_again(self, guest: Guest) -> None:
        """A client's own link was away, perhaps because the service was, or its rights changed."""
        if (tunnel := self.tunnels.get(guest)) is not None:
            tunnel.end("the service was away: connect again", retry_us=1)
        elif self.guests.get(guest.name) is guest:
            self._review(guest)
            if (publisher := self.publishers.get(guest.name)) is not None:
                publisher.ride(guest)

    def over(self, guest: Guest, reason: str) -> None:
        """A client's own link has ended for good: so does its link here."""
        self.metrics.cut_off.labels("its own link ended").inc()
        if (tunnel := self.tunnels.get(guest)) is not None:
            tunnel.end(reason)
        elif guest.welcome is not None and self.guests.get(guest.name) is guest:
            self._end(guest, reason)

    def _end(self, guest: Guest, reason: str, *, retry_us: int = 0) -> None:
        assert self.links is not None
        _LOG.info("a client's link is ended: %s", reason)
        self.links.goodbye(guest.name, reason, retry_us=retry_us)

    def _review(self, guest: Guest) -> None:
        """End the link of a client of whom the same service says that it is of another class."""
        epoch, view = self._standing
        welcome = guest.welcome
        if welcome is not None and welcome.epoch == epoch and welcome.view != view:
            self._end(guest, CHANGED, retry_us=1)

    def _welcomed(self, welcome: LinkWelcome) -> float:
        """Take the first message of the relay's own link."""
        settings = settings_of(welcome.settings)
        self._ahead_us = max(welcome.now - self._wall(), self._ahead_us)
        self.ways.welcomed(welcome)
        self._standing = welcome.epoch, welcome.view
        machine = self.machine
        if machine is None or settings != self._map_settings or welcome.epoch < machine.up.epoch:
            self._make(welcome, settings)
        else:
            self._told("", ServerHere(welcome.epoch, settings.restart_spread_us))
        for guest in list(self.guests.values()):
            self._review(guest)
        beats_us = SILENCE_BEATS * settings.server_here_us
        return max(beats_us, settings.client_timeout_us) / MICROSECONDS

    def _renewed(self, welcome: LinkWelcome) -> None:
        """The service has another key for what groups are told."""
        self.ways.welcomed(welcome)

    def _make(self, welcome: LinkWelcome, settings: MapSettings) -> None:
        """Make the machine and the links of its clients; those of an earlier one come again."""
        self._discard()
        now = self.now()
        self._map_settings = settings
        self.machine = MapRelay(
            NAME,
            server=welcome.server,
            server_epoch=welcome.epoch,
            epoch=now,
            now=now,
            settings=settings,
            draw=self._draw,
            apart=True,
            policy=BySubject(),
        )
        self.driver = Driver(self.machine, clock=self.now, carry=self._carry)
        self.links = Links(
            server=NAME,
            epoch=now,
            settings=self.machine.down.settings,
            limits=self.settings.limits,
            secret=secrets.token_bytes(32),
            give=self.driver.give,
            class_of=lambda _: None,
            clock=self.now,
            frame_of=binary_frame,
        )
        self._later(self.links.start())
        self.driver.start()

    def _discard(self) -> None:
        for publisher in self.publishers.values():
            publisher.close()
        self.publishers.clear()
        if self.links is not None:
            for name in list(self.links.links):
                self.links.goodbye(name, "the service has changed: connect again", retry_us=1)
            self._later(self.links.close())
        if self.machine is not None and self.driver is not None:
            self.driver.close()
            for effect in self.machine.leave():
                self._carry(effect)

    def _later(self, doing: Any) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _told(self, group: str, message: Message) -> None:
        assert self.driver is not None
        assert self.machine is not None
        self.driver.give(Received(self.machine.up.server, message, group))

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(Client(name), message):
                self._tell(name, message)
            case Send(_, message):
                self.link.send(message)
            case Listen(group):
                self.ways.listen(group)
            case Ignore(group):
                self.ways.ignore(group)
            case OnBehalf(client, given):
                publisher = self.publishers.get(client) or self._publisher(client)
                if publisher is not None:
                    publisher.give(given)
            case Drop():
                self._count("dropped by the machine")

    def _tell(self, name: str, message: Message) -> None:
        """Send to a client; what shows anything only while it is sure that it may see it."""
        assert self.links is not None
        if isinstance(message, Batch):
            guest = self.guests.get(name)
            if guest is None or not guest.is_sure(*self._standing):
                self._count("not sure who may see it")
                return
            self.metrics.deliveries.labels("link").inc()
            self.metrics.deliveries_bytes.labels("link").inc(len(message.payload))
        self.links.send(Send(Client(name), message))

    def _publisher(self, name: str) -> Publisher | None:
        guest = self.guests.get(name)
        if guest is None:
            return None
        heard = partial(self._heard, name)
        made = Publisher(guest, clock=self.now, draw=self._draw, heard=heard)
        self.publishers[name] = made
        return made

    def _heard(self, name: str, effect: Effect) -> None:
        if isinstance(effect, Overtaken | Refusal) and self.driver is not None:
            # Not at once: the machine may be in the middle of its effects.
            asyncio.get_running_loop().call_soon(self.driver.give, Heard(name, effect))

    def _sweep(self) -> None:
        """End links of clients who stay unsure; forget what those published who are gone."""
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        assert self.machine is not None
        now, before = self._wall(), self._sure_us
        self._sure_us = {
            name: now
            if guest.is_sure(*self._standing) or not self.link.connected
            else before.get(name, now)
            for name, guest in self.guests.items()
        }
        for name, at in self._sure_us.items():
            if now - at > UNSURE_US_MAX:
                self._end(self.guests[name], AWAY, retry_us=MICROSECONDS)
        for name in list(self.publishers):
            if name not in self.guests and name not in self.machine.down.desk.clients:
                self.publishers.pop(name).close()

    def _count(self, reason: str) -> None:
        self.metrics.refused.labels(reason).inc()
