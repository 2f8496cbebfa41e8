"""What does a client of the map do? It publishes, asks, and shows what it is told.

A session begins with everything the client publishes and asks for, so that a restarted server, or
one that had given the client up, knows it again. The user's operations go out in order, one request
on its way at a time; what comes in goes through the replica, which shows each state once.
"""

import enum
from collections.abc import Sequence
from itertools import islice
from typing import Final

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


class SubscribeFilter(Input, frozen=True):
    """The user asks for a standing query."""

    subscription: str
    filter: str


class UnsubscribeFilter(Input, frozen=True):
    """The user withdraws a standing query."""

    subscription: str


class LinkState(enum.StrEnum):
    """How a client stands with its server."""

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


class MapClient:
    """One client of one map service."""

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
        """`epoch` 0: the server tells its own with its first answer.

        `site`: where the client is, by which the server decides whether local groups reach it.
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
        self._waiting: dict[tuple[str, str], Operation] = {}
        self._in_flight: tuple[Operation, ...] = ()
        self._in_flight_about: tuple[tuple[str, str], ...] = ()
        self._next_number = 1
        self._repeat_at: int | None = None
        self._attempts = 0
        self._beat_at = now + settings.heartbeat_us
        self._last_batch = 0
        self._opened = 0
        self._booting = True
        self._heard_us = now
        self._tell: tuple[int, str] | None = None

    @property
    def published(self) -> dict[str, PublishedContext]:
        """What the user publishes, by vid."""
        return self.publications.contexts

    @property
    def idle(self) -> bool:
        """Whether everything the user said has been taken by the server."""
        return self.state is LinkState.OPEN and not self._waiting and not self._in_flight

    def taken(self, vid: str) -> bool:
        """Whether the server has taken the latest that the user said about an object."""
        return self.state is LinkState.OPEN and not any(
            (kind, vid) in self._waiting or (kind, vid) in self._in_flight_about
            for kind in ("object", "cancel")
        )

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take what the user says, or what the server says."""
        effects: list[Effect] = []
        match given:
            case PublishContext(context, stamp):
                put = self.publications.put(context, stamp, now)
                self._say(("object", context.vid), put)
            case UnpublishContext(vid) | DisownContext(vid):
                cancel = self.publications.cancel(given, now)
                if cancel is not None:
                    self._say(("cancel", vid), cancel)
            case SubscribeFilter(name, text):
                effects += self.watching.watch(name, Filter.parse(text))
                self.wanted[name] = text
                self._say(("subscription", name), Subscribe(name, text))
            case UnsubscribeFilter(name):
                if self.wanted.pop(name, None) is not None:
                    effects += self.watching.unwatch(name)
                    self._say(("subscription", name), Unsubscribe(name))
            case Received(sender, message):
                if isinstance(message, CHANNEL_MESSAGES):
                    effects += self._channel(self.watching.tuner.receive(given, now), now)
                else:
                    self._server(sender, message, now, effects)
        effects += self._push(now)
        return effects

    def advance(self, now: int) -> Sequence[Effect]:
        """Register, repeat, say that we are here, ask for what is missing, look for silence."""
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
        if self._tell is not None and now >= self._tell[0]:
            effects.append(self._request((), self._tell[1]))
            self._tell = None
        if self.state is LinkState.OPEN and now >= self._beat_at:
            self._beat_at = now + self._settings.heartbeat_us
            if not self._in_flight:
                effects.append(self._request(()))
        return effects

    def deadline(self) -> int | None:
        """The next of registering, repeating, beating, asking and looking."""
        return earliest(
            self._register_at,
            self._repeat_at,
            self._beat_at if self.state is LinkState.OPEN else None,
            None if self._tell is None else self._tell[0],
            self.watching.deadline(),
        )

    def leave(self) -> list[Effect]:
        """Stop listening; the server notices the silence."""
        return [*self.watching.tuner.drop_all(), Ignore(WELL_KNOWN)]

    def _say(self, about: tuple[str, str], operation: Operation) -> None:
        """Queue an operation in place of an earlier one about the same that still waits.

        Before the session is open nothing is queued: registering says everything anyway.
        """
        if self.state is LinkState.OPEN:
            self._waiting.pop(about, None)
            self._waiting[about] = operation

    def _register(self, now: int) -> None:
        """Begin a session with everything the user publishes and asks for."""
        self.state = step(LINK_TABLE, self.state, LinkEvent.REGISTERED)
        self.session = max(self.session + 1, now)
        self._register_at = None
        self._in_flight, self._in_flight_about = (), ()
        self._next_number = 1
        self._last_batch = 0
        self._opened = 0
        self._repeat_at = None
        self._waiting = {("hello", ""): self._hello}
        for vid, operation in self.publications.all(now):
            self._waiting["object", vid] = operation
        self._waiting["settled", ""] = Settled()
        for name, text in self.wanted.items():
            self._waiting["subscription", name] = Subscribe(name, text)

    def _restart(self, epoch: int, spread_us: int, now: int) -> list[Effect]:
        """Wait a drawn moment before registering: everybody else is told the same now."""
        self.epoch = epoch
        self._heard_us, self._tell = now, None
        self.state = step(LINK_TABLE, self.state, LinkEvent.RESTARTED)
        self._waiting = {}
        self._in_flight, self._in_flight_about = (), ()
        self._repeat_at = None
        self._register_at = now + int(self._draw() * spread_us)
        return self.watching.restart()

    def _hear(self, sender: str, message: object, now: int) -> None:
        """Notice the server; where it is silent, tell an older one of its epoch.

        A client never goes back to an older epoch. So the older one's host must start a newer
        one: it cannot know that it must if all other hosts have forgotten.
        """
        if sender == self.server:
            self._heard_us = now
            self._tell = None
            return
        silent = now - self._heard_us > self._settings.server_timeout_us
        older = isinstance(message, ServerHere) and message.epoch < self.epoch
        if silent and older and self._tell is None:
            spread_us = self._settings.restart_spread_us
            self._tell = (now + int(self._draw() * spread_us), sender)

    def _server(self, sender: str, message: object, now: int, effects: list[Effect]) -> None:
        self._hear(sender, message, now)
        match message:
            case ServerHere(epoch, spread_us) if epoch > self.epoch:
                self.server = sender
                effects += self._restart(epoch, spread_us, now)
            case Unknown(epoch, session) if session == self.session and epoch >= self.epoch:
                if self.state is LinkState.OPEN:
                    self.server = sender
                    # The first answer tells the epoch to a client that knew none: no crowd then.
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
                    told = self.watching.take(parcel, "", self.server, now)
                    self._forget_refused(told)
                    effects += told
                if number <= self._last_batch:
                    effects.append(Send(Server(self.server), Receipt(epoch, session, number)))

    def _belongs(
        self, epoch: int, session: int, opened: int, now: int, effects: list[Effect]
    ) -> bool:
        """Whether a message is of this session; one that the server opened twice begins anew."""
        if (epoch, session) != (self.epoch, self.session) or self.state is LinkState.WAITING:
            return False
        if self._opened in (0, opened):
            self._opened = opened
            return True
        if opened > self._opened:
            effects += self._restart(epoch, 0, now)
        return False

    def _without_old_answers(self, parcel: Parcel) -> Parcel:
        """Leave out what answers a query that will be replaced: its channels are not ours now."""
        kept = [
            item
            for item in parcel.items
            if not isinstance(item, Opening)
            or ("subscription", item.subscription) not in self._waiting
        ]
        return parcel if len(kept) == len(parcel.items) else replace(parcel, items=tuple(kept))

    def _forget_refused(self, told: Sequence[Effect]) -> None:
        """Do not ask again for what the server refused, or gave up."""
        for effect in told:
            if isinstance(effect, Cut):
                for name in self.wanted:  # some may have reached the server after it gave up
                    self._say(("subscription", name), Unsubscribe(name))
                self.wanted.clear()
            elif isinstance(effect, Overtaken):
                if self.publications.overtaken(effect.vid, effect.stamp):
                    self._waiting.pop(("object", effect.vid), None)
            elif isinstance(effect, Refusal) and self.wanted.pop(effect.about, None) is not None:
                self.watching.unwatch(effect.about)

    def _channel(self, given: Sequence[Effect], now: int) -> list[Effect]:
        """Take what the channels' receivers give; what is lost for good is refreshed."""
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
            self._say(("refresh", name), Refresh(name))

    def _answered(self, number: int) -> None:
        """Let go of what was taken; a part of a request may be."""
        taken = number - self._next_number + 1
        if taken <= 0 or not self._in_flight:
            return
        self._in_flight = self._in_flight[taken:]
        self._in_flight_about = self._in_flight_about[taken:]
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
            taken: list[tuple[str, str]] = []
            for about, operation in islice(self._waiting.items(), OPERATIONS_MAX):
                size += len(operation.body) if isinstance(operation, Publish) else 256
                if taken and size > REQUEST_BYTES_MAX:
                    break
                taken.append(about)
            self._in_flight = tuple(self._waiting.pop(about) for about in taken)
            self._in_flight_about = tuple(taken)
        elif self._repeat_at is None or now < self._repeat_at:
            return []
        settings = self._settings
        # A request on its way is also the heartbeat, so it is repeated at least as often.
        wait = min(settings.repeat_us << min(self._attempts, 16), settings.heartbeat_us)
        self._attempts += 1
        self._repeat_at = now + wait // 2 + int(self._draw() * wait / 2)
        self._beat_at = now + settings.heartbeat_us
        return [self._request(self._in_flight)]

    def _request(self, operations: tuple[Operation, ...], to: str = "") -> Send:
        request = Request(self.epoch, self.session, self._next_number, operations)
        return Send(Server(to or self.server), request)
