"""Named viewers: sessions whose viewer the rules of some objects name (0320).

Everybody with the same groups is in one view class, named or not. Of an object whose rules name a
viewer, that viewer may see something else than its class; such an object lies *apart* for it. What
it sees of these, and which of its own queries that satisfies, is kept with the object for each such
viewer who watches, so that an update costs its classes and those whom this very object names.
"""

from collections.abc import Iterable

import msgspec

from roamcast.channels.server.queries import Matched, is_among
from roamcast.channels.server.view_class import ViewClass

ViewerKey = tuple[str, str]
"""(view class, the viewer among the classes)."""


class NamedViewer(msgspec.Struct):
    """A viewer with sessions in this process that watch something."""

    key: ViewerKey
    name: str
    """By which rules mean it."""
    alone: str
    """What it is called among the view classes: its name and its groups."""
    view: ViewClass
    """The class of its groups."""
    queries: dict[int, int]
    """Queries of the class that it has placed → how often."""
    vids: dict[str, None]
    """The contexts on the map that lie apart for it."""

    def own(self, matched: Matched) -> Matched:
        """Give those of some queries of the class that are its own."""
        if len(self.queries) < len(matched) // 16:  # a search in many takes as many steps
            return tuple(sorted([query for query in self.queries if is_among(matched, query)]))
        return tuple([query for query in matched if query in self.queries])


class NamedViewers:
    """Who watches by a name, found by it."""

    def __init__(self) -> None:
        self.known: dict[ViewerKey, NamedViewer] = {}
        self._by_name: dict[str, dict[ViewerKey, NamedViewer]] = {}
        self._names: set[str] = set()

    def add(self, alone: str, view: ViewClass) -> NamedViewer:
        """Note a viewer who begins to watch."""
        key, name = (view.name, alone), alone.partition("\n")[0]
        watcher = self.known[key] = NamedViewer(key, name, alone, view, {}, {})
        self._by_name.setdefault(name, {})[key] = watcher
        self._names.add(name)
        return watcher

    def remove(self, watcher: NamedViewer) -> None:
        """Forget a viewer who watches no more."""
        del self.known[watcher.key]
        del self._by_name[watcher.name][watcher.key]
        if not self._by_name[watcher.name]:
            del self._by_name[watcher.name]
            self._names.remove(watcher.name)

    def apart(self, view_class: str, alone: str, vid: str) -> NamedViewer | None:
        """Give a viewer of a class if a context lies apart for it."""
        watcher = self.known.get((view_class, alone)) if alone else None
        return watcher if watcher is not None and vid in watcher.vids else None

    def of(self, names: frozenset[str]) -> Iterable[NamedViewer]:
        """Give those who watch under some names."""
        if not names:
            return ()
        found = sorted(self._names.intersection(names))
        return [watcher for name in found for watcher in self._by_name[name].values()]
