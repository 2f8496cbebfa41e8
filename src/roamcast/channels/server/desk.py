"""What do all parts of a map server share? Its clients, its timers, and what leaves it.

Everything that leaves passes here, so that no byte reaches a client with a limit uncounted.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

import msgspec

from roamcast.channels.reliable.sender import ChannelSender, SnapshotTaken, SnapshotWanted
from roamcast.channels.server.messages import State, size_of
from roamcast.channels.server.outbox import Outbox, Waiting
from roamcast.channels.server.paging import Pager
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.spread.bands import Ledger
from roamcast.channels.spread.streams import Stream
from roamcast.channels.timers import Timers
from roamcast.model.addresses import Client
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Multicast, Send
from roamcast.model.records import Drop
from roamcast.model.wire import Message, tag_of

Timer = tuple[str, str]


class Policy(Protocol):
    """Who may see what of an object; the broker answers from people's privacy rules."""

    def view_class(self, client: str) -> str:
        """Name the class of clients that may see the same of everything."""

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give the object as this class may see it, or nothing."""

    def changes_at(self, context: Context, now: int) -> int | None:
        """Give when the clock alone may next change what anybody sees of an object, or never."""

    def restricted(self) -> Collection[str] | None:
        """Name the objects that some may see otherwise than they are; None: any may be."""

    def may_take(self, client: str, owner: str) -> bool:
        """Whether a client may change what this owner publishes."""


class Public:
    """Everybody may see everything."""

    def view_class(self, client: str) -> str:
        """There is one class."""
        del client
        return ""

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Nothing is hidden."""
        del view_class, now
        return context

    def changes_at(self, context: Context, now: int) -> int | None:
        """The clock hides nothing."""
        del context, now
        return None

    def restricted(self) -> Collection[str] | None:
        """No object is."""
        return ()

    def may_take(self, client: str, owner: str) -> bool:
        """Everybody may: a simulated world has no thieves."""
        del client, owner
        return True


class Subscription(msgspec.Struct):
    """A client's standing query and the records of its parts."""

    filter: Filter
    queries: tuple[int, ...]


class ClientState(msgspec.Struct):
    """One client's session."""

    name: str
    session: int
    view_class: str
    outbox: Outbox
    seen_us: int
    ledger: Ledger | None = None
    remote: bool = False
    relay: bool = False
    last_operation: int = 0
    subscriptions: dict[str, Subscription] = {}
    publications: dict[str, None] = {}
    unconfirmed: dict[str, None] = {}
    """Published in the session before and not yet again."""


class ChannelUse(msgspec.Struct):
    """A channel in use: its sender, the stream it is a band of, whether it only lingers."""

    sender: ChannelSender
    view_class: str
    stream: Stream | None = None
    lingers: bool = False
    muted: bool = False
    """It lingers and clients with a limit may still listen, whose ledgers are not known here."""


class Desk:
    """Clients, channels, timers and the effects of the input at hand."""

    def __init__(self, epoch: int, settings: MapSettings, *, journal: bool = True) -> None:
        self.epoch = epoch
        self.settings = settings
        self.journal = journal
        self.now = 0
        self.number = 0
        self.clients: dict[str, ClientState] = {}
        self.channels: dict[str, ChannelUse] = {}
        self.timers: Timers[Timer] = Timers()
        self.too_slow: dict[str, None] = {}
        self.out: list[Effect] = []
        self.fresh: Callable[[str, State], State] = lambda _, state: state
        self.turn_page: Callable[[str, Pager, int, int], tuple[list[State], bool]] = lambda *_: (
            [],
            True,
        )
        self._dirty: dict[str, None] = {}

    def deliver(self, client: ClientState, item: Waiting, *, listing: str = "") -> None:
        """Queue an item for one client; it leaves with everything else of this input."""
        coalesced = client.outbox.coalesced
        if not client.outbox.add(item, listing) and client.subscriptions:
            self.too_slow[client.name] = None
        if self.journal and client.outbox.coalesced > coalesced:
            self.out.append(Drop("coalesced", "map.batch", 0, client.name))
        self._dirty[client.name] = None

    def poll(self, client: ClientState) -> None:
        """Let a client's next batch leave if it may."""
        fresh = partial(self.fresh, client.view_class)
        turn = partial(self.turn_page, client.view_class)
        batch = client.outbox.poll(self.now, client.ledger, self.number, fresh, turn)
        if batch is not None:
            self.out.append(Send(Client(client.name), batch))
        if client.outbox.due is not None:
            self.timers.set(("outbox", client.name), client.outbox.due)

    def flush(self) -> None:
        """Let the batches of this input leave."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for name in dirty:
                client = self.clients.get(name)
                if client is not None:
                    self.poll(client)

    def send(self, name: str, message: Message) -> bool:
        """Send a control message; to a client with a limit only if there is room."""
        client = self.clients.get(name)
        if client is not None and client.ledger is not None:
            size = size_of(message)
            if client.ledger.room(self.now, control=True) < size:
                self.out.append(Drop("bandwidth limit", tag_of(type(message)), size, name))
                return False
            client.ledger.charge(self.now, size)
        self.out.append(Send(Client(name), message))
        return True

    def watch_channel(self, name: str) -> None:
        """Wake for a channel when its sender asks for it."""
        deadline = self.channels[name].sender.deadline()
        if deadline is not None:
            self.timers.sooner(("channel", name), max(deadline, self.now + 1))

    def take(self, use: ChannelUse, effects: list[Effect]) -> None:
        """Let a sender's synchronisations and heals leave, if everyone who hears them has room."""
        if use.muted:
            return
        for effect in effects:
            if isinstance(effect, SnapshotWanted):
                # Whoever is that far behind refreshes its subscriptions instead.
                self.take(use, [*use.sender.receive(SnapshotTaken(b""), self.now)])
            elif isinstance(effect, Send):
                self.send(effect.to.name, effect.message)
            elif isinstance(effect, Multicast):
                stream = use.stream
                if stream is not None and stream.limited:
                    size = size_of(effect.message)
                    if not stream.allows(effect.group, size, self.now):
                        tag = tag_of(type(effect.message))
                        self.out.append(Drop("bandwidth limit", tag, size, "", effect.group))
                        continue
                self.out.append(effect)
