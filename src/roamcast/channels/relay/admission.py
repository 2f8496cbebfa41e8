"""Who is served through a relay, and when: a `MapRelay` behind its guests' own links.

A guest is a client of the relay. For each guest the relay holds a link to the service, opened with
the guest's own token; on it the service says which view class the guest is in (decision 0080). A
guest of the relay's own class is served by the `MapRelay`, and sees something only while the
service says so; any other guest is passed through to the service unread. What a guest publishes
leaves by its own link, in its own name.

The driver holds the sockets: it says which links come and go, and does what the effects ask for.
Guests have numbers, for two of them may have one name while one takes the other's place.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.map_client import MapClient
from roamcast.channels.client.publications import DisownContext, PublishContext, UnpublishContext
from roamcast.channels.client.watching import Cut, Overtaken, Pending, Refusal
from roamcast.channels.relay.relay import BehalfAnswered, MapRelay, OnBehalf
from roamcast.channels.server.desk import Policy
from roamcast.channels.server.map_server import compiled_matcher
from roamcast.channels.server.messages import Batch, ServerHere
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.timers import Timers
from roamcast.errors import LimitError
from roamcast.model.addresses import Client
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
from roamcast.model.records import Record
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message

COMPARE_US: Final = 2 * MICROSECONDS
"""How long a new guest waits for the relay's own link before it is passed through."""

UNSURE_US_MAX: Final = 10 * MICROSECONDS
"""A guest that may be shown nothing for this long, because its own link is away, is sent away."""

FAREWELL_US: Final = 1 * MICROSECONDS
"""How long the own link of a guest that left stays open for its last publications."""

SWEEP_US: Final = 1 * MICROSECONDS
"""Polling interval for forgetting the publications of guests that do not come back."""

AWAY: Final = "the relay is going down: connect again"
CHANGED: Final = "rules: what you may see has changed, connect again"
RENEWED: Final = "the service has changed: connect again"
SERVICE_AWAY: Final = "the service was away: connect again"
UNSURE: Final = "the service does not answer for you: connect again"


class GuestState(enum.StrEnum):
    """How a guest stands with its relay."""

    WAITING = "waiting for its class to be compared"
    SERVED = "served by the machine"
    PASSED = "passed through"
    ENDING = "told to go"
    LEAVING = "gone; its last publications are on their way"


class GuestEvent(enum.StrEnum):
    """What moves a guest from state to state."""

    SAME_CLASS = "the service says that it is of the relay's class"
    OTHER_CLASS = "it is of another class, there is no room, or nobody says"
    ENDED = "the relay ends its connection"
    GONE = "its connection is over"


GUEST_TABLE: Final = {
    (GuestState.WAITING, GuestEvent.SAME_CLASS): GuestState.SERVED,
    (GuestState.WAITING, GuestEvent.OTHER_CLASS): GuestState.PASSED,
    (GuestState.WAITING, GuestEvent.ENDED): GuestState.ENDING,
    (GuestState.SERVED, GuestEvent.ENDED): GuestState.ENDING,
    (GuestState.PASSED, GuestEvent.ENDED): GuestState.ENDING,
    (GuestState.WAITING, GuestEvent.GONE): GuestState.LEAVING,
    (GuestState.SERVED, GuestEvent.GONE): GuestState.LEAVING,
    (GuestState.PASSED, GuestEvent.GONE): GuestState.LEAVING,
    (GuestState.ENDING, GuestEvent.GONE): GuestState.LEAVING,
}


class OwnLinkUp(Input, frozen=True):
    """The relay's own link is open and the service has sent its welcome."""

    welcome: LinkWelcome


class OwnLinkDown(Input, frozen=True):
    """The relay's own link is over."""


class GuestArrived(Input, frozen=True):
    """A client has connected, and its own link to the service is open."""

    guest: int
    welcome: LinkWelcome


class GuestLinkUp(Input, frozen=True):
    """A guest's own link was away, and is open again."""

    guest: int
    welcome: LinkWelcome


class GuestLinkDown(Input, frozen=True):
    """A guest's own link is away."""

    guest: int


