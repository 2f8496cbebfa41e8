"""A context on the map: its state, and what each who sees it was last told of it.

Each context holds the queries that its present state satisfies, by view class; and by viewer, where
it lies apart for one (`named.py`).
"""

import msgspec

from roamcast.channels.server.desk import NOBODY
from roamcast.channels.server.named import ViewerKey
from roamcast.channels.server.queries import Matched
from roamcast.model.contexts import Context, body_of


class ClassView(msgspec.Struct):
    """What one view class sees of a context."""

    number: int
    """The class's update that brought it about."""
    body: bytes
    """Empty if the class sees nothing."""
    seen: Context | None = None
    """The body decoded; None if it is the context's own, or empty."""
    matched: Matched = ()


def view_of(
    number: int, context: Context | None, body: bytes, seen: Context | None, matched: Matched = ()
) -> ClassView:
    """Give what is seen of a context with these bytes; only what rules coarsened is encoded."""
    own = seen is context
    text = body if own else b"" if seen is None else body_of(seen)
    return ClassView(number, text, None if own else seen, matched)


Touched = tuple[Context | None, Matched]
"""What a class sees of a context, and its queries that this satisfies."""


class MapContext(msgspec.Struct):
    """A context on the map: its state, who published it, and what each view class sees of it."""

    context: Context
    body: bytes
    """The context's bytes as they came: encoded once, by its publisher."""
    stamp: int
    owner: str
    views: dict[str, ClassView]
    """View class with queries that it satisfies → what the class was last told."""
    owner_before: str = ""
    """Who published this same state before its owner did."""
    recorded: Context | None = None
    """What stands in the journal of it."""
    changes_at: int | None = None
    """When the clock may change what some see of it."""
    seat: int = 0
    """Its index in `ActiveMap.seats`, the same for as long as it is on the map."""
    names: frozenset[str] = NOBODY
    """Whom its rules name."""
    apart: dict[ViewerKey, ClassView] | None = None
    """Viewer for whom it lies apart → what that viewer was last told, as in `views`."""

    def set_apart(self, key: ViewerKey, view: ClassView) -> None:
        """Note what a viewer for whom it lies apart is told."""
        if self.apart is None:
            self.apart = {}
        self.apart[key] = view

    def shown_apart(self, key: ViewerKey) -> ClassView | None:
        """Give what such a viewer was last told; None: nothing that its queries want."""
        return None if self.apart is None else self.apart.get(key)
