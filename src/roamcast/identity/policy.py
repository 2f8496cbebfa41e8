"""Who may see the same, and what of an object? People's rules as the map server asks for them."""

from collections.abc import Callable, Collection, Sequence

from roamcast.errors import LimitError
from roamcast.identity.rulebook import PUBLIC
from roamcast.identity.rules import Rule, Viewer, changes_at, visible
from roamcast.model.contexts import Context
from roamcast.model.places import Places

VIEW_CLASSES_MAX = 10_000

RulesOf = Callable[[str], Sequence[Rule]]
"""The rules of whoever is behind a vid."""

ViewerOf = Callable[[str], Viewer]
"""Who is behind a client."""


def subject_of(client: str) -> str:
    """Give who is behind a client's name: a client is one device of a subject, `subject#device`."""
    return client.partition("#")[0]


class RulesPolicy:
    """Decides by people's rules who sees what."""

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
        """`names`: whether some rule names a viewer, who therefore gets a class of its own.

        Viewers whom no rule names are told apart by their groups only, so that all who may see the
        same share a class, and its channels. `used` names the classes in which anybody is: where
        there would be too many, the others are forgotten.
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
        """Name the class of a client when its session begins; it stays until the next one."""
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
                self._viewers = {one: who for one, who in self._viewers.items() if one in used}
            if len(self._viewers) >= VIEW_CLASSES_MAX:
                raise LimitError(f"a broker tells at most {VIEW_CLASSES_MAX} view classes apart")
            self._viewers[view_class] = Viewer(name, viewer.groups)
        return view_class

    def _current(self, base: str) -> str:
        return f"{base}\n#{self._retired[base]}" if base in self._retired else base

    def retire(self, view_class: str) -> bool:
        """Let nobody come into a class any more: someone who has its key may no longer read it.

        False if it has ended already.
        """
        base = view_class.partition("\n#")[0]
        if self._current(base) != view_class:
            return False
        self._retired[base] = self._retired.get(base, 0) + 1
        return True

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give an object as a class may see it, or nothing."""
        return self.visible_to(context, self._viewers[view_class], now)

    def visible_to(self, context: Context, viewer: Viewer, now: int) -> Context | None:
        """Give an object as a viewer may see it, or nothing."""
        rules = self._rules_of(context.vid)
        if rules is PUBLIC:
            return context
        return visible(context, rules, viewer, now, self._places)

    def changes_at(self, context: Context, now: int) -> int | None:
        """Give when the clock alone may next change what anybody sees of an object, or never."""
        rules = self._rules_of(context.vid)
        return None if rules is PUBLIC else changes_at(context, rules, now)

    def restricted(self) -> Collection[str] | None:
        """Name the objects that some may see otherwise than they are; None: any may be."""
        return self._restricted()

    def may_take(self, client: str, owner: str) -> bool:
        """A subject's devices may change what another of its devices publishes."""
        return subject_of(client) == subject_of(owner)
