"""Whose rules are in force? The rules of each vid, and the default for those that have none."""

from collections.abc import Collection, Sequence
from typing import Final

from roamcast.identity.rules import EVERYONE, Rule, check_rules

PUBLIC: Final = (Rule(viewers=(EVERYONE,), precision="exact", past=True),)
"""The default of a service: what is published without rules everybody with a key may see."""


class RuleBook:
    """Rules by vid."""

    def __init__(self, default: Sequence[Rule] = PUBLIC) -> None:
        self.default = tuple(check_rules(default))
        self.public = self.default == PUBLIC
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._named: dict[str, int] = {}
        self._count(self.default, 1)

    def of(self, vid: str) -> tuple[Rule, ...]:
        """Give the rules in force for a vid."""
        return self._rules.get(vid, self.default)

    def own(self, vid: str) -> tuple[Rule, ...] | None:
        """Give the rules set for this very vid."""
        return self._rules.get(vid)

    def set(self, vid: str, rules: Sequence[Rule] | None) -> set[str]:
        """Set the rules of a vid, None takes them away; give viewers named for the first time."""
        known = self._named.keys() | set()
        before = self._rules.pop(vid, None)
        if before is not None:
            self._count(before, -1)
        if rules is not None:
            checked = tuple(check_rules(rules))
            self._rules[vid] = checked
            self._count(checked, 1)
        return self._named.keys() - known

    def names(self, viewer: str) -> bool:
        """Whether some rule names a viewer, who then needs a view class of its own."""
        return viewer in self._named

    def restricted(self) -> Collection[str] | None:
        """Name the vids that some may see otherwise than they are; None: any may be."""
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
