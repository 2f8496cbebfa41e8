"""The active map server (AMS): it takes clients' requests and sends updates.

A client's operations arrive numbered and are taken once, in order. The answer to a subscription is
the current set as of an update, and every later update of it follows: no gap, no overlap.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from roamcast.channels.failover.merging import REPLICA_MESSAGES, Merging
from roamcast.channels.reliable.messages import HealRequest, Join
from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.server.desk import (
    VIEW_CLASSES_MAX,
    ClientState,
    Desk,
    OutboxDue,
    Policy,
    Public,
)
from roamcast.channels.server.map import ActiveMap, Removed
from roamcast.channels.server.messages import (
    WELL_KNOWN,
    Answer,
    Hello,
    Operation,
    Publish,
    Receipt,
    Refresh,
    Refused,
    Request,
    ServerHere,
    Settled,
    Subscribe,
    Unknown,
    Unpublish,
    Unsubscribe,
    context_of,
)
from roamcast.channels.server.outbox import Outbox
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.subscriptions import Subscriptions
from roamcast.channels.spread.dissemination import Dissemination, is_remote
from roamcast.channels.spread.streams import Ledger
from roamcast.channels.timers import Timer
from roamcast.errors import ContextError, InputError, LimitError
from roamcast.model.events import ClassesEnded, ClientsMoved, MapTouched, RulesChanged
from roamcast.model.machine import Effect, Input, Listen, Multicast, Received
from roamcast.model.parts import Part
from roamcast.model.records import ChannelStep, Drop
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import NAME_LENGTH_MAX, Message, tag_of


class HereDue(Timer, frozen=True):
    """The server announces itself, and lets silent clients go."""


def compiled_matcher() -> Matcher:
    """Make a compiled filter set; imported on use, because it takes half a second."""
    from roamcast.matching import FilterSet

    return FilterSet()


class MapServer(Part):
    """The active map service of one region in one epoch."""

    part: ClassVar[str] = "map"
    messages: ClassVar[tuple[type[Message], ...]] = (
        Request,
        Receipt,
        HealRequest,
        Join,
        *REPLICA_MESSAGES,
    )
    inputs: ClassVar[tuple[type[Input | Effect], ...]] = (
        MapTouched,
        RulesChanged,
        ClassesEnded,
        ClientsMoved,
    )

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        now: int,
        settings: MapSettings,
        policy: Policy | None = None,
        make_matcher: Callable[[], Matcher] = compiled_matcher,
        journal: bool = True,
        replicas: Sequence[str] = (),
    ) -> None:
        """`epoch` grows with every start of the service on any host (`failover/epochs.py`).

        `journal`: record why each update went where it went; without it that work is saved.
        `replicas`: the hosts that may serve, by seat, with this one (`failover/watchdog.py`).
        """
        assert epoch > 0
        self.name = name
        self.epoch = epoch
        self.settings = settings
        self.desk = Desk(epoch, settings, journal=journal)
        self.map = ActiveMap(
            settings.contexts_max, Removed(settings.removed_us, settings.removed_max)
        )
        self.policy = policy or Public()
        self.dissemination = Dissemination(self.desk, make_matcher)
        self.contexts = MapContexts(self.desk, self.map, self.policy, self.dissemination)
        self.subscriptions = Subscriptions(self.desk, self.contexts, self.dissemination)
        self.merging = Merging(self.desk, self.contexts, replicas, self._collect)
        self._listens = not replicas
        self._handlers: dict[type[Message], Callable[[Received], None]] = {
            Request: self._request,
            Receipt: self._receipt,
            HealRequest: self._channel_request,
            Join: self._channel_request,
            **dict.fromkeys(REPLICA_MESSAGES, self._from_replica),
        }
        assert self._handlers.keys() == {*self.messages}
        self.desk.timers.handle(HereDue, self._here_due)
        self.desk.timers.set(HereDue(), now)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each; of many alike the fullest."""
        settings, desk = self.settings, self.desk
        views = self.dissemination.classes
        guests = self.merging.guests
        carousels = len(self.subscriptions.carousels)
        # Whatever a timer is for is held, too: a timer more than these has lost its owner.
        timed = 1 + len(desk.clients) + 2 * len(desk.channels) + len(self.map) + len(guests)
        timed += carousels + sum(len(view.streams) for view in views.values())
        held = {
            "clients": (len(desk.clients), settings.clients_max),
            "contexts": (self.map.taken, settings.contexts_max),
            "seats": (len(self.map.seats), settings.contexts_max),
            "removed": (len(self.map.removed), settings.removed_max),
            "guests": (sum(map(len, guests.values())), settings.contexts_max),
            "view classes": (len(views), VIEW_CLASSES_MAX),
            "queries": (self.subscriptions.records, settings.queries_max),
            "carousels": (carousels, settings.queries_max),
            "timers": (len(desk.timers), timed),
            **desk.occupancy(),
        }
        for name, view in views.items():
            for what, pair in view.occupancy().items():
                held[f"{what} of class {name!r}"] = pair
        for name, use in desk.channels.items():
            for what, pair in use.sender.occupancy().items():
                held[f"{name}: {what}"] = pair
        return held

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a message of a client or a replica, or what another part of the broker did."""
        self.desk.now = now
        match given:
            case Received():
                self._message(given)
            case MapTouched():
                pass
            case RulesChanged(vid):
                self.contexts.reconsider(vid)
            case ClassesEnded(view_classes):
                for client in [*self.desk.clients.values()]:
                    if client.view_class in view_classes:
                        self.remove(client, "its view class has ended")
            case ClientsMoved(clients):
                for name in clients:
                    if (known := self.desk.clients.get(name)) is not None:
                        self.remove(known, "what it may see has changed")
            case _:
                raise AssertionError(f"a map server takes no {type(given).__name__}")
        return self._done()

    def _message(self, given: Received) -> None:
        handler = self._handlers.get(type(given.message))
        assert handler is not None, f"a map server takes no {type(given.message).__name__}"
        if self.merging.leaving is not None and not isinstance(given.message, REPLICA_MESSAGES):
            self._drop("stepping down", given)  # the client will ask the newer server
        else:
            handler(given)

    def advance(self, now: int) -> Sequence[Effect]:
        """Run the timers that are due."""
        desk = self.desk
        desk.now = now
        if self.merging.leaving is not None:
            self.merging.leaving.advance()
            return self._done()
        if not self._listens:
            self._listens = True
            desk.out.append(Listen(WELL_KNOWN))
        desk.timers.fire(now)
        return self._done()

    def deadline(self) -> int | None:
        """The next timer; there always is one, because a server announces itself again."""
        if self.merging.leaving is not None:
            return self.merging.leaving.deadline()
        return self.desk.timers.deadline()

    def _here_due(self, timer: HereDue) -> None:
        self.desk.timers.set(timer, self.desk.now + self.settings.server_here_us)
        here = ServerHere(self.epoch, self.settings.restart_spread_us)
        self.desk.out.append(Multicast(WELL_KNOWN, here))
        self._collect()

    def _done(self) -> Sequence[Effect]:
        """Let clients go that were too slow, and give the effects of this input."""
        desk = self.desk
        while desk.too_slow:
            name, _ = desk.too_slow.popitem()
            client = desk.clients[name]
            self.subscriptions.withdraw_all(client)
            desk.out.append(Drop("too slow", "map.batch", 0, name))
        desk.flush()
        out, desk.out = desk.out, []
        return out

    def _drop(self, reason: str, given: Received, channel: str = "") -> None:
        """Record a message that is readable but not for this server, or not any more."""
        tag = tag_of(type(given.message))
        self.desk.out.append(Drop(reason, tag, 0, given.sender, channel))

    def _from_replica(self, given: Received) -> None:
        self.merging.receive(given.sender, given.message)

    def _channel_request(self, given: Received) -> None:
        message = given.message
        assert isinstance(message, HealRequest | Join)
        use = self.desk.channels.get(message.channel)
        if use is None:
            self._drop("no such channel", given, message.channel)
            return
        self.desk.take(use, [*use.sender.receive(given, self.desk.now)])
        self.desk.watch_channel(use)

    def _receipt(self, given: Received) -> None:
        message = given.message
        assert isinstance(message, Receipt)
        client = self.desk.clients.get(given.sender)
        if client is None or message.epoch != self.epoch or message.session != client.session:
            self._drop("a receipt of another session", given)
        elif client.outbox.receipt(message.number):
            self.desk.poll(client)

    def _request(self, given: Received) -> None:
        name, message = given.sender, given.message
        assert isinstance(message, Request)
        client = self.desk.clients.get(name)
        current = client is not None and message.session == client.session
        if client is not None and message.session < client.session:
            self._drop("a request of an earlier session", given)
            return
        self.merging.hear_of(message.epoch)
        first = bool(message.operations) and isinstance(message.operations[0], Hello)
        if message.epoch != self.epoch or not (current or (first and message.number == 1)):
            self.desk.send(name, Unknown(self.epoch, message.session))
            return
        if not current:
            client = self._open(name, message)
            if client is None:
                return
        assert client is not None
        client.seen_us = self.desk.now
        # The longest silent clients stay in front, where `_collect` looks for them.
        self.desk.clients[name] = self.desk.clients.pop(name)
        for number, operation in enumerate(message.operations, message.number):
            if number != client.last_operation + 1:
                continue  # taken before: the request was repeated
            client.last_operation = number
            try:
                self._operate(client, operation)
            except InputError as error:
                self.desk.deliver(client, Refused(_about(operation), str(error)[:500]))
                self.desk.flush()  # the refusal leaves before the answer that releases the request
        answer = Answer(self.epoch, client.session, client.last_operation, client.outbox.opened)
        self.desk.send(name, answer)

    def _open(self, name: str, message: Request) -> ClientState | None:
        """Begin a session; what the client published in its last one stays until it settles."""
        known = self.desk.clients.get(name)
        if known is None and len(self.desk.clients) >= self.settings.clients_max:
            self.desk.out.append(Drop("too many clients", "map.request", 0, name))
            return None
        try:
            view_class = self.policy.view_class(name)
        except InputError as error:
            self.desk.out.append(Drop(str(error), "map.request", 0, name))
            return None
        published = self.merging.welcome(name)
        ledger = None
        if known is not None:
            self.subscriptions.withdraw_all(known)
            published |= {**known.unconfirmed, **known.publications}
            ledger = known.ledger  # it counts what left for the same client in the last second
        client = ClientState(
            name,
            message.session,
            view_class,
            Outbox(self.epoch, message.session, self.desk.now, self.settings),
            self.desk.now,
            OutboxDue(name),
            ledger=ledger,
            subscriptions={},
            publications={},
            unconfirmed=published,
        )
        self.desk.clients[name] = client
        return client

    def _operate(self, client: ClientState, operation: Operation) -> None:
        match operation:
            case Publish(body, stamp):
                context = context_of(body)
                self._check_clock(max(stamp, context.t_r))
                self.contexts.put(client, context, body, stamp)
            case Unpublish(vid, stamp):
                self._check_clock(stamp)
                self.contexts.cancel(client, vid, stamp)
            case Subscribe(name, text):
                self.subscriptions.subscribe(client, name, text)
            case Unsubscribe(name):
                self.subscriptions.withdraw(client, name)
            case Refresh(name):
                self.subscriptions.refresh(client, name)
            case Hello():
                if client.last_operation > 1:
                    raise InputError("hello must be the first operation of a session")
                self._hello(client, operation)
            case Settled():
                for vid in list(client.unconfirmed):
                    self.contexts.cancel(client, vid)

    def _check_clock(self, instant: int) -> None:
        """Refuse a stamp in the future: until then nobody could change the context."""
        if instant > self.desk.now + self.settings.stamp_ahead_us_max:
            ahead_s = (instant - self.desk.now) // MICROSECONDS
            raise InputError(f"the stamp lies {ahead_s} s ahead: set this machine's clock")

    def _hello(self, client: ClientState, hello: Hello) -> None:
        settings = self.settings
        client.remote = is_remote(hello.site, settings)
        client.relay = hello.relay
        if hello.relay:
            client.outbox.items_max = settings.outbox_items_max * settings.relay_clients_max
        limit = hello.limit_bytes
        if limit == 0:
            client.ledger = None
        elif limit < settings.limit_bytes_min:
            client.ledger = self._ledger(settings.limit_bytes_min, client.ledger)
            raise LimitError(f"a bandwidth limit is at least {settings.limit_bytes_min} bytes")
        else:
            client.ledger = self._ledger(limit, client.ledger)

    def _ledger(self, limit: int, before: Ledger | None) -> Ledger:
        if before is not None and before.limit_bytes == limit:
            return before
        ledger = Ledger(limit, self.settings.well_known_reserve_bytes)
        # What this server sent before a restart, or in a session that it has collected, is not
        # known: begin with a second in which nothing may leave.
        ledger.charge(self.desk.now, ledger.usable_bytes)
        return ledger

    def _collect(self) -> None:
        """Let silent clients go, with their contexts and subscriptions (AMS, footnote 4)."""
        self.map.removed.prune(self.desk.now)
        oldest = self.desk.now - self.settings.client_timeout_us
        gone = []
        for client in self.desk.clients.values():
            if client.seen_us > oldest:
                break
            gone.append(client)
        for client in gone:
            self.remove(client, "silent")

    def remove(self, client: ClientState, reason: str) -> None:
        """Forget a client with its subscriptions and contexts."""
        self.subscriptions.withdraw_all(client)
        del self.desk.clients[client.name]
        self.desk.timers.cancel(client.timer)
        for vid in [*client.unconfirmed, *client.publications]:
            self.contexts.withdraw(client.name, vid)
        self.desk.out.append(ChannelStep("", "client collected", reason=f"{reason}: {client.name}"))


def _about(operation: Operation) -> str:
    """Name what an operation is about: a subscription, a context, else its kind."""
    if isinstance(operation, Publish):
        with suppress(ContextError):
            return f"put {context_of(operation.body).vid}"[:NAME_LENGTH_MAX]
    return getattr(operation, "subscription", "") or type(operation).__name__
