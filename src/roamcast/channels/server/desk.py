"""The state that all parts of a map server share: clients, channels, timers, outgoing effects.

Everything that leaves the server passes the `Desk`, so that no byte reaches a client with a
bandwidth limit uncounted (0064).
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import msgspec

from roamcast.channels.reliable.sender import ChannelSender, SnapshotTaken, SnapshotWanted
from roamcast.channels.server.messages import State, size_of
from roamcast.channels.server.outbox import Outbox, Pager, Waiting
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.spread.streams import Ledger, Stream
from roamcast.model.addresses import Client
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Multicast, Send
from roamcast.model.parts import Timer, TimerTable
from roamcast.model.records import Drop
from roamcast.model.wire import Message, tag_of

Form = Any
"""What decides how a context is seen, such as a rule; two classes may see it in one form."""


class OutboxDue(Timer, frozen=True):
    """A client's batch is to be repeated, or may leave now."""

    client: str


class ChannelDue(Timer, frozen=True):
    """A channel's sender has something to do."""

    channel: str


class Policy(Protocol):
    """Who may see what of a context; the broker answers from people's privacy rules."""

    def view_class(self, client: str) -> str:
        """Name the class of clients that may see the same of everything."""

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give the context as this class may see it, or None."""

    def forms(self, context: Context, now: int) -> Collection[Form]:
        """Give the forms in which somebody may see this context now (0096)."""

    def form_of(self, context: Context, view_class: str, now: int) -> Form:
        """Give the form in which a class may see this context now; None: it sees nothing."""

    def seen(self, context: Context, form: Form, now: int) -> Context | None:
        """Give the context in one of its forms."""

    def recorded(self, context: Context, now: int) -> Context | None:
        """Give what may stand in the journal: what everybody may see, now and later."""

    def changes_at(self, context: Context, now: int) -> int | None:
        """Give when the clock alone may next change what anybody sees of a context, or None."""

    def restricted(self) -> Collection[str] | None:
        """Name the contexts that some may see otherwise than they are; None: any may be."""

    def momentary(self, context: Context, view_class: str, now: int) -> bool:
        """Whether this class may not see since when a context lasts: its t_r is when one looked."""

    def open_to_all(self, vid: str) -> bool:
        """Whether every class sees all of a context, whenever it looks."""

    def names_of(self, vid: str, /) -> frozenset[str]:
        """Name the viewers who may see a context otherwise than their class (0320)."""

    def naming(self, viewer: str, /) -> Collection[str] | None:
        """Give the contexts of which a viewer is one of these; None: any may be."""

    def note(
        self, context: Context, owner: str, now: int, *, before: Context | None, since: int
    ) -> None:
        """Note a context on the map, or a change of it."""

    def forget(self, vid: str) -> None:
        """A context has left the map."""

    def may_take(self, client: str, owner: str) -> bool:
        """Whether a client may change what this owner publishes."""


NOBODY: Final[frozenset[str]] = frozenset()


class Public:
    """The policy under which everybody may see everything; one made of it may hide something."""

    hides: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.hides = True

    def view_class(self, client: str) -> str:
        """There is one class."""
        del client
        return ""

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Nothing is hidden."""
        del view_class, now
        return context

    def forms(self, context: Context, now: int) -> Collection[Form]:
        """There is one for each class."""
        del context, now
        return ("",)

    def form_of(self, context: Context, view_class: str, now: int) -> Form:
        """A class has a form of its own."""
        del context, now
        return view_class

    def seen(self, context: Context, form: Form, now: int) -> Context | None:
        """Give it as the class sees it."""
        return None if form is None else self.visible(context, form, now)

    def recorded(self, context: Context, now: int) -> Context | None:
        """All of it."""
        del now
        return context

    def changes_at(self, context: Context, now: int) -> int | None:
        """The clock hides nothing."""
        del context, now
        return None

    def restricted(self) -> Collection[str] | None:
        """No context is."""
        return ()

    def momentary(self, context: Context, view_class: str, now: int) -> bool:
        """Everybody may see since when."""
        del context, view_class, now
        return False

    def open_to_all(self, vid: str) -> bool:
        """Nothing is hidden."""
        del vid
        return not self.hides

    def names_of(self, vid: str, /) -> frozenset[str]:
        """Nobody sees anything otherwise."""
        del vid
        return NOBODY

    def naming(self, viewer: str, /) -> Collection[str] | None:
        """Likewise."""
        del viewer
        return ()

    def note(
        self, context: Context, owner: str, now: int, *, before: Context | None, since: int
    ) -> None:
        """Everybody sees everything."""
        del context, owner, now, before, since
        return

    def forget(self, vid: str) -> None:
        """There is nothing to forget."""
        del vid

    def may_take(self, client: str, owner: str) -> bool:
        """Everybody may: a simulated world has no thieves."""
        del client, owner
        return True


class Subscription(msgspec.Struct):
    """A client's standing filter, and the numbers of the queries it was taken apart into."""

    filter: Filter
    queries: tuple[int, ...]


class ClientState(msgspec.Struct):
    """One client's session."""

    name: str
    session: int
    view_class: str
    outbox: Outbox
    seen_us: int
    timer: OutboxDue
    ledger: Ledger | None = None
    remote: bool = False
    relay: bool = False
    last_operation: int = 0
    subscriptions: dict[str, Subscription] = {}
    publications: dict[str, None] = {}
    unconfirmed: dict[str, int | None] = {}
    """Published in an earlier session and not yet in this one → when its client was last heard of
    in that; None if another server knew."""


