"""The hub: what each open session is sent, and when. The last hop, in the broker's own process.

Sessions that subscribe to the same filter and may see the same share each frame. What changes while
a frame may not leave yet is coalesced to the latest state of each context. A session that is slow,
has a bandwidth limit or has just subscribed is served alone, from a queue of its own with one entry
for each context, so it lags without slowing anybody else; one that lags too far is cut off, with
the reason (decision 0076).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from roamcast.channels.server.contexts import LocalUpdate
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.events import ContextEvent, Format, Kind, Writer, merged
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.spread.streams import Ledger
from roamcast.channels.timers import Timers
from roamcast.errors import InputError, LimitError, NotFoundError, RoamcastError
from roamcast.model.events import Acknowledged, Failed, MapTouched, SessionClosed
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.model.parts import Occupancy, Part

K = TypeVar("K")
Key = tuple[str, int, Format]
"""(view class, query number, format): who shares frames."""


class Frame(Effect, frozen=True, gc=False):
    """Write these bytes to each of these sessions; `events` says how many updates are in them."""

    sessions: tuple[str, ...]
    data: bytes
    form: Format
    events: int = 0


class CutOff(Effect, frozen=True, gc=False):
    """Close a session, and say why."""

    session: str
    reason: str


class SubscribeSession(Input, frozen=True):
    """Place a session's subscription under a name; the same name again replaces it."""

    ticket: int
    session: str
    subscription: str
    filter: Filter


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


class _QueryTimer(msgspec.Struct, frozen=True):
    """The next frame of a query may leave."""

    key: Key


class _AloneTimer(msgspec.Struct, frozen=True):
    """A session that is served alone may be sent more."""

    session: str


class _SlowTimer(msgspec.Struct, frozen=True):
    """A session has taken nothing for too long."""

    session: str


class SharedQuery(msgspec.Struct):
    """A query and the sessions that subscribe to it: those that share frames, and the others."""

    key: Key
    shared: dict[str, None]
    alone: dict[str, None]
    events: dict[str, ContextEvent]
    ready_us: int = 0
    listed: tuple[str, ...] | None = None
    """The shared sessions as the frame names them; None when they have changed."""


class HubSession(msgspec.Struct):
    """One open session: its subscriptions by the names it gave them, and what it still lacks."""

    name: str
    view_class: str
    form: Format
    subscriptions: dict[str, tuple[Key, Filter]]
    uses: dict[Key, int]
    queue: dict[tuple[Key, str], ContextEvent]
    to_complete: dict[Key, dict[str, None]]
    """Queries whose current set is not wholly sent → the contexts still to be sent."""
    slow_since: int | None = None
    ledger: Ledger | None = None

    @property
    def alone(self) -> bool:
        """Whether it can not share frames now."""
        return self.slow_since is not None or self.ledger is not None or bool(self.queue)


