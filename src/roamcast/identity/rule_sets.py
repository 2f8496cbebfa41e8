"""Rule sets: the privacy rules of each vid on disk, and whose they are.

Rules hold for a vid, whoever publishes under it. So that nobody decides what others see of somebody
else, a vid with rules belongs to its owner: nobody else may publish under it (decision 0082). It is
claimed as soon as its rules are asked for, before they are on disk.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import ConflictError, LimitError, RoamcastError, StoreError
from roamcast.identity.policy import RuleBook
from roamcast.identity.rules import Rule, check_rules
from roamcast.model.events import Acknowledged, Failed, RulesChanged
from roamcast.model.machine import Effect, Entry, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part

PREFIX: Final = "rules/"

CheckPublisher = Callable[[str, str], None]
"""(vid, owner): refuses if somebody else publishes under the vid."""


class SetRules(Input, frozen=True):
    """Set the privacy rules of a vid; None takes them away.

    `any_owner`: an operator asks, who may set the rules of others.
    """

    ticket: int
    owner: str
    vid: str
    rules: tuple[Rule, ...] | None
    any_owner: bool = False


class OwnedRules(msgspec.Struct, frozen=True, array_like=True):
    """Rules on disk, and who set them."""

    owner: str
    rules: tuple[Rule, ...]
    binding: bool = True
    """Whether only the owner may publish under the vid; false where an operator set the rules."""


def names_in(rules: Sequence[Rule] | None) -> int:
    """Count the viewers and attributes that rules name: what they take of memory."""
    return sum(len(rule.viewers) + len(rule.attributes or ()) for rule in rules or ())


class _Claim(msgspec.Struct):
    """A vid with rules on their way to the disk: whose they are, and how many."""

    owner: str
    binding: bool
    writes: int = 0


class _Held(msgspec.Struct, frozen=True):
    """Rules in force: whose they are, whether they bind, and how many names they hold."""

    owner: str
    binding: bool
    names: int


class RuleSets(Part):
    """The rules that are set, their owners, and those on their way."""

    part: ClassVar[str] = "rules"
    inputs: ClassVar = (SetRules,)
    prefix: ClassVar[str] = PREFIX

    def __init__(
        self,
        book: RuleBook,
        sets_per_owner_max: int,
        names_per_owner_max: int,
        check_publisher: CheckPublisher,
    ) -> None:
        self._book = book
        self._sets_per_owner_max = sets_per_owner_max
        self._names_per_owner_max = names_per_owner_max
        self._check_publisher = check_publisher
        self.publishers: dict[str, str] = {}
        """Vid → who alone may publish under it; for all other vids everybody may."""
        self._held: dict[str, _Held] = {}
        self._owned: dict[str, int] = {}
        """Owner → how many sets are in force."""
        self._named: dict[str, int] = {}
        """Owner → how many names its rules hold, those on their way to the disk as well."""
        self._claims: dict[str, _Claim] = {}
        self._pending: dict[int, SetRules] = {}
        self._token = 0

    def occupancy(self) -> Occupancy:
        """How many sets, and how many names, the owner with the most has."""
        return {
            "sets of one owner": (max(self._owned.values(), default=0), self._sets_per_owner_max),
            "names of one owner": (max(self._named.values(), default=0), self._names_per_owner_max),
            "owners": (len(self._owned), len(self._held)),
            "owners with names": (len(self._named), len(self._held) + len(self._pending)),
            "sets": (len(self._held), len(self._owned) * self._sets_per_owner_max),
        }

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Let come into force what was on disk."""
        del now
        for key in sorted(stored):
            self._take(key[len(PREFIX) :], stored[key])
        return ()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Let come into force what a replica had newer."""
        del now
        vids = [entry.key[len(PREFIX) :] for entry in entries]
        return [
            RulesChanged(vid, tuple(self._take(vid, entry.value)))
            for vid, entry in zip(vids, entries, strict=True)
        ]

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, or the disk's answer to one."""
        del now
        match given:
            case SetRules():
                return self._ask(given)
            case Stored(token):
                return self._stored(self._pending.pop(token))
            case StoreFailed(token, reason):
                asked = self._pending.pop(token)
                self._settled(asked)
                return [Failed(asked.ticket, StoreError(reason))]
            case _:
                raise AssertionError(f"rule sets take no {type(given).__name__}")

    def owner_of(self, vid: str) -> str | None:
        """Give who set the rules of a vid, or is about to."""
        known = self._known(vid)
        return None if known is None else known[0]

    def _known(self, vid: str) -> tuple[str, bool] | None:
        known = self._held.get(vid) or self._claims.get(vid)
        return None if known is None else (known.owner, known.binding)

    def _note_publisher(self, vid: str) -> None:
        """Look again at who alone may publish under a vid, after its rules or claims changed."""
        known = self._known(vid)
        if known is not None and known[1]:
            self.publishers[vid] = known[0]
        else:
            self.publishers.pop(vid, None)

    def _ask(self, given: SetRules) -> list[Effect]:
        """Check what is asked and ask the disk; refuse before anything changes."""
        vid, rules = given.vid, given.rules
        try:
            if not given.any_owner:
                self._check_owner(vid, given.owner)
                self._check_publisher(vid, given.owner)
            if rules is not None:
                check_rules(rules)
                if not given.any_owner:
                    self._check_names(vid, given.owner, names_in(rules))
        except RoamcastError as error:
            return [Failed(given.ticket, error)]
        owner, binding = self._known(vid) or (given.owner, not given.any_owner)
        claim = self._claims.setdefault(vid, _Claim(owner, binding))
        claim.writes += 1
        self._count_names(owner, names_in(rules))
        self._note_publisher(vid)
        value = None
        if rules is not None:
            value = msgspec.msgpack.encode(OwnedRules(owner, tuple(rules), binding))
        self._token += 1
        self._pending[self._token] = given
        return [Store(self._token, ((PREFIX + vid, value),))]

    def _check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change the rules that somebody else set."""
        known = self.owner_of(vid)
        if known is not None and known != owner:
            # The words of all refusals of a vid: why it is another's may be hidden (0090).
            raise ConflictError(f"{vid[:100]!r} belongs to somebody else: choose another vid")
        most = self._sets_per_owner_max
        if known is None and self._owned.get(owner, 0) >= most:
            raise LimitError(f"one publisher sets the rules of at most {most} vids")

    def _check_names(self, vid: str, owner: str, names: int) -> None:
        """Refuse names beyond what one owner may have in all; fewer than before may always be."""
        held = self._held.get(vid)
        before = 0 if held is None else held.names
        most = self._names_per_owner_max
        if names > before and self._named.get(owner, 0) - before + names > most:
            raise LimitError(
                f"the rules of one publisher hold at most {most} names of viewers and attributes:"
                " name a group, or remove rules"
            )

    def _count_names(self, owner: str, names: int) -> None:
        """Count names that an owner's rules hold more, or fewer."""
        counted = self._named.pop(owner, 0) + names
        if counted:
            self._named[owner] = counted

    def _stored(self, asked: SetRules) -> list[Effect]:
        """Rules are on disk: they come into force now, and the map shows the vid anew."""
        claim = self._claims[asked.vid]
        self._settled(asked)
        named = self._set(asked.vid, claim.owner, asked.rules, claim.binding)
        return [RulesChanged(asked.vid, tuple(named)), Acknowledged(asked.ticket)]

    def _settled(self, asked: SetRules) -> None:
        """One write of rules has reached the disk, or never will."""
        claim = self._claims[asked.vid]
        claim.writes -= 1
        self._count_names(claim.owner, -names_in(asked.rules))
        if not claim.writes:
            del self._claims[asked.vid]
            self._note_publisher(asked.vid)

    def _take(self, vid: str, value: bytes | None) -> list[str]:
        """Let come into force what is on disk; give viewers named for the first time."""
        if value is None:
            return self._set(vid, "", None, False)
        owned = msgspec.msgpack.decode(value, type=OwnedRules)
        return self._set(vid, owned.owner, owned.rules, owned.binding)

    def _set(self, vid: str, owner: str, rules: Sequence[Rule] | None, binding: bool) -> list[str]:
        before = self._held.pop(vid, None)
        if before is not None:
            self._owned[before.owner] -= 1
            if not self._owned[before.owner]:
                del self._owned[before.owner]
            self._count_names(before.owner, -before.names)
        if rules is not None:
            held = self._held[vid] = _Held(owner, binding, names_in(rules))
            self._owned[owner] = self._owned.get(owner, 0) + 1
            self._count_names(owner, held.names)
        self._note_publisher(vid)
        return self._book.set(vid, rules)
