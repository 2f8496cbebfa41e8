"""Who is served through a relay, and when: a `MapRelay` behind its guests' own links.

A guest is a client of the relay. For each guest the relay holds a link to the service, opened with
the guest's own token; on it the service says which view class the guest is in (decision 0080). A
guest of the relay's own class is served by the `MapRelay`, and sees something only while the
service says so; any other guest is passed through to the service unread. What a guest publishes
leaves by its own link, in its own name.

The driver holds the sockets: it says which links come and go, and does what the effects ask for.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.publications import DisownContext, PublishContext, UnpublishContext
from roamcast.channels.relay.guests import (
    GUEST_TABLE,
    CloseGuest,
    EndGuest,
    GoingDown,
    GuestArrived,
    GuestEvent,
    GuestGone,
    GuestLinkDown,
    GuestLinkEnded,
    GuestLinkUp,
    GuestReceived,
    GuestRecord,
    GuestState,
    OwnLinkDown,
    OwnLinkUp,
    PassThrough,
    Serve,
    ServingBegan,
    Withheld,
)
from roamcast.channels.relay.publishers import PublicationAnswered, Publishers, SendUp
from roamcast.channels.relay.relay import BehalfAnswered, MapRelay, OnBehalf
from roamcast.channels.server.desk import Policy
from roamcast.channels.server.map_server import compiled_matcher
from roamcast.channels.server.messages import Batch, ServerHere
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings
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
from roamcast.model.parts import Timers
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


class _Compare(msgspec.Struct, frozen=True):
    guest: int


class _Unsure(msgspec.Struct, frozen=True):
    guest: int


class _Farewell(msgspec.Struct, frozen=True):
    guest: int


class _Sweep(msgspec.Struct, frozen=True):
    pass


_Timer = _Compare | _Unsure | _Farewell | _Sweep


class RelayAdmission:
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
        self.publishers = Publishers(draw)
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
                # The machine goes on: its guests see what it has, and it subscribes again later.
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
                # All at once, so that none of them waits for the silence that ends a link.
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
                    # Without the relay's own link nobody can say whether the classes are equal.
                    # The service itself always decides right, so the guest goes there.
                    effects += self._pass_through(self.guests[number])
                case _Unsure(number):
                    effects += self._end(self.guests[number], UNSURE, MICROSECONDS)
                case _Farewell(number):
                    effects += self._close(self.guests[number], now)
                case _Sweep():
                    self._sweep(now)
        effects += self._carry_published(self.publishers.advance(now), now)
        if self.relay is not None:
            effects += self._carry(self.relay.advance(now), now)
        return effects

    def deadline(self) -> int | None:
        """The next thing due."""
        relay = None if self.relay is None else self.relay.deadline()
        return earliest(relay, self.publishers.deadline(), self._timers.deadline())

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
        # 0080: a tag of an earlier life of the service may mean another class now.
        return guest.connected and (welcome.epoch, welcome.view) == self._standing

    # The relay's own link.

    def _own_up(self, welcome: LinkWelcome, now: int) -> list[Effect]:
        """Go on with the same machine if the service is the same, or has a later epoch."""
        settings = settings_of(welcome.settings)
        self._connected = True
        self._standing = welcome.epoch, welcome.view
        relay = self.relay
        effects: list[Effect] = []
        # An older epoch is a service that has lost its data; with other settings, both sides of the
        # machine would misjudge timeouts.
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
            # The guests publish everything again when they come again.
            for name in list(self.publishers):
                self.publishers.forget(name)
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
        # The bound is the driver's, which refuses connections before; here it guards the machine.
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
        if self.served.get(guest.name) == number:
            effects += self._carry_published(self.publishers.ride(number, welcome, now), now)
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
        # A client that comes again takes its own place: it needs no room of its own.
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
        # An earlier guest of the same client may have left with its own link still open, for its
        # last publications.
        replaced = self.guests.get(self.served.get(guest.name, -1))
        self.served[guest.name] = guest.number
        effects: list[Effect] = [Serve(guest.number)]
        riding = self.publishers.ride(guest.number, guest.welcome, now)
        effects += self._carry_published(riding, now)
        if replaced is not None and replaced.state is GuestState.LEAVING:
            effects += self._close(replaced, now)  # its publications go on by the new link
        return effects

    def _end(self, guest: GuestRecord | None, reason: str, retry_us: int) -> list[Effect]:
        if guest is None or guest.state in (GuestState.ENDING, GuestState.LEAVING):
            return []  # two reasons may come together; the first one counts
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
        if self.publishers.is_settled(guest.name, number):
            return self._close(guest, now)
        self._timers.set(_Farewell(number), now + FAREWELL_US)
        return []

    def _close(self, guest: GuestRecord, now: int) -> list[Effect]:
        del self.guests[guest.number]
        self._timers.cancel(_Farewell(guest.number))
        if self.served.get(guest.name) == guest.number:
            del self.served[guest.name]
            if guest.name in self.publishers:
                # The machine keeps a silent client for `client_timeout_us`; until then it may come
                # again and find its publications.
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
        self, name: str, given: PublishContext | UnpublishContext | DisownContext, now: int
    ) -> list[Effect]:
        """Publish in a client's own name; without its own link, nobody may."""
        effects: list[Effect] = []
        if name not in self.publishers:
            number = self.served.get(name)
            if number is None:
                return []
            opened = self.publishers.open(number, self.guests[number].welcome, now)
            effects = self._carry_published(opened, now)
        return [*effects, *self._carry_published(self.publishers.publish(name, given, now), now)]

    def _guest_received(self, number: int, message: Message, group: str, now: int) -> list[Effect]:
        """Hand what came by a guest's own link to its publisher; nobody else needs it."""
        guest = self.guests.get(number)
        if guest is None:
            return []
        answered = self.publishers.receive(guest.name, number, message, group, now)
        effects = self._carry_published(answered, now)
        leaving = guest.state is GuestState.LEAVING and number in self.guests
        if leaving and self.publishers.is_settled(guest.name, number):
            effects += self._close(guest, now)
        return effects

    def _carry_published(self, effects: Iterable[Effect], now: int) -> list[Effect]:
        """Carry what publishers want; the machine learns what the service answered."""
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case SendUp(number):
                    guest = self.guests.get(number)
                    if guest is not None and guest.connected:
                        out.append(effect)  # otherwise the publisher repeats it
                case PublicationAnswered(client, answer):
                    answered = self._machine.receive(BehalfAnswered(client, answer), now)
                    out += self._carry(answered, now)
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        return out

    def _sweep(self, now: int) -> None:
        """Forget publishers whose clients are gone from the machine, too."""
        left = [name for name in self.publishers if name not in self.served]
        for name in left:
            if name not in self._machine.down.desk.clients:
                self.publishers.forget(name)
        if any(name in self.publishers for name in left):
            self._timers.set(_Sweep(), now + SWEEP_US)

    def _carry(self, effects: Iterable[Effect], now: int) -> list[Effect]:
        """Let out what the machine wants, except what a client may not see now."""
        out: list[Effect] = []
        for effect in effects:
            match effect:
                # Only batches show anything; without answers the client would repeat for ever.
                case Send(Client(name), Batch()) if not self.may_see(name):
                    out.append(Withheld(name))
                case Send() | Listen() | Ignore() | Record():
                    out.append(effect)
                case OnBehalf(client, given):
                    out += self._on_behalf(client, given, now)
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        return out
