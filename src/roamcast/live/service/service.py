"""The running service: one broker, its driver, its disk and everybody's connections.

It holds no policy: requests become inputs of the broker, effects become frames, messages and disk
writes. A request that promises durability waits for its ticket.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from roamcast.broker import (
    Acknowledged,
    AdmitClient,
    Admitted,
    Broker,
    CloseSession,
    CutOff,
    DismissClient,
    DropReplica,
    Failed,
    Frame,
    LimitSession,
    OpenSession,
    PublishFor,
    Retired,
    RevokeTokens,
    SessionDrained,
    SessionSlow,
    SetRules,
    SubscribeSession,
    TokenRevoked,
    UnpublishFor,
    UnsubscribeSession,
)
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.merging import SteppedDown
from roamcast.channels.failover.replication import ReplicationSettings
from roamcast.channels.server.messages import WELL_KNOWN, ServerHere
from roamcast.channels.sessions.events import Format
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.identity.rules import Rule, Viewer
from roamcast.live.auth.grants import OpenGrants
from roamcast.live.auth.keys import SCOPES, Grant, TokenKeys
from roamcast.live.cluster.proof import Caller
from roamcast.live.cluster.replicas import Replicas
from roamcast.live.config.settings import Settings, default_rules
from roamcast.live.links.link import RELAY
from roamcast.live.links.links import Links
from roamcast.live.links.sockets import Sink, WebSocket, text_frame
from roamcast.live.observe.journaling import Journaling
from roamcast.live.observe.logs import Log
from roamcast.live.observe.metrics import CONTENT_TYPE, Metrics
from roamcast.live.service.limits import Connections, Rates
from roamcast.live.service.tickets import Tickets
from roamcast.live.store.driver import DiskDriver
from roamcast.live.store.store import SqliteStore
from roamcast.matching import FilterSet
from roamcast.model.addresses import Client
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import (
    Input,
    Listen,
    Merge,
    Multicast,
    ReadPage,
    Send,
    Store,
)
from roamcast.model.places import Places
from roamcast.model.records import ChannelStep, Record, UpdateMatched
from roamcast.transport.carriers import Carriers, nothing
from roamcast.transport.driver import Driver, wall_clock

SECOND = 1_000_000
FORMS: tuple[Format, ...] = ("json", "sse")
FOLLOWER_STEPS: Final = {"follower current": "current", "follower gone": "gone"}
"""Steps of replication → what `/metrics` calls them."""

_LOG = Log("followers")


class Service:
    """One broker under asyncio."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: SqliteStore,
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
        self.standing = OpenGrants(keys, self.clock)
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
        self.broker = Broker(
            settings.server.name,
            epoch=epoch or epoch_at(now, 0, 0),
            now=now,
            load=disk.load,
            stamp=disk.stamp,
            map_settings=settings.map_settings(),
            hub_settings=HubSettings(
                sessions_max=limits.connections_max,
                subscriptions_per_session_max=limits.subscriptions_per_client_max,
                slow_us_max=int(limits.slow_s_max * SECOND),
            ),
            publication_settings=PublicationSettings(
                publications_per_owner_max=limits.publications_per_client_max,
                lifetime_us_default=int(limits.context_lifetime_s * SECOND),
                lifetime_us_max=int(limits.context_lifetime_s_max * SECOND),
            ),
            replication_settings=ReplicationSettings(
                follow_us=int(settings.cluster.follow_s * SECOND)
            ),
            default_rules=default_rules(settings),
            places=places,
            replicas=settings.seats,
        )
        self._tickets = Tickets()
        self._sinks: dict[str, Sink] = {}
        self._followers: Counter[str] = Counter()
        self.driver = Driver(self.broker, clock=self.clock)
        self.replicas = Replicas(
            settings,
            epoch=self.broker.epoch,
            key_id=keys.current,
            give=self.driver.give,
            takes=self.broker.takes,
            clock=self.clock,
        )
        if settings.cluster.replicas:
            self.standing.on_look = self._share_revocations
        self.on_over: Callable[[], None] = lambda: None
        """Called when this service has handed over to another host's."""
        self.links: Links | None = None
        failures = metrics.store_failures
        self._store = DiskDriver(disk, self.driver.give, on_failure=failures.inc)
        self.driver.carry = self._carriers()
        self._delivered = {form: self.metrics.deliveries.labels(form) for form in FORMS}
        self._delivered_bytes = {form: self.metrics.deliveries_bytes.labels(form) for form in FORMS}
        self._watch_sizes()

    def _watch_sizes(self) -> None:
        metrics, broker = self.metrics, self.broker
        for what in ("contexts", "clients", "sessions", "queries", "channels", "followers"):
            metrics.watch_held(what, lambda what=what: broker.held()[what])  # type: ignore[misc]
        metrics.watch_queue("disk", lambda: self._disk.writes_waiting)
        metrics.watch_queue("tickets", lambda: len(self._tickets))
        metrics.watch_queue("followers", lambda: broker.held()["entries behind"])
        metrics.watch_counts("followers", "What happened to hosts that follow", self._followers)

    def _share_revocations(self) -> None:
        """Let the other hosts refuse what this host's key file revokes."""
        revoked = self.keys.revoked
        if revoked:
            self.driver.give(RevokeTokens(tuple(revoked.items())))

    def start(self, links: Links | None = None) -> None:
        """Let the broker live; call in the running loop."""
        self.links = links
        if links is not None:
            self.metrics.watch_counts("links", "What happened on links", links.counts)
        FilterSet().warm_up()  # the first client shall not wait for the compiled code
        self.driver.start()
        self.standing.start()
        self.replicas.start()
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
        for name in list(self._sinks):
            self._sinks[name].cut("the service is going down: connect again")
        if self.links is not None:
            await self.links.close()
        await self.replicas.close()

    async def stop(self) -> None:
        """Write down what is held; nothing runs any more."""
        self.standing.stop()
        self.driver.close()
        self._store.stop()
        if self._journal is not None:
            await self._journal.close()
        await self._disk.close()

    def _carriers(self) -> Carriers:
        """Say who carries out which of the broker's effects; adding one is one line."""
        tickets = self._tickets
        return Carriers(
            {
                Frame: self._frame,
                Send: self._send,
                Multicast: self._multicast,
                Store: self._store.carry,
                Merge: self._store.carry,
                ReadPage: self._store.carry,
                Acknowledged: lambda effect: tickets.answer(effect.ticket, effect.fresh),
                Admitted: lambda effect: tickets.answer(effect.ticket, effect.view_class),
                Failed: lambda effect: tickets.refuse(effect.ticket, effect.error),
                CutOff: self._cut,
                Retired: self._retired,
                TokenRevoked: lambda effect: self.keys.refuse(effect.token_id, effect.until_us),
                DropReplica: self._drop,
                SteppedDown: lambda _: self.on_over(),
                Listen: nothing,  # other servers' announcements come by the replicas' sockets
                Record: self._record,
            }
        )

    def _retired(self, effect: Retired) -> None:
        del effect
        if self.links is not None:
            self.links.part_changed()

    def _drop(self, effect: DropReplica) -> None:
        self._followers["left behind"] += 1
        _LOG.warning("a host does not keep up with what is acknowledged: it is left behind")
        self.replicas.drop(effect.address, effect.reason)

    def note(self, record: Record) -> None:
        """Write down what is not a broker's own doing."""
        if self._journal is not None:
            self._journal.write(self.clock(), self.broker.name, record)

    def _send(self, effect: Send) -> None:
        """Let a message go to a client, or to a part of another host."""
        if not isinstance(effect.to, Client):
            self.replicas.send(effect)
        elif self.links is not None:
            self.links.send(effect)

    def _multicast(self, effect: Multicast) -> None:
        if self.links is not None:
            self.links.multicast(effect)
            if effect.group == WELL_KNOWN and isinstance(effect.message, ServerHere):
                self.replicas.announce(effect.message)

    def _record(self, record: Record) -> None:
        if isinstance(record, UpdateMatched):
            self.metrics.updates.labels(record.change).inc()
        elif isinstance(record, ChannelStep) and record.step in FOLLOWER_STEPS:
            self._followers[FOLLOWER_STEPS[record.step]] += 1
        self.note(record)

    def _frame(self, effect: Frame) -> None:
        form, events = effect.form, effect.events
        framed = text_frame(effect.data) if form == "json" else effect.data
        sinks = self._sinks
        sessions = effect.sessions
        for name in sessions:
            sink = sinks.get(name)
            if sink is not None:
                sink.write(framed)
        if events:
            self._delivered[form].inc(events * len(sessions))
            self._delivered_bytes[form].inc(len(framed) * len(sessions))

    def _cut(self, effect: CutOff) -> None:
        self.metrics.cut_off.labels(effect.reason.partition(":")[0]).inc()
        sink = self._sinks.pop(effect.session, None)
        if sink is not None:
            sink.cut(effect.reason)

    async def publish(
        self, owner: str, context: Context, *, session: str = "", lifetime_us: int | None = None
    ) -> bool:
        """Publish a context and wait until it is on disk; whether it was not there before."""
        give = self.driver.give
        fresh = await self._tickets.ask(
            lambda ticket: give(PublishFor(ticket, owner, context, session, lifetime_us))
        )
        return cast("bool", fresh)

    async def unpublish(self, owner: str, vid: str, *, any_owner: bool = False) -> None:
        """Take a publication off the map and wait until that is on disk."""
        give = self.driver.give
        await self._tickets.ask(lambda ticket: give(UnpublishFor(ticket, owner, vid, any_owner)))

    async def set_rules(
        self, owner: str, vid: str, rules: tuple[Rule, ...] | None, *, any_owner: bool = False
    ) -> None:
        """Set a vid's privacy rules and wait until they are on disk and in force."""
        give = self.driver.give
        await self._tickets.ask(lambda ticket: give(SetRules(ticket, owner, vid, rules, any_owner)))

    def give(self, given: Input) -> None:
        """Give the broker an input of this host's watchdog."""
        self.driver.give(given)

    def open_session(self, name: str, viewer: Viewer, sink: Sink, form: Format = "json") -> None:
        """Let a viewer's connection get frames; another with the same name is replaced."""
        self._ask_now(lambda ticket: OpenSession(ticket, name, viewer, form))
        self._sinks[name] = sink

    def close_session(self, name: str, sink: Sink) -> None:
        """A connection is over."""
        if self._sinks.get(name) is not sink:
            return  # it was replaced or cut off
        del self._sinks[name]
        self.driver.give(CloseSession(name))

    def subscribe(self, session: str, subscription: str, wanted: Filter) -> None:
        """Place a session's subscription."""
        self._ask_now(lambda ticket: SubscribeSession(ticket, session, subscription, wanted))

    def unsubscribe(self, session: str, subscription: str) -> None:
        """End a session's subscription."""
        self._ask_now(lambda ticket: UnsubscribeSession(ticket, session, subscription))

    def limit(self, session: str, limit_bytes: int) -> None:
        """Hold a session to a bandwidth."""
        self._ask_now(lambda ticket: LimitSession(ticket, session, limit_bytes))

    def slow(self, session: str) -> None:
        """A session's connection takes no more for now."""
        self.driver.give(SessionSlow(session))

    def drained(self, session: str) -> None:
        """A session's connection takes more again."""
        self.driver.give(SessionDrained(session))

    def _ask_now(self, make: Callable[[int], Input]) -> object:
        """Give an input that the broker answers at once; raise if it refuses."""
        return self._tickets.ask_now(lambda ticket: self.driver.give(make(ticket)))

    async def serve_link(self, socket: WebSocket, grant: Grant, name: str) -> None:
        """Let a client that runs a machine of its own talk until its connection is over."""
        assert self.links is not None
        viewer = Viewer(grant.subject, grant.groups)
        view_class = self._ask_now(lambda ticket: AdmitClient(ticket, name, viewer))
        scopes: tuple[str, ...] = SCOPES if "admin" in grant.scopes else grant.scopes
        if "admin" in grant.scopes or grant.subject in self.settings.channels.relays:
            scopes = (*scopes, RELAY)
        link = self.links.connect(socket, name, cast("str", view_class), scopes)
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
                self.driver.give(DismissClient(name))

    async def serve_replica(self, socket: WebSocket, caller: Caller) -> None:
        """Let another host talk until its connection is over."""
        call = self.replicas.connect(caller, socket)
        limits = self.settings.limits
        try:
            await socket.serve(
                call, high_bytes=limits.socket_high_bytes, low_bytes=limits.socket_low_bytes
            )
        finally:
            self.replicas.disconnected(call)

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