class GuestLinkEnded(Input, frozen=True):
    """A guest's own link has ended for good, and why."""

    guest: int
    reason: str


class GuestGone(Input, frozen=True):
    """A guest's connection to the relay is over."""

    guest: int


class GuestReceived(Input, frozen=True):
    """The service sent something by a guest's own link."""

    guest: int
    message: Message
    group: str = ""


class GoingDown(Input, frozen=True):
    """The relay ends: send everybody away."""


class ServingBegan(Effect, frozen=True):
    """There is a new `MapRelay`: links of an earlier one are over."""

    epoch: int
    settings: MapSettings


class Serve(Effect, frozen=True):
    """Connect this guest with the machine."""

    guest: int


class PassThrough(Effect, frozen=True):
    """Connect this guest with its own link."""

    guest: int


class EndGuest(Effect, frozen=True):
    """Tell a guest why its connection ends and when to come again (0: not by itself)."""

    guest: int
    reason: str
    retry_us: int


class CloseGuest(Effect, frozen=True):
    """Close a guest's own link: nothing of it is on its way any more."""

    guest: int


class SendUp(Effect, frozen=True):
    """Send a message by a guest's own link."""

    guest: int
    message: Message


class Withheld(Effect, frozen=True):
    """A batch was not sent: the service does not say now that this client may see it.

    It is repeated until it may, or the client is sent away.
    """

    client: str


class _Compare(msgspec.Struct, frozen=True):
    guest: int


class _Unsure(msgspec.Struct, frozen=True):
    guest: int


class _Farewell(msgspec.Struct, frozen=True):
    guest: int


class _Publish(msgspec.Struct, frozen=True):
    name: str


class _Sweep(msgspec.Struct, frozen=True):
    pass


_Timer = _Compare | _Unsure | _Farewell | _Publish | _Sweep


class GuestRecord(msgspec.Struct):
    """What is known of one guest."""

    number: int
    welcome: LinkWelcome
    state: GuestState = GuestState.WAITING
    connected: bool = True
    """Whether its own link is open."""

    @property
    def name(self) -> str:
        """The name the service knows this guest by, `subject#device`."""
        return self.welcome.client


class Publisher(msgspec.Struct):
    """What one client publishes, in its name.

    It outlives a connection: a client that comes again at once has lost nothing.
    """

    client: MapClient
    guest: int
    """By whose own link it goes."""


