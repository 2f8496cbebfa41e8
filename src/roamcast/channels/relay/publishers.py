"""What the clients of a relay publish: one `MapClient` for each, speaking in the client's own name.

A publisher goes by its guest's own link to the service, so that the service knows whose publication
it is (decision 0080). It outlives a connection: a client that comes again at once has lost nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.map_client import MapClient
from roamcast.channels.client.publications import DisownContext, PublishContext, UnpublishContext
from roamcast.channels.client.watching import Cut, Overtaken, Pending, Refusal
from roamcast.channels.server.messages import ServerHere
from roamcast.model.machine import Draw, Effect, Ignore, Listen, Received, Send
from roamcast.model.parts import Timers
from roamcast.model.records import Record
from roamcast.model.wire import Message


class SendUp(Effect, frozen=True):
    """Send a message by a guest's own link."""

    guest: int
    message: Message


class PublicationAnswered(Effect, frozen=True):
    """The service answered to a client's publication."""

    client: str
    effect: Overtaken | Refusal


class Publisher(msgspec.Struct):
    """One client's publications, and by which guest's link they go."""

    client: MapClient
    guest: int


class Publishers:
    """The publishers of one relay, by client name."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._publishers: dict[str, Publisher] = {}
        self._timers: Timers[str] = Timers()

    def __len__(self) -> int:
        return len(self._publishers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._publishers)

    def __contains__(self, name: str) -> bool:
        return name in self._publishers

    def is_settled(self, name: str, guest: int) -> bool:
        """Whether nothing of this client has to go by this guest's link any more."""
        publisher = self._publishers.get(name)
        return publisher is None or publisher.guest != guest or publisher.client.idle

    def open(self, guest: int, welcome: LinkWelcome, now: int) -> list[Effect]:
        """Begin to publish in a client's name."""
        client = MapClient(
            welcome.client,
            server=welcome.server,
            epoch=welcome.epoch,
            now=now,
            settings=settings_of(welcome.settings),
            draw=self._draw,
        )
        self._publishers[welcome.client] = Publisher(client, guest)
        return self._carry(welcome.client, client.advance(now), now)

    def ride(self, guest: int, welcome: LinkWelcome, now: int) -> list[Effect]:
        """Go on by this guest's link, if the client publishes; the service may be another one."""
        publisher = self._publishers.get(welcome.client)
        if publisher is None:
            return []
        publisher.guest = guest
        # No spread over time: guests' links open one by one.
        here = Received(welcome.server, ServerHere(welcome.epoch, 0))
        return self._carry(welcome.client, publisher.client.receive(here, now), now)

    def publish(
        self, name: str, given: PublishContext | UnpublishContext | DisownContext, now: int
    ) -> list[Effect]:
        """Publish or unpublish in the name of a client that has been opened."""
        return self._carry(name, self._publishers[name].client.receive(given, now), now)

    def receive(
        self, name: str, guest: int, message: Message, group: str, now: int
    ) -> list[Effect]:
        """Take what came by a guest's link, if this client's publications go by it."""
        publisher = self._publishers.get(name)
        if publisher is None or publisher.guest != guest:
            return []  # it answers what was sent by a link that has been replaced
        client = publisher.client
        effects = client.receive(Received(client.server, message, group), now)
        return self._carry(name, effects, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for name in self._timers.due(now):
            effects += self._carry(name, self._publishers[name].client.advance(now), now)
        return effects

    def deadline(self) -> int | None:
        """The next thing due."""
        return self._timers.deadline()

    def forget(self, name: str) -> None:
        """Publish nothing of this client any more."""
        del self._publishers[name]
        self._timers.cancel(name)

    def _carry(self, name: str, effects: Iterable[Effect], now: int) -> list[Effect]:
        publisher = self._publishers[name]
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(_, message):
                    out.append(SendUp(publisher.guest, message))
                case Overtaken() | Refusal():
                    out.append(PublicationAnswered(name, effect))
                case Listen() | Ignore() | Cut() | Pending() | Record():
                    pass  # it has no subscriptions, and its link carries the well-known group
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        due = publisher.client.deadline()
        if due is None:
            self._timers.cancel(name)
        else:
            # Later than now: `advance` shall end even if a client is due again at once.
            self._timers.set(name, max(due, now + 1))
        return out
