"""`RulesPolicy`: the only place that decides visibility, by people's rules.

Viewers who may see the same form a view class, which shares channels and keys.
"""

from collections.abc import Callable, Collection, Sequence

from roamcast.errors import LimitError
from roamcast.identity.rulebook import PUBLIC
from roamcast.identity.rules import Rule, Viewer, changes_at, visible
from roamcast.model.contexts import Context
from roamcast.model.places import Places

VIEW_CLASSES_MAX = 10_000

RulesOf = Callable[[str], Sequence[Rule]]
"""Gives the rules of a vid."""

ViewerOf = Callable[[str], Viewer]
"""Gives the viewer behind a client."""


def subject_of(client: str) -> str:
    """Give who is behind a client's name: a client is one device of a subject, `subject#device`."""
    return client.partition("#")[0]


class RulesPolicy:
    """Decides who sees what of a context."""

    def __init__(
        self,
        rules_of: RulesOf,
        viewer_of: ViewerOf,
        *,
        names: Callable[[str], bool] = lambda _: False,
        restricted: Callable[[], Collection[str] | None] = lambda: None,
        places: Places | None = None,
        used: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """`names`: whether some rule names a viewer, which then gets a view class of its own.

        All other viewers are classed by their groups alone, so that everybody who may see the same
        shares a class and its channels. `used` gives the classes with members: at the limit the
        empty ones are dropped.
        """
        self._rules_of = rules_of
        self._viewer_of = viewer_of
        self._names = names
        self._restricted = restricted
        self._places = places
        self._used = used
        self._viewers: dict[str, Viewer] = {}
        self._retired: dict[str, int] = {}

    def view_class(self, client: str) -> str:
        """Give the class of a client at the start of its session, for all of that session."""
        return self.class_of(self._viewer_of(client))

    def name_of(self, viewer: Viewer) -> str:
        """Name the class that a viewer would be in, without opening it."""
        name = viewer.name if self._names(viewer.name) else ""
        return self._current("\n".join([name, *sorted(viewer.groups)]))

    def class_of(self, viewer: Viewer) -> str:
        """Name the class of a viewer, and open it if nobody is in it yet."""
        name = viewer.name if self._names(viewer.name) else ""
        view_class = self.name_of(viewer)
        if view_class not in self._viewers:
            if len(self._viewers) >= VIEW_CLASSES_MAX and self._used is not None:
                used = self._used()
                self._viewers = {
                    known: who for known, who in self._viewers.items() if known in used
                }
            if len(self._viewers) >= VIEW_CLASSES_MAX:
                raise LimitError(f"a broker has {VIEW_CLASSES_MAX} view classes at most: try later")
            self._viewers[view_class] = Viewer(name, viewer.groups)
        return view_class

    def _current(self, base: str) -> str:
        return f"{base}\n#{self._retired[base]}" if base in self._retired else base

    def retire(self, view_class: str) -> bool:
        """Admit nobody to a class any more, because somebody with its key may no longer read it.

        False if it is retired already.
        """
        base = view_class.partition("\n#")[0]
        if self._current(base) != view_class:
            return False
        self._retired[base] = self._retired.get(base, 0) + 1
        return True

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give a context as a class may see it, or nothing."""
        return self.visible_to(context, self._viewers[view_class], now)

    def visible_to(self, context: Context, viewer: Viewer, now: int) -> Context | None:
        """Give a context as a viewer may see it, or nothing."""
        rules = self._rules_of(context.vid)
        if rules is PUBLIC:
            return context
        return visible(context, rules, viewer, now, self._places)

    def changes_at(self, context: Context, now: int) -> int | None:
        """Give when time alone may next change what anybody sees of a context; None: never."""
        rules = self._rules_of(context.vid)
        return None if rules is PUBLIC else changes_at(context, rules, now)

    def restricted(self) -> Collection[str] | None:
        """Give the vids that some viewers may not see exactly; None: it may be any."""
        return self._restricted()

    def may_take(self, client: str, owner: str) -> bool:
        """Whether a client may change what another publishes: devices of one subject may."""
        return subject_of(client) == subject_of(owner)
