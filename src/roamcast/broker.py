"""What is one broker made of? Its machines, and what one lends the other.

So far the map service under people's privacy rules: `RulesPolicy` answers the map server from
`identity.rules`, for queries, subscriptions and current sets alike. Viewers whom no rule names are
told apart by their groups only, so that all who may see the same share a class, and its channels.
"""

from collections.abc import Callable, Collection, Sequence

from roamcast.errors import LimitError
from roamcast.identity.rules import Rule, Viewer, visible
from roamcast.model.contexts import Context
from roamcast.model.places import Places

VIEW_CLASSES_MAX = 10_000

RulesOf = Callable[[str], Sequence[Rule]]
"""The rules of whoever is behind a vid."""

GroupsOf = Callable[[str], frozenset[str]]
"""The groups a client belongs to."""


class RulesPolicy:
    """Decides by people's rules who sees what."""

    def __init__(
        self,
        rules_of: RulesOf,
        groups_of: GroupsOf,
        *,
        named: Collection[str] = (),
        places: Places | None = None,
    ) -> None:
        """`named`: the viewers whom some rule names, who therefore get a class of their own."""
        self._rules_of = rules_of
        self._groups_of = groups_of
        self._named = frozenset(named)
        self._places = places
        self._viewers: dict[str, Viewer] = {}

    def view_class(self, client: str) -> str:
        """Name the class of a client when its session begins; it stays until the next one."""
        groups = self._groups_of(client)
        name = client if client in self._named else ""
        view_class = "\n".join([name, *sorted(groups)])
        if view_class not in self._viewers:
            if len(self._viewers) >= VIEW_CLASSES_MAX:
                raise LimitError(f"a broker tells at most {VIEW_CLASSES_MAX} view classes apart")
            self._viewers[view_class] = Viewer(name, groups)
        return view_class

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give an object as a class may see it, or nothing."""
        rules = self._rules_of(context.vid)
        return visible(context, rules, self._viewers[view_class], now, self._places)
