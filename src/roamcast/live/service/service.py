"""What runs while the service runs? One broker, its driver, its disk and everybody's connections.

No policy: what the broker's machines decide is done here, what people ask is given to them. An
answer that promises durability is awaited by its ticket.
"""

from collections.abc import Callable, Sequence

from roamcast.broker import (
    Acknowledged,
    Adopt,
    Broker,
    CutOff,
    Failed,
    Frame,
    PublishFor,
    Retired,
    SetRules,
    UnpublishFor,
)
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.merging import SteppedDown
from roamcast.channels.failover.replica_messages import VALUE_BYTES_MAX
from roamcast.channels.server.messages import WELL_KNOWN, ServerHere
from roamcast.channels.sessions.events import Format
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import LimitError
from roamcast.identity.rules import Rule, Viewer
from roamcast.live.auth.keys import SCOPES, Grant, TokenKeys
from roamcast.live.auth.revoked import Revoked
from roamcast.live.auth.standing import Standing
from roamcast.live.cluster.proof import Caller
from roamcast.live.cluster.replicas import Replicas
from roamcast.live.config.default_rules import default_rules
from roamcast.live.config.settings import Settings
from roamcast.live.links.link import RELAY
from roamcast.live.links.links import Links
from roamcast.live.links.sockets import Sink, WebSocket, text_frame
from roamcast.live.observe.journaling import Journaling
from roamcast.live.observe.metrics import CONTENT_TYPE, Metrics
from roamcast.live.service.limits import Connections, Rates
from roamcast.live.service.tickets import Tickets
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore as Disk
from roamcast.live.store.writes import Writes
from roamcast.matching import FilterSet
from roamcast.model.addresses import Client
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input, Multicast, Send, Store
from roamcast.model.places import Places
from roamcast.model.records import Record, UpdateMatched
from roamcast.transport.driver import Driver, wall_clock

SECOND = 1_000_000
FORMS: tuple[Format, ...] = ("json", "sse")