class ChannelUse(msgspec.Struct):
    """A channel in use: its sender, the stream it is a band of, whether it only lingers."""

    sender: ChannelSender
    view_class: str
    timer: ChannelDue
    stream: Stream | None = None
    lingers: bool = False
    muted: bool = False
    """It lingers, and clients with a limit whose ledgers are not known here may still listen."""


class Desk:
    """The shared state of one map server.

    `now` and `out` belong to the current input: the time it came with, and its effects so far.
    """

    def __init__(self, epoch: int, settings: MapSettings, *, journal: bool = True) -> None:
        self.epoch = epoch
        self.settings = settings
        self.journal = journal
        self.now = 0
        self.started = 0
        """When the server started: view classes number their updates by the time since then."""
        self.number = 0
        """How many updates there were, for the journal; no client is told (0090)."""
        self.clients: dict[str, ClientState] = {}
        """By the time of their last request: the longest silent first."""
        self.channels: dict[str, ChannelUse] = {}
        self.timers = TimerTable()
        self.too_slow: dict[str, None] = {}
        self.dirty: dict[str, None] = {}
        """Clients with something in their outbox since this input."""
        self.out: list[Effect] = []
        self.fresh: Callable[[str, State], State] = lambda _, state: state
        """(view class, a state that has waited) → the context's present state."""
        self.as_of: Callable[[str], int] = lambda _: 0
        """View class → its number for the present."""
        self.turn_page: Callable[[str, Pager, int, int], tuple[list[State], bool]] = lambda *_: (
            [],
            True,
        )
        self.timers.handle(OutboxDue, self._outbox_due)
        self.timers.handle(ChannelDue, self._channel_due)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each; of many clients the fullest."""
        settings = self.settings
        clients = self.clients.values()
        relayed = settings.relay_clients_max
        most = {True: settings.subscriptions_max * relayed, False: settings.subscriptions_max}
        ledgers = [client.ledger for client in clients if client.ledger is not None]
        return {
            "outbox": _fullest(
                [(len(client.outbox), client.outbox.items_max) for client in clients],
                settings.outbox_items_max,
            ),
            "pagers": _fullest(
                [(len(client.outbox.pagers), most[client.relay]) for client in clients],
                settings.subscriptions_max,
            ),
            "subscriptions": _fullest(
                [(len(client.subscriptions), most[client.relay]) for client in clients],
                settings.subscriptions_max,
            ),
            "publications": _fullest(
                [(len(client.publications), settings.publications_max) for client in clients],
                settings.publications_max,
            ),
            # A client publishes its bound anew while its last session's wait to be settled, and
            # contexts handed over may be among those.
            "unconfirmed": _fullest(
                [(len(client.unconfirmed), settings.contexts_max) for client in clients],
                settings.contexts_max,
            ),
            "ledger bytes": _fullest(
                [(ledger.spent_bytes, ledger.limit_bytes) for ledger in ledgers],
                settings.limit_bytes_min,
            ),
            # Between inputs nothing waits here.
            "effects": (len(self.out), 0),
            "dirty clients": (len(self.dirty), 0),
            "slow clients": (len(self.too_slow), 0),
        }

    def deliver(self, client: ClientState, item: Waiting, *, listing: str = "") -> None:
        """Queue an item for one client; it leaves with everything else of this input."""
        coalesced = client.outbox.coalesced
        if not client.outbox.add(item, listing) and client.subscriptions:
            self.too_slow[client.name] = None
        if self.journal and client.outbox.coalesced > coalesced:
            self.out.append(Drop("coalesced", "map.batch", 0, client.name))
        self.dirty[client.name] = None

    def poll(self, client: ClientState) -> None:
        """Let a client's next batch leave if it may."""
        outbox = client.outbox
        if outbox.waits(self.now):  # if a receipt may yet come, its timer is set
            return
        fresh = partial(self.fresh, client.view_class)
        turn = partial(self.turn_page, client.view_class)
        as_of = self.as_of(client.view_class)
        batch = outbox.poll(self.now, client.ledger, as_of, fresh, turn)
        if batch is not None:
            self.out.append(Send(Client(client.name), batch))
        if outbox.due is not None:
            self.timers.set(client.timer, outbox.due)

    def _outbox_due(self, timer: OutboxDue) -> None:
        self.poll(self.clients[timer.client])

    def flush(self) -> None:
        """Let the batches of this input leave."""
        while self.dirty:
            dirty, self.dirty = self.dirty, {}
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

    def watch_channel(self, use: ChannelUse) -> None:
        """Set the timer of a channel to its sender's deadline."""
        deadline = use.sender.deadline()
        if deadline is not None:
            self.timers.sooner(use.timer, max(deadline, self.now + 1))

    def _channel_due(self, timer: ChannelDue) -> None:
        use = self.channels[timer.channel]
        self.take(use, [*use.sender.advance(self.now)])
        self.watch_channel(use)

    def take(self, use: ChannelUse, effects: list[Effect]) -> None:
        """Let a sender's synchronisations and heals leave, if everyone who hears them has room."""
        if use.muted:
            return
        for effect in effects:
            if isinstance(effect, SnapshotWanted):
                # The snapshot is empty: a client that far behind refreshes its subscriptions,
                # because a channel carries only a part of what each of them shows.
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
            else:
                raise AssertionError(f"a channel's sender has no effect {effect!r}")


def _fullest(held: list[tuple[int, int]], bound: int) -> tuple[int, int]:
    """Give the pair of count and bound with the least room; none is held if the list is empty."""
    return min(held, key=lambda pair: pair[1] - pair[0], default=(0, bound))
