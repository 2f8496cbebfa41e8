"""Notes: at each context, the queries that it satisfies.

An update finds them there, so a new query is noted at every context that satisfies it. At many that
takes long. It is done in slices then, and at each context before anybody looks at it (0195).
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from roamcast.channels.server.desk import Desk
from roamcast.channels.server.map_context import MapContext, view_of
from roamcast.channels.server.named import NamedViewer
from roamcast.channels.server.queries import Matched
from roamcast.channels.server.view_class import ViewClass
from roamcast.model.contexts import Context
from roamcast.model.parts import Timer

SLICE_US: Final = 1_000
"""Between two slices of notes."""

GONE_MAX: Final = 64
"""Queries that are gone stay noted at a context until they are so many, and as many as stand."""


class NotesDue(Timer, frozen=True):
    """A new query is to be noted at more of the contexts that satisfy it."""


class Unnoted(msgspec.Struct):
    """The contexts at which a query is not noted yet, as its class saw them when it was placed.

    With a viewer: those that lie apart for it, as it saw them.
    """

    view: ViewClass
    number: int
    """The class's number of that moment."""
    contexts: dict[str, Context]
    viewer: NamedViewer | None = None

    def stands(self, query: int) -> bool:
        """Whether the query has not been withdrawn meanwhile."""
        placed = self.view.table.records if self.viewer is None else self.viewer.queries
        return query in placed


class Notes:
    """Notes new queries at the contexts on the map."""

    def __init__(self, desk: Desk, contexts: Mapping[str, MapContext]) -> None:
        self.unnoted: dict[tuple[int, str], Unnoted] = {}
        """Queries that many contexts satisfy → where they are not noted yet.

        With a viewer for whom these lie apart, or none.
        """
        self._desk = desk
        self._contexts = contexts
        self._last: tuple[Matched, list[int], Matched] = (), [], ()
        """What was added last to what, and gave what: contexts that satisfy the same share it."""
        desk.timers.handle(NotesDue, self._due)

    def note(
        self,
        query: int,
        view: ViewClass,
        found: Sequence[Context],
        viewer: NamedViewer | None = None,
    ) -> list[str]:
        """Note a new query where it is satisfied: at once at few contexts, else in slices.

        `found`: what its class, or the one viewer, sees of these contexts. Name them.
        """
        contexts = dict(zip(map(_vid_of, found), found, strict=True))
        unnoted = Unnoted(view, view.number, contexts, viewer)
        vids = list(contexts)
        if len(vids) > self._desk.settings.notes_max:
            self.unnoted[query, "" if viewer is None else viewer.alone] = unnoted
            self._desk.timers.set(NotesDue(), self._desk.now + SLICE_US)
        else:
            for vid in vids:
                self.settle(vid)
                self._note_queries([query], [unnoted], vid)
        return vids

    def settle(self, vid: str) -> int:
        """Note the queries at a context that are not noted there yet; give how many.

        Together: one after the other would cost each of them as much as all before it.
        """
        if not self.unnoted:
            return 0
        groups: dict[tuple[str, str], tuple[list[int], list[Unnoted]]] = {}
        for (query, alone), unnoted in self.unnoted.items():
            if not unnoted.stands(query):
                unnoted.contexts.clear()
            elif vid in unnoted.contexts:
                group = groups.setdefault((unnoted.view.name, alone), ([], []))
                group[0].append(query)
                group[1].append(unnoted)
        for queries, waiting in groups.values():
            self._note_queries(queries, waiting, vid)
        return sum([len(queries) for queries, _ in groups.values()])

    def waits(self, query: int, vid: str, watcher: NamedViewer | None) -> bool:
        """Whether a context satisfies a query that is not noted there yet.

        `watcher`: the viewer for whom the context lies apart, if it does.
        """
        unnoted = self.unnoted.get((query, "" if watcher is None else watcher.alone))
        return unnoted is not None and vid in unnoted.contexts and unnoted.stands(query)

    def forget(self, query: int, alone: str) -> None:
        """Note a query of a viewer nowhere any more."""
        if (unnoted := self.unnoted.get((query, alone))) is not None:
            unnoted.contexts.clear()

    def forget_classes(self, names: Collection[str]) -> None:
        """Note nothing any more for view classes that have ended."""
        for unnoted in self.unnoted.values():
            if unnoted.view.name in names:
                unnoted.contexts.clear()

    def _note_queries(self, queries: list[int], unnoted: list[Unnoted], vid: str) -> None:
        """Note queries of one class, or of one viewer, at a context, in their order."""
        first, seen = unnoted[0], unnoted[0].contexts[vid]
        for one in unnoted:
            del one.contexts[vid]
        view, watcher, known = first.view, first.viewer, self._contexts[vid]
        if watcher is not None and vid not in watcher.vids:
            return  # it has returned to its class
        before = known.views.get(view.name) if watcher is None else known.shown_apart(watcher.key)
        if before is None:
            # Somebody may know an older state, told before the class lost sight of it.
            before = view_of(first.number, known.context, known.body, seen)
            if watcher is None:
                known.views[view.name] = before
            else:
                known.set_apart(watcher.key, before)
        standing = view.table.records if watcher is None else watcher.queries
        before.matched = self._added(before.matched, queries, standing)

    def _added(self, matched: Matched, queries: list[int], standing: Collection[int]) -> Matched:
        """Add new queries to those that a context satisfies.

        Whoever subscribes to much would wait for it if all of these were looked at each time, so
        some that stand no more stay among them, as they do where nothing is added.
        """
        was, added, both = self._last
        if matched is not was or queries != added:
            if len(matched) > 2 * len(standing) + GONE_MAX:
                both = tuple(sorted({*queries, *(one for one in matched if one in standing)}))
            elif matched and min(queries) <= matched[-1]:
                both = tuple(sorted({*matched, *queries}))
            else:
                both = (*matched, *sorted(queries))
            self._last = matched, queries, both
        return both

    def _due(self, timer: NotesDue) -> None:
        """Note the queries at some more contexts: as many notes as may be made at once."""
        room = self._desk.settings.notes_max
        for unnoted in islice(self.unnoted.values(), 1):
            for vid in [*islice(unnoted.contexts, room)]:
                room -= 1 + self.settle(vid)
                if room <= 0:
                    break
        self.unnoted = {query: left for query, left in self.unnoted.items() if left.contexts}
        if self.unnoted:
            self._desk.timers.set(timer, self._desk.now + SLICE_US)


_vid_of = attrgetter("vid")
