"""Current sets: what of the map a view class, or one viewer of it, is shown now (AMS, current set).

A query to be placed finds the contexts that satisfy it. One that stands has a state for each of
them: what its class was last told, under the number of that update.
"""

from collections.abc import Collection

from roamcast.channels.server.contexts import MapContexts, next_number
from roamcast.channels.server.desk import Desk, Policy
from roamcast.channels.server.live_views import seen_by
from roamcast.channels.server.map_context import ClassView, MapContext
from roamcast.channels.server.messages import State
from roamcast.channels.server.queries import QueryRecord, is_among
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.matching.live.slices import run
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter


class CurrentSets:
    """Reads the map as the view classes were told it."""

    def __init__(
        self, desk: Desk, contexts: MapContexts, policy: Policy, dissemination: Dissemination
    ) -> None:
        self.map = contexts.map
        self._desk = desk
        self._contexts = contexts
        self._policy = policy
        self._dissemination = dissemination
        desk.fresh = self.fresh

    def satisfying(self, view: ViewClass, wanted: Filter, query: int) -> list[str]:
        """Find the contexts that satisfy a query not yet placed, and note it at each of them."""
        now = self._desk.now
        found = self.found(view, wanted)
        if found:
            # A number before the present: an update of this moment counts as without it, for that a
            # class got another query is hidden (0098).
            view.number = max(view.number, now - self._desk.started - 1)
        return self._contexts.notes.note(query, view, found)

    def found(self, view: ViewClass, wanted: Filter) -> list[Context]:
        """Give what a class sees now and a filter wants, by vid."""
        if not self.map.contexts:
            return []
        name, see = view.name, seen_by(self._policy, view.name)
        return run(self._contexts.live.every(name, see, wanted, self._desk.now))

    def candidates(self, wanted: Filter) -> list[str]:
        """Name contexts that could satisfy a filter; rules may show some in other places."""
        restricted = self._policy.restricted()
        if restricted is None:
            return list(self.map.contexts)
        named = dict.fromkeys(self.map.candidates(wanted))
        named.update((vid, None) for vid in restricted if vid in self.map.contexts)
        return list(named)

    def fresh(self, view_class: str, state: State) -> State:
        """Give a context's present state for a view class, in place of one that has waited."""
        if self._contexts.notes.unnoted:
            self._contexts.notes.settle(state.vid)
        known = self.map.contexts.get(state.vid)
        if known is None:
            return State(state.number, state.vid, b"")
        now = known.views.get(view_class)
        if now is None:
            return self._out_of_sight(view_class, known, state)
        if now.number == state.number:
            return state
        # What left may be back and hidden: then its departure has the later number.
        return State(max(now.number, state.number), state.vid, now.body)

    def _out_of_sight(self, view_class: str, known: MapContext, state: State) -> State:
        """Give the present state of a context that satisfies no query of a class any more."""
        view = self._dissemination.classes.get(view_class)
        seen = self._policy.visible(known.context, view_class, self._desk.now)
        body = b"" if seen is None else known.body if seen is known.context else body_of(seen)
        if view is None or body == state.body:
            return state
        view.number = next_number(view, self._desk.now - self._desk.started)
        return State(view.number, state.vid, body)

    def state_of_any(self, view: ViewClass, queries: Collection[int], vid: str) -> State | None:
        """Give a context's present state if it satisfies any of some queries."""
        self._contexts.notes.settle(vid)
        now = self.map.contexts[vid].views.get(view.name)
        if now is None or not any(is_among(now.matched, query) for query in queries):
            return None
        return State(now.number, vid, now.body)

    def state_of(
        self, view: ViewClass, record: QueryRecord, vid: str, alone: str = ""
    ) -> State | None:
        """Give a context's present state if it satisfies a query, for a viewer of a class.

        A query that is not noted there yet need not be for that: to note all of them at each
        context of a current set would take longer than to send it.
        """
        known = self.map.contexts.get(vid)
        if known is None:
            return None
        now = self._shown_to(view, known, alone)
        if now is None or not is_among(now.matched, record.number):
            watcher = self._contexts.apart.named.apart(view.name, alone, vid)
            if not self._contexts.notes.waits(record.number, vid, watcher):
                return None
            if now is None:
                self._contexts.notes.settle(vid)
                now = self._shown_to(view, known, alone)
                assert now is not None
        return State(now.number, vid, now.body)

    def decoded(self, view: ViewClass, state: State, alone: str = "") -> Context | None:
        """Give a state that `state_of` gave, decoded, if that is at hand."""
        known = self.map.contexts.get(state.vid)
        now = None if known is None else self._shown_to(view, known, alone)
        if known is None or now is None or now.body is not state.body:
            return None
        return known.context if now.seen is None and now.body is known.body else now.seen

    def _shown_to(self, view: ViewClass, known: MapContext, alone: str) -> ClassView | None:
        """Give what a viewer of a class was last told of a context."""
        watcher = self._contexts.apart.named.apart(view.name, alone, known.context.vid)
        if watcher is not None:
            return known.shown_apart(watcher.key)
        return known.views.get(view.name)
