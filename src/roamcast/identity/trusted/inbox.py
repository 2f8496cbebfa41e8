"""A person's inbox: mail of several trusted nodes, each cast once, acknowledged once it is on disk.

Every trusted node of a person delivers a cast once; somebody with two of them would get it twice.
So the inbox remembers the casts it took, on its own disk and in one transaction with the mail, and
drops repeats by the cast's id. What it dropped it acknowledges as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import StoreError
from roamcast.identity.trusted.mailboxes import Mail
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part, Timers

PREFIX: Final = "inbox/"
_MAIL: Final = PREFIX + "mail/"
_SEEN: Final = PREFIX + "seen/"
MAILS_MAX: Final = 10_000
SEEN_MAX: Final = 100_000
RETRY_US: Final = 1_000_000


class MailArrived(Input, frozen=True):
    """A trusted node pushed a mail."""

    node: str
    mail: Mail


class RemoveMail(Input, frozen=True):
    """The person has done with a mail."""

    ticket: int
    cast: str


class MailTaken(Effect, frozen=True):
    """A mail is in the inbox, for the first time."""

    mail: Mail


class ConfirmMail(Effect, frozen=True):
    """Tell a trusted node that the mail of a cast is on this disk."""

    node: str
    cast: str


class PersonInbox(Part):
    """What a person has got and not yet removed."""

    part: ClassVar[str] = "inbox"
    inputs: ClassVar = (MailArrived, RemoveMail)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, mails_max: int = MAILS_MAX, seen_max: int = SEEN_MAX) -> None:
        self.mails: dict[str, Mail] = {}
        """By cast, in the order of arrival."""
        self._mails_max = mails_max
        self._seen_max = seen_max
        self._seen: dict[str, int] = {}
        self._taking: dict[str, list[str]] = {}
        """Casts on their way to the disk → the nodes that sent them."""
        self._pending: dict[int, Mail | tuple[int, str]] = {}
        """Tokens → the mail that is written, or the ticket and the key that is deleted."""
        self._token = 0
        self._timers: Timers[str] = Timers()

    def occupancy(self) -> Occupancy:
        """How much is held."""
        return {
            "mails": (len(self.mails), self._mails_max),
            "seen": (len(self._seen) + len(self._taking), self._seen_max),
        }

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up what was on disk."""
        del now
        mails = []
        for key, value in stored.items():
            if key.startswith(_SEEN):
                self._remember(key[len(_SEEN) :], msgspec.msgpack.decode(value, type=int))
            else:
                mails.append(msgspec.msgpack.decode(value, type=Mail))
        for mail in sorted(mails, key=lambda one: (one.arrived_us, one.cast)):
            self.mails[mail.cast] = mail
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a mail, a request of the person, or the disk's answer."""
        match given:
            case MailArrived(node, mail):
                return self._arrived(node, mail)
            case RemoveMail(ticket, cast):
                if cast not in self.mails:
                    return [Acknowledged(ticket)]
                return self._write((ticket, _MAIL + cast), ((_MAIL + cast, None),))
            case Stored(token):
                return self._stored(self._pending.pop(token))
            case StoreFailed(token, reason):
                return self._failed(self._pending.pop(token), reason, now)
            case _:
                raise AssertionError(f"the inbox takes no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Forget casts of which no copy can come any more."""
        return [
            effect
            for cast in list(self._timers.due(now))
            for effect in self._write((0, _SEEN + cast), ((_SEEN + cast, None),))
        ]

    def deadline(self) -> int | None:
        """When the first cast may be forgotten."""
        return self._timers.deadline()

    def _arrived(self, node: str, mail: Mail) -> list[Effect]:
        if mail.cast in self._seen:
            return [ConfirmMail(node, mail.cast)]
        if mail.cast in self._taking:
            if node not in self._taking[mail.cast]:
                self._taking[mail.cast].append(node)
            return []
        taking = len(self._taking)
        if (
            len(self.mails) + taking >= self._mails_max
            or len(self._seen) + taking >= self._seen_max
        ):
            return []  # not confirmed: it stays with the trusted node, which sends it again
        self._taking[mail.cast] = [node]
        seen = msgspec.msgpack.encode(mail.seen_until_us)
        writes = ((_MAIL + mail.cast, msgspec.msgpack.encode(mail)), (_SEEN + mail.cast, seen))
        return self._write(mail, writes)

    def _write(
        self, what: Mail | tuple[int, str], writes: tuple[tuple[str, bytes | None], ...]
    ) -> list[Effect]:
        self._token += 1
        self._pending[self._token] = what
        return [Store(self._token, writes)]

    def _stored(self, done: Mail | tuple[int, str]) -> list[Effect]:
        if isinstance(done, Mail):
            self.mails[done.cast] = done
            self._remember(done.cast, done.seen_until_us)
            nodes = self._taking.pop(done.cast)
            return [MailTaken(done), *(ConfirmMail(node, done.cast) for node in nodes)]
        ticket, key = done
        if key.startswith(_MAIL):
            self.mails.pop(key[len(_MAIL) :], None)
        else:
            self._seen.pop(key[len(_SEEN) :], None)
        return [Acknowledged(ticket)] if ticket else []

    def _failed(self, lost: Mail | tuple[int, str], reason: str, now: int) -> list[Effect]:
        if isinstance(lost, Mail):
            del self._taking[lost.cast]
            return []
        ticket, key = lost
        if ticket:
            return [Failed(ticket, StoreError(reason))]
        self._timers.set(key[len(_SEEN) :], now + RETRY_US)
        return []

    def _remember(self, cast: str, until_us: int) -> None:
        self._seen[cast] = until_us
        self._timers.set(cast, until_us)
