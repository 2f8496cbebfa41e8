"""What does a map server do? Sessions in, updates out (AMS: the active map server).

A client's operations arrive numbered and are taken once, in order. The answer to a subscription is
the current set as of an update, and from then on every later update of it follows: no gap, no
overlap. A session's states are few, so its table is short: unknown → open → gone.
"""

import enum
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from roamcast.channels.failover.merging import REPLICA_MESSAGES, Merging
from roamcast.channels.reliable.messages import HealRequest, Join
from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.server.desk import ClientState, Desk, Policy, Public
from roamcast.channels.server.map import ActiveMap
from roamcast.channels.server.messages import (
    WELL_KNOWN,
    Answer,
    Hello,
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
from roamcast.channels.server.removed import Removed
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.subscriptions import Subscriptions
from roamcast.channels.spread.bands import Ledger
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.channels.spread.scopes import is_remote
from roamcast.errors import ContextError, InputError, LimitError
from roamcast.model.events import ClassesEnded, ClientsMoved, MapTouched, RulesChanged
from roamcast.model.machine import Effect, Listen, Multicast, Received, step
from roamcast.model.parts import Part
from roamcast.model.records import ChannelStep, Drop
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import NAME_LENGTH_MAX, Message


class SessionState(enum.StrEnum):
    """How a server knows a client."""

    UNKNOWN = "unknown"
    OPEN = "open"


class SessionEvent(enum.StrEnum):
    """What moves a session from state to state."""

    FIRST = "the first operation of a session"
    LATER = "an operation or a heartbeat of the session at hand"
    SILENT = "nothing heard for the time-out"


SESSION_TABLE: Final = {
    (SessionState.UNKNOWN, SessionEvent.FIRST): SessionState.OPEN,
    (SessionState.UNKNOWN, SessionEvent.LATER): SessionState.UNKNOWN,
    (SessionState.OPEN, SessionEvent.FIRST): SessionState.OPEN,
    (SessionState.OPEN, SessionEvent.LATER): SessionState.OPEN,
    (SessionState.OPEN, SessionEvent.SILENT): SessionState.UNKNOWN,
}


def compiled_matcher() -> Matcher:
    """Make a compiled filter set; imported on use, because it takes half a second."""
    from roamcast.matching import FilterSet

    return FilterSet()


class MapServer(Part):
    """The active map service of one region in one epoch."""

    part: ClassVar[str] = "map"
    messages: ClassVar = (Request, Receipt, HealRequest, Join, *REPLICA_MESSAGES)
    inputs: ClassVar = (MapTouched, RulesChanged, ClassesEnded, ClientsMoved)

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
        """`epoch` grows with every start of the service on any host (`epochs.py`).

        `journal`: somebody reads why each update went where it went; else that is not said.
        `replicas`: the hosts that may serve, by seat, this one among them; see `watchdog.py`.
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
        self._here_at = now
        self._listens = not replicas

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        settings, desk = self.settings, self.desk
        classes = self.dissemination.classes.values()
        held = {
            "clients": (len(desk.clients), settings.clients_max),
            "objects": (len(self.map), settings.contexts_max),
            "removed": (len(self.map.removed), settings.removed_max),
            "guests": (len(self.merging.guests), settings.contexts_max),
            "queries": (self.subscriptions.records, settings.queries_max),
            "outbox": min(
                ((len(one.outbox), one.outbox.items_max) for one in desk.clients.values()),
                key=lambda held: held[1] - held[0],
                default=(0, settings.outbox_items_max),
            ),
        }
        for view in classes:
            held[f"channels of class {view.name!r}"] = (view.pool.used, settings.channels_max)
            held[f"wide-area groups of class {view.name!r}"] = (
                view.wide_pool.used,
                settings.wide_groups_max,
            )
            held[f"history of class {view.name!r}"] = (len(view.history), settings.history_max)
        for name, use in desk.channels.items():
            for what, (count, bound) in use.sender.occupancy().items():
                held[f"{name}: {what}"] = (count, bound)
        return held

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a client's message, or what another part of the broker did."""
        self.desk.now = now
        match given:
            case Received(sender, message):
                return self._message(given, sender, message, now)
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

    def _message(
        self, given: Received, sender: str, message: Message, now: int
    ) -> Sequence[Effect]:
        if isinstance(message, REPLICA_MESSAGES):
            self.merging.receive(sender, message)
        elif self.merging.leaving is not None:
            return ()  # whoever asks will ask the newer server
        elif isinstance(message, Request):
            self._request(sender, message)
        elif isinstance(message, Receipt):
            self._receipt(sender, message)
        elif isinstance(message, HealRequest | Join):
            use = self.desk.channels.get(message.channel)
            if use is not None:
                self.desk.take(use, [*use.sender.receive(given, now)])
                self.desk.watch_channel(message.channel)
        return self._done()

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due: say that we are here, repeat, synchronise, collect, flush, turn."""
        self.desk.now = now
        if self.merging.leaving is not None:
            self.merging.leaving.advance()
            return self._done()
        if not self._listens:
            self._listens = True
            self.desk.out.append(Listen(WELL_KNOWN))
        if now >= self._here_at:
            self._here_at = now + self.settings.server_here_us
            here = ServerHere(self.epoch, self.settings.restart_spread_us)
            self.desk.out.append(Multicast(WELL_KNOWN, here))
            self._collect()
        for kind, key in self.desk.timers.due(now):
            if kind == "outbox":
                client = self.desk.clients.get(key)
                if client is not None:
                    self.desk.poll(client)
            elif kind == "channel":
                use = self.desk.channels[key]
                self.desk.take(use, [*use.sender.advance(now)])
                self.desk.watch_channel(key)
            elif kind == "rest":
                use = self.desk.channels[key]
                self.dissemination.classes[use.view_class].give_back(key)
            elif kind == "hours":
                self.contexts.hour_struck(key)
            elif kind == "flush":
                self.dissemination.flush(key)
            elif kind == "guest":
                self.merging.expire(key)
            else:
                assert kind == "carousel"
                self.subscriptions.turn(int(key))
        return self._done()

    def deadline(self) -> int | None:
        """The next thing due; a server always says again that it is here."""
        if self.merging.leaving is not None:
            return self.merging.leaving.deadline()
        first = self.desk.timers.deadline()
        return self._here_at if first is None else min(first, self._here_at)

    def _done(self) -> Sequence[Effect]:
        desk = self.desk
        while desk.too_slow:
            name, _ = desk.too_slow.popitem()
            client = desk.clients[name]
            self.subscriptions.withdraw_all(client)
            desk.out.append(Drop("too slow", "map.batch", 0, name))
        desk.flush()
        out, desk.out = desk.out, []
        return out

    def _receipt(self, name: str, message: Receipt) -> None:
        client = self.desk.clients.get(name)
        if client is None or message.epoch != self.epoch or message.session != client.session:
            return
        if client.outbox.receipt(message.number):
            self.desk.poll(client)

    def _request(self, name: str, message: Request) -> None:
        client = self.desk.clients.get(name)
        current = client is not None and message.session == client.session
        if client is not None and message.session < client.session:
            return  # from a life the client has left
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
        self.desk.clients[name] = self.desk.clients.pop(name)  # the longest unheard stay in front
        for number, operation in enumerate(message.operations, message.number):
            if number != client.last_operation + 1:
                continue
            client.last_operation = number
            try:
                self._operate(client, operation)
            except InputError as error:
                self.desk.deliver(client, Refused(_about(operation), str(error)[:500]))
                self.desk.flush()  # whoever waits for the answer then knows of the refusal, too
        answer = Answer(self.epoch, client.session, client.last_operation, client.outbox.opened)
        self.desk.send(name, answer)

    def _open(self, name: str, message: Request) -> ClientState | None:
        """Begin a session; what the client published in its last one stays until it settles."""
        known = self.desk.clients.get(name)
        state = SessionState.UNKNOWN if known is None else SessionState.OPEN
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
            ledger = known.ledger  # what left within the last second was sent to the same client
        assert step(SESSION_TABLE, state, SessionEvent.FIRST) is SessionState.OPEN
        client = ClientState(
            name,
            message.session,
            view_class,
            Outbox(self.epoch, message.session, self.desk.now, self.settings),
            self.desk.now,
            ledger=ledger,
            subscriptions={},
            publications={},
            unconfirmed=published,
        )
        self.desk.clients[name] = client
        return client

    def _operate(self, client: ClientState, operation: object) -> None:
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
                    raise InputError("hello is the first operation of a session, and only that")
                self._hello(client, operation)
            case Settled():
                for vid in list(client.unconfirmed):
                    self.contexts.cancel(client, vid)

    def _check_clock(self, instant: int) -> None:
        """Refuse what is so since the future: nobody could change it until then."""
        if instant > self.desk.now + self.settings.stamp_ahead_us_max:
            ahead_s = (instant - self.desk.now) // MICROSECONDS
            raise InputError(f"this is so only in {ahead_s} s: set this machine's clock")

    def _hello(self, client: ClientState, hello: Hello) -> None:
        settings = self.settings
        client.remote = is_remote(hello.site, settings)
        client.agent = hello.agent
        if hello.agent:
            client.outbox.items_max = settings.outbox_items_max * settings.agent_clients_max
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
        # What another life of ours, or an earlier session, sent in the last second is not known.
        ledger.charge(self.desk.now, ledger.usable_bytes)
        return ledger

    def _collect(self) -> None:
        """Clients that are gone: their objects and subscriptions go with them (AMS, footnote 4)."""
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
        """Forget a client and what it placed here."""
        self.subscriptions.withdraw_all(client)
        del self.desk.clients[client.name]
        self.desk.timers.cancel(("outbox", client.name))
        for vid in [*client.unconfirmed, *client.publications]:
            self.contexts.withdraw(client.name, vid)
        self.desk.out.append(ChannelStep("", "client collected", reason=f"{reason}: {client.name}"))


def _about(operation: object) -> str:
    """Name what an operation is about: a subscription, an object, else its kind."""
    if isinstance(operation, Publish):
        with suppress(ContextError):
            return f"put {context_of(operation.body).vid}"[:NAME_LENGTH_MAX]
    return getattr(operation, "subscription", "") or type(operation).__name__