class Hub(Part):
    """All sessions of one broker."""

    part: ClassVar[str] = "sessions"
    inputs: ClassVar = (
        SubscribeSession,
        UnsubscribeSession,
        LimitSession,
        SessionSlow,
        SessionDrained,
        LocalUpdate,
    )

    def __init__(self, local: LocalQueries, settings: HubSettings, epoch: int) -> None:
        self.sessions: dict[str, HubSession] = {}
        self.queries: dict[Key, SharedQuery] = {}
        self.writer = Writer(epoch)
        self.settings = settings
        self.coalesced = 0
        self._local = local
        self._ledgers: dict[str, Ledger] = {}
        """Ledgers of sessions with a limit, open or lately closed."""
        self._timers: Timers[_QueryTimer | _AloneTimer | _SlowTimer] = Timers()
        self._out: list[Effect] = []
        self._touched = False
        """Whether queries were placed or dropped that the map has not been told of."""

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self.settings
        placed = max((len(one.subscriptions) for one in self.sessions.values()), default=0)
        return {
            "sessions": (len(self.sessions), settings.sessions_max),
            "subscriptions of a session": (placed, settings.subscriptions_per_session_max),
            "ledgers": (len(self._ledgers), settings.sessions_max),
        }

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a session's wish, the state of its connection, or an update of the map."""
        match given:
            case LocalUpdate():
                self._update(given, now)
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
            case _:
                raise AssertionError(f"the hub takes no {type(given).__name__}")
        return self._done()

    def _ask(self, given: "SubscribeSession | UnsubscribeSession | LimitSession", now: int) -> None:
        if given.session not in self.sessions:
            raise NotFoundError("this session is over: connect again")
        if isinstance(given, SubscribeSession):
            self._subscribe(given.session, given.subscription, given.filter, now)
        elif isinstance(given, UnsubscribeSession):
            self._unsubscribe(given.session, given.subscription)
        else:
            self._limit(given.session, given.limit_bytes, now)

    def open(self, name: str, view_class: str, form: Format = "json") -> None:
        """Begin a session."""
        if len(self.sessions) >= self.settings.sessions_max:
            raise LimitError(f"the service holds at most {self.settings.sessions_max} sessions")
        assert name not in self.sessions
        self.sessions[name] = HubSession(name, view_class, form, {}, {}, {}, {})

    def close(self, name: str) -> list[Effect]:
        """End a session."""
        self._end(name)
        return self._done()

    def _end(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is None:
            return
        for key, uses in session.uses.items():
            for _ in range(uses):
                self._local.drop(key[0], key[1])
            self._touched = True
            self._leave(session.name, key)
        self._timers.cancel(_SlowTimer(name))
        self._timers.cancel(_AloneTimer(name))

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
        self._place_all(session)
        self._serve(session, now)

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

    def _subscribe(self, name: str, about: str, wanted: Filter, now: int) -> None:
        """Place a subscription: the reply has the current set, then every change follows."""
        session = self.sessions[name]
        if about in session.subscriptions:
            self._unsubscribe(name, about)
        most = self.settings.subscriptions_per_session_max
        if len(session.subscriptions) >= most:
            raise LimitError(
                f"a session has at most {most} subscriptions: end one, or join filters with OR"
            )
        number = self._local.place(session.view_class, wanted)
        self._touched = True
        key = (session.view_class, number, session.form)
        session.subscriptions[about] = key, wanted
        self._forget_waiting(session, key, now)
        states = self._local.current(session.view_class, number)
        page = self.settings.page_features_max if session.ledger is None else 0
        frame = self.writer.current(
            session.form, about=about, query=number, count=len(states), states=states[:page]
        )
        self._send(session, frame, now)
        if key not in session.uses:
            session.uses[key] = 0
        session.uses[key] += 1
        rest = states[page:]
        for state in rest:
            session.queue[key, state.vid] = ContextEvent(Kind.APPEARED, state, now)
        if rest:
            session.to_complete[key] = {state.vid: None for state in rest}
        else:
            self._send(session, self.writer.complete(session.form, number), now)
        self._join(session, key)
        self._serve(session, now)

    def _unsubscribe(self, name: str, about: str) -> None:
        session = self.sessions[name]
        known = session.subscriptions.pop(about, None)
        if known is None:
            raise InputError(f"there is no subscription {about!r} to end")
        key = known[0]
        self._local.drop(key[0], key[1])
        self._touched = True
        session.uses[key] -= 1
        if not session.uses[key]:
            del session.uses[key]
            self._leave(name, key)
            session.to_complete.pop(key, None)
            for entry in [one for one in session.queue if one[0] == key]:
                del session.queue[entry]

    def reclass(self, name: str, view_class: str, now: int) -> list[Effect]:
        """A session may see otherwise from now on: its subscriptions begin anew."""
        session = self.sessions[name]
        placed = [(about, wanted) for about, (_, wanted) in session.subscriptions.items()]
        for about, _ in placed:
            self._unsubscribe(name, about)
        session.view_class = view_class
        for about, wanted in placed:
            self._subscribe(name, about, wanted, now)
        return self._done()

    def _update(self, update: LocalUpdate, now: int) -> None:
        """Take what an update means for the queries of this process."""
        before, after = set(update.before), set(update.after)
        for number in sorted(before | after):
            kind = Kind.CHANGED
            if number not in before:
                kind = Kind.APPEARED
            elif number not in after:
                kind = Kind.LEFT
            event = ContextEvent(kind, update.state, now)
            for form in ("json", "sse"):
                query = self.queries.get((update.view_class, number, form))
                if query is not None:
                    self._take(query, event, now)

    def _slow(self, name: str, now: int) -> None:
        session = self.sessions.get(name)
        if session is not None and session.slow_since is None:
            session.slow_since = now
            self._place_all(session)
            self._timers.set(_SlowTimer(name), now + self.settings.slow_us_max)

    def _drained(self, name: str, now: int) -> None:
        session = self.sessions.get(name)
        if session is not None and session.slow_since is not None:
            session.slow_since = None
            self._timers.cancel(_SlowTimer(name))
            self._serve(session, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Send what has waited, cut off who has been slow for too long."""
        for timer in self._timers.due(now):
            match timer:
                case _QueryTimer(key):
                    if (query := self.queries.get(key)) is not None:
                        self._flush(query, now)
                case _AloneTimer(name):
                    if (session := self.sessions.get(name)) is not None:
                        self._serve(session, now)
                case _SlowTimer(name):
                    seconds = self.settings.slow_us_max // 1_000_000
                    self._cut(name, f"too slow: nothing was taken for {seconds} s")
        return self._done()

    def deadline(self) -> int | None:
        """When something waits to be sent, or somebody to be cut off."""
        return self._timers.deadline()

    def _done(self) -> list[Effect]:
        out, self._out = self._out, []
        if self._touched:  # a query came or went: what that means for its channels leaves now
            self._touched = False
            out.append(MapTouched())
        return out

    def _take(self, query: SharedQuery, event: ContextEvent, now: int) -> None:
        if query.shared:
            _merge(query.events, event.state.vid, event)
            if now >= query.ready_us:
                self._flush(query, now)
            else:
                self._timers.sooner(_QueryTimer(query.key), query.ready_us)
        for name in list(query.alone):
            session = self.sessions[name]
            if (query.key, event.state.vid) in session.queue:
                self.coalesced += 1
            _merge(session.queue, (query.key, event.state.vid), event)
            if (query.key, event.state.vid) not in session.queue:  # it came and went untold
                self._completed(session, query.key, [event.state.vid], now)
            if len(session.queue) > max(self.settings.queue_events_max, self._listing(session)):
                most = self.settings.queue_events_max
                self._cut(name, f"too slow: more than {most} changes wait")
            else:
                self._serve(session, now)

    @staticmethod
    def _listing(session: HubSession) -> int:
        """How much of a queue is current sets, whose size is not the session's fault."""
        return 2 * sum(map(len, session.to_complete.values()))

    def _flush(self, query: SharedQuery, now: int) -> None:
        """Let the frame of everything that waits leave to all who share it."""
        if query.events:
            if query.listed is None:
                query.listed = tuple(query.shared)
            events = [self.writer.event(event) for event in query.events.values()]
            most = self.settings.frame_events_max
            for start in range(0, len(events), most):
                part = events[start : start + most]
                frame = self.writer.changes(query.key[2], query.key[1], part)
                self._out.append(Frame(query.listed, frame, query.key[2], len(part)))
            query.events.clear()
            query.ready_us = now + self.settings.frame_cost_us * len(query.shared)
        for name in list(query.alone):
            session = self.sessions[name]
            if not session.alone:  # it waited for this frame to be over
                self._join(session, query.key)

    def _serve(self, session: HubSession, now: int) -> None:
        """Send a session that is served alone as much as it may have now."""
        while session.queue and session.slow_since is None:
            key = next(iter(session.queue))[0]
            entries: list[tuple[Key, str]] = []
            events: list[bytes] = []
            room = None if session.ledger is None else session.ledger.room(now) - 128
            for entry, event in session.queue.items():
                if entry[0] != key or len(events) >= self.settings.frame_events_max:
                    break
                text = self.writer.event(event)
                if room is not None:
                    room -= len(text) + 32
                    if room < 0:
                        break
                entries.append(entry)
                events.append(text)
            if not events:
                self._wait(session, now)
                return
            for entry in entries:
                del session.queue[entry]
            pending = len(session.queue) if session.ledger is not None else 0
            self._send(session, self.writer.changes(session.form, key[1], events, pending), now)
            self._completed(session, key, [vid for _, vid in entries], now)
        if not session.alone:
            self._place_all(session)

    def _wait(self, session: HubSession, now: int) -> None:
        """A limit allows no more for now: come again when the oldest bytes no longer count."""
        assert session.ledger is not None
        freed = session.ledger.freed_at()
        self._timers.sooner(_AloneTimer(session.name), now + 1_000_000 if freed is None else freed)

    def _completed(self, session: HubSession, key: Key, vids: list[str], now: int) -> None:
        """Count objects as told, and say so when the whole current set is."""
        left = session.to_complete.get(key)
        if left is None:
            return
        for vid in vids:
            left.pop(vid, None)
        if not left:
            del session.to_complete[key]
            self._send(session, self.writer.complete(session.form, key[1]), now)

    def _send(self, session: HubSession, frame: bytes, now: int) -> None:
        if session.ledger is not None:
            session.ledger.charge(now, len(frame))
        self._out.append(Frame((session.name,), frame, session.form))

    def _place_all(self, session: HubSession) -> None:
        for key in session.uses:
            self._join(session, key)

    def _join(self, session: HubSession, key: Key) -> None:
        """Let a session share a query's frames if it can, else serve it alone.

        One that shared and now can not keeps what waits in the common frame; one that could share
        but for a frame that waits joins when that has left, or it would read changes twice.
        """
        query = self.queries.get(key)
        if query is None:
            query = self.queries[key] = SharedQuery(key, {}, {}, {})
        name = session.name
        if session.alone or (query.events and name not in query.shared):
            if name in query.shared:
                del query.shared[name]
                query.listed = None
                for vid, event in query.events.items():
                    _merge(session.queue, (key, vid), event)
                if not query.shared:
                    query.events.clear()
            query.alone[name] = None
        elif name not in query.shared:
            query.alone.pop(name, None)
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

    def _leave(self, name: str, key: Key) -> None:
        query = self.queries.get(key)
        if query is None:
            return
        query.alone.pop(name, None)
        if name in query.shared:
            del query.shared[name]
            query.listed = None
        if not query.shared:
            query.events.clear()
            if not query.alone:
                del self.queries[key]
                self._timers.cancel(_QueryTimer(key))

    def _cut(self, name: str, reason: str) -> None:
        self._end(name)
        self._out += [CutOff(name, reason), SessionClosed(name)]


def _merge(events: dict[K, ContextEvent], entry: K, later: ContextEvent) -> None:
    both = merged(events.get(entry), later)
    if both is None:
        del events[entry]
    else:
        events[entry] = both
