"""The client of a map service: it publishes, subscribes, and shows what it receives.

A session begins with everything the client publishes and subscribes to, so that a restarted server,
or one that had given the client up, knows it again. Operations go out in order, one request on its
way at a time. What comes in goes through the client's copy of the map, which shows each state once.
"""

import enum
from collections.abc import Sequence
from itertools import islice
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from roamcast.channels.client.publications import (
    DisownContext,
    Publications,
    PublishContext,
    PublishedContext,
    UnpublishContext,
)
from roamcast.channels.client.tuner import CHANNEL_MESSAGES
from roamcast.channels.client.watching import Cut, Overtaken, Refusal, Watching
from roamcast.channels.reliable.receiver import Delivered, Replaced, Stale
from roamcast.channels.server.messages import (
    OPERATIONS_MAX,
    WELL_KNOWN,
    Answer,
    Batch,
    Hello,
    Opening,
    Operation,
    Parcel,
    Publish,
    Receipt,
    Refresh,
    Request,
    ServerHere,
    Settled,
    Subscribe,
    Unknown,
    Unpublish,
    Unsubscribe,
    parcel_of,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.model.addresses import Server
from roamcast.model.filters import Filter
from roamcast.model.machine import (
    Draw,
    Effect,
    Ignore,
    Input,
    Listen,
    Received,
    Send,
    earliest,
    step,
)
from roamcast.model.records import Drop
from roamcast.model.wire import Message, tag_of


class SubscribeFilter(Input, frozen=True):
    """The user places a subscription, or replaces the filter of one."""

    subscription: str
    filter: str


class UnsubscribeFilter(Input, frozen=True):
    """The user ends a subscription."""

    subscription: str


class LinkState(enum.StrEnum):
    """Whether a client is in session with its server."""

    WAITING = "waiting to register"
    OPEN = "in session"


class LinkEvent(enum.StrEnum):
    """What moves a client from state to state."""

    RESTARTED = "the server has a later epoch, or does not know the session"
    REGISTERED = "the moment drawn for registering has come"


LINK_TABLE: Final = {
    (LinkState.WAITING, LinkEvent.RESTARTED): LinkState.WAITING,
    (LinkState.WAITING, LinkEvent.REGISTERED): LinkState.OPEN,
    (LinkState.OPEN, LinkEvent.RESTARTED): LinkState.WAITING,
}

REQUEST_BYTES_MAX: Final = 32_000

OperationKey = tuple[str, str]
"""(kind, vid or subscription): a later operation of the same key takes an earlier one's place."""


class EpochWarning(msgspec.Struct, frozen=True):
    """An older server is to be told of the newer epoch, at a drawn moment."""

    at_us: int
    server: str


class MapClient:
    """One client of one map service.

    Its deadlines are a few plain fields, each with one meaning, so they need no timers by key.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (
        ServerHere,
        Unknown,
        Answer,
        Batch,
        *CHANNEL_MESSAGES,
    )
    inputs: ClassVar[tuple[type[Input], ...]] = (
        PublishContext,
        UnpublishContext,
        DisownContext,
        SubscribeFilter,
        UnsubscribeFilter,
    )

    def __init__(
        self,
        name: str,
        *,
        server: str,
        epoch: int = 0,
        now: int,
        settings: MapSettings,
        draw: Draw,
        limit_bytes: int = 0,
        site: str = "",
        relay: bool = False,
    ) -> None:
        """`epoch` 0: learned from the server's first answer.

        `site`: where the client is; the server decides by it whether local groups reach the client.
        """
        self.name = name
        self.server = server
        self.epoch = epoch
        self.state = LinkState.WAITING
        self.session = now
        self.publications = Publications(settings)
        self.wanted: dict[str, str] = {}
        self.watching = Watching(settings, draw, limit_bytes)
        self._settings = settings
        self._draw = draw
        self._hello = Hello(limit_bytes, site, relay)
        self._register_at: int | None = now
        self._waiting: dict[OperationKey, Operation] = {}
        self._in_flight: tuple[Operation, ...] = ()
        self._in_flight_keys: tuple[OperationKey, ...] = ()
        self._next_number = 1
        self._repeat_at: int | None = None
        self._attempts = 0
        self._beat_at = now + settings.heartbeat_us
        self._last_batch = 0
        self._opened = 0
        self._booting = True
        self._server_seen_us = now
        self._warning: EpochWarning | None = None

    @property
    def published(self) -> dict[str, PublishedContext]:
        """What the user publishes, by vid."""
        return self.publications.contexts

    @property
    def idle(self) -> bool:
        """Whether the server has taken every operation of the user."""
        return self.state is LinkState.OPEN and not self._waiting and not self._in_flight

    def taken(self, vid: str) -> bool:
        """Whether the server has taken the user's latest operation on a context."""
        return self.state is LinkState.OPEN and not any(
            (kind, vid) in self._waiting or (kind, vid) in self._in_flight_keys
            for kind in ("publish", "unpublish")
        )

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each.

        What the user publishes and subscribes to is the user's to bound; the rest follows from it.
        """
        removed = self.publications.removed
        given = 2 * len(self.published) + len(removed) + 2 * len(self.wanted)
        # Operations that end something outlive it until they are sent.
        ending = sum(isinstance(op, Unpublish | Unsubscribe) for op in self._waiting.values())
        return {
            "removed": (len(removed), removed.removed_max),
            "publications": (len(self.published), self._settings.contexts_max),
            # A view more than the user wants has lost its subscription.
            "views": (len(self.watching.copy.views), len(self.wanted)),
            "operations waiting": (len(self._waiting), given + ending + 2),
            "operations in flight": (len(self._in_flight), OPERATIONS_MAX),
            **self.watching.occupancy(),
        }

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take an input of the user, or a message of the server."""
        effects: list[Effect] = []
        match given:
            case PublishContext(context, stamp):
                publish = self.publications.put(context, stamp, now)
                self._queue(("publish", context.vid), publish)
            case UnpublishContext(vid) | DisownContext(vid):
                unpublish = self.publications.cancel(given, now)
                if unpublish is not None:
                    self._waiting.pop(("publish", vid), None)  # the server need not see it any more
                    self._queue(("unpublish", vid), unpublish)
            case SubscribeFilter(name, text):
                effects += self.watching.watch(name, Filter.parse(text))
                self.wanted[name] = text
                self._queue(("subscription", name), Subscribe(name, text))
            case UnsubscribeFilter(name):
                if self.wanted.pop(name, None) is not None:
                    effects += self.watching.unwatch(name)
                    self._queue(("subscription", name), Unsubscribe(name))
            case Received(sender, message):
                if isinstance(message, CHANNEL_MESSAGES):
                    effects += self._channel(self.watching.tuner.receive(given, now), now)
                elif isinstance(message, ServerHere | Unknown | Answer | Batch):
                    self._server(sender, message, now, effects)
                else:
                    # No router stands before a client, and whoever has its view class's key can
                    # send to its groups: a strange message must not stop it.
                    effects.append(Drop("not for a client", tag_of(type(message)), 0, sender))
            case _:
                raise AssertionError(f"a map client takes no {type(given).__name__}")
        effects += self._push(now)
        return effects

    def advance(self, now: int) -> Sequence[Effect]:
        """Register, repeat, send a heartbeat, ask for what is missing, look for silent channels."""
        effects: list[Effect] = []
        if self._booting:
            self._booting = False
            effects.append(Listen(WELL_KNOWN))
        if self._register_at is not None and now >= self._register_at:
            self._register(now)
        effects += self._channel(self.watching.tuner.advance(now), now)
        effects += self.watching.look(now)
        self._refresh(now)
        effects += self._push(now)
        if self._warning is not None and now >= self._warning.at_us:
            effects.append(self._request((), self._warning.server))
            self._warning = None
        if self.state is LinkState.OPEN and now >= self._beat_at:
            self._beat_at = now + self._settings.heartbeat_us
            if not self._in_flight:
                effects.append(self._request(()))
        return effects

    def deadline(self) -> int | None:
        """When the first of registering, repeating, heartbeats, warning and watching is due."""
        return earliest(
            self._register_at,
            self._repeat_at,
            self._beat_at if self.state is LinkState.OPEN else None,
            None if self._warning is None else self._warning.at_us,
            self.watching.deadline(),
        )

    def leave(self) -> list[Effect]:
        """Stop listening; the server notices the silence."""
        return [*self.watching.tuner.drop_all(), Ignore(WELL_KNOWN)]

    def _queue(self, key: OperationKey, operation: Operation) -> None:
        """Queue an operation in place of an earlier one of the same key that still waits.

        Before the session is open nothing is queued: registering sends everything anyway.
        """
        if self.state is LinkState.OPEN:
            self._waiting.pop(key, None)
            self._waiting[key] = operation

    def _register(self, now: int) -> None:
        """Begin a session with everything the user publishes and subscribes to."""
        self.state = step(LINK_TABLE, self.state, LinkEvent.REGISTERED)
        self.session = max(self.session + 1, now)
        self._register_at = None
        self._in_flight, self._in_flight_keys = (), ()
        self._next_number = 1
        self._last_batch = 0
        self._opened = 0
        self._repeat_at = None
        self._waiting = {("hello", ""): self._hello}
        for vid, operation in self.publications.all(now):
            self._waiting["publish", vid] = operation
        self._waiting["settled", ""] = Settled()
        for name, text in self.wanted.items():
            self._waiting["subscription", name] = Subscribe(name, text)

    def _restart(self, epoch: int, spread_us: int, now: int) -> list[Effect]:
        """Wait a drawn moment before registering: every other client does the same now."""
        self.epoch = epoch
        self._server_seen_us, self._warning = now, None
        self.state = step(LINK_TABLE, self.state, LinkEvent.RESTARTED)
        self._waiting = {}
        self._in_flight, self._in_flight_keys = (), ()
        self._repeat_at = None
        self._register_at = now + int(self._draw() * spread_us)
        return self.watching.restart()

    def _note_server(self, sender: str, message: Message, now: int) -> None:
        """Notice the server; while it is silent, warn an older one of its epoch.

        0025: a client never goes back to an older epoch, so the older server's host must start a
        newer one. It learns of the epoch in no other way if all other hosts have forgotten it.
        """
        if sender == self.server:
            self._server_seen_us = now
            self._warning = None
            return
        silent = now - self._server_seen_us > self._settings.server_timeout_us
        older = isinstance(message, ServerHere) and message.epoch < self.epoch
        if silent and older and self._warning is None:
            spread_us = self._settings.restart_spread_us
            self._warning = EpochWarning(now + int(self._draw() * spread_us), sender)

    def _server(self, sender: str, message: Message, now: int, effects: list[Effect]) -> None:
        self._note_server(sender, message, now)
        match message:
            case ServerHere(epoch, spread_us) if epoch > self.epoch:
                self.server = sender
                effects += self._restart(epoch, spread_us, now)
            case Unknown(epoch, session) if session == self.session and epoch >= self.epoch:
                if self.state is LinkState.OPEN:
                    self.server = sender
                    # A client that knew no epoch learns it now, alone: there is no crowd to spread.
                    spread = 0 if self.epoch == 0 else self._settings.restart_spread_us
                    effects += self._restart(epoch, spread, now)
            case Answer(epoch, session, number, opened):
                if self._belongs(epoch, session, opened, now, effects):
                    self._answered(number)
            case Batch(epoch, session, number, payload, opened):
                if not self._belongs(epoch, session, opened, now, effects):
                    return
                if number == self._last_batch + 1:
                    self._last_batch = number
                    parcel = self._without_old_answers(parcel_of(payload))
                    taken = self.watching.take(parcel, "", self.server, now)
                    effects += self._forget_refused(taken, now)
                if number <= self._last_batch:
                    effects.append(Send(Server(self.server), Receipt(epoch, session, number)))

    def _belongs(
        self, epoch: int, session: int, opened: int, now: int, effects: list[Effect]
    ) -> bool:
        """Whether a message is of this session; a session that the server reopened starts anew."""
        if (epoch, session) != (self.epoch, self.session) or self.state is LinkState.WAITING:
            return False
        if self._opened in (0, opened):
            self._opened = opened
            return True
        if opened > self._opened:
            effects += self._restart(epoch, 0, now)
        return False

    def _without_old_answers(self, parcel: Parcel) -> Parcel:
        """Leave out answers to subscriptions that are about to be replaced, with their channels."""
        current = [
            item
            for item in parcel.items
            if not isinstance(item, Opening)
            or ("subscription", item.subscription) not in self._waiting
        ]
        if len(current) == len(parcel.items):
            return parcel
        return replace(parcel, items=tuple(current))

    def _forget_refused(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Do not ask again for what the server refused, or gave up; give what is for the user."""
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Cut):
                for name in self.wanted:  # some may reach the server after it gave up
                    self._queue(("subscription", name), Unsubscribe(name))
                self.wanted.clear()
            elif isinstance(effect, Overtaken) and effect.own:
                if not (self._hello.relay and effect.vid in self.published):
                    self._stamp_again(effect, now)
                    continue  # a relay's publications have their publishers' stamps
            elif isinstance(effect, Overtaken):
                if not self.publications.overtaken(effect.vid, effect.stamp):
                    continue  # the user has published a newer state, or none any more
                self._waiting.pop(("publish", effect.vid), None)
            elif isinstance(effect, Refusal) and effect.kind == "subscribe":
                self.wanted.pop(effect.name, None)
                out += self.watching.unwatch(effect.name)
            out.append(effect)
        return out

    def _stamp_again(self, effect: Overtaken, now: int) -> None:
        """Publish or unpublish once more, later than the server has it."""
        operation = self.publications.outdated(effect.vid, effect.stamp, now)
        if operation is not None:
            kind = "publish" if isinstance(operation, Publish) else "unpublish"
            self._queue((kind, effect.vid), operation)

    def _channel(self, given: Sequence[Effect], now: int) -> list[Effect]:
        """Take the effects of the channels' receivers; what cannot be healed is refreshed."""
        effects: list[Effect] = []
        for effect in given:
            if isinstance(effect, Delivered):
                parcel = parcel_of(effect.payload)
                if parcel.epoch == self.epoch:
                    effects += self.watching.take(parcel, effect.channel, self.server, now)
            elif isinstance(effect, Stale):
                effects.append(effect)
                effects += self.watching.lose(effect.channel, now)
            elif not isinstance(effect, Replaced):
                effects.append(effect)
        return effects

    def _refresh(self, now: int) -> None:
        for name in self.watching.to_refresh(now):
            self._queue(("refresh", name), Refresh(name))

    def _answered(self, number: int) -> None:
        """Drop the operations that were taken; it may be only a part of the request."""
        taken = number - self._next_number + 1
        if taken <= 0 or not self._in_flight:
            return
        self._in_flight = self._in_flight[taken:]
        self._in_flight_keys = self._in_flight_keys[taken:]
        self._next_number += taken
        self._attempts = 0
        if not self._in_flight:
            self._repeat_at = None

    def _push(self, now: int) -> list[Effect]:
        """Send the next request if none is on its way, or repeat the one that is."""
        if self.state is not LinkState.OPEN:
            return []
        if not self._in_flight:
            if not self._waiting:
                return []
            self._attempts = 0
            size = 0
            keys: list[OperationKey] = []
            for key, operation in islice(self._waiting.items(), OPERATIONS_MAX):
                size += len(operation.body) if isinstance(operation, Publish) else 256
                if keys and size > REQUEST_BYTES_MAX:
                    break
                keys.append(key)
            self._in_flight = tuple(self._waiting.pop(key) for key in keys)
            self._in_flight_keys = tuple(keys)
        elif self._repeat_at is None or now < self._repeat_at:
            return []
        settings = self._settings
        # A request on its way is also the heartbeat, so it is repeated at least that often.
        wait = min(settings.repeat_us << min(self._attempts, 16), settings.heartbeat_us)
        self._attempts += 1
        self._repeat_at = now + wait // 2 + int(self._draw() * wait / 2)
        self._beat_at = now + settings.heartbeat_us
        return [self._request(self._in_flight)]

    def _request(self, operations: tuple[Operation, ...], to: str = "") -> Send:
        request = Request(self.epoch, self.session, self._next_number, operations)
        return Send(Server(to or self.server), request)