class Service:
    """One broker under asyncio."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk,
        keys: TokenKeys,
        metrics: Metrics,
        journal: Journaling | None = None,
        places: Places | None = None,
        epoch: int | None = None,
    ) -> None:
        """`epoch`: which life of the service this is, as its watchdog says."""
        self.settings = settings
        self.keys = keys
        self.metrics = metrics
        self.clock = wall_clock()
        self.standing = Standing(keys, self.clock)
        self.rates = Rates(
            settings.limits.requests_per_s, settings.limits.requests_burst, what="requests"
        )
        self.connections = Connections(
            settings.limits.connections_max, settings.limits.connections_per_subject_max
        )
        self._serving = False
        self._disk = disk
        self._journal = journal
        now = self.clock()
        limits = settings.limits
        self._seats = settings.seats
        self.broker = Broker(
            settings.server.name,
            epoch=epoch or epoch_at(now, 0, 0),
            now=now,
            stored=disk.load(""),
            map_settings=settings.map_settings(),
            hub_settings=HubSettings(
                sessions_max=limits.connections_max,
                watches_per_session_max=limits.subscriptions_per_client_max,
                slow_us_max=int(limits.slow_s_max * SECOND),
            ),
            kept_settings=PublicationSettings(
                publications_per_owner_max=limits.publications_per_client_max,
                lifetime_us_default=int(limits.context_lifetime_s * SECOND),
                lifetime_us_max=int(limits.context_lifetime_s_max * SECOND),
            ),
            default_rules=default_rules(settings),
            places=places,
            peers=self._seats,
        )
        self.peers = Replicas(
            settings,
            epoch=self.broker.server.epoch,
            key_id=keys.current,
            disk=disk,
            serving=self,
            clock=self.clock,
        )
        self._revoked = Revoked(keys, disk, self.clock)
        if settings.cluster.hosts:
            self.standing.looked = self._revoked.look
        self.over: Callable[[], None] = lambda: None
        """Called when this service has handed over to another host's."""
        self.driver = Driver(self.broker, clock=self.clock, carry=self._carry)
        self.links: Links | None = None
        self._writes = Writes(disk, metrics, self.driver.give, value_bytes_max=VALUE_BYTES_MAX)
        self._sinks: dict[str, Sink] = {}
        self._tickets = Tickets()
        self._delivered = {form: self.metrics.deliveries.labels(form) for form in FORMS}
        self._delivered_bytes = {form: self.metrics.deliveries_bytes.labels(form) for form in FORMS}
        self._watch_sizes()

    def _watch_sizes(self) -> None:
        metrics, server, hub = self.metrics, self.broker.server, self.broker.hub
        metrics.watch_held("contexts", lambda: len(server.map))
        metrics.watch_held("clients", lambda: len(server.desk.clients))
        metrics.watch_held("sessions", lambda: len(hub.sessions))
        metrics.watch_held("queries", lambda: server.subscriptions.records)
        metrics.watch_held("channels", lambda: len(server.desk.channels))
        metrics.watch_queue("disk", lambda: self._disk.writes_waiting)
        metrics.watch_queue("tickets", lambda: len(self._tickets))
        followers = self.peers.followers
        metrics.watch_held("followers", lambda: followers.current)
        metrics.watch_queue("followers", lambda: followers.behind)
        metrics.watch_counts("followers", "What happened to hosts that follow", followers.counts)

    def start(self, links: Links | None = None) -> None:
        """Let the broker live; call in the running loop."""
        self.links = links
        if links is not None:
            self.metrics.watch_counts("links", "What happened on links", links.counts)
        FilterSet().warm_up()  # the first client shall not wait for the compiled code
        self.driver.start()
        self.standing.start()
        self.peers.start()
        self._serving = True

    @property
    def ready(self) -> bool:
        """Whether what is asked now would be done."""
        return self._serving and self._disk.problem is None

    async def goodbye(self) -> None:
        """Take nothing more, and tell everybody who is connected.

        While a write waits for those who follow they stay: else it would be acknowledged though it
        is on this disk alone.
        """
        self._serving = False
        settings = self.settings
        await self._tickets.close(min(settings.server.shutdown_s, settings.cluster.follow_s))
        self._writes.stop()
        for name in list(self._sinks):
            self._sinks[name].cut("the service is going down: connect again")
        if self.links is not None:
            await self.links.close()
        await self.peers.close()

    async def stop(self) -> None:
        """Write down what is held; nothing runs any more."""
        self.standing.stop()
        self.driver.close()
        if self._journal is not None:
            await self._journal.close()
        await self._disk.close()

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Frame(sessions, data, form, events):
                self._frame(sessions, data, form, events)
            case Send() | Multicast():
                self._send(effect)
            case SteppedDown():
                self.over()
            case Store(token, writes):
                self._writes.write(token, writes)
            case Acknowledged(ticket, fresh):
                self._tickets.answer(ticket, fresh)
            case Failed(ticket, error):
                self._tickets.refuse(ticket, error)
            case CutOff(session, reason):
                self._cut(session, reason)
            case Retired() if self.links is not None:
                self.links.part_changed()
            case Record():
                self._record(effect)

    def note(self, record: Record) -> None:
        """Write down what is not a broker's own doing."""
        if self._journal is not None:
            self._journal.write(self.clock(), self.broker.server.name, record)

    def _send(self, effect: Send | Multicast) -> None:
        """Let a message go to another host, to a client, or to everybody."""
        if isinstance(effect, Send) and not isinstance(effect.to, Client):
            self.peers.send(effect)
        elif self.links is None:
            return
        elif isinstance(effect, Send):
            self.links.send(effect)
        else:
            self.links.multicast(effect)
            if effect.group == WELL_KNOWN and isinstance(effect.message, ServerHere):
                self.peers.announce(effect.message)

    def _record(self, record: Record) -> None:
        if isinstance(record, UpdateMatched):
            self.metrics.updates.labels(record.change).inc()
        self.note(record)

    def _frame(self, sessions: tuple[str, ...], data: bytes, form: Format, events: int) -> None:
        framed = text_frame(data) if form == "json" else data
        sinks = self._sinks
        for name in sessions:
            sink = sinks.get(name)
            if sink is not None:
                sink.write(framed)
        if events:
            self._delivered[form].inc(events * len(sessions))
            self._delivered_bytes[form].inc(len(framed) * len(sessions))

    def _cut(self, session: str, reason: str) -> None:
        self.metrics.cut_off.labels(reason.partition(":")[0]).inc()
        self.broker.close_session(session, self.clock())
        sink = self._sinks.pop(session, None)
        if sink is not None:
            sink.cut(reason)

    async def keep(
        self, owner: str, context: Context, *, session: str = "", lifetime_us: int | None = None
    ) -> bool:
        """Publish a context and wait until it is on disk; whether it was not there before."""
        give = self.driver.give
        return await self._tickets.ask(
            lambda ticket: give(PublishFor(ticket, owner, context, session, lifetime_us))
        )

    async def release(self, owner: str, vid: str, *, any_owner: bool = False) -> None:
        """Cancel a publication and wait until that is on disk."""
        give = self.driver.give
        await self._tickets.ask(lambda ticket: give(UnpublishFor(ticket, owner, vid, any_owner)))

    async def set_rules(
        self, owner: str, vid: str, rules: tuple[Rule, ...] | None, *, any_owner: bool = False
    ) -> None:
        """Set a vid's privacy rules and wait until they are on disk and in force."""
        give = self.driver.give
        await self._tickets.ask(lambda ticket: give(SetRules(ticket, owner, vid, rules, any_owner)))

    def give(self, given: Input) -> None:
        """Give the broker what another host said."""
        self.driver.give(given)

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Let come into force what another host had newer; it is on disk here."""
        self._revoked.adopt(entries)
        self.driver.give(Adopt(tuple((one.key, one.value) for one in entries)))

    def pause(self, paused: bool) -> None:
        """Take no writes while what is kept goes to another host."""
        self._tickets.paused = paused

    async def settled(self) -> None:
        """Wait until every write that was taken is on disk, or refused."""
        await self._tickets.settled()

    def open_session(self, name: str, viewer: Viewer, sink: Sink, form: Format = "json") -> None:
        """Let a viewer's connection get frames; another with the same name is replaced."""
        if name in self._sinks:
            self._cut(name, "replaced: the same device connected again")
        self.broker.open_session(name, viewer, form)
        self._sinks[name] = sink

    def close_session(self, name: str, sink: Sink) -> None:
        """A connection is over."""
        if self._sinks.get(name) is not sink:
            return  # it was replaced or cut off
        del self._sinks[name]
        self.broker.close_session(name, self.clock())
        self.driver.settle()

    def watch(self, session: str, about: str, wanted: Filter) -> None:
        """Begin a watch of a session."""
        self._do(self.broker.hub.watch(session, about, wanted, self.clock()))

    def unwatch(self, session: str, about: str) -> None:
        """End a watch of a session."""
        self.broker.hub.unwatch(session, about)
        self.driver.settle()

    def limit(self, session: str, limit_bytes: int) -> None:
        """Hold a session to a bandwidth."""
        self._do(self.broker.hub.limit(session, limit_bytes, self.clock()))

    def slow(self, session: str) -> None:
        """A session's connection takes no more for now."""
        self._do(self.broker.hub.slow(session, self.clock()))

    def drained(self, session: str) -> None:
        """A session's connection takes more again."""
        self._do(self.broker.hub.drained(session, self.clock()))

    def class_of_group(self, group: str) -> str | None:
        """Name the view class whose channel a group is."""
        use = self.broker.server.desk.channels.get(group)
        return None if use is None else use.view_class

    def class_of_client(self, name: str) -> str | None:
        """Name the view class a client would be in if it came now; None where that cannot be."""
        try:
            return self.broker.policy.view_class(name)
        except LimitError:
            return None

    async def serve_link(self, socket: WebSocket, grant: Grant, name: str) -> None:
        """Let a client that runs a machine of its own talk until its connection is over."""
        assert self.links is not None
        view_class, effects = self.broker.admit(name, Viewer(grant.subject, grant.groups))
        self._do(effects)
        scopes: tuple[str, ...] = SCOPES if "admin" in grant.scopes else grant.scopes
        if "admin" in grant.scopes or grant.subject in self.settings.channels.relays:
            scopes = (*scopes, RELAY)
        link = self.links.connect(socket, name, view_class, scopes)
        limits = self.settings.limits
        links = self.links
        try:
            with self.standing.held(grant, lambda why: links.expel(name, f"token: {why}")):
                await socket.serve(
                    link, high_bytes=limits.socket_high_bytes, low_bytes=limits.socket_low_bytes
                )
        finally:
            links.disconnected(link)
            if name not in links.links:  # else the same device has come again already
                self.broker.dismiss(name)

    async def serve_peer(self, socket: WebSocket, caller: Caller) -> None:
        """Let another host talk until its connection is over."""
        call = self.peers.connect(caller, socket)
        limits = self.settings.limits
        try:
            await socket.serve(
                call, high_bytes=limits.socket_high_bytes, low_bytes=limits.socket_low_bytes
            )
        finally:
            self.peers.disconnected(call)

    def count_request(self, subject: str) -> None:
        """Count a request of a subject; too many are refused."""
        self.rates.take(subject, self.clock())

    def count_connection(self, subject: str, by: int) -> None:
        """Count a connection of a subject in or out; too many are refused."""
        if by > 0:
            self.connections.open(subject)
        else:
            self.connections.close(subject)

    def measured(self) -> tuple[bytes, str]:
        """Give the measurements as Prometheus reads them."""
        return self.metrics.page(), CONTENT_TYPE

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry(effect)
        self.driver.settle()
