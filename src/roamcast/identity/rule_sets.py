"""Whose are the rules of a vid? Rule sets by who set them, claimed as soon as they are asked for.

Rules hold for a vid, whoever publishes under it. So that nobody decides what others see of somebody
else, a vid with rules is its owner's: nobody else may publish under it (decision 0082).
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
    """Whether nobody else may publish under the vid; not so if an operator set them for others."""


class Claim(msgspec.Struct):
    """A vid with rules on their way to the disk: whose they are, and how many."""

    owner: str
    binding: bool
    writes: int = 0


class RuleSets:
    """The rules that are set, their owners, and those on their way."""

    def __init__(self, book: RuleBook, sets_per_owner_max: int) -> None:
        self._book = book
        self._sets_per_owner_max = sets_per_owner_max
        self._owners: dict[str, tuple[str, bool]] = {}
        self._owned: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}

    def restore(self, stored: Mapping[str, bytes]) -> None:
        """Let come into force what was on disk."""
        for key in sorted(stored):
            if key.startswith(PREFIX):
                self.adopt(key[len(PREFIX) :], stored[key])

    def owner_of(self, vid: str) -> str | None:
        """Say who set the rules of a vid, or is about to."""
        known = self._known(vid)
        return None if known is None else known[0]

    def publisher_of(self, vid: str) -> str | None:
        """Say who alone may publish under a vid; None: everybody may."""
        known = self._known(vid)
        return known[0] if known is not None and known[1] else None

    def _known(self, vid: str) -> tuple[str, bool] | None:
        known = self._owners.get(vid)
        if known is None and (claim := self._claims.get(vid)) is not None:
            known = claim.owner, claim.binding
        return known

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change the rules that somebody else set."""
        known = self.owner_of(vid)
        if known is not None and known != owner:
            raise ConflictError(f"the rules of {vid!r} were set by somebody else")
        most = self._sets_per_owner_max
        if known is None and self._owned.get(owner, 0) >= most:
            raise LimitError(f"one publisher sets the rules of at most {most} vids")

    def write(
        self, owner: str, vid: str, rules: Sequence[Rule] | None, *, for_others: bool
    ) -> tuple[str, bytes | None]:
        """Give what to write before rules come into force; from now on they are somebody's."""
        if rules is not None:
            check_rules(rules)
        owner, binding = self._known(vid) or (owner, not for_others)
        claim = self._claims.setdefault(vid, Claim(owner, binding))
        claim.writes += 1
        if rules is None:
            return PREFIX + vid, None
        return PREFIX + vid, msgspec.msgpack.encode(OwnedRules(owner, tuple(rules), binding))

    def written(self, vid: str, rules: Sequence[Rule] | None) -> list[str]:
        """Rules are on disk: let them come into force; give viewers named for the first time."""
        claim = self._claims[vid]
        self.settled(vid)
        return self._set(vid, claim.owner, rules, claim.binding)

    def settled(self, vid: str) -> None:
        """One write of rules has reached the disk, or never will."""
        claim = self._claims[vid]
        claim.writes -= 1
        if not claim.writes:
            del self._claims[vid]

    def adopt(self, vid: str, value: bytes | None) -> list[str]:
        """Let come into force what is on disk; give viewers named for the first time."""
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
