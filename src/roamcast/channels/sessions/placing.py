"""Where the queries of sessions are placed, and how frames call them.

At this node's map, in the view class of the session; for everywhere also at the maps of other
nodes. All queries of one filter have one number in frames, whatever view class they are of.
"""

from typing import Final, Protocol

import msgspec

from roamcast.channels.server.messages import State
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.changes import ContextEvent, EventKind
from roamcast.channels.sessions.desk import HubSession, Key
from roamcast.errors import LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.parts import Occupancy

EVERYWHERE: Final = 2**40
"""Added to the number of a query whose contexts may be on any node's map."""


class RemoteStates(Protocol):
    """The maps of other nodes (`overlay/states`)."""

    def watch(self, wanted: Filter) -> None:
        """Want what a filter matches of every node, from now on."""

    def leave(self, wanted: Filter) -> None:
        """Want it no longer, for one of those who did."""

    def current(self, wanted: Filter) -> list[State]:
        """Give what is known to match, by vid."""
        ...

    def state(self, wanted: str, vid: str) -> tuple[State, Context] | None:
        """Give one context, if it matches."""
        ...


class _Shown(msgspec.Struct):
    """How frames call the queries of one filter: the same in all view classes (0090)."""

    number: int
    keys: int = 0


def number_at_map(key: Key) -> int:
    """Give the number of a query at this node's map."""
    return key[1] % EVERYWHERE


class Placing:
    """Places the queries of all sessions, and numbers them."""

    def __init__(self, local: LocalQueries) -> None:
        self.local = local
        self.remote: RemoteStates | None = None
        """Other nodes' maps; None where there are none."""
        self.last_number = 0
        """The last number that a filter was given."""
        self._everywhere: dict[str, dict[Key, None]] = {}
        """Filters that are watched on every node's map → the queries of each."""
        self._shown: dict[Key, str] = {}
        """Queries in use → the text of their filter, by which frames number them."""
        self._texts: dict[str, _Shown] = {}

    def occupancy(self, queries: int) -> Occupancy:
        """How much is held of what, and the bound of each."""
        return {
            "numbered queries": (len(self._shown), queries),
            "numbered filters": (len(self._texts), len(self._shown)),
        }

    def place(self, session: HubSession, wanted: Filter, everywhere: bool) -> Key:
        """Place a query at this node's map, and want it of others if it is for everywhere."""
        view_class, viewer = session.view_class, session.viewer
        number = self.local.place(view_class, wanted, viewer)
        if not everywhere:
            return view_class, number, session.form
        key = (view_class, number + EVERYWHERE, session.form)
        assert self.remote is not None
        try:
            self.remote.watch(wanted)
        except LimitError:
            self.local.drop(view_class, number, viewer)
            raise
        self._everywhere.setdefault(wanted.text, {})[key] = None
        return key

    def drop(self, key: Key, wanted: Filter, viewer: str) -> None:
        """End a query that was placed; one that was placed several times has others left."""
        self.local.drop(key[0], number_at_map(key), viewer)
        if key[1] >= EVERYWHERE:
            assert self.remote is not None
            self.remote.leave(wanted)

    def state(self, session: HubSession, key: Key, vid: str) -> State | None:
        """Give one context's state if it satisfies a query now, here or on another node's map."""
        state = self.local.state(key[0], number_at_map(key), vid, session.viewer)
        if state is None and key[1] >= EVERYWHERE:
            found = self._elsewhere(key, vid)
            state = None if found is None else found[0]
        return state

    def _elsewhere(self, key: Key, vid: str) -> tuple[State, Context] | None:
        assert self.remote is not None
        return self.remote.state(self._shown[key].removeprefix("everywhere "), vid)

    def beside_remote(self, key: Key, event: ContextEvent) -> ContextEvent:
        """Give what it means that a vid comes or goes here where another node shows it, too."""
        found = self._elsewhere(key, event.state.vid)
        if found is None:
            return event
        if event.kind is EventKind.APPEARED:
            return ContextEvent(EventKind.CHANGED, event.state, event.at_us, event.context)
        return ContextEvent(EventKind.CHANGED, found[0], event.at_us, found[1])

    def watched(self, text: str) -> list[Key]:
        """Give the queries of a filter that is watched on every node's map."""
        return list(self._everywhere.get(text, ()))

    def number(self, key: Key) -> int:
        """Give the number of a query in use in frames."""
        return self._texts[self._shown[key]].number

    def name(self, key: Key, wanted: Filter) -> int:
        """Give the number of a query in frames; its filter gets one if it has none."""
        text = self._shown.get(key)
        if text is None:
            scope = "everywhere " if key[1] >= EVERYWHERE else ""
            text = self._shown[key] = scope + wanted.text
            if text not in self._texts:
                self.last_number += 1
                self._texts[text] = _Shown(self.last_number)
            self._texts[text].keys += 1
        return self._texts[text].number

    def forget(self, key: Key) -> None:
        """Forget a query that no session has any more."""
        text = self._shown.pop(key)
        self._texts[text].keys -= 1
        if not self._texts[text].keys:
            del self._texts[text]
        if key[1] >= EVERYWHERE:
            filters = text.removeprefix("everywhere ")
            del self._everywhere[filters][key]
            if not self._everywhere[filters]:
                del self._everywhere[filters]
