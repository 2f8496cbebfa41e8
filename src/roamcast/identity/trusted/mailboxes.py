"""Mailboxes: sealed mail for a person, once however many of their vids a cast matches.

A deposit names vids. The trusted node opens them to handles, asks each person's reach rules, and
writes the mail and seen(cast, person) in one transaction: after a crash there is either both or
neither, so a repeat is neither lost nor delivered twice. It is answered once that is on disk. Mail
is pushed to the person who is connected, whatever vid they use now, and kept until acknowledged.

The answer to a deposit has rounded counts of vids: a count of people would say which vids are one
person's, an exact one of a single vid whether its person is still here.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from roamcast.errors import (
    ConflictError,
    LimitError,
    MessageError,
    RateError,
    RoamcastError,
    StoreError,
)
from roamcast.identity.keys import TrustedKeys
from roamcast.identity.pseudonyms import open_few
from roamcast.identity.trusted.reach import quiet_until, refuses
from roamcast.identity.trusted.register import PersonErased, ReachChanged, Register
from roamcast.identity.trusted.settings import (
    NAME_LENGTH_MAX,
    PARCELS_MAX,
    SEALED_BYTES_MAX,
    TrustSettings,
)
from roamcast.model.casts import ID_LENGTH_MAX
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part, Timer, TimerTable
from roamcast.model.records import TrustStep

PREFIX: Final = "mail/"
_MAIL: Final = PREFIX + "mail/"
_SEEN: Final = PREFIX + "seen/"
OVERHEAD_BYTES: Final = 512
"""What a mail costs beside its payload."""

INBOX_LENGTH_MAX: Final = 256


class SealedParcel(msgspec.Struct, frozen=True, array_like=True):
    """A payload sealed to the key of one vid."""

    vid: Annotated[str, Meta(max_length=256)]
    sealed: Annotated[bytes, Meta(max_length=SEALED_BYTES_MAX)]


class Deposit(Input, frozen=True):
    """Mail of one cast for the people behind some vids; answered by `Deposited`.

    `back_s`: how far into the past the cast's filter reaches, rounded up; neither place nor filter.
    """

    ticket: int
    cast: Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
    sender: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
    kind: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
    expires_us: int
    back_s: int
    parcels: Annotated[tuple[SealedParcel, ...], Meta(max_length=PARCELS_MAX)]
    urgent: bool = False
    """Whether it is pushed in quiet hours, too; reach rules hold for it as for all."""


class OpenInbox(Input, frozen=True):
    """A person is connected: push what waits and what comes. A newer connection replaces it."""

    ticket: int
    subject: str
    inbox: str


class CloseInbox(Input, frozen=True):
    """A connection is over."""

    inbox: str


class AckMail(Input, frozen=True):
    """A person has the mail of a cast on their own disk; repeats are harmless."""

    ticket: int
    subject: str
    cast: str


class Mail(msgspec.Struct, frozen=True, array_like=True):
    """One mail as it lies in a mailbox."""

    cast: str
    vid: str
    """Whose key opens it."""
    sender: str
    kind: str
    sealed: bytes
    arrived_us: int
    seen_until_us: int
    """Until then copies of the cast may come, from here or from another trusted node."""
    urgent: bool = False

    @property
    def size(self) -> int:
        """Bytes that count against a mailbox."""
        return len(self.sealed) + OVERHEAD_BYTES


class Deposited(Effect, frozen=True):
    """What became of a deposit: vids, rounded down; `full` is rounded up, and may be tried again.

    Vids, not people: fewer people than vids would say that some of the vids are one person's.
    """

    ticket: int
    reached: int
    unreachable: int
    refused: int
    full: int


class MailPushed(Effect, frozen=True):
    """Write this mail to a person's connection."""

    inbox: str
    mail: Mail


class InboxReplaced(Effect, frozen=True):
    """End this connection: the person has opened another one, or is gone."""

    inbox: str


class MailWaiting(Effect, frozen=True):
    """For the other parts: mail waits, and the person is not connected."""

    handle: bytes
    urgent: bool


class MailLeft(Effect, frozen=True):
    """For the other parts: a connection is over, and mail is left that nobody acknowledged."""

    handle: bytes


