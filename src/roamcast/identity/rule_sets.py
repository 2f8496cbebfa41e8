"""Ownership of rules: who set the rules of a vid, from the moment the write was asked for.

Rules hold for a vid, whoever publishes under it. A vid with rules therefore belongs to whoever set
them: nobody else may publish under it, or a stranger's rules would show them (decision 0082).
"""

from collections.abc import Mapping, Sequence

import msgspec

from roamcast.errors import ConflictError, LimitError
from roamcast.identity.rulebook import RuleBook
from roamcast.identity.rules import Rule, check_rules

PREFIX = "rules/"


class OwnedRules(msgspec.Struct, frozen=True, array_like=True):
    """Rules on disk, and who set them."""

    owner: str
    rules: tuple[Rule, ...]
    binding: bool = True
    """Whether only the owner may publish under the vid; false where an operator set the rules."""


class Claim(msgspec.Struct):
    """A vid with rules on their way to the disk: their owner, and how many writes."""

    owner: str
    binding: bool
    writes: int = 0


class RuleSets:
    """The owners of rules in force, and of rules on their way to the disk."""

    def __init__(self, book: RuleBook, sets_per_owner_max: int) -> None:
        self._book = book
        self._sets_per_owner_max = sets_per_owner_max
        self._owners: dict[str, tuple[str, bool]] = {}
        self._owned: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}

    def restore(self, stored: Mapping[str, bytes]) -> None:
        """Put the rules on disk into force."""
        for key in sorted(stored):
            if key.startswith(PREFIX):
                self.adopt(key[len(PREFIX) :], stored[key])

    def owner_of(self, vid: str) -> str | None:
        """Give who set the rules of a vid, or is about to."""
        known = self._known(vid)
        return None if known is None else known[0]

    def publisher_of(self, vid: str) -> str | None:
        """Give who alone may publish under a vid; None: everybody may."""
        known = self._known(vid)
        return known[0] if known is not None and known[1] else None

    def _known(self, vid: str) -> tuple[str, bool] | None:
        known = self._owners.get(vid)
        if known is None and (claim := self._claims.get(vid)) is not None:
            known = claim.owner, claim.binding
        return known

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change rules that somebody else set."""
        known = self.owner_of(vid)
        if known is not None and known != owner:
            raise ConflictError(f"the rules of {vid!r} were set by somebody else")
        most = self._sets_per_owner_max
        if known is None and self._owned.get(owner, 0) >= most:
            raise LimitError(f"one publisher sets the rules of at most {most} vids")

    def write(
        self, owner: str, vid: str, rules: Sequence[Rule] | None, *, for_others: bool
    ) -> tuple[str, bytes | None]:
        """Give the store write of rules, and claim the vid for their owner from now on."""
        if rules is not None:
            check_rules(rules)
        owner, binding = self._known(vid) or (owner, not for_others)
        claim = self._claims.setdefault(vid, Claim(owner, binding))
        claim.writes += 1
        if rules is None:
            return PREFIX + vid, None
        return PREFIX + vid, msgspec.msgpack.encode(OwnedRules(owner, tuple(rules), binding))

    def written(self, vid: str, rules: Sequence[Rule] | None) -> list[str]:
        """Put rules that are on disk into force; return viewers named for the first time."""
        claim = self._claims[vid]
        self.settled(vid)
        return self._set(vid, claim.owner, rules, claim.binding)

    def settled(self, vid: str) -> None:
        """End one write of rules, which has reached the disk or never will."""
        claim = self._claims[vid]
        claim.writes -= 1
        if not claim.writes:
            del self._claims[vid]

    def adopt(self, vid: str, value: bytes | None) -> list[str]:
        """Put another replica's rules into force; return viewers named for the first time."""
        if value is None:
            return self._set(vid, "", None, False)
        owned = msgspec.msgpack.decode(value, type=OwnedRules)
        return self._set(vid, owned.owner, owned.rules, owned.binding)

    def _set(self, vid: str, owner: str, rules: Sequence[Rule] | None, binding: bool) -> list[str]:
        before = self._owners.pop(vid, None)
        if before is not None:
            self._owned[before[0]] -= 1
            if not self._owned[before[0]]:
                del self._owned[before[0]]
        if rules is not None:
            self._owners[vid] = owner, binding
            self._owned[owner] = self._owned.get(owner, 0) + 1
        return self._book.set(vid, rules)
