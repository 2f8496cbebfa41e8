"""The register: a person's subject, handle and reach rules; erasing a person ends all of them.

One change of a person is on its way to the disk at a time. Erasing deletes the person's row and
everything in the mailbox in one transaction, so that no crash leaves mail of somebody who is gone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import (
    InputError,
    LimitError,
    NotFoundError,
    RateError,
    RoamcastError,
    StoreError,
)
from roamcast.identity.keys import RandomBytes
from roamcast.identity.pseudonyms import HANDLE_BYTES
from roamcast.identity.trusted.reach import ANYTHING, Reach, check_reach
from roamcast.identity.trusted.settings import NAME_LENGTH_MAX
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part
from roamcast.model.records import TrustStep

PREFIX: Final = "person/"
GONE_PREFIX: Final = "gone/"
"""Then the handle of somebody who was erased, in hexadecimal."""

KeysOf = Callable[[bytes], list[str]]
"""Gives the keys of everything that is stored for a handle elsewhere."""


class EnrolPerson(Input, frozen=True):
    """Enter a subject into the register; who is in it already stays as they are."""

    ticket: int
    subject: str


class SetReach(Input, frozen=True):
    """Set a person's reach rules."""

    ticket: int
    subject: str
    reach: Reach


class ErasePerson(Input, frozen=True):
    """Forget a person: the row, the mailbox, and what was seen; answered by `ErasureDone`."""

    ticket: int
    subject: str


class ErasureDone(Effect, frozen=True):
    """A person is gone, with so many keys of the mailbox; their vids resolve to nothing."""

    ticket: int
    deleted: int


class PersonErased(Effect, frozen=True):
    """For the other parts: this handle is nobody's."""

    handle: bytes


class ReachChanged(Effect, frozen=True):
    """For the other parts: this person's rules are others now."""

    handle: bytes


class RegisterRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the register."""

    handle: bytes
    reach: Reach = ANYTHING


class _Change(msgspec.Struct, frozen=True):
    ticket: int
    subject: str
    after: RegisterRow | None
    keys: Sequence[str] = ()
    """What else is deleted."""


class Register(Part):
    """Who is known here."""

    part: ClassVar[str] = "register"
    inputs: ClassVar = (EnrolPerson, SetReach, ErasePerson)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, people_max: int, random_bytes: RandomBytes, keys_of: KeysOf) -> None:
        self._people_max = people_max
        self._random = random_bytes
        self._keys_of = keys_of
        self._people: dict[str, RegisterRow] = {}
        self._subjects: dict[bytes, str] = {}
        self._changing: dict[str, int] = {}
        """Subjects with a change on its way to the disk → its token."""
        self._pending: dict[int, _Change] = {}
        self._token = 0

    def occupancy(self) -> Occupancy:
        """How many people there are, and changes under way."""
        return {
            "people": (len(self._people), self._people_max),
            "handles": (len(self._subjects), len(self._people)),
            "changes": (len(self._pending), self._people_max),
        }

    @property
    def count(self) -> int:
        """How many people there are."""
        return len(self._people)

    def knows(self, subject: str) -> bool:
        """Whether somebody is in the register."""
        return subject in self._people

    def person(self, subject: str) -> RegisterRow:
        """Give a person's row; raise if there is none."""
        found = self._people.get(subject)
        if found is None:
            raise NotFoundError("the trusted node does not know you: draw a pool of vids first")
        return found

    def reach_of(self, handle: bytes) -> Reach | None:
        """Give the rules of who has this handle; None if nobody has."""
        subject = self._subjects.get(handle)
        return None if subject is None else self._people[subject].reach

    def is_leaving(self, handle: bytes) -> bool:
        """Whether a person is being erased at this moment."""
        token = self._changing.get(self._subjects.get(handle, ""))
        return token is not None and self._pending[token].after is None

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the rows."""
        del now
        for key, value in stored.items():
            self._set(key[len(PREFIX) :], msgspec.msgpack.decode(value, type=RegisterRow))
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, or the disk's answer to one."""
        match given:
            case EnrolPerson(ticket) | SetReach(ticket) | ErasePerson(ticket):
                try:
                    return self._ask(given, now)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case Stored(token):
                return self._stored(self._settled(token))
            case StoreFailed(token, reason):
                return [Failed(self._settled(token).ticket, StoreError(reason))]
            case _:
                raise AssertionError(f"the register takes no {type(given).__name__}")

    def _ask(self, given: EnrolPerson | SetReach | ErasePerson, now: int) -> list[Effect]:
        subject = given.subject
        if not 0 < len(subject) <= NAME_LENGTH_MAX or "\0" in subject:
            raise InputError(f"a subject has 1 to {NAME_LENGTH_MAX} characters")
        if subject in self._changing:
            raise RateError("a change for this person is on its way: repeat this one")
        known = self._people.get(subject)
        match given:
            case EnrolPerson(ticket):
                if known is not None:
                    return [Acknowledged(ticket)]
                if len(self._people) + len(self._pending) >= self._people_max:
                    raise LimitError(f"a trusted node knows at most {self._people_max} people")
                return self._write(
                    _Change(ticket, subject, RegisterRow(self._random(HANDLE_BYTES)))
                )
            case SetReach(ticket, reach=reach):
                after = RegisterRow(self.person(subject).handle, check_reach(reach))
                return self._write(_Change(ticket, subject, after))
            case ErasePerson(ticket):
                handle = self.person(subject).handle
                keys = self._keys_of(handle)
                gone = (GONE_PREFIX + handle.hex(), msgspec.msgpack.encode(now))
                return self._write(_Change(ticket, subject, None, keys), gone)

    def _write(self, change: _Change, *also: tuple[str, bytes]) -> list[Effect]:
        self._token += 1
        self._pending[self._token] = change
        self._changing[change.subject] = self._token
        value = None if change.after is None else msgspec.msgpack.encode(change.after)
        gone = ((key, None) for key in change.keys)
        return [Store(self._token, ((PREFIX + change.subject, value), *gone, *also))]

    def _settled(self, token: int) -> _Change:
        change = self._pending.pop(token)
        del self._changing[change.subject]
        return change

    def _stored(self, change: _Change) -> list[Effect]:
        before, after = self._people.get(change.subject), change.after
        self._set(change.subject, after)
        if after is None:
            assert before is not None
            done = ErasureDone(change.ticket, len(change.keys))
            return [PersonErased(before.handle), done, TrustStep("erased", done.deleted)]
        answer = Acknowledged(change.ticket, fresh=before is None)
        if before is None:
            return [answer, TrustStep("enrolled", 1)]
        return [ReachChanged(after.handle), answer, TrustStep("rules", 1)]

    def _set(self, subject: str, person: RegisterRow | None) -> None:
        before = self._people.pop(subject, None)
        if before is not None:
            del self._subjects[before.handle]
        if person is not None:
            self._people[subject] = person
            self._subjects[person.handle] = subject
