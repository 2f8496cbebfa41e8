"""What does each open session get, and when? The last hop of the map, in the server's process.

Sessions that watch the same filter and may see the same share each frame. What changes while a
frame may not leave yet is coalesced to the latest state of each object. A session that is slow, has
a bandwidth limit or has just begun is served alone, from a queue of its own with one entry for each
object, so it lags without slowing anybody else; one that lags too far is cut off, with the reason.
"""

from typing import TypeVar

import msgspec

from roamcast.channels.server.contexts import LocalUpdate
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.events import ContextEvent, Format, Kind, Writer, merged
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.spread.streams import Ledger
from roamcast.channels.timers import Timers
from roamcast.errors import InputError, LimitError
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect

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


class SharedSubscription(msgspec.Struct):
    """A watch and its sessions: those that share frames, and those served alone."""

    key: Key
    shared: dict[str, None]
    alone: dict[str, None]
    events: dict[str, ContextEvent]
    ready_us: int = 0
    listed: tuple[str, ...] | None = None
    """The shared sessions as the frame names them; None when they have changed."""


class HubSession(msgspec.Struct):
    """One open session: its watches by the names it gave them, and what it still lacks."""

    name: str
    view_class: str
    form: Format
    watches: dict[str, tuple[Key, Filter]]
    uses: dict[Key, int]
    queue: dict[tuple[Key, str], ContextEvent]
    to_complete: dict[Key, dict[str, None]]
    """Watches whose current set is not wholly told → the objects still to be told."""
    slow_since: int | None = None
    ledger: Ledger | None = None

    @property
    def alone(self) -> bool:
        """Whether it can not share frames now."""
        return self.slow_since is not None or self.ledger is not None or bool(self.queue)


