"""The active map server (AMS): it takes clients' requests and sends updates.

A client's operations arrive numbered and are taken once, in order. The answer to a subscription is
the current set as of an update, and every later update of it follows: no gap, no overlap.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from roamcast.channels.failover.merging import REPLICA_MESSAGES, Merging
from roamcast.channels.past.messages import AnswersDue, PastGrew
from roamcast.channels.past.part import Past
from roamcast.channels.reliable.messages import HealRequest, Join
from roamcast.channels.server.contexts import ActiveMap, MapContexts
from roamcast.channels.server.current_sets import CurrentSets
from roamcast.channels.server.desk import (
    ClientState,
    Desk,
    OutboxDue,
    Policy,
    Public,
)
from roamcast.channels.server.messages import (
    REASON_LENGTH_MAX,
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
)
from roamcast.channels.server.outbox import Outbox
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.removals import Removed
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.subscriptions import Subscriptions
from roamcast.channels.spread.dissemination import Dissemination, is_remote
from roamcast.channels.spread.streams import Ledger
from roamcast.errors import ContextError, InputError, LimitError
from roamcast.model.contexts import context_of
from roamcast.model.events import (
    VIEW_CLASSES_MAX,
    ClassesEnded,
    ClientsMoved,
    MapTouched,
    RulesChanged,
)
from roamcast.model.machine import Effect, Input, Listen, Multicast, Received
from roamcast.model.parts import Part, Timer
from roamcast.model.records import ChannelStep, Drop
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message, tag_of

SILENT: Final = "silent"


class HereDue(Timer, frozen=True):
    """The server announces itself, and lets silent clients go."""


def compiled_matcher() -> Matcher:
    """Make a compiled filter set; imported on use, because it takes half a second."""
    from roamcast.matching.renewing import RenewingSet

    return RenewingSet()


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
        AnswersDue,
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
        self.desk.now = self.desk.started = now
        self.map = ActiveMap(
            settings.contexts_max, Removed(settings.removed_us, settings.removed_max)
        )
        self.policy = policy or Public()
        self.dissemination = Dissemination(self.desk, make_matcher)
        self.contexts = MapContexts(self.desk, self.map, self.policy, self.dissemination)
        self.current = CurrentSets(self.desk, self.contexts, self.policy, self.dissemination)
        self.subscriptions = Subscriptions(self.desk, self.current, self.dissemination)
        self.merging = Merging(self.desk, self.contexts, replicas, self._collect)
        self.past: Past | None = None
        """What keeps the past, where there is a store."""
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
        timed += (
            carousels
            + bool(self.contexts.notes.unnoted)
            + sum(len(view.streams) for view in views.values())
        )
        shared, standing = self.dissemination.shared, self.subscriptions.standing
        placed = sum(len(client.subscriptions) for client in desk.clients.values())
        placed += sum(sum(view.local.values()) for view in views.values())
        held = {
            "clients": (len(desk.clients), settings.clients_max),
            "contexts": (self.map.taken, settings.contexts_max),
            **self.map.occupancy(),
            "removed": (len(self.map.removed), settings.removed_max),
            "guests": (sum(map(len, guests.values())), settings.contexts_max),
            "view classes": (len(views), VIEW_CLASSES_MAX),
            "queries": (self.subscriptions.records, settings.queries_max),
            "carousels": (carousels, settings.queries_max),
            "queries to note": (len(self.contexts.notes.unnoted), settings.queries_max),
            "timers": (len(desk.timers), timed),
            **shared.occupancy(),
            "matched queries": (len(shared), sum(len(view.table) for view in views.values())),
            "standing steps": self._standing_steps(),
            "standing subjects": (len(standing), placed + standing.others()),
            **desk.occupancy(),
        }
        if self.past is not None:
            held["contexts with a past"] = (self.past.shown, len(self.map))
        for name, view in views.items():
            for what, pair in view.occupancy().items():
                held[f"{what} of class {name!r}"] = pair
        for name, use in desk.channels.items():
            for what, pair in use.sender.occupancy().items():
                held[f"{name}: {what}"] = pair
        return held

    def _standing_steps(self) -> tuple[int, int]:
        """The dearest subject's steps, and the bound: a relay's if there is one."""
        held, most = self.subscriptions.standing.occupancy()["standing steps"]
        relays = any(client.relay for client in self.desk.clients.values())
        return held, most * (self.settings.relay_clients_max if relays else 1)

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
                self._end_classes(view_classes)
            case ClientsMoved(clients):
                for name in clients:
                    if (known := self.desk.clients.get(name)) is not None:
                        self.remove(known, "what it may see has changed")
            case AnswersDue(answers):
                self._answer(answers)
            case _:
                raise AssertionError(f"a map server takes no {type(given).__name__}")
        return self._done()

    def _end_classes(self, view_classes: Sequence[str]) -> None:
        for client in [*self.desk.clients.values()]:
            if client.view_class in view_classes:
                self.remove(client, "its view class has ended")

    def _answer(self, answers: Sequence[tuple[str, Answer]]) -> None:
        """Answer clients whose publications are on disk now, in the sessions they belong to."""
        for name, answer in answers:
            client = self.desk.clients.get(name)
            if client is not None and client.session == answer.session:
                self.desk.send(name, answer)

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
        if desk.dirty:
            desk.flush()
        if self.past is not None and self.past.grown:
            desk.out.append(PastGrew())
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
                self.desk.deliver(client, _refused(operation, str(error)))
                self.desk.flush()  # the refusal leaves before the answer that releases the request
        answer = Answer(self.epoch, client.session, client.last_operation, client.outbox.opened)
        if self.past is None or not self.past.hold(name, answer):
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
        published: dict[str, int | None] = {**self.merging.welcome(name)}
        ledger = None
        if known is not None:
            self.subscriptions.withdraw_all(known)
            published |= {**known.unconfirmed, **dict.fromkeys(known.publications, known.seen_us)}
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
                # They ended at the latest when the client's earlier session was last heard of.
                unconfirmed, client.unconfirmed = client.unconfirmed, {}
                for vid, seen_us in unconfirmed.items():
                    self.contexts.withdraw(client.name, vid, ended=seen_us)

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
            self.remove(client, SILENT)

    def remove(self, client: ClientState, reason: str) -> None:
        """Forget a client with its subscriptions and contexts."""
        self.subscriptions.withdraw_all(client)
        del self.desk.clients[client.name]
        self.desk.timers.cancel(client.timer)
        # What a silent client published ended when it was last heard of, not when that is noticed.
        ended = client.seen_us if reason == SILENT else None
        for vid in [*client.unconfirmed, *client.publications]:
            self.contexts.withdraw(client.name, vid, ended=ended)
        self.desk.out.append(ChannelStep("", "client collected", reason=reason))


def _refused(operation: Operation, reason: str) -> Refused:
    """Name the context or the subscription that a refused operation is about."""
    reason = reason[:REASON_LENGTH_MAX]
    match operation:
        case Publish(body):
            vid = ""
            with suppress(ContextError):
                vid = context_of(body).vid
            return Refused("publish", vid, reason)
        case Unpublish(vid):
            return Refused("unpublish", vid, reason)
        case Subscribe(name) | Unsubscribe(name) | Refresh(name):
            return Refused("subscribe", name, reason)
        case Hello() | Settled():
            return Refused("session", "", reason)
