"""Carries mail to trusted nodes: each payload is sealed to its vid here, and nowhere else readable.

Sealing runs in threads, for it takes about 0.1 ms a vid. The node in this process is asked
directly, another one by HTTPS. What fails is the machine's to repeat; deposits may be repeated, for
a person gets a cast once.
"""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from roamcast.errors import InputError, RoamcastError
from roamcast.identity.credentials import VidKeys
from roamcast.identity.letters import REASON_LENGTH_MAX, Letter, encode_letter
from roamcast.identity.receipts import ReceiptKey, sign_receipt
from roamcast.identity.sealing import seal_payload
from roamcast.identity.trusted.mailboxes import Deposit, SealedParcel
from roamcast.live.auth.authority import PRIORITIES
from roamcast.live.config.identity import TrustedMailSection
from roamcast.live.observe.logs import Log
from roamcast.live.store.store import SqliteStore
from roamcast.live.trust.host import RunningTrust
from roamcast.model.machine import Input
from roamcast.overlay.casts.messages import (
    DepositFailed,
    DepositMail,
    MailDeposited,
    PayloadRead,
    ReadPayload,
)
from roamcast.transport.address import ServiceAddress, check_url
from roamcast.transport.http import HttpClient

REMOTE_BYTES_MAX: Final = 512 * 1024
"""Bytes of payload in one request to another process, whose body is bounded."""

TIMEOUT_S: Final = 20.0
_SIGNING: Final = bytes(32)
"""Nobody checks a signature by the keys of a deposit."""

_LOG = Log("casts")
Counts = tuple[int, int, int]
"""Vids that are unreachable, refused, and full."""


class Deposits:
    """Everything that leaves for mailboxes."""

    def __init__(
        self,
        disk: SqliteStore,
        trust: RunningTrust | None,
        mail: Mapping[str, TrustedMailSection],
        *,
        give: Callable[[Input], None],
        reason_of: Callable[[str], tuple[str, int, int]],
        receipt_key: Callable[[], ReceiptKey],
    ) -> None:
        """`reason_of` gives a cast's filter, and when it was sent and expires, for receipts."""
        self._disk = disk
        self._trust = trust
        self._remote = {name: _client(section) for name, section in mail.items()}
        self._give = give
        self._reason_of = reason_of
        self._receipt_key = receipt_key
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def read(self, effect: ReadPayload) -> None:
        """Read a payload by its name."""
        self._begin(self._read(effect))

    def deposit(self, effect: DepositMail) -> None:
        """Seal and deposit a page of mail."""
        self._begin(self._deposit(effect))

    async def close(self) -> None:
        """Begin nothing more; what is under way is repeated after the next start."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Any) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, effect: ReadPayload) -> None:
        try:
            payload = await asyncio.to_thread(self._disk.value, effect.name)
        except RoamcastError as error:
            _LOG.warning("a payload can not be read", reason=str(error))
            payload = None
        self._give(PayloadRead(effect.token, payload))

    async def _deposit(self, effect: DepositMail) -> None:
        try:
            unreachable, refused, full = await self._deposited(effect)
        except RoamcastError as error:
            self._give(DepositFailed(effect.token, str(error)))
            return
        # The node rounds its counts: what it has not said to be lost is with it.
        reached = max(len(effect.parcels) - unreachable - refused - full, 0)
        self._give(MailDeposited(effect.token, reached, unreachable, refused, full))

    async def _deposited(self, effect: DepositMail) -> Counts:
        own = self._trust is not None and self._trust.node.name == effect.node
        if not own and effect.node not in self._remote:
            _LOG.warning("no way to a trusted node is set: [identity.mail]", node=effect.node)
            return len(effect.parcels), 0, 0
        reason, sent_us, expires_us = self._reason_of(effect.cast)

        signing = self._receipt_key()

        def sealed() -> tuple[SealedParcel, ...]:
            payload = self._disk.value(effect.payload)
            if payload is None:
                raise InputError("the payload is gone: the cast is over")
            cut = reason[:REASON_LENGTH_MAX]
            letter = Letter(payload, effect.media_type, sent_us, expires_us, cut)

            def parcel(vid: str, key: bytes) -> SealedParcel:
                own = sign_receipt(letter, effect.cast, vid, effect.sender, signing)
                return _sealed(encode_letter(own), effect.cast, vid, key)

            return tuple(parcel(vid, key) for vid, key in effect.parcels)

        parcels = await asyncio.to_thread(sealed)
        if own:
            assert self._trust is not None
            told = (effect.cast, effect.sender, effect.kind, effect.expires_us, effect.back_s)
            done = await self._trust.deposit(Deposit(0, *told, parcels, _is_urgent(effect)))
            return done.unreachable, done.refused, done.full
        return await self._sent(effect, parcels)

    async def _sent(self, effect: DepositMail, parcels: Sequence[SealedParcel]) -> Counts:
        """Deposit at another process, in requests that it accepts."""
        total = [0, 0, 0]
        for page in _pages(parcels):
            body = {
                "cast": effect.cast,
                "sender": effect.sender,
                "kind": effect.kind,
                "expires_us": effect.expires_us,
                "back_s": effect.back_s,
                "urgent": _is_urgent(effect),
                "parcels": [
                    {"vid": one.vid, "sealed": b64encode(one.sealed).decode()} for one in page
                ],
            }
            answer = await self._remote[effect.node].ask("POST", "/deposits", body=body)
            for number, name in enumerate(("unreachable", "refused", "full")):
                count = answer.get(name) if isinstance(answer, dict) else None
                if not isinstance(count, int):
                    raise InputError("the trusted node does not answer as ours do")
                total[number] += count
        unreachable, refused, full = total
        return unreachable, refused, full


def _is_urgent(effect: DepositMail) -> bool:
    return effect.priority >= PRIORITIES["emergency"]


def _sealed(text: bytes, cast: str, vid: str, key: bytes) -> SealedParcel:
    return SealedParcel(vid, seal_payload(text, VidKeys(_SIGNING, key), cast, vid))


def _pages(parcels: Sequence[SealedParcel]) -> list[list[SealedParcel]]:
    pages: list[list[SealedParcel]] = [[]]
    size = 0
    for parcel in parcels:
        if pages[-1] and size + len(parcel.sealed) > REMOTE_BYTES_MAX:
            pages.append([])
            size = 0
        pages[-1].append(parcel)
        size += len(parcel.sealed)
    return pages


def _client(section: TrustedMailSection) -> HttpClient:
    path = Path(section.token_file)

    def token() -> str:
        """Read the token whenever it is used: it is renewed by replacing the file."""
        try:
            if path.stat().st_mode & 0o077:
                raise InputError("others may read this token: chmod 600 it", source=str(path))
            return path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the token can not be read: {error}", source=str(path)) from None

    tls = ssl.create_default_context(cafile=section.tls_ca) if section.tls_ca else None
    address = ServiceAddress(check_url(section.url), token)
    return HttpClient(address, timeout_s=TIMEOUT_S, tls=tls)