class Hub:
    """All sessions of one service."""

    def __init__(self, local: LocalQueries, settings: HubSettings, epoch: int) -> None:
        self.sessions: dict[str, HubSession] = {}
        self.watches: dict[Key, SharedSubscription] = {}
        self.writer = Writer(epoch)
        self.settings = settings
        self.coalesced = 0
        self._local = local
        self._timers: Timers[tuple[str, object]] = Timers()
        self._out: list[Effect] = []

    def open(self, name: str, view_class: str, form: Format = "json") -> None:
        """Begin a session."""
        if len(self.sessions) >= self.settings.sessions_max:
            raise LimitError(f"the service holds at most {self.settings.sessions_max} sessions")
        assert name not in self.sessions
        self.sessions[name] = HubSession(name, view_class, form, {}, {}, {}, {})

    def close(self, name: str) -> None:
        """End a session."""
        session = self.sessions.pop(name, None)
        if session is None:
            return
        for key, uses in session.uses.items():
            for _ in range(uses):
                self._local.drop(key[0], key[1])
            self._leave(session.name, key)
        self._timers.cancel(("slow", name))
        self._timers.cancel(("alone", name))

    def limit(self, name: str, limit_bytes: int, now: int) -> list[Effect]:
        """Hold a session to so many bytes in any second; 0 takes the limit away."""
        session = self.sessions[name]
        if limit_bytes == 0:
            session.ledger = None
        elif limit_bytes < self.settings.limit_bytes_min:
            raise LimitError(
                f"a bandwidth limit is at least {self.settings.limit_bytes_min} bytes a second"
            )
        else:
            session.ledger = Ledger(limit_bytes, 0)
        self._place_all(session)
        self._serve(session, now)
        return self._done()

    def watch(self, name: str, about: str, wanted: Filter, now: int) -> list[Effect]:
        """Begin a watch; the reply has the current set, then every later change follows."""
        session = self.sessions[name]
        if about in session.watches:
            self.unwatch(name, about)
        if len(session.watches) >= self.settings.watches_per_session_max:
            raise LimitError(
                f"a session has at most {self.settings.watches_per_session_max} watches: "
                "end one, or join filters with OR"
            )
        number = self._local.place(session.view_class, wanted)
        key = (session.view_class, number, session.form)
        session.watches[about] = key, wanted
        self._forget_waiting(session, key, now)
        states = self._local.current(session.view_class, number)
        page = self.settings.page_features_max if session.ledger is None else 0
        frame = self.writer.current(
            session.form, about=about, watch=number, count=len(states), states=states[:page]
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
        return self._done()

    def unwatch(self, name: str, about: str) -> None:
        """End a watch."""
        session = self.sessions[name]
        known = session.watches.pop(about, None)
        if known is None:
            raise InputError(f"there is no subscription {about!r} to end")
        key = known[0]
        self._local.drop(key[0], key[1])
        session.uses[key] -= 1
        if not session.uses[key]:
            del session.uses[key]
            self._leave(name, key)
            session.to_complete.pop(key, None)
            for entry in [one for one in session.queue if one[0] == key]:
                del session.queue[entry]

    def reclass(self, name: str, view_class: str, now: int) -> list[Effect]:
        """A session may see otherwise from now on: its watches begin anew."""
        session = self.sessions[name]
        asked = [(about, wanted) for about, (_, wanted) in session.watches.items()]
        for about, _ in asked:
            self.unwatch(name, about)
        session.view_class = view_class
        effects: list[Effect] = []
        for about, wanted in asked:
            effects += self.watch(name, about, wanted, now)
        return effects

    def tell(self, told: LocalUpdate, now: int) -> list[Effect]:
        """Take what an update means for the watches of this process."""
        before, after = set(told.before), set(told.after)
        for number in sorted(before | after):
            kind = Kind.CHANGED
            if number not in before:
                kind = Kind.APPEARED
            elif number not in after:
                kind = Kind.LEFT
            event = ContextEvent(kind, told.state, now)
            for form in ("json", "sse"):
                watch = self.watches.get((told.view_class, number, form))
                if watch is not None:
                    self._take(watch, event, now)
        return self._done()

    def slow(self, name: str, now: int) -> list[Effect]:
        """The session's socket takes no more for now."""
        session = self.sessions.get(name)
        if session is not None and session.slow_since is None:
            session.slow_since = now
            self._place_all(session)
            self._timers.set(("slow", name), now + self.settings.slow_us_max)
        return self._done()

    def drained(self, name: str, now: int) -> list[Effect]:
        """The session's socket takes more again."""
        session = self.sessions.get(name)
        if session is not None and session.slow_since is not None:
            session.slow_since = None
            self._timers.cancel(("slow", name))
            self._serve(session, now)
        return self._done()

    def advance(self, now: int) -> list[Effect]:
        """Send what has waited, cut off who has been slow for too long."""
        for what, which in self._timers.due(now):
            if what == "watch":
                watch = self.watches.get(which)  # type: ignore[call-overload]
                if watch is not None:
                    self._flush(watch, now)
            elif what == "alone":
                session = self.sessions.get(str(which))
                if session is not None:
                    self._serve(session, now)
            else:
                assert what == "slow"
                seconds = self.settings.slow_us_max // 1_000_000
                self._cut(str(which), f"too slow: nothing was taken for {seconds} s")
        return self._done()

    def deadline(self) -> int | None:
        """When something waits to be sent, or somebody to be cut off."""
        return self._timers.deadline()

    def _done(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _take(self, watch: SharedSubscription, event: ContextEvent, now: int) -> None:
        if watch.shared:
            _merge(watch.events, event.state.vid, event)
            if now >= watch.ready_us:
                self._flush(watch, now)
            else:
                self._timers.sooner(("watch", watch.key), watch.ready_us)
        for name in list(watch.alone):
            session = self.sessions[name]
            if (watch.key, event.state.vid) in session.queue:
                self.coalesced += 1
            _merge(session.queue, (watch.key, event.state.vid), event)
            if (watch.key, event.state.vid) not in session.queue:  # it came and went untold
                self._completed(session, watch.key, [event.state.vid], now)
            if len(session.queue) > max(self.settings.queue_events_max, self._listing(session)):
                most = self.settings.queue_events_max
                self._cut(name, f"too slow: more than {most} changes wait")
            else:
                self._serve(session, now)

    @staticmethod
    def _listing(session: HubSession) -> int:
        """How much of a queue is current sets, whose size is not the session's fault."""
        return 2 * sum(map(len, session.to_complete.values()))

    def _flush(self, watch: SharedSubscription, now: int) -> None:
        """Let the frame of everything that waits leave to all who share it."""
        if watch.events:
            if watch.listed is None:
                watch.listed = tuple(watch.shared)
            events = [self.writer.event(event) for event in watch.events.values()]
            most = self.settings.frame_events_max
            for start in range(0, len(events), most):
                part = events[start : start + most]
                frame = self.writer.changes(watch.key[2], watch.key[1], part)
                self._out.append(Frame(watch.listed, frame, watch.key[2], len(part)))
            watch.events.clear()
            watch.ready_us = now + self.settings.frame_cost_us * len(watch.shared)
        for name in list(watch.alone):
            session = self.sessions[name]
            if not session.alone:  # it waited for this frame to be over
                self._join(session, watch.key)

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
        self._timers.sooner(("alone", session.name), now + 1_000_000 if freed is None else freed)

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
        """Let a session share a watch's frames if it can, else serve it alone.

        One that shared and now can not keeps what waits in the common frame; one that could share
        but for a frame that waits joins when that has left, or it would read changes twice.
        """
        watch = self.watches.get(key)
        if watch is None:
            watch = self.watches[key] = SharedSubscription(key, {}, {}, {})
        name = session.name
        if session.alone or (watch.events and name not in watch.shared):
            if name in watch.shared:
                del watch.shared[name]
                watch.listed = None
                for vid, event in watch.events.items():
                    _merge(session.queue, (key, vid), event)
                if not watch.shared:
                    watch.events.clear()
            watch.alone[name] = None
        elif name not in watch.shared:
            watch.alone.pop(name, None)
            watch.shared[name] = None
            watch.listed = None

    def _forget_waiting(self, session: HubSession, key: Key, now: int) -> None:
        """A current set supersedes what still waits for a session that has the watch already."""
        session.to_complete.pop(key, None)
        for entry in [one for one in session.queue if one[0] == key]:
            del session.queue[entry]
        watch = self.watches.get(key)
        if watch is not None and session.name in watch.shared:
            self._flush(watch, now)

    def _leave(self, name: str, key: Key) -> None:
        watch = self.watches.get(key)
        if watch is None:
            return
        watch.alone.pop(name, None)
        if name in watch.shared:
            del watch.shared[name]
            watch.listed = None
        if not watch.shared:
            watch.events.clear()
            if not watch.alone:
                del self.watches[key]
                self._timers.cancel(("watch", key))

    def _cut(self, name: str, reason: str) -> None:
        self.close(name)
        self._out.append(CutOff(name, reason))


def _merge(events: dict[K, ContextEvent], entry: K, later: ContextEvent) -> None:
    both = merged(events.get(entry), later)
    if both is None:
        del events[entry]
    else:
        events[entry] = both
