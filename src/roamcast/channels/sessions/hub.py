"""The hub: what each open session is sent, and when. The last hop, in the broker's own process.

Sessions that subscribe to the same filter and may see the same share each frame. What changes while
a frame may not leave yet is coalesced to the latest state of each context. A session that is slow,
has a bandwidth limit or has just subscribed is served alone, from a queue of its own with one entry
for each context, so it lags without slowing anybody else; one that lags too far is cut off, with
the reason (decision 0076). An update is a CloudEvent with GeoJSON data, encoded once for all; the
structs of `messages.py` define the frames.
"""

import enum
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

import msgspec

from roamcast.channels.server.messages import State
from roamcast.channels.server.queries import LocalUpdate
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.messages import (
    CloudEvent,
    CurrentComplete,
    EventType,
    Subscribed,
)
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.spread.streams import Ledger
from roamcast.errors import InputError, LimitError, NotFoundError, RoamcastError
from roamcast.model.contexts import Context, context_of, encode
from roamcast.model.events import Acknowledged, Failed, MapTouched, SessionClosed
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.time import EPOCH, MICROSECOND

Format = Literal["json", "sse"]

FEATURES_MAX: Final = 65_536
"""Features remembered by their bytes; beyond it all are forgotten."""

EVENTS_MAX: Final = 4_096
_encode = msgspec.json.Encoder().encode

# The encoder goes by an object's own type, so bytes that are JSON already may stand for the Feature
# that a struct declares: it is encoded once, however many frames carry it.
_raw: Any = msgspec.Raw

K = TypeVar("K")
Key = tuple[str, int, Format]
"""(view class, query number, format): who shares frames."""

SESSION_OVER: Final = "this session is over: connect again"

EVERYWHERE: Final = 2**40
"""Added to the number of a query whose contexts may be on any node's map."""


class EventKind(enum.StrEnum):
    """What an update means for a watch."""

    APPEARED = "appeared"
    CHANGED = "changed"
    LEFT = "left"


_MERGED: Final[dict[tuple[EventKind, EventKind], EventKind | None]] = {
    (EventKind.APPEARED, EventKind.CHANGED): EventKind.APPEARED,
    (EventKind.APPEARED, EventKind.LEFT): None,  # it came and went unseen
    (EventKind.CHANGED, EventKind.CHANGED): EventKind.CHANGED,
    (EventKind.CHANGED, EventKind.LEFT): EventKind.LEFT,
    (EventKind.LEFT, EventKind.APPEARED): EventKind.CHANGED,
}

_TYPES: Final[dict[EventKind, EventType]] = {
    EventKind.APPEARED: "org.roamcast.context.appeared",
    EventKind.CHANGED: "org.roamcast.context.changed",
    EventKind.LEFT: "org.roamcast.context.left",
}


class ContextEvent(msgspec.Struct, frozen=True, gc=False):
    """What happened to an object, and its state afterwards."""

    kind: EventKind
    state: State
    at_us: int
    context: Context | None = None
    """The state decoded, where it is at hand."""


def merged(earlier: ContextEvent | None, later: ContextEvent) -> ContextEvent | None:
    """Give the one event that says what two said; None: together they say nothing."""
    if earlier is None:
        return later
    kind = _MERGED.get((earlier.kind, later.kind), later.kind)
    return None if kind is None else ContextEvent(kind, later.state, later.at_us, later.context)


