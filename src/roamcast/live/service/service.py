"""The running service: one broker, its driver, its disk and everybody's connections.

It holds no policy: requests become inputs of the broker, effects become frames, messages and disk
writes. A request that promises durability waits for its ticket.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from roamcast.broker import (
    Acknowledged,
    AdmitClient,
    Admitted,
    CheckWebhook,
    CloseSession,
    CutOff,
    DismissClient,
    DropReplica,
    Failed,
    Frame,
    KeepVidKey,
    OpenSession,
    PostWebhook,
    PublishFor,
    RegisterWebhook,
    RemoveWebhook,
    Retired,
    RevokeTokens,
    SessionDrained,
    SessionSlow,
    SetRules,
    SubscribedMany,
    SubscribeSession,
    TokenRevoked,
    UnpublishFor,
    UnsubscribeSession,
    WebhookFrame,
)
from roamcast.channels.failover.epochs import SteppedDown
from roamcast.channels.past.messages import FeedArchive, LookForEnded
from roamcast.channels.reliable.messages import Data
from roamcast.channels.server.messages import WELL_KNOWN, Batch, ServerHere
from roamcast.channels.sessions.events import Format
from roamcast.channels.sessions.messages import SessionNumbers
from roamcast.channels.sessions.webhooks import SESSION
from roamcast.errors import AuthError, NotFoundError
from roamcast.identity.rules import Rule, Viewer
from roamcast.live.auth.admission import SCOPES, Connections, Grant, Rates, TokenKeys
from roamcast.live.auth.grants import OpenGrants
from roamcast.live.auth.provider import Provider, key_id_of
from roamcast.live.auth.registrations import registrations_of
from roamcast.live.casts.audit import FOLDER, AuditLog
from roamcast.live.casts.deposits import Deposits
from roamcast.live.casts.office import CastOffice
from roamcast.live.cluster.proof import Caller
from roamcast.live.cluster.replicas import Replicas
from roamcast.live.config.settings import Settings
from roamcast.live.links.link import RELAY
from roamcast.live.links.links import Links
from roamcast.live.links.sockets import Sink, WebSocket, text_frame
from roamcast.live.observe.journaling import Journaling
from roamcast.live.observe.logs import Log
from roamcast.live.observe.metrics import CONTENT_TYPE, Metrics
from roamcast.live.overlay.node import receipt_key_of
from roamcast.live.overlay.ways import NeighbourWays
from roamcast.live.past.worker import PastWorker
from roamcast.live.service.events import EventOffice
from roamcast.live.service.making import broker_of
from roamcast.live.service.reading import FilterReader
from roamcast.live.service.sizes import step_name, watch_sizes
from roamcast.live.service.webhooks import WebhookDriver
from roamcast.live.store.store import DiskDriver, SqliteStore
from roamcast.live.trust.held import HeldKeys
from roamcast.matching import FilterSet
from roamcast.matching.live import questions
from roamcast.model.addresses import Client, Neighbour
from roamcast.model.contexts import Context, context_of
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
from roamcast.model.records import ChannelStep, HandoffStep, OverlayStep, Record, UpdateMatched
from roamcast.model.time import format_instant
from roamcast.overlay.casts.messages import DepositMail, LookUpPast, PlanFilter, ReadPayload
from roamcast.overlay.events import HangUp, ParcelExpired, TablesTouched
from roamcast.overlay.overlay import OverlayNode
from roamcast.transport.driver import Carriers, Driver, Tickets, nothing, wall_clock

if TYPE_CHECKING:
    from roamcast.live.trust.host import RunningTrust

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
        node: OverlayNode | None = None,
        trust: "RunningTrust | None" = None,
    ) -> None:
        """`epoch`: which life of the service this is, as its watchdog says."""
        self.settings = settings
        self.places = places
        self.keys = keys
        self.metrics = metrics
        self.clock = wall_clock()
        self.standing = OpenGrants(keys, self.clock)
        self.provider: Provider | None = None
        if settings.oidc.issuer:
            self.provider = Provider(settings.oidc, skew_s=settings.limits.clock_skew_s_max)
        self.rates = Rates(
            settings.limits.requests_per_s, settings.limits.requests_burst, what="requests"
        )
        work = Rates(settings.limits.steps_per_s, settings.limits.steps_burst, what="steps of work")
        self.reader = FilterReader(work, self.clock, settings.limits.filter_length_max)
        self.connections = Connections(
            settings.limits.connections_max, settings.limits.connections_per_subject_max
        )
        self.trust = trust
        self.receipt_key = cache(partial(receipt_key_of, settings))  # made when first needed
        nodes = settings.identity.accepted()
        if trust is not None:
            nodes[trust.node.name] = trust.node.public_key
        self.registrations = registrations_of(settings, keys, nodes)
        self.held_keys = None
        if trust is not None:
            self.held_keys = HeldKeys(Path(settings.server.data), trust, self.keep_vid_key)
        self._serving = False
        self._disk = disk
        self.journal = journal
        now = self.clock()
        self.broker = broker_of(
            settings,
            disk,
            now=now,
            epoch=epoch,
            places=places,
            trusted_nodes=nodes,
            node=node,
            charge=self.charge,
        )
        self._tickets = Tickets()
        self._sinks: dict[str, Sink] = {}
        self._followers: Counter[str] = Counter()
        self._overlay_steps: Counter[str] = Counter()
        self._updates = self._transmissions = 0
        self.driver = Driver(self.broker, clock=self.clock)
        self.replicas = Replicas(
            settings,
            epoch=self.broker.epoch,
            key_id=keys.current,
            give=self.driver.give,
            takes=self.broker.takes,
            clock=self.clock,
        )
        self.neighbours = NeighbourWays(
            tls_ca=settings.overlay.tls_ca, give=self.driver.give, proved=self._linked_addresses
        )
        self.webhooks = WebhookDriver(
            settings.webhooks, origin=settings.server.name, give=self.driver.give
        )
        self.standing.on_look = self._look
        self.on_over: Callable[[], None] = lambda: None
        """Called when this service has handed over to another host's."""
        self.links: Links | None = None
        self._store = DiskDriver(disk, self.driver.give, on_failure=metrics.store_failures.inc)
        self.past = PastWorker(
            self.broker,
            disk,
            archive=settings.past.archive,
            archive_days=settings.past.archive_days,
            clock=self.clock,
            give=self.driver.give,
        )
        self._audit = AuditLog(Path(settings.server.data) / FOLDER, settings.casts.audit_days)
        self.casts = CastOffice(
            self.broker,
            self.past,
            tickets=self._tickets,
            give=self.driver.give,
            clock=self.clock,
            charge=self.charge_past,
            reader=self.reader,
            settings=settings.casts,
            audit=self._audit,
        )
        self.events = EventOffice(
            settings,
            trusted_nodes=nodes,
            tickets=self._tickets,
            give=self.driver.give,
            clock=self.clock,
        )
        self._deposits = Deposits(
            disk,
            trust,
            settings.identity.mail,
            give=self.driver.give,
            reason_of=self.casts.receipt_of,
            receipt_key=self.receipt_key,
        )
        self.driver.carry = self._carriers()
        self._delivered = {form: self.metrics.deliveries.labels(form) for form in FORMS}
        self._delivered_bytes = {form: self.metrics.deliveries_bytes.labels(form) for form in FORMS}
        watch_sizes(
            metrics,
            self.broker,
            writes=lambda: disk.writes_waiting,
            tickets=self._tickets,
            followers=self._followers,
            overlay_steps=self._overlay_steps,
            journal=journal,
        )

    def _look(self) -> None:
        """Let the other hosts refuse what this host's key file revokes, and end its webhooks."""
        revoked = self.keys.revoked
        if revoked and self.settings.cluster.replicas:
            self.driver.give(RevokeTokens(tuple(revoked.items())))
        for hook in self.broker.webhooks():
            if self.keys.has_revoked(hook.stored.tokens):
                self.driver.give(RemoveWebhook(0, hook.stored.owner, hook.id))

    def start(self, links: Links | None = None) -> None:
        """Let the broker live; call in the running loop."""
        self.links = links
        if links is not None:
            self.metrics.watch_counts("links", "What happened on links", lambda: links.counts)
        FilterSet().warm_up()  # the first client shall not wait for the compiled code
        questions.warm_up()
        for part in (self.driver, self.standing, self.replicas, self.events):
            part.start()
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
        await self.neighbours.close()
        await self.webhooks.close()
        await self._deposits.close()
        self.events.close()

    async def stop(self) -> None:
        """Write down what is held; nothing runs any more."""
        self.standing.stop()
        self.reader.close()
        self.driver.close()
        self._store.stop()
        self._audit.close()
        await asyncio.to_thread(self.past.close)
        if self.journal is not None:
            await self.journal.close()
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
                LookForEnded: self.past.carry,
                FeedArchive: self.past.carry,
                LookUpPast: self.past.look_up,
                PlanFilter: self.casts.plan,
                ReadPayload: self._deposits.read,
                DepositMail: self._deposits.deposit,
                Acknowledged: lambda effect: tickets.answer(effect.ticket, effect.fresh),
                SubscribedMany: lambda effect: tickets.answer(effect.ticket, effect),
                Admitted: lambda effect: tickets.answer(effect.ticket, effect.view_class),
                Failed: lambda effect: tickets.refuse(effect.ticket, effect.error),
                **self.events.carriers(),
                TablesTouched: nothing,  # a broker on its own has nobody to offer them to
                CutOff: self._cut,
                CheckWebhook: self.webhooks.check,
                PostWebhook: self.webhooks.post,
                Retired: self._retired,
                TokenRevoked: lambda effect: self.keys.refuse(effect.token_id, effect.until_us),
                DropReplica: self._drop,
                SteppedDown: lambda _: self.on_over(),
                HangUp: self.neighbours.hang_up,
                ParcelExpired: nothing,  # it stands in the journal
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
        if self.journal is not None:
            self.journal.write(self.clock(), self.broker.name, record)

    def _send(self, effect: Send) -> None:
        """Let a message go to a client, or to a part of another host."""
        if isinstance(effect.message, Batch):
            self._transmissions += 1
        if isinstance(effect.to, Neighbour):
            self.neighbours.send(effect)
        elif not isinstance(effect.to, Client):
            self.replicas.send(effect)
        elif self.links is not None:
            self.links.send(effect)

    def _multicast(self, effect: Multicast) -> None:
        if isinstance(effect.message, Data):
            self._transmissions += 1
        if self.links is not None:
            self.links.multicast(effect)
            if effect.group == WELL_KNOWN and isinstance(effect.message, ServerHere):
                self.replicas.announce(effect.message)

    def _record(self, record: Record) -> None:
        if isinstance(record, UpdateMatched):
            self._updates += 1
            self.metrics.updates.labels(record.change).inc()
        elif isinstance(record, ChannelStep) and record.step in FOLLOWER_STEPS:
            self._followers[FOLLOWER_STEPS[record.step]] += 1
        elif isinstance(record, OverlayStep | HandoffStep):
            self._overlay_steps[step_name(record)] += 1
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
            elif SESSION in name:
                given = WebhookFrame(name.partition(SESSION)[2], effect.data)
                asyncio.get_running_loop().call_soon(self.driver.give, given)
        if events:
            self._transmissions += effect.of_map
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

    async def keep_vid_key(self, vid: str, sealing: bytes, expires_us: int) -> None:
        """Keep the key of a vid whose credential expires then, and wait until it is on disk."""
        give, until = self.driver.give, expires_us + self.settings.vid_key_us()
        await self._tickets.ask(lambda ticket: give(KeepVidKey(ticket, vid, sealing, until)))

    async def grant_of(self, token: str) -> Grant:
        """Check a token, of this service or of its identity provider."""
        now = self.clock()
        if self.provider is None or self.keys.knows(key_id_of(token)):
            return self.keys.check(token, now)
        grant = await self.provider.check(token, now)
        if self.keys.has_revoked((grant.token_id,)):
            raise AuthError("this token was revoked")
        return grant

    async def make_webhook(
        self, grant: Grant, name: str, url: str, secret: str, wanted: str
    ) -> None:
        """Make a webhook, and wait for its receiver's consent and the disk."""
        give, tokens = self.driver.give, (grant.token_id, *grant.ancestors)
        await self._tickets.ask(
            lambda ticket: give(
                RegisterWebhook(
                    ticket,
                    name,
                    grant.subject,
                    grant.groups,
                    url,
                    secret,
                    wanted,
                    grant.expires_us,
                    tokens,
                )
            )
        )

    async def end_webhook(self, owner: str, name: str, *, any_owner: bool = False) -> None:
        """End a webhook, and wait until that is on disk."""
        give = self.driver.give
        await self._tickets.ask(lambda ticket: give(RemoveWebhook(ticket, owner, name, any_owner)))

    def check_own(self, grant: Grant, vid: str) -> None:
        """Refuse to change what is outside a token's filter, as if it were not there."""
        known = self.broker.publication_for(grant.subject, vid) if grant.filter else None
        if known is not None and not grant.sees(context_of(known.body)):
            raise NotFoundError(f"you have published no context {vid[:100]!r}")

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
        self.ask_now(lambda ticket: OpenSession(ticket, name, viewer, form))
        self._sinks[name] = sink

    def close_session(self, name: str, sink: Sink) -> None:
        """A connection is over."""
        if self._sinks.get(name) is not sink:
            return  # it was replaced or cut off
        del self._sinks[name]
        self.driver.give(CloseSession(name))

    def subscribe(self, session: str, about: str, wanted: Filter, everywhere: bool = True) -> None:
        """Place a session's subscription: on the maps of all nodes, or on this one's alone."""
        self.ask_now(lambda ticket: SubscribeSession(ticket, session, about, wanted, everywhere))

    def unsubscribe(self, session: str, subscription: str) -> None:
        """End a session's subscription."""
        self.ask_now(lambda ticket: UnsubscribeSession(ticket, session, subscription))

    def slow(self, session: str) -> None:
        """A session's connection takes no more for now."""
        self.driver.give(SessionSlow(session))

    def drained(self, session: str) -> None:
        """A session's connection takes more again."""
        self.driver.give(SessionDrained(session))

    def ask_now(self, make: Callable[[int], Input]) -> object:
        """Give an input that the broker answers at once; raise if it refuses."""
        return self._tickets.ask_now(lambda ticket: self.driver.give(make(ticket)))

    async def serve_link(self, socket: WebSocket, grant: Grant, name: str) -> None:
        """Let a client that runs a machine of its own talk until its connection is over."""
        assert self.links is not None
        grant.require_unbound("use a link: open a session")  # keys of channels know no filter
        viewer = Viewer(grant.subject, grant.groups)
        view_class = self.ask_now(lambda ticket: AdmitClient(ticket, name, viewer))
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

    def _linked_addresses(self) -> set[str]:
        view = self.broker.overlay_view()
        return set() if view is None else {link.address for link in view.links}

    async def serve_neighbour(self, socket: WebSocket) -> None:
        """Let somebody who says to be a neighbour talk until its connection is over."""
        limits = self.settings.limits
        await self.neighbours.serve(
            socket, high_bytes=limits.socket_high_bytes, low_bytes=limits.socket_low_bytes
        )

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

    def numbers(self, re: str) -> SessionNumbers:
        """Say what is held and has been done, for who may administer the service."""
        held = self.broker.held()
        return SessionNumbers(
            re,
            format_instant(self.clock()),
            contexts=held["contexts"],
            sessions=held["sessions"],
            clients=held["clients"],
            queries=held["queries"],
            channels=held["channels"],
            bands=held["bands"],
            updates=self._updates,
            transmissions=self._transmissions,
        )

    def count_request(self, subject: str, amount: int = 1) -> None:
        """Count requests of a subject; too many are refused."""
        self.rates.take(subject, self.clock(), amount)

    def charge(self, viewer: Viewer, wanted: Filter, shares: int = 1, times: int = 1) -> None:
        """Charge a viewer for a question that is asked so many times; too dear is refused.

        The price is an upper bound that is known before the question runs (docs/queries.md). A
        relay asks for many clients at once, and pays a share for each.
        """
        now = self.clock()
        (steps,) = self.broker.steps(viewer, (wanted,), now)
        self.reader.work.take(viewer.name, now, times * steps // shares)

    async def charge_past(self, viewer: Viewer, wanted: Filter, window: tuple[int, int]) -> None:
        """Charge a viewer for a question about a time of the past; too dear is refused."""
        price = await self.past.price(wanted, window)
        self.reader.work.take(viewer.name, self.clock(), price)

    async def erase_past(self, vid: str) -> int:
        """Delete what the past has of a vid; give how many rows that were."""
        give = self.driver.give
        return await self.past.erase(vid, lambda make: self._tickets.ask(lambda t: give(make(t))))

    def count_connection(self, subject: str, by: int) -> None:
        """Count a connection of a subject in or out; too many are refused."""
        if by > 0:
            self.connections.open(subject)
        else:
            self.connections.close(subject)

    def measured(self) -> tuple[bytes, str]:
        """Give the measurements as Prometheus reads them."""
        return self.metrics.page(), CONTENT_TYPE
