"""A person's inbox in the SDK: mail is opened, comes once, and is acknowledged when it is safe.

The decisions are `PersonInbox`'s: mail is on the person's own disk, in their key store, before the
trusted node may delete it, and what another trusted node sends again is dropped by the cast's id.
"""

import asyncio
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import msgspec

from roamcast.errors import NotFoundError, RoamcastError, UnreachableError
from roamcast.identity.key_store import KeyStore
from roamcast.identity.letters import Letter, decode_letter
from roamcast.identity.receipts import doubt_of, explained
from roamcast.identity.sealing import VidSecrets
from roamcast.identity.trusted.inbox import (
    MAILS_MAX,
    ConfirmMail,
    MailArrived,
    MailTaken,
    PersonInbox,
    RemoveMail,
)
from roamcast.identity.trusted.mailboxes import Mail
from roamcast.model.alerts import MEDIA_TYPE, read_alert
from roamcast.model.events import Acknowledged
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Router
from roamcast.model.time import parse_instant
from roamcast.transport.driver import Clock
from roamcast.transport.http import HttpClient

AGAIN_S: Final = 1.0
"""Pause before a stream that ended is opened again."""

SILENCE_S: Final = 60.0
"""A stream without a word for this long is dead: the trusted node comments more often."""


class OpenedMail(msgspec.Struct, frozen=True):
    """A mail as the person reads it."""

    cast: str
    sender: str
    kind: str
    letter: Letter
    arrived_us: int
    vid: str
    """The pseudonym it was sent to."""
    problem: str = ""
    """Why it could not be opened; then the letter is empty."""
    doubt: str = ""
    """Why its receipt cannot be relied on; "" if a service that was met has signed it."""

    @property
    def receipt(self) -> str:
        """Why the person gets this, in words: where and when a pseudonym of theirs was."""
        return explained(self.letter)

    @property
    def text(self) -> str:
        """The payload as text; of an alert, what it says."""
        return self.text_in("en")

    def text_in(self, language: str) -> str:
        """Give the text, of an alert in a language if it has it."""
        if self.letter.media_type == MEDIA_TYPE:
            try:
                return read_alert(self.letter.payload).text_in(language)
            except RoamcastError:
                pass  # it is shown as it stands
        return self.letter.payload.decode("utf-8", "replace")


class ReceivedMail(msgspec.Struct, frozen=True):
    """One sealed mail as the trusted node writes it."""

    id: str
    vid: str
    sender: str
    kind: str
    sealed: str
    arrived: str
    seen_until_us: int


class ReceiptKeyBody(msgspec.Struct, frozen=True):
    """The key that a service signs receipts with."""

    key: bytes


class HeldKey(msgspec.Struct, frozen=True):
    """A vid that the service holds for a person."""

    credential: str
    seed: str


class HeldKeyList(msgspec.Struct, frozen=True):
    """All vids that the service holds for a person."""

    keys: list[HeldKey]