class EventWriter:
    """Encodes objects and events; what many sessions read is encoded once."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._features: dict[bytes, bytes] = {}
        self._events: dict[tuple[EventKind, int, str, bytes], bytes] = {}

    def feature(self, body: bytes, context: Context | None = None) -> bytes:
        """Give a context as a GeoJSON Feature; it is decoded only if it is not at hand."""
        known = self._features.get(body)
        if known is None:
            if len(self._features) >= FEATURES_MAX:
                self._features.clear()
            known = self._features[body] = encode(context or context_of(body))
        return known

    def event(self, event: ContextEvent) -> bytes:
        """Give an event as a CloudEvent in JSON."""
        state = event.state
        # Classes number apart: one number may be that of several contexts (0090).
        key = (event.kind, state.number, state.vid, state.body)
        known = self._events.get(key)
        if known is None:
            if len(self._events) >= EVENTS_MAX:
                self._events.clear()
            left = event.kind is EventKind.LEFT
            made = CloudEvent(
                specversion="1.0",
                id=f"{self._epoch}-{state.number}",
                source="/collections/contexts",
                type=_TYPES[event.kind],
                subject=state.vid,
                time=EPOCH + event.at_us * MICROSECOND,
                datacontenttype="application/geo+json",
                data=None if left else _raw(self.feature(state.body, event.context)),
            )
            known = self._events[key] = _encode(made)
        return known

    def changes(self, form: Format, query: int, events: list[bytes], pending: int = 0) -> bytes:
        """Give the frame of several events of one query."""
        if form == "sse":
            return b"".join(b"event: change\ndata: " + event + b"\n\n" for event in events)
        # A `Changes`, joined by hand: a quarter of the encoder's time for 16 events, on the path of
        # every update. Tests compare the two.
        tail = b',"pending":%d}' % pending if pending else b"}"
        return b'{"type":"changes","query":%d,"events":[' % query + b",".join(events) + b"]" + tail

    def current(
        self,
        form: Format,
        *,
        about: str,
        query: int,
        count: int,
        states: list[tuple[State, Context | None]],
    ) -> bytes:
        """Give the reply to a subscription: how many objects match, and the first of them.

        The states come decoded, where that is at hand.
        """
        features = [_raw(self.feature(state.body, context)) for state, context in states]
        frame = _encode(Subscribed(about, query, count, features))
        return b"event: current\ndata: " + frame + b"\n\n" if form == "sse" else frame

    def complete(self, form: Format, query: int) -> bytes:
        """Give the frame that ends a current set."""
        frame = _encode(CurrentComplete(query))
        return b"event: complete\ndata: " + frame + b"\n\n" if form == "sse" else frame


class Frame(Effect, frozen=True, gc=False):
    """Write these bytes to each of these sessions; `events` says how many updates are in them.

    of_map: they are changes of contexts on the map, not published events.
    """

    sessions: tuple[str, ...]
    data: bytes
    form: Format
    events: int = 0
    of_map: bool = True


class CutOff(Effect, frozen=True, gc=False):
    """Close a session, and say why."""

    session: str
    reason: str


class SubscribeSession(Input, frozen=True):
    """Place a session's subscription under a name; the same name again replaces it.

    `everywhere`: also what is on other nodes' maps, where this broker has neighbours.
    """

    ticket: int
    session: str
    subscription: str
    filter: Filter
    everywhere: bool = False


class SubscribeSessionMany(Input, frozen=True):
    """Place some subscriptions of a session, each as if alone; answered by `SubscribedMany`."""

    ticket: int
    session: str
    filters: tuple[tuple[str, Filter], ...]
    """By their names."""
    everywhere: bool = False


class SubscribedMany(Effect, frozen=True):
    """Subscriptions are placed, but for those that were refused; the frames that answer them."""

    ticket: int
    frames: tuple[bytes, ...]
    refused: tuple[tuple[str, RoamcastError], ...]


class UnsubscribeSession(Input, frozen=True):
    """End a session's subscription."""

    ticket: int
    session: str
    subscription: str


class LimitSession(Input, frozen=True):
    """Hold a session to this many bytes in any second; 0 lifts the limit."""

    ticket: int
    session: str
    limit_bytes: int


class SessionSlow(Input, frozen=True):
    """A session's connection takes no more for now."""

    session: str


class SessionDrained(Input, frozen=True):
    """A session's connection takes more again."""

    session: str


class RemoteUpdate(Effect, frozen=True, gc=False):
    """Another node's context has changed: the filters that it matched before, and does now."""

    state: State
    before: frozenset[str]
    after: frozenset[str]
    context: Context | None = None


class RemoteStates(Protocol):
    """The maps of other nodes (`overlay/states`)."""

    def watch(self, wanted: Filter) -> None:
        """Want what a filter matches of every node, from now on."""

    def leave(self, wanted: Filter) -> None:
        """Want it no longer, for one of those who did."""

    def current(self, wanted: Filter) -> list[State]:
        """Give what is known to match, by vid."""
        ...

    def state(self, wanted: str, vid: str) -> tuple[State, Context] | None:
        """Give one context, if it matches."""
        ...


class _QueryTimer(msgspec.Struct, frozen=True):
    """The next frame of a query may leave."""

    key: Key


class _BranchTimer(msgspec.Struct, frozen=True):
    """The next frame of a query may leave to a session that others have parted from."""

    key: Key
    session: str


class _AloneTimer(msgspec.Struct, frozen=True):
    """A session that is served alone may be sent more."""

    session: str


class _SlowTimer(msgspec.Struct, frozen=True):
    """A session has taken nothing for too long."""

    session: str


class Branch(msgspec.Struct):
    """What waits of a query for one session, and until when, where others wait for something else.

    An update that was for some of a query's sessions alone has parted it from the others (0320).
    """

    events: dict[str, ContextEvent]
    ready_us: int


_HubTimer = _QueryTimer | _BranchTimer | _AloneTimer | _SlowTimer


class SharedQuery(msgspec.Struct):
    """A query and the sessions that subscribe to it: those that share frames, and the others."""

    key: Key
    shared: dict[str, None]
    alone: dict[str, None]
    events: dict[str, ContextEvent]
    ready_us: int = 0
    listed: tuple[str, ...] | None = None
    """The shared sessions as the frame names them; None when they have changed."""
    branches: dict[str, Branch] = {}
    """Sessions that will share frames again."""

    @property
    def members(self) -> int:
        """How many sessions subscribe to it."""
        return len(self.shared) + len(self.alone) + len(self.branches)


