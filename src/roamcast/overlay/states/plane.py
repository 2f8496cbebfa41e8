"""The state plane as a part of a broker: this node's map out, all other nodes' maps in.

Out: for each filter that others want, a query is placed at this node's own map in the view class of
whom no rule names, so `RulesPolicy` decides here, where a context lives, what leaves (0175). In:
what sessions watch is wanted of the neighbours, and what comes is matched once more and given to
the hub. A context that two nodes show, because somebody has just moved, is the one that began last.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from roamcast.channels.server.messages import State
from roamcast.channels.server.queries import LocalUpdate
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.events import RemoteUpdate
from roamcast.errors import LimitError
from roamcast.matching.filter_set import FilterSet
from roamcast.matching.live import LiveIndex, questions
from roamcast.matching.live.slices import run
from roamcast.model.contexts import Context
from roamcast.model.events import ClassesEnded
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.model.parts import Occupancy, Part, PartTimers, Timer
from roamcast.model.records import OverlayStep
from roamcast.overlay.events import OverlayOpened, TablesTouched
from roamcast.overlay.filters.part import NodeFilters
from roamcast.overlay.states.table import STATES_MAX, VIEW, SharedState, States, key_of
from roamcast.overlay.tables.wants import Wants

RETRY_US: Final = 5_000_000
"""After so long a query that found no room at the map is placed again."""

ViewClass = Callable[[], str]
"""Gives the view class of whom no rule names, and opens it."""


class StateForgetDue(Timer, frozen=True):
    """That a context has gone need not be remembered any more."""

    vid: str


class PlacementRetryDue(Timer, frozen=True):
    """What others want is placed again."""


class StatePlane(Part):
    """What this node shows to others, and what others show to its sessions."""

    part: ClassVar[str] = "states"
    inputs: ClassVar = (OverlayOpened, LocalUpdate, ClassesEnded)

    def __init__(
        self, node: str, wants: Wants, states: States, filters: NodeFilters, *, linger_us: int
    ) -> None:
        self.node = node
        self.states = states
        self._wants = wants
        self._filters = filters
        self._linger_us = linger_us
        self._matched = filters.matches
        self._local: LocalQueries | None = None
        self._view_class: ViewClass = lambda: ""
        self._class = ""
        self._epoch = 0
        self._number = 0
        self._placed: dict[str, int] = {}
        """Filters that others want → their numbers at this node's map."""
        self._asked: tuple[int, int] | None = None
        """The version of what others want that is placed."""
        self._out: dict[str, set[int]] = {}
        """Contexts that others are shown → the queries that they satisfy."""
        self._watched = FilterSet()
        self._watchers: dict[str, int] = {}
        """Filters that sessions watch everywhere → how many of them."""
        self._nodes: dict[str, dict[str, SharedState]] = {}
        """Vids → their present states on other nodes' maps, by key."""
        self._shown: dict[str, tuple[SharedState, frozenset[str]]] = {}
        """Vids → the state that counts, and the watched filters that it satisfies."""
        self._contexts = LiveIndex()
        """The same contexts, so that a new filter need not be tried on each."""
        self._matching: dict[str, set[str]] = {}
        """Watched filters → the vids that satisfy them."""
        self._vids: dict[str, str] = {}
        """Keys of other nodes' contexts → their vids."""
        self._dirty = False
        self._full = False
        self._timers = PartTimers(
            {StateForgetDue: self._forget_due, PlacementRetryDue: self._retry_due}
        )

    def under(self, local: LocalQueries, view_class: ViewClass) -> None:
        """Show what this map holds, as those see it whom no rule names."""
        self._local = local
        self._view_class = view_class

    # --- for the hub

    def watch(self, wanted: Filter) -> None:
        """Want what a filter matches of every node, from now on."""
        count = self._watchers.get(wanted.text, 0)
        if not count:
            self._wants.subscribe(_who(wanted.text), VIEW, wanted)
            self._watched.add(wanted.text, wanted)
            found = run(questions.every(self._contexts, wanted))
            self._matching[wanted.text] = {context.vid for context in found}
            for vid in self._matching[wanted.text]:
                state, matched = self._shown[vid]
                self._shown[vid] = (state, matched | {wanted.text})
            self._dirty = True
        self._watchers[wanted.text] = count + 1

    def leave(self, wanted: Filter) -> None:
        """Want it no longer, for one of those who did."""
        text = wanted.text
        self._watchers[text] -= 1
        if not self._watchers[text]:
            del self._watchers[text]
            self._wants.unsubscribe(_who(text))
            self._watched.remove(text)
            for vid in self._matching.pop(text):
                state, matched = self._shown[vid]
                self._shown[vid] = (state, matched - {text})
            self._dirty = True

    def current(self, wanted: Filter) -> list[State]:
        """Give what is known to match on other nodes' maps, by vid."""
        found = sorted(self._matching.get(wanted.text, ()))
        states = ((vid, self._shown[vid][0]) for vid in found)
        return [State(state.number, vid, state.body) for vid, state in states]

    def state(self, wanted: str, vid: str) -> tuple[State, Context] | None:
        """Give a context on another node's map, if it matches."""
        found = self._shown.get(vid)
        if found is None or wanted not in found[1]:
            return None
        return State(found[0].number, vid, found[0].body), found[0].context

    # --- the part

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what happens on this node's map."""
        if not self._placed and type(given) is LocalUpdate:
            return ()  # soon decided: nobody else wants anything, and every update asks
        match given:
            case OverlayOpened(epoch):
                self._epoch, self._asked = epoch, None
            case LocalUpdate(view_class, state, _, after, only=""):
                if view_class == self._class:
                    return self._update(state.vid, set(after), state.body, now)
            case ClassesEnded(view_classes):
                if self._class in view_classes and self._placed:
                    self._withdraw(set(self._placed))
                    self._asked = None
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Place what others want, and give sessions what has come."""
        effects = self._timers.fire(now)
        if self._asked != self._wants.asked_version(VIEW) and self._epoch:
            effects += self._place(now)
        if self._matched != self._filters.matches:
            self._matched = self._filters.matches
            self.states.wants_changed()
            self._dirty = True
        if self.states.news:
            effects += self._take(now)
        if self._dirty:
            self._dirty = False
            effects.append(TablesTouched())
        return effects

    def _forget_due(self, timer: StateForgetDue, now: int) -> Sequence[Effect]:
        del now
        self.states.forget(timer.vid, self.node)
        self._dirty = True
        return ()

    def _retry_due(self, timer: PlacementRetryDue, now: int) -> Sequence[Effect]:
        del timer, now
        self._asked = None
        return ()

    def deadline(self) -> int | None:
        """When something is to be done: at once if something is new."""
        if self.states.news or self._dirty or self._matched != self._filters.matches:
            return 0
        if self._epoch and self._asked != self._wants.asked_version(VIEW):
            return 0
        return self._timers.deadline()

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        return {
            "contexts shown to others": (len(self._out), STATES_MAX),
            "contexts of others": (len(self._shown), self._most()),
            "contexts that have gone": (len(self._timers), 2 * STATES_MAX),
        }

    def _most(self) -> int:
        return STATES_MAX * max(1, self.states.occupancy()["states.links"][0])

    # --- out

    def _place(self, now: int) -> list[Effect]:
        """Ask this node's map for what others want of it."""
        self._asked = self._wants.asked_version(VIEW)
        self.states.wants_changed()
        self._dirty = True
        if self._local is None:
            return []
        wanted = self._wants.asked(VIEW)
        effects: list[Effect] = []
        if wanted and not self._placed:
            self._class = self._view_class()
        self._local.at(now)
        for text in sorted(wanted.keys() - self._placed.keys()):
            try:
                number = self._placed[text] = self._local.place(self._class, wanted[text])
            except LimitError as error:
                self._timers.set(PlacementRetryDue(), now + RETRY_US)
                effects.append(OverlayStep("states", "refused", reason=str(error)[:200]))
                break
            for state in self._local.current(self._class, number):
                matched = self._out.get(state.vid, set()) | {number}
                effects += self._update(state.vid, matched, state.body, now)
        self._withdraw(self._placed.keys() - wanted.keys())
        for vid in [vid for vid, matched in self._out.items() if not matched]:
            self._remove(vid, now)
        return effects

    def _withdraw(self, texts: set[str]) -> None:
        assert self._local is not None
        for text in sorted(texts):
            number = self._placed.pop(text)
            self._local.drop(self._class, number)
            for matched in self._out.values():
                matched.discard(number)

    def _update(self, vid: str, after: set[int], body: bytes, now: int) -> list[Effect]:
        matched = after.intersection(self._placed.values())
        if matched:
            if vid not in self._out and len(self._out) >= STATES_MAX:
                full, self._full = self._full, True
                reason = f"more than {STATES_MAX} contexts are wanted elsewhere"
                return [] if full else [OverlayStep("states", "full", reason=reason)]
            self._out[vid] = matched
            self._timers.cancel(StateForgetDue(vid))
            self._put(SharedState(self.node, self._epoch, self._number + 1, vid, body))
        elif vid in self._out:
            self._remove(vid, now)
        return []

    def _remove(self, vid: str, now: int) -> None:
        del self._out[vid]
        self._full = False
        self._put(SharedState(self.node, self._epoch, self._number + 1, vid))
        self._timers.set(StateForgetDue(vid), now + 2 * self._linger_us)

    def _put(self, state: SharedState) -> None:
        known = self.states.best(key_of(state.node, state.vid))
        if known is not None and known.epoch == state.epoch and known.body == state.body:
            return
        self._number = state.number
        self.states.put(state)
        self._dirty = True
        self._count(state, None)

    def _count(self, state: SharedState, came_from: str | None) -> None:
        """Count a sampled item that passes (CBM)."""
        if state.body and self._filters.sampled((state.node, state.vid, state.epoch, state.number)):
            context = state.context
            self._filters.count(
                lambda: self.states.beyond(context, came_from),
                lambda: bool(self._watched.match(context)),
                came_from,
            )

    # --- in

    def _take(self, now: int) -> list[Effect]:
        del now
        news, self.states.news = self.states.news, {}
        self._dirty = True
        effects: list[Effect] = []
        for key, link in news.items():
            state = self.states.best(key)
            effects += self._learn(key, state, link)
        return effects

    def _learn(self, key: str, state: SharedState | None, link: str) -> list[Effect]:
        vid = self._vids.pop(key, "") if state is None else state.vid
        if state is not None:
            if state.node == self.node:
                return []  # a word of our own, from an earlier life
            self._vids[key] = vid
        if not vid:
            return []
        nodes = self._nodes.setdefault(vid, {})
        if state is None or not state.body:
            nodes.pop(key, None)
        elif nodes.get(key) == state:
            return []
        else:
            nodes[key] = state
            self._count(state, link)
        if not nodes:
            del self._nodes[vid]
        return self._show(vid, max(nodes.values(), key=_latest, default=None))

    def _show(self, vid: str, state: SharedState | None) -> list[Effect]:
        """Let the state that counts now be the one that sessions see."""
        before = self._shown.pop(vid, None)
        had = before[1] if before is not None else frozenset()
        if state is None:
            self._contexts.remove(vid)
            self._rematch(vid, had, frozenset())
            if before is None or not had:
                return []
            gone = State(before[0].number, vid, b"")
            return [RemoteUpdate(gone, had, frozenset())]
        context = state.context
        matched = frozenset(self._watched.match(context))
        self._shown[vid] = (state, matched)
        self._contexts.put(context)
        self._rematch(vid, had, matched)
        if (before is not None and before[0].body == state.body) or not (had or matched):
            return []
        return [RemoteUpdate(State(state.number, vid, state.body), had, matched, context)]

    def _rematch(self, vid: str, had: frozenset[str], matched: frozenset[str]) -> None:
        for text in had - matched:
            self._matching[text].discard(vid)
        for text in matched - had:
            self._matching[text].add(vid)


def _who(text: str) -> str:
    return f"states {text}"


def _latest(state: SharedState) -> tuple[int, str]:
    return state.context.t_r, state.node
