"""Casts that wait for people: one set of filters, and candidates that time or an end decides.

What the map shows is matched with all waiting casts at once, by filters whose terms about times are
left out (TCC algorithm 7). Whoever satisfies one is a candidate: the stretch over which they do is
followed, and judged when it ends or when time has decided (traps 5 and 6).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from roamcast.channels.server.queries import Matcher
from roamcast.identity.rules import Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters.holds import holds
from roamcast.model.parts import Timers
from roamcast.overlay.casts.held import HeldCast, closed, plan_of
from roamcast.overlay.casts.looking import judge
from roamcast.overlay.casts.messages import Lasting

See = Callable[[Context, Viewer, int], Context | None]
"""(a context, who looks, now) → what they may see of it."""


class CastCandidate(NamedTuple):
    """One alternative of a cast's filter, over a context that is open."""

    cast: str
    vid: str
    part: int


class WaitingCasts:
    """The casts that wait at a node, and who may match them."""

    def __init__(
        self,
        see: See,
        candidates_max: int,
        make_matcher: Callable[[], Matcher],
        wake: Callable[[int], None],
    ) -> None:
        """`wake` is told when `fire` is due."""
        self.casts: dict[str, HeldCast] = {}
        self.elsewhere: dict[str, None] = {}
        """Casts for places that this node does not serve: they wait for neighbours' people."""
        self.lost: dict[str, None] = {}
        """Casts of which candidates were dropped: there were too many."""
        self._see = see
        self._candidates_max = candidates_max
        self._filters = make_matcher()
        self._viewers: dict[Viewer, int] = {}
        self._open: dict[str, dict[CastCandidate, int]] = {}
        """Vids → their candidates, and since when their stretch lasts."""
        self._last: dict[str, Context] = {}
        """Vids with candidates → their last state."""
        self._vids: dict[str, set[str]] = {}
        """Casts → vids with candidates of theirs."""
        self._count = 0
        self._timers: Timers[CastCandidate] = Timers()
        self._wake = wake

    def __len__(self) -> int:
        return self._count

    def __contains__(self, cast: str) -> bool:
        return cast in self.casts

    def add(self, held: HeldCast, *, elsewhere: bool = False) -> None:
        """Let a cast wait; nobody here can match one for elsewhere."""
        if held.id not in self.casts:
            if elsewhere:
                self.elsewhere[held.id] = None
            self.casts[held.id] = held
            self._filters.add(held.id, held.take_loose())
            self._viewers[held.viewer] = self._viewers.get(held.viewer, 0) + 1

    def remove(self, cast: str) -> None:
        """Let a cast wait no longer."""
        held = self.casts.pop(cast, None)
        if held is None:
            return
        self._filters.remove(cast)
        self.lost.pop(cast, None)
        self.elsewhere.pop(cast, None)
        self._viewers[held.viewer] -= 1
        if not self._viewers[held.viewer]:
            del self._viewers[held.viewer]
        for vid in self._vids.pop(cast, ()):
            for one in [one for one in self._open.get(vid, ()) if one.cast == cast]:
                self._drop(one)

    def deadline(self) -> int | None:
        """When time decides the next candidate."""
        return self._timers.deadline()

    def fire(self, now: int) -> list[tuple[str, str]]:
        """Judge candidates whose time has come; give (cast, vid) of those found."""
        found: list[tuple[str, str]] = []
        for one in list(self._timers.due(now)):
            begin = self._open.get(one.vid, {}).get(one)
            if begin is not None:
                self._judge(one, closed(self._last[one.vid], begin, None), now, found)
        return found

    def take(self, context: Context, now: int) -> list[tuple[str, str]]:
        """Take a state that the map shows, or, with an end, the last one; give who is found."""
        found: list[tuple[str, str]] = []
        if context.t_d is not None:
            for one, begin in list(self._open.get(context.vid, {}).items()):
                self._close(one, begin, context.t_d, now, found)
            return found
        matched = self._matched(context, now)
        for one, begin in list(self._open.get(context.vid, {}).items()):
            if one in matched:
                continue
            if self._is_hidden(one, context, now):
                self._drop(one)
            else:
                self._close(one, begin, context.t_r, now, found)
        for one, view in matched.items():
            if context.vid in self.casts[one.cast].whom or (one.cast, context.vid) in found:
                continue
            begin = self._open.get(context.vid, {}).get(one, view.t_r)
            if self._track(one, begin, context):
                self._judge(one, closed(view, begin, None), now, found)
        return found

    def _is_hidden(self, candidate: CastCandidate, context: Context, now: int) -> bool:
        """Whether rules, and not the person, have ended a stretch: then it did not end."""
        viewer = self.casts[candidate.cast].viewer
        return context == self._last.get(candidate.vid) or self._see(context, viewer, now) is None

    def resume(
        self,
        cast: str,
        lasting: Iterable[Lasting],
        events: Mapping[str, list[Context]],
        state_of: Callable[[str], Context | None],
        now: int,
    ) -> list[tuple[str, str]]:
        """Take candidates that a look-up found, and what happened to them since it was asked."""
        found: list[tuple[str, str]] = []
        held = self.casts.get(cast)
        for each in lasting:
            if held is None or each.vid in held.whom or (cast, each.vid) in found:
                continue
            one = CastCandidate(cast, each.vid, each.part)
            begin = min(each.begin, self._open.get(each.vid, {}).get(one, each.begin))
            happened = [event for event in events.get(each.vid, ()) if _when(event) > begin]
            state = happened[-1] if happened else state_of(each.vid)
            states = [event for event in happened if event.t_d is None]
            if any(self._see(event, held.viewer, now) is None for event in states):
                continue  # they hide by now
            broken = self._break(one, happened, now)
            if broken is None and state is not None:
                if self._track(one, begin, state):
                    view = self._see(state, held.viewer, now)
                    self._judge(one, closed(view or state, begin, None), now, found)
            elif broken is not None and held is not None:
                before, end = broken
                times = plan_of(held.body).parts[each.part][0]
                if judge(times, closed(before, begin, end), now, held.body.expires_us).answer:
                    self._find(one, found)
        return found

    def _break(
        self, candidate: CastCandidate, happened: list[Context], now: int
    ) -> tuple[Context, int] | None:
        """Give the state before a stretch broke, and when it did; None if it lasts."""
        held = self.casts[candidate.cast]
        other = plan_of(held.body).parts[candidate.part][1]
        before: Context | None = None
        for event in happened:
            view = self._see(event, held.viewer, now)
            if event.t_d is not None:
                return before or event, event.t_d
            if view is None or not holds(other, view):
                return before or event, event.t_r
            before = view
        return None

    def _matched(self, context: Context, now: int) -> dict[CastCandidate, Context]:
        """Give the alternatives whose other terms a state satisfies, with the state as seen."""
        views: list[tuple[Context, set[Viewer]]] = []
        for viewer in self._viewers:
            view = self._see(context, viewer, now)
            if view is None:
                continue
            for known, viewers in views:
                if known is view or known == view:
                    viewers.add(viewer)
                    break
            else:
                views.append((view, {viewer}))
        matched: dict[CastCandidate, Context] = {}
        for view, viewers in views:
            for number in self._filters.match_numbers(view):
                cast = self._filters.name_of(number)
                held = self.casts[cast]
                if held.viewer in viewers:
                    for part, (_, other) in enumerate(plan_of(held.body).parts):
                        if holds(other, view):
                            matched[CastCandidate(cast, context.vid, part)] = view
        return matched

    def _track(self, candidate: CastCandidate, begin: int, state: Context) -> bool:
        """Follow a stretch; False if there are too many."""
        known = self._open.get(candidate.vid, {})
        if candidate not in known:
            if self._count >= self._candidates_max:
                self.lost[candidate.cast] = None
                return False
            self._count += 1
            self._open.setdefault(candidate.vid, {})
            self._vids.setdefault(candidate.cast, set()).add(candidate.vid)
        self._open[candidate.vid][candidate] = begin
        self._last[candidate.vid] = state
        return True

    def _judge(
        self, candidate: CastCandidate, stretch: Context, now: int, found: list[tuple[str, str]]
    ) -> None:
        held = self.casts[candidate.cast]
        times = plan_of(held.body).parts[candidate.part][0]
        decision = judge(times, stretch, now, held.body.expires_us)
        if decision.answer:
            self._find(candidate, found)
        elif decision.again is not None:
            again = max(decision.again, now + 1)
            self._timers.set(candidate, again)
            self._wake(again)

    def _close(
        self, candidate: CastCandidate, begin: int, end: int, now: int, found: list[tuple[str, str]]
    ) -> None:
        """A stretch has ended: its interval is known."""
        if candidate not in self._open.get(candidate.vid, {}):
            return  # another alternative of the same cast was just found
        held = self.casts[candidate.cast]
        state = self._last[candidate.vid]
        view = self._see(state, held.viewer, now) or state
        times = plan_of(held.body).parts[candidate.part][0]
        self._drop(candidate)
        if judge(times, closed(view, begin, max(begin, end)), now, held.body.expires_us).answer:
            self._find(candidate, found)

    def _find(self, candidate: CastCandidate, found: list[tuple[str, str]]) -> None:
        """Somebody has matched: nothing more is to be known of them."""
        if (candidate.cast, candidate.vid) not in found:
            found.append((candidate.cast, candidate.vid))
        for other in [
            each for each in self._open.get(candidate.vid, ()) if each.cast == candidate.cast
        ]:
            self._drop(other)

    def _drop(self, candidate: CastCandidate) -> None:
        known = self._open.get(candidate.vid, {})
        if known.pop(candidate, None) is None:
            return
        self._count -= 1
        self._timers.cancel(candidate)
        if not known:
            del self._open[candidate.vid]
            del self._last[candidate.vid]
        if all(each.cast != candidate.cast for each in known):
            self._vids.get(candidate.cast, set()).discard(candidate.vid)


def _when(event: Context) -> int:
    return event.t_r if event.t_d is None else event.t_d