class Untold(msgspec.Struct):
    """What a session has not been told of a query's current set.

    States are looked up when their turn comes: what changes before that waits for it.
    """

    vids: dict[str, int]
    """The contexts still to be told → the number of the state to be told."""
    present: int
    """The number of the moment that the set is of."""
    at_us: int
    settled: int
    """States with later numbers are later than `vids` knows."""


class HubSession(msgspec.Struct):
    """One open session: its subscriptions by the names it gave them, and what it still lacks."""

    name: str
    view_class: str
    form: Format
    viewer: str
    """Its viewer among the view classes, by whose name rules may show it more or less."""
    subscriptions: dict[str, tuple[Key, Filter]]
    uses: dict[Key, int]
    queue: dict[tuple[Key, str], ContextEvent]
    to_complete: dict[Key, Untold]
    """Queries whose current set is not wholly sent."""
    apart: dict[Key, None]
    """Queries whose frames it does not share now."""
    slow_since: int | None = None
    ledger: Ledger | None = None
    ready_us: int = 0
    """Until then others have their turn."""

    @property
    def alone(self) -> bool:
        """Whether it can not share frames now."""
        waits = bool(self.queue or self.to_complete)
        return waits or self.slow_since is not None or self.ledger is not None


class _Shown(msgspec.Struct):
    """How frames call the queries of one filter: the same in all view classes (0090)."""

    number: int
    keys: int = 0


