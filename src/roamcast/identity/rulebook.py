"""The rules in force: those of each vid, and the default for vids without any."""

from collections.abc import Collection, Sequence
from typing import Final

from roamcast.identity.rules import EVERYONE, Rule, check_rules

PUBLIC: Final = (Rule(viewers=(EVERYONE,), precision="exact", past=True),)
"""The default of a service: everybody with a token sees what is published without rules."""

APART_MAX: Final = 100_000
"""Most viewers with a view class of their own that no rule names any more; the oldest go first."""


class RuleBook:
    """Rules by vid."""

    def __init__(self, default: Sequence[Rule] = PUBLIC) -> None:
        self.default = tuple(check_rules(default))
        self.public = self.default == PUBLIC
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._named: dict[str, int] = {}
        self._apart: dict[str, None] = {}
        self._count(self.default, 1)

    def of(self, vid: str) -> tuple[Rule, ...]:
        """Give the rules in force for a vid."""
        return self._rules.get(vid, self.default)

    def own(self, vid: str) -> tuple[Rule, ...] | None:
        """Give the rules set for this very vid."""
        return self._rules.get(vid)

    def set(self, vid: str, rules: Sequence[Rule] | None) -> list[str]:
        """Set or (None) remove the rules of a vid; return viewers named for the first time."""
        checked = () if rules is None else tuple(check_rules(rules))
        fresh = sorted(
            {viewer for rule in checked for viewer in rule.viewers if not self.names(viewer)}
            - {EVERYONE}
        )
        before = self._rules.pop(vid, None)
        if before is not None:
            self._count(before, -1)
        if rules is not None:
            self._rules[vid] = checked
            self._count(checked, 1)
        return fresh

    def names(self, viewer: str) -> bool:
        """Whether some rule names a viewer, which then needs a view class of its own."""
        return viewer in self._named or viewer in self._apart

    def keep_apart(self, viewer: str) -> None:
        """Treat a viewer as named from now on.

        Giving it a view class of its own made others of its former class change keys. That happens
        once, however often somebody names the viewer and takes it back (decision 0082).
        """
        self._apart[viewer] = None
        if len(self._apart) > APART_MAX:
            del self._apart[next(iter(self._apart))]

    def restricted(self) -> Collection[str] | None:
        """Give the vids that some viewers may not see exactly; None: it may be any."""
        return self._rules.keys() if self.public else None

    def _count(self, rules: Sequence[Rule], by: int) -> None:
        for rule in rules:
            for viewer in rule.viewers:
                if viewer == EVERYONE:
                    continue
                left = self._named.get(viewer, 0) + by
                if left:
                    self._named[viewer] = left
                else:
                    del self._named[viewer]