class Admission:
    """One relay: the `MapRelay`, its guests, and what they publish."""

    def __init__(
        self,
        name: str,
        *,
        draw: Draw,
        policy: Policy,
        guests_max: int,
        make_matcher: Callable[[], Matcher] = compiled_matcher,
    ) -> None:
        """`policy` decides which client may take over another's publication."""
        self.relay: MapRelay | None = None
        self.guests: dict[int, GuestRecord] = {}
        self.served: dict[str, int] = {}
        """Guests of the machine, by name."""
        self.publishers: dict[str, Publisher] = {}
        self._name = name
        self._draw = draw
        self._policy = policy
        self._guests_max = guests_max
        self._make_matcher = make_matcher
        self._settings: MapSettings | None = None
        self._standing: tuple[int, bytes] | None = None
        """The service's epoch and the relay's own view class in it."""
        self._connected = False
        self._timers: Timers[_Timer] = Timers()

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        own = {} if self.relay is None else self.relay.occupancy()
        served_max = 0 if self._settings is None else self._settings.relay_clients_max
        return {
            **own,
            "guests": (len(self.guests), self._guests_max),
            "served": (len(self.served), served_max),
            # A publisher stays while its client is served, or the machine waits for it.
            "publishers": (len(self.publishers), 2 * served_max),
        }

    def passed(self) -> int:
        """Count the guests that are passed through."""
        return sum(guest.state is GuestState.PASSED for guest in self.guests.values())

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take what happened to a link, or a message."""
        match given:
            case Received():
                return self._carry(self._machine.receive(given, now), now)
            case GuestReceived(number, message, group):
                return self._guest_received(number, message, group, now)
            case OwnLinkUp(welcome):
                return self._own_up(welcome, now)
            case OwnLinkDown():
                self._connected = False
                self._limit_doubt(self.served.values(), now)
                return ()
            case GuestArrived(number, welcome):
                return self._arrived(number, welcome, now)
            case GuestLinkUp(number, welcome):
                return self._guest_up(number, welcome, now)
            case GuestLinkDown(number):
                if (guest := self.guests.get(number)) is not None:
                    guest.connected = False
                    self._limit_doubt((number,), now)
                return ()
            case GuestLinkEnded(number, reason):
                return self._end(self.guests.get(number), reason, 0)
            case GuestGone(number):
                return self._gone(number, now)
            case GoingDown():
                ended = [self._end(one, AWAY, MICROSECONDS) for one in self.guests.values()]
                return [effect for effects in ended for effect in effects]
            case _:
                raise AssertionError(f"nobody takes {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for timer in self._timers.due(now):
            match timer:
                case _Compare(number):
                    effects += self._pass_through(self.guests[number])
                case _Unsure(number):
                    effects += self._end(self.guests[number], UNSURE, MICROSECONDS)
                case _Farewell(number):
                    effects += self._close(self.guests[number], now)
                case _Publish(name):
                    publisher = self.publishers[name]
                    due = publisher.client.advance(now)
                    effects += self._carry_published(name, publisher, due, now)
                case _Sweep():
                    self._sweep(now)
        if self.relay is not None:
            effects += self._carry(self.relay.advance(now), now)
        return effects

    def deadline(self) -> int | None:
        """The next thing due."""
        relay = None if self.relay is None else self.relay.deadline()
        return earliest(relay, self._timers.deadline())

    def may_see(self, client: str) -> bool:
        """Whether the service says now, in its present life, that a client is of our class."""
        number = self.served.get(client)
        if number is None:
            return False
        guest = self.guests[number]
        return guest.state is GuestState.SERVED and self._is_sure(guest)

    @property
    def _machine(self) -> MapRelay:
        assert self.relay is not None, "the relay's own link comes first"
        return self.relay

    def _is_sure(self, guest: GuestRecord) -> bool:
        welcome = guest.welcome
        return guest.connected and (welcome.epoch, welcome.view) == self._standing

    # The relay's own link.

    def _own_up(self, welcome: LinkWelcome, now: int) -> list[Effect]:
        """Go on with the same machine if the service is the same, or has a later epoch."""
        settings = settings_of(welcome.settings)
        self._connected = True
        self._standing = welcome.epoch, welcome.view
        relay = self.relay
        effects: list[Effect] = []
        if relay is None or settings != self._settings or welcome.epoch < relay.up.epoch:
            effects += self._begin(welcome, settings, now)
        else:
            here = ServerHere(welcome.epoch, settings.restart_spread_us)
            effects += self._carry(relay.receive(Received(welcome.server, here), now), now)
        for guest in list(self.guests.values()):
            effects += self._review(guest, now)
        self._limit_doubt(self.served.values(), now)
        return effects

    def _begin(self, welcome: LinkWelcome, settings: MapSettings, now: int) -> list[Effect]:
        """Make the machine; guests of an earlier one come again."""
        effects: list[Effect] = []
        if self.relay is not None:
            for number in self.served.values():
                effects += self._end(self.guests[number], RENEWED, 1)
            for name in list(self.publishers):
                self._forget(name)
            effects += self._carry(self.relay.leave(), now)
        self._settings = settings
        self.relay = MapRelay(
            self._name,
            server=welcome.server,
            server_epoch=welcome.epoch,
            epoch=now,
            now=now,
            settings=settings,
            draw=self._draw,
            apart=True,
            policy=self._policy,
            make_matcher=self._make_matcher,
        )
        effects.append(ServingBegan(now, self.relay.down.settings))
        return [*effects, *self._carry(self.relay.advance(now), now)]

    # Guests.

    def _arrived(self, number: int, welcome: LinkWelcome, now: int) -> list[Effect]:
        if len(self.guests) >= self._guests_max:
            raise LimitError(f"a relay has at most {self._guests_max} guests: come again later")
        assert number not in self.guests
        guest = self.guests[number] = GuestRecord(number, welcome)
        self._timers.set(_Compare(number), now + COMPARE_US)
        return self._review(guest, now)

    def _guest_up(self, number: int, welcome: LinkWelcome, now: int) -> list[Effect]:
        """A guest's own link was away, perhaps because the service was, or its rights changed."""
        guest = self.guests.get(number)
        if guest is None:
            return []
        guest.welcome, guest.connected = welcome, True
        if guest.state is GuestState.PASSED:
            # The service has forgotten its groups, and its session learns of it by a new welcome.
            return self._end(guest, SERVICE_AWAY, 1)
        effects = self._review(guest, now)
        publisher = self.publishers.get(guest.name)
        if publisher is not None and publisher.guest == number:
            effects += self._ride(guest.name, publisher, guest, now)
        self._limit_doubt((number,), now)
        return effects

    def _review(self, guest: GuestRecord, now: int) -> list[Effect]:
        """Decide about a guest that waits, and end one that is of another class by now.

        Views are compared within one epoch only: a restarted service has other tags for the same.
        """
        if self._standing is None or self._settings is None:
            return []
        comparable = guest.connected and guest.welcome.epoch == self._standing[0]
        same = guest.welcome.view == self._standing[1]
        if guest.state is GuestState.SERVED and comparable and not same:
            return self._end(guest, CHANGED, 1)
        if guest.state is not GuestState.WAITING:
            return []
        room = guest.name in self.served or len(self.served) < self._settings.relay_clients_max
        if not room or (comparable and not same):
            return self._pass_through(guest)
        return self._serve(guest, now) if comparable else []

    def _pass_through(self, guest: GuestRecord) -> list[Effect]:
        self._timers.cancel(_Compare(guest.number))
        guest.state = step(GUEST_TABLE, guest.state, GuestEvent.OTHER_CLASS)
        return [PassThrough(guest.number)]

    def _serve(self, guest: GuestRecord, now: int) -> list[Effect]:
        self._timers.cancel(_Compare(guest.number))
        guest.state = step(GUEST_TABLE, guest.state, GuestEvent.SAME_CLASS)
        replaced = self.guests.get(self.served.get(guest.name, -1))
        self.served[guest.name] = guest.number
        effects: list[Effect] = [Serve(guest.number)]
        publisher = self.publishers.get(guest.name)
        if publisher is not None:
            effects += self._ride(guest.name, publisher, guest, now)
        if replaced is not None and replaced.state is GuestState.LEAVING:
            effects += self._close(replaced, now)  # its publications go on by the new link
        return effects

    def _end(self, guest: GuestRecord | None, reason: str, retry_us: int) -> list[Effect]:
        if guest is None or guest.state in (GuestState.ENDING, GuestState.LEAVING):
            return []
        guest.state = step(GUEST_TABLE, guest.state, GuestEvent.ENDED)
        self._timers.cancel(_Compare(guest.number))
        self._timers.cancel(_Unsure(guest.number))
        return [EndGuest(guest.number, reason, retry_us)]

    def _gone(self, number: int, now: int) -> list[Effect]:
        """Close a guest's own link, but not before its last publications are taken."""
        guest = self.guests[number]
        guest.state = step(GUEST_TABLE, guest.state, GuestEvent.GONE)
        self._timers.cancel(_Compare(number))
        self._timers.cancel(_Unsure(number))
        publisher = self.publishers.get(guest.name)
        if publisher is None or publisher.guest != number or publisher.client.idle:
            return self._close(guest, now)
        self._timers.set(_Farewell(number), now + FAREWELL_US)
        return []

    def _close(self, guest: GuestRecord, now: int) -> list[Effect]:
        del self.guests[guest.number]
        self._timers.cancel(_Farewell(guest.number))
        if self.served.get(guest.name) == guest.number:
            del self.served[guest.name]
            if guest.name in self.publishers:
                self._timers.sooner(_Sweep(), now + SWEEP_US)
        return [CloseGuest(guest.number)]

    def _limit_doubt(self, numbers: Iterable[int], now: int) -> None:
        """Limit how long served guests may be shown nothing.

        Only while the relay's own link is up: without it nobody could be served any better.
        """
        for number in numbers:
            guest = self.guests[number]
            if guest.state is not GuestState.SERVED:
                continue
            if self._is_sure(guest) or not self._connected:
                self._timers.cancel(_Unsure(number))
            else:
                self._timers.sooner(_Unsure(number), now + UNSURE_US_MAX)

    # What guests publish.

    def _on_behalf(
        self,
        name: str,
        given: PublishContext | UnpublishContext | DisownContext,
        now: int,
    ) -> list[Effect]:
        """Publish in a client's own name; without its own link, nobody may."""
        publisher, effects = self.publishers.get(name), []
        if publisher is None:
            number = self.served.get(name)
            if number is None:
                return []
            welcome = self.guests[number].welcome
            client = MapClient(
                welcome.client,
                server=welcome.server,
                epoch=welcome.epoch,
                now=now,
                settings=settings_of(welcome.settings),
                draw=self._draw,
            )
            publisher = self.publishers[name] = Publisher(client, number)
            effects = self._carry_published(name, publisher, client.advance(now), now)
        done = publisher.client.receive(given, now)
        return [*effects, *self._carry_published(name, publisher, done, now)]

    def _ride(self, name: str, publisher: Publisher, guest: GuestRecord, now: int) -> list[Effect]:
        """Go on by this guest's link, and learn whether the service is the same."""
        publisher.guest = guest.number
        here = Received(guest.welcome.server, ServerHere(guest.welcome.epoch, 0))
        return self._carry_published(name, publisher, publisher.client.receive(here, now), now)

    def _guest_received(self, number: int, message: Message, group: str, now: int) -> list[Effect]:
        """Hand what came by a guest's own link to its publisher; nobody else needs it."""
        guest = self.guests.get(number)
        publisher = None if guest is None else self.publishers.get(guest.name)
        if guest is None or publisher is None or publisher.guest != number:
            return []
        client = publisher.client
        taken = client.receive(Received(client.server, message, group), now)
        effects = self._carry_published(guest.name, publisher, taken, now)
        if guest.state is GuestState.LEAVING and number in self.guests and client.idle:
            effects += self._close(guest, now)
        return effects

    def _carry_published(
        self, name: str, publisher: Publisher, effects: Iterable[Effect], now: int
    ) -> list[Effect]:
        """Carry what a publisher wants; the machine learns what the service answered."""
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(_, message):
                    guest = self.guests.get(publisher.guest)
                    if guest is not None and guest.connected:
                        out.append(SendUp(publisher.guest, message))
                case Overtaken() | Refusal():
                    answered = BehalfAnswered(name, effect)
                    out += self._carry(self._machine.receive(answered, now), now)
                case Listen() | Ignore() | Cut() | Pending() | Record():
                    pass  # it has no subscriptions, and its link carries the well-known group
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        due = publisher.client.deadline()
        if self.publishers.get(name) is publisher and due is not None:
            self._timers.set(_Publish(name), max(due, now + 1))
        return out

    def _sweep(self, now: int) -> None:
        """Forget publishers whose clients are gone from the machine, too."""
        left = [name for name in self.publishers if name not in self.served]
        for name in left:
            if name not in self._machine.down.desk.clients:
                self._forget(name)
        if any(name in self.publishers for name in left):
            self._timers.set(_Sweep(), now + SWEEP_US)

    def _forget(self, name: str) -> None:
        del self.publishers[name]
        self._timers.cancel(_Publish(name))

    def _carry(self, effects: Iterable[Effect], now: int) -> list[Effect]:
        """Let out what the machine wants, except what a client may not see now."""
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(Client(name), Batch()) if not self.may_see(name):
                    out.append(Withheld(name))
                case Send() | Listen() | Ignore() | Record():
                    out.append(effect)
                case OnBehalf(client, given):
                    out += self._on_behalf(client, given, now)
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        return out