class Hub(Part):
    """All sessions of one broker."""

    part: ClassVar[str] = "sessions"
    inputs: ClassVar = (
        SubscribeSession,
        SubscribeSessionMany,
        UnsubscribeSession,
        LimitSession,
        SessionSlow,
        SessionDrained,
        LocalUpdate,
        RemoteUpdate,
    )

    def __init__(self, local: LocalQueries, settings: HubSettings, epoch: int) -> None:
        self.sessions: dict[str, HubSession] = {}
        self.queries: dict[Key, SharedQuery] = {}
        self._by_number: dict[tuple[str, int], list[SharedQuery]] = {}
        """View classes and numbers at this node's map → the queries that these are, by form."""
        self.writer = EventWriter(epoch)
        self.settings = settings
        self.coalesced = 0
        self.remote: RemoteStates | None = None
        """Other nodes' maps; None where there are none."""
        self._everywhere: dict[str, dict[Key, None]] = {}
        """Filters that are watched on every node's map → the queries of each."""
        self._local = local
        self._viewers: dict[str, dict[str, None]] = {}
        """Viewers with a name → their sessions."""
        self._ledgers: dict[str, Ledger] = {}
        """Ledgers of sessions with a limit, open or lately closed."""
        self.timers: Timers[_HubTimer] = Timers()
        self._out: list[Effect] = []
        self._shown: dict[Key, str] = {}
        """Queries in use → the text of their filter, by which frames number them."""
        self._texts: dict[str, _Shown] = {}
        self._last_shown = 0
        self._touched = False
        """Whether queries were placed or dropped that the map has not been told of."""

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self.settings
        sessions = self.sessions.values()
        placed = max((len(one.subscriptions) for one in sessions), default=0)
        used = sum(len(one.uses) for one in sessions)
        return {
            "sessions": (len(self.sessions), settings.sessions_max),
            "subscriptions of a session": (placed, settings.subscriptions_per_session_max),
            "ledgers": (len(self._ledgers), settings.sessions_max),
            "numbered queries": (len(self._shown), len(self.queries)),
            "queries by number": (len(self._by_number), len(self.queries)),
            "numbered filters": (len(self._texts), len(self._shown)),
            "queries": (len(self.queries), sum(len(one.subscriptions) for one in sessions)),
            "queries served apart": (sum(len(one.apart) for one in sessions), used),
            "sets to complete": (sum(len(one.to_complete) for one in sessions), used),
            "branches": (sum(len(one.branches) for one in self.queries.values()), used),
            "viewers with a name": (len(self._viewers), len(self.sessions)),
        }

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a session's wish, the state of its connection, or an update of the map."""
        if type(given) is not LocalUpdate:  # that comes from a map that knows the time
            self._local.at(now)
        match given:
            case LocalUpdate():
                self._update(given, now)
            case RemoteUpdate():
                self._remote_update(given, now)
            case SessionSlow(session):
                self._slow(session, now)
            case SessionDrained(session):
                self._drained(session, now)
            case SubscribeSession() | UnsubscribeSession() | LimitSession():
                try:
                    self._ask(given, now)
                except RoamcastError as error:
                    return [*self._done(), Failed(given.ticket, error)]
                return [*self._done(), Acknowledged(given.ticket)]
            case SubscribeSessionMany():
                return self._subscribe_many(given, now)
            case _:
                raise AssertionError(f"the hub takes no {type(given).__name__}")
        return self._done()

    def _subscribe_many(self, given: SubscribeSessionMany, now: int) -> list[Effect]:
        refused: list[tuple[str, RoamcastError]] = []
        everywhere = given.everywhere and self.remote is not None
        for about, wanted in given.filters:
            try:
                if given.session not in self.sessions:
                    raise NotFoundError(SESSION_OVER)
                self._subscribe(given.session, about, wanted, everywhere, now)
            except RoamcastError as error:
                refused.append((about, error))
        # Frames of shared queries come first, as each did before the answer of its own query.
        frames: list[bytes] = []
        others: list[Effect] = []
        for effect in self._done():
            if type(effect) is Frame and not effect.events:
                frames.append(effect.data)
            else:
                others.append(effect)
        return [*others, SubscribedMany(given.ticket, tuple(frames), tuple(refused))]

    def _ask(self, given: "SubscribeSession | UnsubscribeSession | LimitSession", now: int) -> None:
        if given.session not in self.sessions:
            raise NotFoundError(SESSION_OVER)
        if isinstance(given, SubscribeSession):
            everywhere = given.everywhere and self.remote is not None
            self._subscribe(given.session, given.subscription, given.filter, everywhere, now)
        elif isinstance(given, UnsubscribeSession):
            self._unsubscribe(given.session, given.subscription)
        else:
            self._limit(given.session, given.limit_bytes, now)

    def check_room(self) -> None:
        """Refuse one session more than there may be."""
        if len(self.sessions) >= self.settings.sessions_max:
            raise LimitError(f"the service holds at most {self.settings.sessions_max} sessions")

    def open(self, name: str, view_class: str, form: Format = "json", *, viewer: str = "") -> None:
        """Begin a session; `viewer` is its viewer among the view classes, if they have a name."""
        assert name not in self.sessions
        self.sessions[name] = HubSession(name, view_class, form, viewer, {}, {}, {}, {}, {})
        if viewer:
            self._viewers.setdefault(viewer, {})[name] = None

    def close(self, name: str) -> list[Effect]:
        """End a session."""
        self._end(name)
        return self._done()

    def _end(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is None:
            return
        for key in session.uses:
            self._touched = True
            self._leave(session.name, key)
        for key, wanted in session.subscriptions.values():
            self._drop(key, wanted, session.viewer)
            self._local.standing.give_back(name, wanted)
        if session.viewer:
            del self._viewers[session.viewer][name]
            if not self._viewers[session.viewer]:
                del self._viewers[session.viewer]
        self.timers.cancel(_SlowTimer(name))
        self.timers.cancel(_AloneTimer(name))

    def _limit(self, name: str, limit_bytes: int, now: int) -> None:
        session = self.sessions[name]
        if limit_bytes == 0:
            session.ledger = None
        elif limit_bytes < self.settings.limit_bytes_min:
            raise LimitError(
                f"a bandwidth limit is at least {self.settings.limit_bytes_min} bytes a second"
            )
        else:
            session.ledger = self._ledger(name, limit_bytes, now)
        self._place_all(session, now)
        self._serve(session, now)

    def ledger_of(self, name: str) -> Ledger | None:
        """Give what was sent to a client with a limit, also after its session."""
        return self._ledgers.get(name)

    def _ledger(self, name: str, limit_bytes: int, now: int) -> Ledger:
        """Count on where an earlier session of the same name ended: the limit is the client's."""
        known = self._ledgers.get(name)
        if known is not None and known.limit_bytes == limit_bytes:
            return known
        if len(self._ledgers) >= self.settings.sessions_max:
            self._ledgers = {
                name: ledger for name, ledger in self._ledgers.items() if name in self.sessions
            }
        ledger = self._ledgers[name] = Ledger(limit_bytes, 0)
        if known is not None:
            ledger.charge(now, ledger.usable_bytes)  # what left within the last second
        return ledger

    def _subscribe(self, name: str, about: str, wanted: Filter, everywhere: bool, now: int) -> None:
        """Place a subscription: the reply has the current set, then every change follows."""
        session = self.sessions[name]
        if about in session.subscriptions:
            self._unsubscribe(name, about)
        most = self.settings.subscriptions_per_session_max
        if len(session.subscriptions) >= most:
            raise LimitError(
                f"a session has at most {most} subscriptions: end one, or join filters with OR"
            )
        self._local.standing.check(name, wanted)
        key = self._place(session, wanted, everywhere)
        self._local.standing.add(name, wanted)
        self._touched = True
        session.subscriptions[about] = key, wanted
        if key in session.uses:
            self._forget_waiting(session, key, now)
        vids = self._local.listing(key[0], key[1] % EVERYWHERE, session.viewer)
        shown = self._number(key, wanted)
        page = self.settings.page_features_max if session.ledger is None else 0
        states = [self._state(session, key, vid) for vid in vids[:page]]
        frame = self.writer.current(
            session.form,
            about=about,
            query=shown,
            count=len(vids),
            states=[
                (state, self._local.decoded(key[0], state, session.viewer))
                for state in states
                if state is not None
            ],
        )
        self._send(session, frame, now)
        if key not in session.uses:
            session.uses[key] = 0
        session.uses[key] += 1
        rest = vids[page:]
        if rest:
            # Numbered by now: the states' own numbers say when this class was opened (0098).
            present = self._local.as_of(session.view_class)
            listing = Untold(dict.fromkeys(rest, present), present, now, present)
            session.to_complete[key] = listing
            session.ready_us = now + self._cost_us(len(states))
        else:
            self._send(session, self.writer.complete(session.form, shown), now)
        if everywhere and self.remote is not None:
            own = set(vids)
            for state in self.remote.current(wanted):  # what is known of other nodes' maps
                if state.vid not in own:
                    event = ContextEvent(EventKind.APPEARED, state, now)
                    session.queue[key, state.vid] = event
        self._join(session, key, now)
        self._serve(session, now)

    def _unsubscribe(self, name: str, about: str) -> None:
        session = self.sessions[name]
        known = session.subscriptions.pop(about, None)
        if known is None:
            raise InputError(f"there is no subscription {about!r} to end")
        key = known[0]
        self._drop(key, known[1], session.viewer)
        self._local.standing.give_back(name, known[1])
        self._touched = True
        session.uses[key] -= 1
        if not session.uses[key]:
            del session.uses[key]
            session.apart.pop(key, None)
            self._leave(name, key)
            session.to_complete.pop(key, None)
            for entry in [one for one in session.queue if one[0] == key]:
                del session.queue[entry]

    def _place(self, session: HubSession, wanted: Filter, everywhere: bool) -> Key:
        """Place a query at this node's map, and want it of others if it is for everywhere."""
        view_class, viewer = session.view_class, session.viewer
        number = self._local.place(view_class, wanted, viewer)
        if not everywhere:
            return view_class, number, session.form
        key = (view_class, number + EVERYWHERE, session.form)
        assert self.remote is not None
        try:
            self.remote.watch(wanted)
        except LimitError:
            self._local.drop(view_class, number, viewer)
            raise
        self._everywhere.setdefault(wanted.text, {})[key] = None
        return key

    def _drop(self, key: Key, wanted: Filter, viewer: str) -> None:
        """End a query that was placed; one that was placed several times has others left."""
        self._local.drop(key[0], key[1] % EVERYWHERE, viewer)
        if key[1] >= EVERYWHERE:
            assert self.remote is not None
            self.remote.leave(wanted)

    def _state(self, session: HubSession, key: Key, vid: str) -> State | None:
        """Give one context's state if it satisfies a query now, here or on another node's map."""
        state = self._local.state(key[0], key[1] % EVERYWHERE, vid, session.viewer)
        if state is None and key[1] >= EVERYWHERE:
            assert self.remote is not None
            found = self.remote.state(self._shown[key].removeprefix("everywhere "), vid)
            state = None if found is None else found[0]
        return state

    def _number(self, key: Key, wanted: Filter | None = None) -> int:
        """Give the number of a query in frames; a query in use needs no filter."""
        text = self._shown.get(key)
        if text is None:
            assert wanted is not None
            scope = "everywhere " if key[1] >= EVERYWHERE else ""
            text = self._shown[key] = scope + wanted.text
            if text not in self._texts:
                self._last_shown += 1
                self._texts[text] = _Shown(self._last_shown)
            self._texts[text].keys += 1
        return self._texts[text].number

    def _forget_number(self, key: Key) -> None:
        text = self._shown.pop(key)
        self._texts[text].keys -= 1
        if not self._texts[text].keys:
            del self._texts[text]
        if key[1] >= EVERYWHERE:
            filters = text.removeprefix("everywhere ")
            del self._everywhere[filters][key]
            if not self._everywhere[filters]:
                del self._everywhere[filters]

    def _update(self, update: LocalUpdate, now: int) -> None:
        """Take what an update means for the queries of this process."""
        before, after = set(update.before), set(update.after)
        for number in sorted(before | after):
            kind = EventKind.CHANGED
            if number not in before:
                kind = EventKind.APPEARED
            elif number not in after:
                kind = EventKind.LEFT
            event = ContextEvent(kind, update.state, now, update.context)
            for query in self._by_number.get((update.view_class, number), ()):
                beside = event
                if kind is not EventKind.CHANGED and query.key[1] >= EVERYWHERE:
                    beside = self._beside_remote(query.key, event)
                self._take(query, beside, now, update.only, update.without)

    def _beside_remote(self, key: Key, event: ContextEvent) -> ContextEvent:
        """Give what it means that a vid comes or goes here where another node shows it, too."""
        assert self.remote is not None
        text = self._shown[key].removeprefix("everywhere ")
        found = self.remote.state(text, event.state.vid)
        if found is None:
            return event
        if event.kind is EventKind.APPEARED:
            return ContextEvent(EventKind.CHANGED, event.state, event.at_us, event.context)
        return ContextEvent(EventKind.CHANGED, found[0], event.at_us, found[1])

    def _remote_update(self, update: RemoteUpdate, now: int) -> None:
        """Take what another node's update means for queries that are for everywhere."""
        vid = update.state.vid
        for text in sorted(update.before | update.after):
            kind = EventKind.CHANGED
            if text not in update.before:
                kind = EventKind.APPEARED
            elif text not in update.after:
                kind = EventKind.LEFT
            event = ContextEvent(kind, update.state, now, update.context)
            for key in list(self._everywhere.get(text, ())):
                query, number = self.queries[key], key[1] % EVERYWHERE
                apart = self._local.apart(key[0], vid)
                if self._local.state(key[0], number, vid) is None:
                    self._take(query, event, now, without=frozenset(apart))
                for viewer in apart:
                    if self._local.state(key[0], number, vid, viewer) is None:
                        self._take(query, event, now, viewer)

    def _slow(self, name: str, now: int) -> None:
        session = self.sessions.get(name)
        if session is not None and session.slow_since is None:
            session.slow_since = now
            self._place_all(session, now)
            self.timers.set(_SlowTimer(name), now + self.settings.slow_us_max)

    def _drained(self, name: str, now: int) -> None:
        session = self.sessions.get(name)
        if session is not None and session.slow_since is not None:
            session.slow_since = None
            self.timers.cancel(_SlowTimer(name))
            self._serve(session, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Send what has waited, cut off who has been slow for too long."""
        while (due := self.timers.deadline()) is not None and due <= now:
            # Not in the order of their setting, which may tell of updates that are hidden (0320).
            for timer in sorted(self.timers.due(due), key=self._turn):
                self._fire(timer, now)
        return self._done()

    def _turn(self, timer: _HubTimer) -> tuple[int, str]:
        """Say where a timer stands among those of the same moment."""
        if isinstance(timer, _QueryTimer | _BranchTimer):
            known = timer.key in self._shown
            return (self._number(timer.key) if known else 0), getattr(timer, "session", "")
        return self._last_shown + 1, timer.session

    def _fire(self, timer: _HubTimer, now: int) -> None:
        match timer:
            case _QueryTimer(key):
                if (query := self.queries.get(key)) is not None:
                    self._flush(query, now)
            case _BranchTimer(key, name):
                if (query := self.queries.get(key)) is not None and name in query.branches:
                    self._flush_branch(query, name, now)
            case _AloneTimer(name):
                if (session := self.sessions.get(name)) is not None:
                    self._serve(session, now)
            case _SlowTimer(name):
                if name in self.sessions:
                    seconds = self.settings.slow_us_max // 1_000_000
                    self._cut(name, f"too slow: nothing was taken for {seconds} s")

    def _done(self) -> list[Effect]:
        out, self._out = self._out, []
        if self._touched:  # a query came or went: what that means for its channels leaves now
            self._touched = False
            out.append(MapTouched())
        return out

    def _take(
        self,
        query: SharedQuery,
        event: ContextEvent,
        now: int,
        only: str = "",
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Take an event of a query, for one viewer's sessions only or without some viewers'."""
        if query.branches:
            self._rejoin(query, now)
        vid, shares = event.state.vid, bool(query.shared)
        if shares and (only or without):
            shares = self._part(query, only, without)
        if shares:
            _merge(query.events, vid, event)
            if now >= query.ready_us:
                self._flush(query, now)
            else:
                self.timers.sooner(_QueryTimer(query.key), query.ready_us)
        for name, branch in list(query.branches.items()):
            if self._concerns(name, only, without):
                _merge(branch.events, vid, event)
                if now >= branch.ready_us:
                    self._flush_branch(query, name, now)
                else:
                    self.timers.sooner(_BranchTimer(query.key, name), branch.ready_us)
        for name in list(query.alone):
            if self._concerns(name, only, without):
                self._take_alone(self.sessions[name], query.key, event, now)

    def _take_alone(self, session: HubSession, key: Key, event: ContextEvent, now: int) -> None:
        """Take an event for a session that is served alone."""
        vid = event.state.vid
        listing = session.to_complete.get(key)
        if listing is not None and vid in listing.vids:  # it is told in its turn
            self.coalesced += 1
            if event.kind is EventKind.LEFT:
                self._completed(session, key, [vid], now)
            self._serve_soon(session, now)
            return
        if (key, vid) in session.queue:
            self.coalesced += 1
        _merge(session.queue, (key, vid), event)
        most = self.settings.queue_events_max
        if len(session.queue) > most:
            self._cut(session.name, f"too slow: more than {most} changes wait")
        else:
            self._serve_soon(session, now)

    def _concerns(self, name: str, only: str, without: frozenset[str]) -> bool:
        """Whether an event that is for some viewers is for a session."""
        viewer = self.sessions[name].viewer
        return viewer == only if only else viewer not in without

    def _part(self, query: SharedQuery, only: str, without: frozenset[str]) -> bool:
        """Part the sessions that share frames by an event that is for some of them.

        Say whether it is for those that still share.
        """
        some = [only] if only else sorted(without)
        sessions = [name for viewer in some for name in self._viewers.get(viewer, ())]
        parted = [name for name in sessions if name in query.shared]
        if len(parted) == len(query.shared):
            return bool(only)
        for name in parted:
            del query.shared[name]
            query.listed = None
            query.branches[name] = Branch(dict(query.events), query.ready_us)
            if query.events:
                self.timers.set(_BranchTimer(query.key, name), query.ready_us)
        return not only

    def _rejoin(self, query: SharedQuery, now: int) -> None:
        """Let branches share frames again that wait for nothing, for as long as the others do."""
        if query.events:
            return
        for name, branch in list(query.branches.items()):
            if not branch.events and max(now, branch.ready_us) == max(now, query.ready_us):
                del query.branches[name]
                query.shared[name] = None
                query.listed = None

    @staticmethod
    def _listing(session: HubSession) -> int:
        """How many contexts of current sets a session has not been told of."""
        return sum(len(one.vids) for one in session.to_complete.values())

    def _flush(self, query: SharedQuery, now: int) -> None:
        """Let the frame of everything that waits leave to all who share it."""
        if query.events:
            if query.listed is None:
                query.listed = tuple(query.shared)
            self._write(query, query.listed, query.events)
            query.events.clear()
            query.ready_us = self._next_turn(query, now)

    def _flush_branch(self, query: SharedQuery, name: str, now: int) -> None:
        """Let what waits for one session leave, at the pace of all."""
        branch = query.branches[name]
        if branch.events:
            self._write(query, (name,), branch.events)
            branch.events.clear()
            branch.ready_us = self._next_turn(query, now)

    def _next_turn(self, query: SharedQuery, now: int) -> int:
        """Say when the next frame of a query may leave.

        At moments that all of its sessions have in common, so that who was told something else
        falls into step with the others again, and at no time that tells of it (0320).
        """
        period = self.settings.frame_cost_us * query.members
        return (now // period + 1) * period if period else now

    def _write(
        self, query: SharedQuery, sessions: tuple[str, ...], due: dict[str, ContextEvent]
    ) -> None:
        events = [self.writer.event(event) for event in due.values()]
        most, number = self.settings.frame_events_max, self._number(query.key)
        for start in range(0, len(events), most):
            part = events[start : start + most]
            frame = self.writer.changes(query.key[2], number, part)
            self._out.append(Frame(sessions, frame, query.key[2], len(part)))

    def _serve_soon(self, session: HubSession, now: int) -> None:
        """Serve a session during an update: others of the same moment may be on their way.

        The map knows them already, so what a current set lists must not be looked up before.
        """
        if session.to_complete:
            self.timers.sooner(_AloneTimer(session.name), max(now, session.ready_us))
        else:
            self._serve(session, now)

    def _serve(self, session: HubSession, now: int) -> None:
        """Send a session that is served alone as much as it may have now."""
        sent = 0
        while (session.queue or session.to_complete) and session.slow_since is None:
            if sent >= self.settings.frame_events_max:
                session.ready_us = now + self._cost_us(sent)
            if now < session.ready_us:
                self.timers.sooner(_AloneTimer(session.name), session.ready_us)
                return
            # A limit could let changes take the place of the current set again and again.
            lists = not session.queue or (session.ledger is not None and session.to_complete)
            key = next(iter(session.to_complete)) if lists else next(iter(session.queue))[0]
            due = self._listed(session, key) if lists else self._queued(session, key)
            vids, events = self._fitting(session, due, now)
            if not vids:
                self._wait(session, now)
                return
            for vid in vids:
                if lists:
                    del session.to_complete[key].vids[vid]
                else:
                    del session.queue[key, vid]
            if events:
                limited = session.ledger is not None
                pending = len(session.queue) + self._listing(session) if limited else 0
                frame = self.writer.changes(session.form, self._number(key), events, pending)
                self._send(session, frame, now)
            sent += len(vids)
            self._completed(session, key, [], now)
        if not session.alone:
            self._place_all(session, now)

    def _fitting(
        self, session: HubSession, due: list[tuple[str, ContextEvent | None]], now: int
    ) -> tuple[list[str], list[bytes]]:
        """Give as much as a session's limit allows: the vids, and the events that say something."""
        vids: list[str] = []
        events: list[bytes] = []
        room = None if session.ledger is None else session.ledger.room(now) - 128
        for vid, event in due:
            if event is not None:
                text = self.writer.event(event)
                if room is not None:
                    room -= len(text) + 32
                    if room < 0:
                        break
                events.append(text)
            vids.append(vid)
        return vids, events

    def _cost_us(self, events: int) -> int:
        return self.settings.event_cost_us * events

    def _queued(self, session: HubSession, key: Key) -> list[tuple[str, ContextEvent | None]]:
        """Give the next changes that wait for a session, all of one query."""
        waiting = islice(session.queue.items(), self.settings.frame_events_max)
        of_query = takewhile(lambda entry: entry[0][0] == key, waiting)
        return [(vid, event) for (_, vid), event in of_query]

    def _listed(self, session: HubSession, key: Key) -> list[tuple[str, ContextEvent | None]]:
        """Give the next of a current set as they are now, None for what is gone."""
        listing = session.to_complete[key]
        due: list[tuple[str, ContextEvent | None]] = []
        for vid, number in islice(listing.vids.items(), self.settings.frame_events_max):
            state = self._state(session, key, vid)
            if state is None:
                due.append((vid, None))
                continue
            if state.number > listing.settled:
                number = state.number
            at_us = listing.at_us
            if number > listing.present:
                at_us = self._local.time_of(number)
            listed = State(number, vid, state.body)
            context = self._local.decoded(key[0], state, session.viewer)
            due.append((vid, ContextEvent(EventKind.APPEARED, listed, at_us, context)))
        return due

    def _wait(self, session: HubSession, now: int) -> None:
        """A limit allows no more for now: come again when the oldest bytes no longer count."""
        assert session.ledger is not None
        freed = session.ledger.freed_at()
        self.timers.sooner(_AloneTimer(session.name), now + 1_000_000 if freed is None else freed)

    def _completed(self, session: HubSession, key: Key, vids: list[str], now: int) -> None:
        """Count objects as told, and say so when the whole current set is."""
        left = session.to_complete.get(key)
        if left is None:
            return
        for vid in vids:
            left.vids.pop(vid, None)
        if not left.vids:
            del session.to_complete[key]
            self._send(session, self.writer.complete(session.form, self._number(key)), now)

    def _send(self, session: HubSession, frame: bytes, now: int) -> None:
        if session.ledger is not None:
            session.ledger.charge(now, len(frame))
        self._out.append(Frame((session.name,), frame, session.form))

    def _place_all(self, session: HubSession, now: int) -> None:
        """Let a session share what it can, or nothing; only queries for which that changes."""
        if session.alone:
            keys = [key for key in session.uses if key not in session.apart]
        else:
            keys = list(session.apart)
        for key in keys:
            self._join(session, key, now)

    def _join(self, session: HubSession, key: Key, now: int) -> None:
        """Let a session share a query's frames if it can, else serve it alone.

        One that shared and now can not keeps what waits in the common frame; one that could share
        while the others wait gets its own frames until it is in step with them.
        """
        query = self.queries.get(key)
        if query is None:
            query = self.queries[key] = SharedQuery(key, {}, {}, {}, branches={})
            same = self._by_number.setdefault((key[0], key[1] % EVERYWHERE), [])
            same.append(query)
            same.sort(key=lambda one: (one.key[2], one.key[1]))
        name = session.name
        if session.alone:
            waiting: dict[str, ContextEvent] = {}
            if name in query.branches:
                waiting = self._end_branch(query, name).events
            elif name in query.shared:
                del query.shared[name]
                query.listed = None
                waiting = query.events
            for vid, event in waiting.items():
                _merge(session.queue, (key, vid), event)
            if not query.shared:
                query.events.clear()
            query.alone[name] = None
            session.apart[key] = None
        elif name not in query.shared and name not in query.branches:
            query.alone.pop(name, None)
            session.apart.pop(key, None)
            if query.events or (query.shared and now < query.ready_us):
                query.branches[name] = Branch({}, now)
            else:
                query.ready_us = min(query.ready_us, now)
                query.shared[name] = None
                query.listed = None

    def _forget_waiting(self, session: HubSession, key: Key, now: int) -> None:
        """A current set supersedes what still waits for a session that has the query already."""
        session.to_complete.pop(key, None)
        for entry in [one for one in session.queue if one[0] == key]:
            del session.queue[entry]
        query = self.queries.get(key)
        if query is not None and session.name in query.shared:
            self._flush(query, now)
        if query is not None and session.name in query.branches:
            self._flush_branch(query, session.name, now)

    def _end_branch(self, query: SharedQuery, name: str) -> Branch:
        self.timers.cancel(_BranchTimer(query.key, name))
        return query.branches.pop(name)

    def _leave(self, name: str, key: Key) -> None:
        query = self.queries.get(key)
        if query is None:
            return
        query.alone.pop(name, None)
        if name in query.branches:
            self._end_branch(query, name)
        if name in query.shared:
            del query.shared[name]
            query.listed = None
        if not query.shared:
            query.events.clear()
            if not query.alone and not query.branches:
                del self.queries[key]
                number = (key[0], key[1] % EVERYWHERE)
                self._by_number[number].remove(query)
                if not self._by_number[number]:
                    del self._by_number[number]
                self.timers.cancel(_QueryTimer(key))
                self._forget_number(key)

    def _cut(self, name: str, reason: str) -> None:
        self._end(name)
        self._out += [CutOff(name, reason), SessionClosed(name)]


def _merge(events: dict[K, ContextEvent], entry: K, later: ContextEvent) -> None:
    both = merged(events.get(entry), later)
    if both is None:
        del events[entry]
    else:
        events[entry] = both
