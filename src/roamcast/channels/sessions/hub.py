"""The hub: what each open session is sent, and when. The last hop, in the broker's own process.

Sessions that subscribe to the same filter and may see the same share each frame. What changes while
a frame may not leave yet is coalesced to the latest state of each context. An update is a
CloudEvent with GeoJSON data, encoded once for all; the structs of `messages.py` define the frames.
A session that was told something else than the others waits in a branch (`branches.py`). One that
is slow, has a bandwidth limit or has just subscribed is served alone (`alone.py`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.server.messages import State
from roamcast.channels.server.queries import LocalUpdate
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.alone import Alone
from roamcast.channels.sessions.branches import Branches
from roamcast.channels.sessions.changes import ContextEvent, EventKind, merge
from roamcast.channels.sessions.desk import (
    AloneTimer,
    Branch,
    BranchTimer,
    ExcessTimer,
    HubDesk,
    HubSession,
    HubTimer,
    Key,
    QueryTimer,
    SharedQuery,
    SlowTimer,
)
from roamcast.channels.sessions.events import (
    CutOff,
    Format,
    Frame,
    LimitSession,
    RemoteUpdate,
    SessionDrained,
    SessionSlow,
    SubscribedMany,
    SubscribeSession,
    SubscribeSessionMany,
    UnsubscribeSession,
)
from roamcast.channels.sessions.matches import Matches
from roamcast.channels.sessions.messages import (
    CloudEvent,
    CurrentComplete,
    EventType,
    Subscribed,
)
from roamcast.channels.sessions.placing import EVERYWHERE, Placing, number_at_map
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.spread.streams import Ledger
from roamcast.errors import InputError, LimitError, NotFoundError, RoamcastError
from roamcast.model.caching import ENTRY_BYTES
from roamcast.model.contexts import Context, context_of, encode
from roamcast.model.events import Acknowledged, Failed, MapTouched, SessionClosed
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.time import EPOCH, MICROSECOND

FEATURES_BYTES_MAX: Final = 64 << 20
"""Features remembered by their bytes; beyond it all are forgotten."""

EVENTS_BYTES_MAX: Final = 16 << 20
_encode = msgspec.json.Encoder().encode

# The encoder goes by an object's own type, so bytes that are JSON already may stand for the Feature
# that a struct declares: it is encoded once, however many frames carry it.
_raw: Any = msgspec.Raw

SESSION_OVER: Final = "this session is over: connect again"

_TYPES: Final[dict[EventKind, EventType]] = {
    EventKind.APPEARED: "org.roamcast.context.appeared",
    EventKind.CHANGED: "org.roamcast.context.changed",
    EventKind.LEFT: "org.roamcast.context.left",
}


class EventWriter:
    """Encodes objects and events; what many sessions read is encoded once."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._features: dict[bytes, bytes] = {}
        self._events: dict[tuple[EventKind, int, str, bytes], bytes] = {}
        self._features_bytes = self._events_bytes = 0

    def occupancy(self) -> Occupancy:
        """How much is remembered of what, and the bound of each."""
        return {
            "features": (len(self._features), FEATURES_BYTES_MAX // ENTRY_BYTES),
            "bytes of features": (self._features_bytes, FEATURES_BYTES_MAX),
            "events": (len(self._events), EVENTS_BYTES_MAX // ENTRY_BYTES),
            "bytes of events": (self._events_bytes, EVENTS_BYTES_MAX),
        }

    def feature(self, body: bytes, context: Context | None = None) -> bytes:
        """Give a context as a GeoJSON Feature; it is decoded only if it is not at hand."""
        known = self._features.get(body)
        if known is None:
            known = encode(context or context_of(body))
            size = len(body) + len(known) + ENTRY_BYTES
            if self._features_bytes + size > FEATURES_BYTES_MAX:
                self._features.clear()
                self._features_bytes = 0
            self._features[body] = known
            self._features_bytes += size
        return known

    def event(self, event: ContextEvent) -> bytes:
        """Give an event as a CloudEvent in JSON."""
        state = event.state
        # Classes number apart: one number may be that of several contexts (0090).
        key = (event.kind, state.number, state.vid, state.body)
        known = self._events.get(key)
        if known is None:
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
            known = _encode(made)
            size = len(state.body) + len(known) + ENTRY_BYTES
            if self._events_bytes + size > EVENTS_BYTES_MAX:
                self._events.clear()
                self._events_bytes = 0
            self._events[key] = known
            self._events_bytes += size
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
        self.writer = EventWriter(epoch)
        self.settings = settings
        self.placing = Placing(local)
        self._desk = HubDesk(settings, self.writer)
        self.sessions = self._desk.sessions
        self.queries = self._desk.queries
        self.timers: Timers[HubTimer] = self._desk.timers
        self._by_number: dict[tuple[str, int], list[SharedQuery]] = {}
        """View classes and numbers at this node's map → the queries that these are, by form."""
        self._local = local
        self._branches = Branches(self._desk, self._write)
        self._alone = Alone(self._desk, self.placing, self._place_all, self._cut)
        self._matches = Matches(self._desk, self._branches.part_with, self._cut)
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
            "queries by number": (len(self._by_number), len(self.queries)),
            "queries": (len(self.queries), sum(len(one.subscriptions) for one in sessions)),
            "branches": (sum(len(one.branches) for one in self.queries.values()), used),
            "viewers with a name": (len(self._desk.viewers), len(self.sessions)),
            **self.writer.occupancy(),
            **self.placing.occupancy(len(self.queries)),
            **self._alone.occupancy(used),
        }

    @property
    def coalesced(self) -> int:
        """How many changes were not sent, because a later one took their place."""
        return self._alone.coalesced

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a session's wish, the state of its connection, or an update of the map."""
        if type(given) is not LocalUpdate:  # that comes from a map that knows the time
            self._local.at(now)
        match given:
            case LocalUpdate():
                self._update(given, now)
            case RemoteUpdate():
                self._remote_update(given, now)
            case SessionSlow(name):
                if (session := self.sessions.get(name)) is not None:
                    self._alone.slow(session, now)
            case SessionDrained(name):
                if (session := self.sessions.get(name)) is not None:
                    self._alone.drained(session, now)
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
        everywhere = given.everywhere and self.placing.remote is not None
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
            everywhere = given.everywhere and self.placing.remote is not None
            self._subscribe(given.session, given.subscription, given.filter, everywhere, now)
        elif isinstance(given, UnsubscribeSession):
            self._unsubscribe(given.session, given.subscription)
        else:
            self._alone.limit(self.sessions[given.session], given.limit_bytes, now)

    def check_room(self) -> None:
        """Refuse one session more than there may be."""
        if len(self.sessions) >= self.settings.sessions_max:
            raise LimitError(f"the service holds at most {self.settings.sessions_max} sessions")

    def open(self, name: str, view_class: str, form: Format = "json", *, viewer: str = "") -> None:
        """Begin a session; `viewer` is its viewer among the view classes, if they have a name."""
        assert name not in self.sessions
        self.sessions[name] = HubSession(name, view_class, form, viewer, {}, {}, {}, {}, {})
        if viewer:
            self._desk.viewers.setdefault(viewer, {})[name] = None

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
            self.placing.drop(key, wanted, session.viewer)
            self._local.standing.give_back(name, wanted)
        if session.viewer:
            del self._desk.viewers[session.viewer][name]
            if not self._desk.viewers[session.viewer]:
                del self._desk.viewers[session.viewer]
        for timer in (SlowTimer(name), AloneTimer(name), ExcessTimer(name)):
            self.timers.cancel(timer)

    def ledger_of(self, name: str) -> Ledger | None:
        """Give what was sent to a client with a limit, also after its session."""
        return self._alone.ledgers.get(name)

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
        key = self.placing.place(session, wanted, everywhere)
        self._local.standing.add(name, wanted)
        self._touched = True
        session.subscriptions[about] = key, wanted
        if key in session.uses:
            self._forget_waiting(session, key, now)
        vids = self._local.listing(key[0], number_at_map(key), session.viewer)
        shown = self.placing.name(key, wanted)
        page = self.settings.page_features_max if session.ledger is None else 0
        states = [self.placing.state(session, key, vid) for vid in vids[:page]]
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
        self._desk.send(session, frame, now)
        if key not in session.uses:
            session.uses[key] = 0
        session.uses[key] += 1
        rest = vids[page:]
        if rest:
            self._alone.list_later(session, key, rest, len(states), now)
        else:
            self._desk.send(session, self.writer.complete(session.form, shown), now)
        if everywhere and self.placing.remote is not None:
            own = set(vids)
            for state in self.placing.remote.current(wanted):  # what is known of other nodes' maps
                if state.vid not in own:
                    event = ContextEvent(EventKind.APPEARED, state, now)
                    session.queue[key, state.vid] = event
        self._join(session, key, now)
        self._alone.serve(session, now)

    def _unsubscribe(self, name: str, about: str) -> None:
        session = self.sessions[name]
        known = session.subscriptions.pop(about, None)
        if known is None:
            raise InputError(f"there is no subscription {about!r} to end")
        key = known[0]
        self.placing.drop(key, known[1], session.viewer)
        self._local.standing.give_back(name, known[1])
        self._touched = True
        session.uses[key] -= 1
        if not session.uses[key]:
            del session.uses[key]
            session.apart.pop(key, None)
            self._leave(name, key)
            self._alone.forget(session, key)

    def _update(self, update: LocalUpdate, now: int) -> None:
        """Take what an update means for the queries of this process."""
        before, after = set(update.before), set(update.after)
        numbers = before | after
        if len(before) + len(after) > self.settings.matches_max:
            found = [self._by_number.get((update.view_class, one), ()) for one in numbers]
            queries = [*chain.from_iterable(found)]
            left = self._matches.hold(queries, now, update.only, update.without)
            if left is not queries:
                numbers = {number_at_map(query.key) for query in left}
        for number in sorted(numbers):
            kind = EventKind.CHANGED
            if number not in before:
                kind = EventKind.APPEARED
            elif number not in after:
                kind = EventKind.LEFT
            event = ContextEvent(kind, update.state, now, update.context)
            for query in self._by_number.get((update.view_class, number), ()):
                beside = event
                if kind is not EventKind.CHANGED and query.key[1] >= EVERYWHERE:
                    beside = self.placing.beside_remote(query.key, event)
                self._take(query, beside, now, update.only, update.without)

    def _remote_update(self, update: RemoteUpdate, now: int) -> None:
        """Take what another node's update means for queries that are for everywhere."""
        vid = update.state.vid
        if len(update.before) + len(update.after) > self.settings.matches_max:
            keys = [self.placing.watched(text) for text in update.before | update.after]
            self._matches.hold([self.queries[key] for key in chain.from_iterable(keys)], now)
        for text in sorted(update.before | update.after):
            kind = EventKind.CHANGED
            if text not in update.before:
                kind = EventKind.APPEARED
            elif text not in update.after:
                kind = EventKind.LEFT
            event = ContextEvent(kind, update.state, now, update.context)
            for key in self.placing.watched(text):
                query, number = self.queries[key], number_at_map(key)
                apart = self._local.apart(key[0], vid)
                if self._local.state(key[0], number, vid) is None:
                    self._take(query, event, now, without=frozenset(apart))
                for viewer in apart:
                    if self._local.state(key[0], number, vid, viewer) is None:
                        self._take(query, event, now, viewer)

    def advance(self, now: int) -> Sequence[Effect]:
        """Send what has waited, cut off who has been slow for too long."""
        while (due := self.timers.deadline()) is not None and due <= now:
            # Not in the order of their setting, which may tell of updates that are hidden (0320).
            for timer in sorted(self.timers.due(due), key=self._turn):
                self._fire(timer, now)
        return self._done()

    def _turn(self, timer: HubTimer) -> tuple[int, str]:
        """Say where a timer stands among those of the same moment."""
        if isinstance(timer, QueryTimer | BranchTimer):
            query = self.queries.get(timer.key)
            return (0 if query is None else query.number), getattr(timer, "session", "")
        return self.placing.last_number + 1, timer.session

    def _fire(self, timer: HubTimer, now: int) -> None:
        match timer:
            case QueryTimer(key):
                if (query := self.queries.get(key)) is not None:
                    self._flush(query, now)
            case BranchTimer(key, name):
                if (query := self.queries.get(key)) is not None and name in query.branches:
                    self._branches.flush(query, name, now)
            case AloneTimer(name):
                if (session := self.sessions.get(name)) is not None:
                    self._alone.serve(session, now)
            case SlowTimer(name):
                if name in self.sessions:
                    self._alone.slow_for_too_long(name)
            case ExcessTimer(name):
                if name in self.sessions:
                    self._matches.end(name)

    def _done(self) -> list[Effect]:
        out, self._desk.out = self._desk.out, []
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
        # Who is told alone parts again at once, so that its rejoining changes nothing.
        if query.branches and not only:
            self._branches.rejoin(query, now)
        shares = bool(query.shared)
        if shares and (only or without):
            shares = self._branches.part(query, only, without)
        if shares:
            vid = event.state.vid
            if vid in query.events:
                merge(query.events, vid, event)
            else:
                query.events[vid] = event
            if now >= query.ready_us:
                self._flush(query, now)
            else:
                self.timers.sooner(QueryTimer(query.key), query.ready_us)
        if query.branches:
            self._branches.take(query, event, now, only, without)
        if query.alone:
            for name in self._desk.concerned(query.alone, only, without):
                self._alone.take(self.sessions[name], query.key, event, now)

    def _flush(self, query: SharedQuery, now: int) -> None:
        """Let the frame of everything that waits leave to all who share it."""
        if query.events:
            if query.listed is None:
                query.listed = tuple(query.shared)
            query.ready_us = self._write(query, query.listed, query.events, now)

    def _next_turn(self, query: SharedQuery, now: int) -> int:
        """Say when the next frame of a query may leave.

        At moments that all of its sessions have in common, so that who was told something else
        falls into step with the others again, and at no time that tells of it (0320).
        """
        members = len(query.shared) + len(query.alone) + len(query.branches)
        if members == 1:  # whose other queries take turns, too
            name = next(chain(query.shared, query.alone, query.branches))
            members = len(self.sessions[name].uses)
        period = self.settings.frame_cost_us * members
        return (now // period + 1) * period if period else now

    def _write(
        self, query: SharedQuery, sessions: tuple[str, ...], due: dict[str, ContextEvent], now: int
    ) -> int:
        """Let what waits of a query leave to some sessions; give when the next of it may."""
        events = [self.writer.event(event) for event in due.values()]
        most, form = self.settings.frame_events_max, query.key[2]
        for start in range(0, len(events), most):
            part = events[start : start + most]
            frame = self.writer.changes(form, query.number, part)
            self._desk.out.append(Frame(sessions, frame, form, len(part)))
        due.clear()
        return self._next_turn(query, now)

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
            number = self.placing.number(key)
            query = self.queries[key] = SharedQuery(key, number, {}, {}, {}, branches={})
            same = self._by_number.setdefault((key[0], number_at_map(key)), [])
            same.append(query)
            same.sort(key=lambda one: (one.key[2], one.key[1]))
        name = session.name
        if session.alone:
            waiting: dict[str, ContextEvent] = {}
            if name in query.branches:
                waiting = self._branches.end(query, name).events
            elif name in query.shared:
                del query.shared[name]
                query.listed = None
                waiting = query.events
            for vid, event in waiting.items():
                merge(session.queue, (key, vid), event)
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
        self._alone.forget(session, key)
        query = self.queries.get(key)
        if query is not None and session.name in query.shared:
            self._flush(query, now)
        if query is not None and session.name in query.branches:
            self._branches.flush(query, session.name, now)

    def _leave(self, name: str, key: Key) -> None:
        query = self.queries.get(key)
        if query is None:
            return
        self._branches.part_with(name, query)
        if not query.shared and not query.alone and not query.branches:
            del self.queries[key]
            number = (key[0], number_at_map(key))
            self._by_number[number].remove(query)
            if not self._by_number[number]:
                del self._by_number[number]
            self.timers.cancel(QueryTimer(key))
            self.placing.forget(key)

    def _cut(self, name: str, reason: str) -> None:
        self._end(name)
        self._desk.out += [CutOff(name, reason), SessionClosed(name)]