class MailInbox:
    """Mail of one person from one trusted node, through their key store."""

    def __init__(self, store: KeyStore, trust: HttpClient, clock: Clock) -> None:
        self._store = store
        self._trust = trust
        self._clock = clock
        self._person = PersonInbox()
        self._machine = Router((self._person,))
        self._machine.restore(store.load, clock())
        self._taken: deque[Mail] = deque(self._person.mails.values())
        self._confirm: deque[str] = deque()
        self._asked = False

    async def mails(self, *, follow: bool = True, keep: bool = False) -> AsyncIterator[OpenedMail]:
        """Give what waits, and with `follow` what comes; what was given is removed from the disk.

        With `keep` it stays in the key store, and is given again by the next inbox.
        """
        arriving = self._stream() if follow else self._waiting()
        async for bodies in arriving:
            for body in bodies:
                self._give(MailArrived("", _mail(body)))
            await self._acknowledge()
            while self._taken:
                mail = self._taken.popleft()
                if self._store.of(mail.vid) is None:
                    await self._fetch_held()
                opened = self._opened(mail)
                if opened.doubt and not self._asked:
                    await self._meet()
                    opened = self._opened(mail)
                yield opened
                if not keep:
                    self._give(RemoveMail(1, mail.cast))

    def _opened(self, mail: Mail) -> OpenedMail:
        told = (mail.cast, mail.sender, mail.kind)
        own = self._store.of(mail.vid)
        if own is None:
            problem = "the key of this pseudonym is not in this key store"
            return OpenedMail(*told, Letter(b""), mail.arrived_us, mail.vid, problem)
        try:
            letter = decode_letter(own.secrets.open(mail.sealed, mail.cast, mail.vid))
        except RoamcastError as error:
            return OpenedMail(*told, Letter(b""), mail.arrived_us, mail.vid, str(error))
        doubt = doubt_of(letter, mail.cast, mail.vid, mail.sender, self._store.met())
        return OpenedMail(*told, letter, mail.arrived_us, mail.vid, doubt=doubt)

    def _give(self, given: Input) -> None:
        """Let the machine decide, and the disk follow at once."""
        if isinstance(given, MailArrived) and len(self._person.mails) >= MAILS_MAX:
            self._give(RemoveMail(1, next(iter(self._person.mails))))  # kept, and long read
        now = self._clock()
        pending: deque[Effect] = deque(self._machine.advance(now))
        pending.extend(self._machine.receive(given, now))
        while pending:
            match pending.popleft():
                case Store(token, writes):
                    try:
                        self._store.write(writes)
                    except RoamcastError as error:
                        pending.extend(self._machine.receive(StoreFailed(token, str(error)), now))
                        raise
                    pending.extend(self._machine.receive(Stored(token), now))
                case MailTaken(mail):
                    self._taken.append(mail)
                case ConfirmMail(_, cast):
                    self._confirm.append(cast)
                case Acknowledged():
                    pass
                case effect:
                    raise AssertionError(f"nobody carries {effect!r}")

    async def _acknowledge(self) -> None:
        """Tell the trusted node what is on this disk; what it does not hear it sends again."""
        while self._confirm:
            await self._trust.ask("POST", f"/mailbox/{quote(self._confirm[0], safe='')}/ack")
            self._confirm.popleft()

    async def _meet(self) -> None:
        """Ask where the mailbox is who signs receipts there; a trusted node alone signs none."""
        self._asked = True
        with suppress(NotFoundError, msgspec.ValidationError):
            answer = await self._trust.ask("GET", "/receipts/key")
            key = msgspec.convert(answer, ReceiptKeyBody).key
            self._store.meet(key, self._trust.hosts.current.url)

    async def _fetch_held(self) -> None:
        """Fetch the keys of vids that the service holds for this person's phone."""
        try:
            answer = await self._trust.ask("GET", "/me/keys")
            held = msgspec.convert(answer, HeldKeyList).keys
        except (NotFoundError, msgspec.ValidationError):
            return  # a trusted node of its own holds none
        credentials = [one.credential for one in held]
        seeds = [VidSecrets(b64decode(one.seed)) for one in held]
        self._store.add_pool(credentials, seeds, "held by the service")

    async def _waiting(self) -> AsyncIterator[Iterable[ReceivedMail]]:
        answer = await self._trust.ask("GET", "/mailbox")
        yield _decoded(answer.get("mails") if isinstance(answer, dict) else None)

    async def _stream(self) -> AsyncIterator[Iterable[ReceivedMail]]:
        """Follow the mailbox; a stream that ends is opened again, until the token is refused."""
        yield ()  # what is on this disk already
        while True:
            try:
                async with self._trust.lines("/mailbox/stream", silence_s=SILENCE_S) as lines:
                    async for line in lines:
                        if line.startswith(b"data: "):
                            yield (_mail_body(line[6:]),)
            except UnreachableError:
                pass
            await asyncio.sleep(AGAIN_S)


def _mail_body(text: bytes) -> ReceivedMail:
    try:
        return msgspec.json.decode(text, type=ReceivedMail)
    except msgspec.DecodeError as error:
        raise UnreachableError(f"the trusted node sent no mail of ours: {error}") from None


def _decoded(mails: Any) -> list[ReceivedMail]:
    try:
        return msgspec.convert(mails, list[ReceivedMail])
    except msgspec.ValidationError as error:
        raise UnreachableError(f"the trusted node sent no mail of ours: {error}") from None


def _mail(body: ReceivedMail) -> Mail:
    told = (body.id, body.vid, body.sender, body.kind, b64decode(body.sealed))
    return Mail(*told, parse_instant(body.arrived), body.seen_until_us)