class MailboxSeen(Effect, frozen=True):
    """For the other parts: the person has looked into the mailbox."""

    handle: bytes


class _Expiry(Timer, frozen=True, gc=False, cache_hash=True):
    key: str


class _Quiet(Timer, frozen=True, gc=False, cache_hash=True):
    handle: bytes


class _Box:
    """One person's mail, in the order of arrival."""

    def __init__(self) -> None:
        self.mails: dict[str, Mail] = {}
        self.seen: dict[str, int] = {}
        self.writing: dict[str, Mail] = {}
        """On its way to the disk."""
        self.bytes = 0
        """Of all mail, also of what is on its way."""
        self.inbox = ""
        self.pushed: set[str] = set()


class _Pending(msgspec.Struct):
    """A deposit, the acknowledgement of a mail, or an expiry on its way to the disk."""

    ticket: int
    mails: dict[bytes, Mail]
    counts: Counter[str]
    gone: list[str]


class Mailboxes(Part):
    """All mailboxes of a trusted node."""

    part: ClassVar[str] = "mailboxes"
    inputs: ClassVar = (Deposit, OpenInbox, CloseInbox, AckMail, PersonErased, ReachChanged)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, settings: TrustSettings, keys: Callable[[], TrustedKeys]) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        """What became of parcels, exactly: for the node's own operator."""
        self.register: Register
        self._keys = keys
        self._boxes: dict[bytes, _Box] = {}
        self._inboxes: dict[str, bytes] = {}
        self._bytes = 0
        self._deposits = 0
        self._pending: dict[int, _Pending] = {}
        self._token = 0
        self._timers = TimerTable()
        self._due: list[str] = []
        self._awake: list[bytes] = []
        self._timers.handle(_Expiry, lambda timer: self._due.append(timer.key))
        self._timers.handle(_Quiet, lambda timer: self._awake.append(timer.handle))

    def occupancy(self) -> Occupancy:
        """How much the fullest mailbox holds, and all together."""
        settings, boxes = self.settings, self._boxes.values()
        return {
            "mails of one": (max((len(b.mails) for b in boxes), default=0), settings.mails_max),
            "bytes of one": (max((b.bytes for b in boxes), default=0), settings.mail_bytes_max),
            "seen of one": (max((len(b.seen) for b in boxes), default=0), settings.seen_max),
            "bytes": (self._bytes, settings.all_bytes_max),
            "deposits": (self._deposits, settings.deposits_max),
            "boxes": (len(self._boxes), settings.people_max),
            "inboxes": (len(self._inboxes), len(self._boxes)),
            "pushed": (max((len(b.pushed) for b in boxes), default=0), settings.window),
        }

    def held(self) -> dict[str, int]:
        """How much all mailboxes hold, for metrics."""
        return {"mailboxes": len(self._boxes), "mail bytes": self._bytes}

    def mails_of(self, subject: str) -> list[Mail]:
        """Read a person's mailbox, in the order of arrival."""
        box = self._boxes.get(self.register.person(subject).handle)
        return [] if box is None else list(box.mails.values())

    def waits_unseen(self, handle: bytes) -> bool:
        """Whether mail waits for somebody who is not connected."""
        box = self._boxes.get(handle)
        return box is not None and not box.inbox and bool(box.mails)

    def keys_of(self, handle: bytes) -> list[str]:
        """Name everything that is stored for a handle, and what is about to be."""
        box = self._boxes.get(handle)
        if box is None:
            return []
        mails = {**box.mails, **box.writing}
        seen = {**box.seen, **box.writing}
        return [_mail_key(handle, one) for one in mails] + [_seen_key(handle, one) for one in seen]

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the mailboxes."""
        del now
        found: list[tuple[bytes, Mail]] = []
        for key, value in stored.items():
            handle, cast = _read_key(key)
            if key.startswith(_MAIL):
                found.append((handle, msgspec.msgpack.decode(value, type=Mail)))
            else:
                self._remember(handle, cast, msgspec.msgpack.decode(value, type=int))
        for handle, mail in sorted(found, key=lambda one: (one[1].arrived_us, one[1].cast)):
            self._box(handle).bytes += mail.size
            self._bytes += mail.size
            self._keep(handle, mail)
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, an event of the register, or the disk's answer."""
        match given:
            case Deposit(ticket) | OpenInbox(ticket) | AckMail(ticket):
                try:
                    return self._ask(given, now)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case CloseInbox(inbox):
                handle = self._inboxes.get(inbox)
                self._close(inbox)
                # It may have ended before the mail arrived: the device is woken later once more.
                if handle is None or not self.waits_unseen(handle):
                    return ()
                return [MailLeft(handle)]
            case PersonErased(handle):
                return self._forget(handle)
            case ReachChanged(handle):
                return self._push(handle, now)
            case Stored(token):
                return self._stored(self._pending.pop(token), now)
            case StoreFailed(token, reason):
                return self._failed(self._pending.pop(token), reason, now)
            case _:
                raise AssertionError(f"mailboxes take no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Delete what is too old, and push when quiet hours are over."""
        self._timers.fire(now)
        effects: list[Effect] = []
        if self._due:
            gone, self._due = self._due, []
            effects += self._write(_Pending(0, {}, Counter(), gone))
        awake, self._awake = self._awake, []
        for handle in awake:
            effects += self._push(handle, now)
        return effects

    def deadline(self) -> int | None:
        """When something is too old, or quiet hours end."""
        return self._timers.deadline()

    # --- deposits -------------------------------------------------------------------------------

    def _ask(self, given: Deposit | OpenInbox | AckMail, now: int) -> Sequence[Effect]:
        match given:
            case Deposit():
                return self._deposit(given, now)
            case OpenInbox(ticket, subject, inbox):
                handle = self.register.person(subject).handle
                opened = [*self._open(handle, inbox), Acknowledged(ticket)]
                return [*opened, *self._push(handle, now), MailboxSeen(handle)]
            case AckMail(ticket, subject, cast):
                handle = self.register.person(subject).handle
                box = self._boxes.get(handle)
                if box is None or cast not in box.mails:
                    return [Acknowledged(ticket)]  # it is gone: a repeat, or too old
                gone = self._write(_Pending(ticket, {}, Counter(), [_mail_key(handle, cast)]))
                return [*gone, MailboxSeen(handle)]

    def _deposit(self, given: Deposit, now: int) -> list[Effect]:
        """Choose who gets the cast, and ask the disk; refuse before anything changes."""
        self._check(given, now)
        handles = open_few([parcel.vid for parcel in given.parcels], self._keys())
        chosen: dict[bytes, Mail] = {}
        counts: Counter[str] = Counter()
        planned = 0
        for parcel, handle in zip(given.parcels, handles, strict=True):
            size = len(parcel.sealed) + OVERHEAD_BYTES
            fate = self._fate(given, handle, chosen, size, planned + size)
            counts[fate] += 1
            if fate == "reached":
                assert handle is not None
                until = max(given.expires_us, now + self.settings.mail_us) + self.settings.grace_us
                told = (given.cast, parcel.vid, given.sender, given.kind, parcel.sealed)
                chosen[handle] = Mail(*told, now, until, given.urgent)
                planned += size
        if not chosen:
            return self._answer(given.ticket, counts)
        self._deposits += 1
        for handle, mail in chosen.items():
            box = self._box(handle)
            box.writing[mail.cast] = mail
            box.bytes += mail.size
            self._bytes += mail.size
        return self._write(_Pending(given.ticket, chosen, counts, []))

    def _check(self, given: Deposit, now: int) -> None:
        if not 0 < len(given.cast) <= ID_LENGTH_MAX or "\0" in given.cast:
            raise MessageError(f"a cast needs an id of at most {ID_LENGTH_MAX} characters")
        if max(len(given.sender), len(given.kind)) > NAME_LENGTH_MAX:
            raise LimitError(f"a sender and a kind have at most {NAME_LENGTH_MAX} characters")
        if len(given.parcels) > PARCELS_MAX:
            raise LimitError(f"a deposit has at most {PARCELS_MAX} vids: send it in pages")
        if any(len(parcel.sealed) > SEALED_BYTES_MAX for parcel in given.parcels):
            raise LimitError(f"a sealed payload has at most {SEALED_BYTES_MAX} bytes")
        if given.expires_us <= now:
            # What was seen of it may be forgotten: it must not come again.
            raise ConflictError("this cast has expired: nobody gets it any more")
        if given.expires_us > now + self.settings.cast_us_max + self.settings.grace_us:
            raise ConflictError("this cast expires too late: 60 days after it is sent at most")
        if self._deposits >= self.settings.deposits_max:
            raise RateError(f"{self.settings.deposits_max} deposits wait for the disk: try again")

    def _fate(
        self,
        given: Deposit,
        handle: bytes | None,
        chosen: Mapping[bytes, Mail],
        size: int,
        planned: int,
    ) -> str:
        """Say what becomes of one parcel."""
        reach = None if handle is None else self.register.reach_of(handle)
        if handle is None or reach is None:
            return "unreachable"
        box = self._boxes.get(handle)
        if self.register.is_leaving(handle) or (box is not None and given.cast in box.writing):
            # Its outcome is not known yet, so neither is this one's.
            raise RateError("the same cast or person is on its way to the disk: repeat this")
        if handle in chosen or (box is not None and given.cast in box.seen):
            return "repeated"
        if refuses(reach, given.sender, given.kind, given.back_s):
            return "refused"
        return "full" if self._is_full(box, size, planned) else "reached"

    def _is_full(self, box: _Box | None, size: int, planned: int) -> bool:
        settings = self.settings
        if self._bytes + planned > settings.all_bytes_max:
            return True
        if box is None:
            return size > settings.mail_bytes_max or settings.mails_max < 1
        return (
            len(box.mails) + len(box.writing) >= settings.mails_max
            or len(box.seen) + len(box.writing) >= settings.seen_max
            or box.bytes + size > settings.mail_bytes_max
        )

    def _answer(self, ticket: int, counts: Counter[str]) -> list[Effect]:
        self.counts += counts
        step = self.settings.round_to
        names = ("reached", "unreachable", "refused", "full")
        # A repeat counts as reached: the answer to a repeated deposit is that of the first.
        told = {**counts, "reached": counts["reached"] + counts["repeated"]}
        rounded = {name: told.get(name, 0) // step * step for name in names}
        # Up: who hears of nobody that is full would not try again.
        rounded["full"] = -(-counts["full"] // step) * step
        noted = [TrustStep("deposit", number, fate) for fate, number in sorted(counts.items())]
        return [Deposited(ticket, *rounded.values()), *noted]

    # --- the disk -------------------------------------------------------------------------------

    def _write(self, pending: _Pending) -> list[Effect]:
        self._token += 1
        self._pending[self._token] = pending
        writes: list[tuple[str, bytes | None]] = [(key, None) for key in pending.gone]
        for handle, mail in pending.mails.items():
            writes.append((_mail_key(handle, mail.cast), msgspec.msgpack.encode(mail)))
            seen = msgspec.msgpack.encode(mail.seen_until_us)
            writes.append((_seen_key(handle, mail.cast), seen))
        return [Store(self._token, tuple(writes))]

    def _stored(self, done: _Pending, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for handle, mail in done.mails.items():
            box = self._boxes.get(handle)
            if box is None or box.writing.pop(mail.cast, None) is None:
                continue  # the person was erased meanwhile, and the mail with them
            self._remember(handle, mail.cast, mail.seen_until_us)
            self._keep(handle, mail)
            effects += self._push(handle, now)
            if not box.inbox:
                effects.append(MailWaiting(handle, mail.urgent))
        touched = [self._delete(key) for key in done.gone]
        for handle in dict.fromkeys(one for one in touched if one is not None):
            effects += self._push(handle, now)
        if done.mails:
            self._deposits -= 1
            return [*effects, *self._answer(done.ticket, done.counts)]
        why = "fetched" if done.ticket else "too old"
        noted = TrustStep("deleted", len(done.gone), why)
        return [*effects, *([Acknowledged(done.ticket)] if done.ticket else []), noted]

    def _failed(self, lost: _Pending, reason: str, now: int) -> list[Effect]:
        for handle, mail in lost.mails.items():
            box = self._boxes.get(handle)
            if box is not None and box.writing.pop(mail.cast, None) is not None:
                box.bytes -= mail.size
                self._bytes -= mail.size
                self._tidy(handle)
        if lost.mails:
            self._deposits -= 1
        if lost.ticket:
            return [Failed(lost.ticket, StoreError(reason))]
        for key in lost.gone:
            self._timers.set(_Expiry(key), now + self.settings.retry_us)
        return []

    def _keep(self, handle: bytes, mail: Mail) -> None:
        self._box(handle).mails[mail.cast] = mail
        key = _mail_key(handle, mail.cast)
        self._timers.set(_Expiry(key), mail.arrived_us + self.settings.mail_us)

    def _remember(self, handle: bytes, cast: str, until_us: int) -> None:
        self._box(handle).seen[cast] = until_us
        self._timers.set(_Expiry(_seen_key(handle, cast)), until_us)

    def _delete(self, key: str) -> bytes | None:
        """Forget what is no longer on disk; give whose it was if the box is still there."""
        self._timers.cancel(_Expiry(key))
        handle, cast = _read_key(key)
        box = self._boxes.get(handle)
        if box is None:
            return None
        if key.startswith(_SEEN):
            box.seen.pop(cast, None)
        elif (mail := box.mails.pop(cast, None)) is not None:
            box.bytes -= mail.size
            self._bytes -= mail.size
            box.pushed.discard(cast)
        self._tidy(handle)
        return handle

    def _forget(self, handle: bytes) -> list[Effect]:
        """The person is erased, on disk too."""
        box = self._boxes.get(handle)
        if box is None:
            return []
        inbox = box.inbox
        for mail in box.writing.values():
            box.bytes -= mail.size
            self._bytes -= mail.size
        box.writing.clear()
        if inbox:
            self._close(inbox)
        for key in self.keys_of(handle):
            self._delete(key)
        if handle in self._boxes:  # nothing of it was on disk yet
            self._tidy(handle)
        self._timers.cancel(_Quiet(handle))
        return [InboxReplaced(inbox)] if inbox else []

    # --- connections ----------------------------------------------------------------------------

    def _open(self, handle: bytes, inbox: str) -> list[Effect]:
        if not 0 < len(inbox) <= INBOX_LENGTH_MAX:
            raise LimitError(f"a connection's name has 1 to {INBOX_LENGTH_MAX} characters")
        before = self._boxes[handle].inbox if handle in self._boxes else ""
        self._close(before)
        self._close(inbox)
        box = self._box(handle)
        box.inbox, box.pushed = inbox, set()
        self._inboxes[inbox] = handle
        return [InboxReplaced(before)] if before and before != inbox else []

    def _close(self, inbox: str) -> None:
        handle = self._inboxes.pop(inbox, None)
        if handle is not None:
            box = self._boxes[handle]
            box.inbox, box.pushed = "", set()
            self._tidy(handle)

    def _push(self, handle: bytes, now: int) -> list[Effect]:
        """Push as much as the person has not acknowledged less than a window."""
        box, reach = self._boxes.get(handle), self.register.reach_of(handle)
        if box is None or not box.inbox or reach is None:
            return []
        until = quiet_until(reach, now)
        if until is not None:
            self._timers.set(_Quiet(handle), until)
        effects: list[Effect] = []
        for cast, mail in box.mails.items():
            if len(box.pushed) >= self.settings.window:
                break
            if cast not in box.pushed and (until is None or mail.urgent):
                box.pushed.add(cast)
                effects.append(MailPushed(box.inbox, mail))
        return [*effects, TrustStep("pushed", len(effects))] if effects else []

    def _box(self, handle: bytes) -> _Box:
        return self._boxes.setdefault(handle, _Box())

    def _tidy(self, handle: bytes) -> None:
        box = self._boxes[handle]
        if not (box.mails or box.seen or box.writing or box.inbox):
            del self._boxes[handle]


def _mail_key(handle: bytes, cast: str) -> str:
    return f"{_MAIL}{handle.hex()}/{cast}"


def _seen_key(handle: bytes, cast: str) -> str:
    return f"{_SEEN}{handle.hex()}/{cast}"


def _read_key(key: str) -> tuple[bytes, str]:
    handle, _, cast = key[len(_MAIL) :].partition("/")
    return bytes.fromhex(handle), cast
