"""What lies apart: named viewers are told alone what the rules of a context show them of it (0320).

A context whose rules name a viewer lies apart for that viewer, and is told to its class without it.
When the rules name it no more, it sees the context with its class again. What it is told is
numbered as its class would number it, so that no number tells that it was told alone (0090).
"""

from collections.abc import Callable, Collection, Mapping

from msgspec import structs

from roamcast.channels.server.desk import Desk, Policy
from roamcast.channels.server.live_views import SMALL_MAX, LiveViews, seen_by
from roamcast.channels.server.map_context import ClassView, MapContext, Touched, view_of
from roamcast.channels.server.messages import State
from roamcast.channels.server.named import NamedViewer, NamedViewers, ViewerKey
from roamcast.channels.server.notes import Notes
from roamcast.channels.server.queries import LocalUpdate, Matched, is_among
from roamcast.channels.server.view_class import ViewClass
from roamcast.matching.live.slices import run
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

Unchanged = Callable[[ClassView, Context | None, Context | None, bytes, str], bool]
"""(what was seen before, the context, what is seen now, the context's bytes, the class or viewer) →
whether that is the same."""


class Apart:
    """The viewers who watch by a name, and what is told to each alone."""

    def __init__(
        self,
        desk: Desk,
        contexts: Mapping[str, MapContext],
        policy: Policy,
        live: LiveViews,
        notes: Notes,
        unchanged: Unchanged,
    ) -> None:
        self.named = NamedViewers()
        self._desk = desk
        self._contexts = contexts
        self._policy = policy
        self._live = live
        self._notes = notes
        self._unchanged = unchanged

    def watch(self, view: ViewClass, alone: str, wanted: Filter, query: int) -> None:
        """Note a query of a viewer at the contexts that lie apart for it."""
        watcher = self.named.known.get((view.name, alone))
        if watcher is None:
            watcher = self.named.add(alone, view)
            contexts, vids = self._contexts, self._policy.naming(watcher.name)
            for vid in contexts if vids is None else vids:
                if vid in contexts and watcher.name in contexts[vid].names:
                    watcher.vids[vid] = None
        watcher.queries[query] = watcher.queries.get(query, 0) + 1
        if watcher.queries[query] == 1 and watcher.vids:
            self._notes.note(query, view, self._found(watcher, wanted), watcher)

    def unwatch(self, view: ViewClass, alone: str, query: int) -> None:
        """Forget a viewer's query; the viewer with the last."""
        watcher = self.named.known[view.name, alone]
        watcher.queries[query] -= 1
        if watcher.queries[query]:
            return
        del watcher.queries[query]
        self._notes.forget(query, alone)
        if not watcher.queries:
            self.named.remove(watcher)
            for vid in watcher.vids:
                apart = self._contexts[vid].apart
                if apart is not None:
                    apart.pop(watcher.key, None)

    def _found(self, watcher: NamedViewer, wanted: Filter) -> list[Context]:
        """Give what a viewer sees and a filter wants of the contexts that lie apart for it."""
        now, see = self._desk.now, seen_by(self._policy, watcher.alone)
        if len(watcher.vids) > SMALL_MAX:
            every = run(self._live.every(watcher.alone, see, wanted, now))
            return [seen for seen in every if seen.vid in watcher.vids]
        shown = (see(self._contexts[vid].context, now) for vid in watcher.vids)
        return [seen for seen in shown if seen is not None and wanted.matches(seen)]

    def viewers(self, known: MapContext) -> list[NamedViewer]:
        """Give the viewers for whom a context lies apart, or lay until its last change."""
        viewers = {watcher.key: watcher for watcher in self.named.of(known.names)}
        for key in known.apart or ():
            viewers[key] = self.named.known[key]
        return list(viewers.values())

    def listed_for(self, view: ViewClass, query: int, vids: list[str], alone: str) -> list[str]:
        """Give the current set of a class as one viewer of it sees it, by vid."""
        watcher = self.named.known.get((view.name, alone))
        if watcher is None or not watcher.vids:
            return vids
        with_class = [vid for vid in vids if vid not in watcher.vids]
        waiting = self._notes.unnoted.get((query, alone))
        later = {} if waiting is None else waiting.contexts
        own = []
        for vid in watcher.vids:
            now = self._contexts[vid].shown_apart(watcher.key)
            if vid in later or (now is not None and is_among(now.matched, query)):
                own.append(vid)
        return sorted([*with_class, *own])

    def name_anew(self, known: MapContext) -> dict[ViewerKey, ClassView]:
        """Take whom a context's rules name now; give who is to see it with the class again.

        Whom they name from now on saw it with the class until now.
        """
        vid = known.context.vid
        names, was = self._policy.names_of(vid), known.names
        known.names = names
        returning: dict[ViewerKey, ClassView] = {}
        if names is not was:
            for watcher in self.named.of(was - names):
                watcher.vids.pop(vid, None)
                returning[watcher.key] = ClassView(watcher.view.opened, b"")
            for watcher in self.named.of(names - was):
                watcher.vids[vid] = None
                with_class = known.views.get(watcher.view.name)
                matched = () if with_class is None else watcher.own(with_class.matched)
                if with_class is not None and matched and known.shown_apart(watcher.key) is None:
                    known.set_apart(watcher.key, structs.replace(with_class, matched=matched))
        apart = known.apart or {}
        for key in [key for key in apart if self.named.known[key].name not in names]:
            self.named.known[key].vids.pop(vid, None)
            returning[key] = apart.pop(key)
        return returning

    def spread(
        self,
        known: MapContext,
        context: Context | None,
        body: bytes,
        viewers: Mapping[ViewerKey, Touched],
        returning: Mapping[ViewerKey, ClassView],
        stepped: Collection[str],
    ) -> None:
        """Tell an update to viewers for whom a context lies apart, or lay until now.

        `stepped`: the classes that were told the same update.
        """
        for key, touched in viewers.items():
            if key not in returning:
                self._step(known, key, context, body, touched, stepped)
        for key, was in returning.items():
            self._return(known, self.named.known[key], was, stepped)

    def _step(
        self,
        known: MapContext,
        key: ViewerKey,
        context: Context | None,
        body: bytes,
        touched: Touched,
        stepped: Collection[str],
    ) -> None:
        """Note what a viewer sees of a context that lies apart for it, and tell what changed."""
        seen, after = touched
        watcher, before = self.named.known[key], known.shown_apart(key)
        if before is None:
            if not after:
                return
            before = ClassView(watcher.view.opened, b"")
        elif self._unchanged(before, context, seen, body, watcher.alone):
            return
        now = view_of(self._number(watcher.view, before, stepped), context, body, seen, after)
        self._tell(watcher, State(now.number, known.context.vid, now.body), before, after, seen)
        if after:
            known.set_apart(key, now)
        elif known.apart is not None:
            known.apart.pop(key, None)

    def _return(
        self, known: MapContext, watcher: NamedViewer, was: ClassView, stepped: Collection[str]
    ) -> None:
        """Let a viewer see a context with its class again, and tell what differs for it."""
        context, vid = known.context, known.context.vid
        now = known.views.get(watcher.view.name)
        after = () if now is None else watcher.own(now.matched)
        seen = None if now is None else now.seen or context
        body = b"" if now is None else now.body
        who = watcher.alone
        if now is not None and was.body and self._unchanged(was, context, seen, body, who):
            if (was.body, was.number) != (body, now.number):
                # Only the time of looking or of the change differs: its own stays until more does.
                known.set_apart(watcher.key, was)
                watcher.vids[vid] = None
            return
        number = self._number(watcher.view, was, stepped)
        self._tell(watcher, State(number, vid, body), was, after, seen)

    def _tell(
        self,
        watcher: NamedViewer,
        state: State,
        was: ClassView,
        after: Matched,
        seen: Context | None,
    ) -> None:
        before = watcher.own(was.matched)
        if before or after:
            self._desk.out.append(
                LocalUpdate(watcher.view.name, state, before, after, seen, only=watcher.alone)
            )

    def _number(self, view: ViewClass, was: ClassView, stepped: Collection[str]) -> int:
        """Number an update that a viewer is told alone as its class would (0090)."""
        elapsed = self._desk.now - self._desk.started
        return max(elapsed, was.number + 1, view.number + (view.name not in stepped))
