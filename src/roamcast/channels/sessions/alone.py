"""Sessions that are served alone: slow, held to a limit, or with a current set still to be sent.

Each has a queue of its own with one entry for each context, so it lags without slowing anybody
else; one that lags too far is cut off (0076). Changes leave before the rest of a current set, in
frames of bounded size, and others have their turn in between.
"""

from collections.abc import Callable
from itertools import islice, takewhile

from roamcast.channels.server.messages import State
from roamcast.channels.sessions.changes import ContextEvent, EventKind, merge
from roamcast.channels.sessions.desk import AloneTimer, HubDesk, HubSession, Key, SlowTimer, Untold
from roamcast.channels.sessions.placing import Placing
from roamcast.channels.spread.streams import Ledger
from roamcast.errors import LimitError
from roamcast.model.parts import Occupancy


class Alone:
    """Serves sessions that can not share frames now."""

    def __init__(
        self,
        desk: HubDesk,
        placing: Placing,
        place_all: Callable[[HubSession, int], None],
        cut: Callable[[str, str], None],
    ) -> None:
        """`place_all` lets a session share what it can, or nothing; `cut` cuts one off."""
        self.coalesced = 0
        self.ledgers: dict[str, Ledger] = {}
        """Ledgers of sessions with a limit, open or lately closed."""
        self._desk = desk
        self._placing = placing
        self._place_all = place_all
        self._cut = cut

    def occupancy(self, used: int) -> Occupancy:
        """How much is held of what, and the bound of each; `used`: the queries of all sessions."""
        sessions = self._desk.sessions.values()
        return {
            "ledgers": (len(self.ledgers), self._desk.settings.sessions_max),
            "queries served apart": (sum(len(one.apart) for one in sessions), used),
            "sets to complete": (sum(len(one.to_complete) for one in sessions), used),
        }

    def limit(self, session: HubSession, limit_bytes: int, now: int) -> None:
        """Hold a session to a limit, or lift it."""
        settings = self._desk.settings
        if limit_bytes == 0:
            session.ledger = None
        elif limit_bytes < settings.limit_bytes_min:
            raise LimitError(
                f"a bandwidth limit is at least {settings.limit_bytes_min} bytes a second"
            )
        else:
            session.ledger = self._ledger(session.name, limit_bytes, now)
        self._place_all(session, now)
        self.serve(session, now)

    def _ledger(self, name: str, limit_bytes: int, now: int) -> Ledger:
        """Count on where an earlier session of the same name ended: the limit is the client's."""
        known = self.ledgers.get(name)
        if known is not None and known.limit_bytes == limit_bytes:
            return known
        if len(self.ledgers) >= self._desk.settings.sessions_max:
            self.ledgers = {
                name: ledger for name, ledger in self.ledgers.items() if name in self._desk.sessions
            }
        ledger = self.ledgers[name] = Ledger(limit_bytes, 0)
        if known is not None:
            ledger.charge(now, ledger.usable_bytes)  # what left within the last second
        return ledger

    def slow(self, session: HubSession, now: int) -> None:
        """A session's connection takes no more for now."""
        if session.slow_since is None:
            session.slow_since = now
            self._place_all(session, now)
            slow_us = self._desk.settings.slow_us_max
            self._desk.timers.set(SlowTimer(session.name), now + slow_us)

    def drained(self, session: HubSession, now: int) -> None:
        """A session's connection takes more again."""
        if session.slow_since is not None:
            session.slow_since = None
            self._desk.timers.cancel(SlowTimer(session.name))
            self.serve(session, now)

    def slow_for_too_long(self, name: str) -> None:
        """A session has taken nothing for too long."""
        seconds = self._desk.settings.slow_us_max // 1_000_000
        self._cut(name, f"too slow: nothing was taken for {seconds} s")

    def list_later(
        self, session: HubSession, key: Key, vids: list[str], listed: int, now: int
    ) -> None:
        """Tell a session these of a current set in its turns, after those that it was sent."""
        # Numbered by now: the states' own numbers say when this class was opened (0098).
        present = self._placing.local.as_of(session.view_class)
        session.to_complete[key] = Untold(dict.fromkeys(vids, present), present, now, present)
        session.ready_us = now + self._cost_us(listed)

    def take(self, session: HubSession, key: Key, event: ContextEvent, now: int) -> None:
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
        merge(session.queue, (key, vid), event)
        most = self._desk.settings.queue_events_max
        if len(session.queue) > most:
            self._cut(session.name, f"too slow: more than {most} changes wait")
        else:
            self._serve_soon(session, now)

    def forget(self, session: HubSession, key: Key) -> None:
        """Let nothing of a query wait for a session any more."""
        session.to_complete.pop(key, None)
        for entry in [one for one in session.queue if one[0] == key]:
            del session.queue[entry]

    def _serve_soon(self, session: HubSession, now: int) -> None:
        """Serve a session during an update: others of the same moment may be on their way.

        The map knows them already, so what a current set lists must not be looked up before.
        """
        if session.to_complete:
            self._desk.timers.sooner(AloneTimer(session.name), max(now, session.ready_us))
        else:
            self.serve(session, now)

    def serve(self, session: HubSession, now: int) -> None:
        """Send a session that is served alone as much as it may have now."""
        desk = self._desk
        sent = 0
        while (session.queue or session.to_complete) and session.slow_since is None:
            if sent >= desk.settings.frame_events_max:
                session.ready_us = now + self._cost_us(sent)
            if now < session.ready_us:
                desk.timers.sooner(AloneTimer(session.name), session.ready_us)
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
                pending = len(session.queue) + _listing(session) if limited else 0
                number = self._placing.number(key)
                desk.send(session, desk.writer.changes(session.form, number, events, pending), now)
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
                text = self._desk.writer.event(event)
                if room is not None:
                    room -= len(text) + 32
                    if room < 0:
                        break
                events.append(text)
            vids.append(vid)
        return vids, events

    def _cost_us(self, events: int) -> int:
        return self._desk.settings.event_cost_us * events

    def _queued(self, session: HubSession, key: Key) -> list[tuple[str, ContextEvent | None]]:
        """Give the next changes that wait for a session, all of one query."""
        waiting = islice(session.queue.items(), self._desk.settings.frame_events_max)
        of_query = takewhile(lambda entry: entry[0][0] == key, waiting)
        return [(vid, event) for (_, vid), event in of_query]

    def _listed(self, session: HubSession, key: Key) -> list[tuple[str, ContextEvent | None]]:
        """Give the next of a current set as they are now, None for what is gone."""
        listing, local = session.to_complete[key], self._placing.local
        due: list[tuple[str, ContextEvent | None]] = []
        for vid, number in islice(listing.vids.items(), self._desk.settings.frame_events_max):
            state = self._placing.state(session, key, vid)
            if state is None:
                due.append((vid, None))
                continue
            if state.number > listing.settled:
                number = state.number
            at_us = listing.at_us
            if number > listing.present:
                at_us = local.time_of(number)
            listed = State(number, vid, state.body)
            context = local.decoded(key[0], state, session.viewer)
            due.append((vid, ContextEvent(EventKind.APPEARED, listed, at_us, context)))
        return due

    def _wait(self, session: HubSession, now: int) -> None:
        """A limit allows no more for now: come again when the oldest bytes no longer count."""
        assert session.ledger is not None
        freed = session.ledger.freed_at()
        again = now + 1_000_000 if freed is None else freed
        self._desk.timers.sooner(AloneTimer(session.name), again)

    def _completed(self, session: HubSession, key: Key, vids: list[str], now: int) -> None:
        """Count contexts as told, and say so when the whole current set is."""
        left = session.to_complete.get(key)
        if left is None:
            return
        for vid in vids:
            left.vids.pop(vid, None)
        if not left.vids:
            del session.to_complete[key]
            frame = self._desk.writer.complete(session.form, self._placing.number(key))
            self._desk.send(session, frame, now)


def _listing(session: HubSession) -> int:
    """How many contexts of current sets a session has not been told of."""
    return sum(len(one.vids) for one in session.to_complete.values())
