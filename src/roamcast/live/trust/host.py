"""Runs a trusted node: its machine, its own database and key, and the people who are connected.

The database is apart from the service's: what the broker writes never lies beside who people are.
It is overwritten where it deletes, so that a destroyed epoch's key is gone from the disk as well.
"""

import secrets
from collections import Counter as CounterOf
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from roamcast import files
from roamcast.errors import InputError
from roamcast.identity.credentials import VidKeys
from roamcast.identity.keys import TrustedKeys
from roamcast.identity.pseudonyms import OPAQUE_LENGTH
from roamcast.identity.trusted.epochs import DestroyEpoch, RotateKeys, ShareEpoch
from roamcast.identity.trusted.issuing import DrawPool, VidPool
from roamcast.identity.trusted.mailboxes import (
    AckMail,
    CloseInbox,
    Deposit,
    Deposited,
    InboxReplaced,
    Mail,
    MailPushed,
    OpenInbox,
)
from roamcast.identity.trusted.node import TrustedNode
from roamcast.identity.trusted.reach import Reach
from roamcast.identity.trusted.register import EnrolPerson, ErasePerson, ErasureDone, SetReach
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.identity.trusted.waking import PushWakeUp, RemoveWakeUp, SetWakeUp
from roamcast.live.config.identity import PushSection
from roamcast.live.config.settings import JournalSection
from roamcast.live.observe.journaling import JOURNAL_FOLDER, Journaling, journaling_of
from roamcast.live.observe.metrics import Metrics
from roamcast.live.store.store import DiskDriver, SqliteStore
from roamcast.live.trust.pushing import Pushing
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Input, Store
from roamcast.model.records import Record, TrustStep
from roamcast.transport.driver import Carriers, Clock, Driver, Tickets, wall_clock

STORE_FILE: Final = "trust.sqlite"
KEY_FILE: Final = "trust.key"
KEY_BYTES: Final = 32
CLOSE_S: Final = 5.0
EPOCH_STEPS: Final = frozenset({"sealing", "destroyed"})
"""Steps whose number is an epoch's, not a count."""


class MailSink(Protocol):
    """A person's connection."""

    def push(self, mail: Mail) -> None:
        """Write a mail."""

    def end(self) -> None:
        """End it: another connection of the person takes over, or the node goes down."""


class RunningTrust:
    """One trusted node in this process."""

    def __init__(
        self,
        name: str,
        *,
        disk: SqliteStore,
        private: bytes,
        settings: TrustSettings | None = None,
        clock: Clock | None = None,
        journal: Journaling | None = None,
    ) -> None:
        self.clock = clock or wall_clock()
        self._disk = disk
        self._tickets = Tickets()
        self._journal = journal
        self._steps: CounterOf[str] = CounterOf()
        self._sinks: dict[str, MailSink] = {}
        self.node = TrustedNode(
            name,
            now=self.clock(),
            load=disk.load,
            private=private,
            random_bytes=secrets.token_bytes,
            settings=settings,
        )
        self._driver = Driver(self.node, clock=self.clock)
        self.give = self._driver.give
        self.pushing: Pushing | None = None
        """Carries wake-ups; without it nobody is woken."""
        self._store = DiskDriver(disk, self._driver.give)
        tickets = self._tickets
        self._driver.carry = Carriers(
            {
                Store: self._store.carry,
                Acknowledged: lambda effect: tickets.answer(effect.ticket, effect.fresh),
                Failed: lambda effect: tickets.refuse(effect.ticket, effect.error),
                VidPool: lambda effect: tickets.answer(effect.ticket, effect.credentials),
                Deposited: lambda effect: tickets.answer(effect.ticket, effect),
                ErasureDone: lambda effect: tickets.answer(effect.ticket, effect.deleted),
                MailPushed: self._push,
                InboxReplaced: self._replaced,
                PushWakeUp: self._wake,
                Record: self._note,
            }
        )

    @classmethod
    def open(
        cls,
        folder: Path,
        name: str,
        settings: TrustSettings | None = None,
        *,
        journal: JournalSection | None = None,
        metrics: Metrics | None = None,
        push: PushSection | None = None,
    ) -> "RunningTrust":
        """Open the node of a data folder, or make it; call in the running loop."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        disk = SqliteStore.open(folder / STORE_FILE, secure_delete=True)
        kept = None
        if journal is not None and journal.on:
            kept = journaling_of(journal, folder / JOURNAL_FOLDER, name)
        private = load_private(folder / KEY_FILE)
        made = cls(name, disk=disk, private=private, settings=settings, journal=kept)
        made.pushing = Pushing(push or PushSection(), folder, give=made.give, clock=made.clock)
        if metrics is not None:
            made.watch(metrics)
        return made

    def watch(self, metrics: Metrics) -> None:
        """Show what the node holds and has done; no number is about one person."""
        for what in self.node.held():
            metrics.watch_held(f"trust {what}", lambda what=what: self.node.held()[what])  # type: ignore[misc]
        metrics.watch_held("trust connections", lambda: len(self._sinks))
        metrics.watch_queue("trust disk", lambda: self._disk.writes_waiting)
        metrics.watch_counts("trust", "What the trusted node did", lambda: self._steps)
        journal = self._journal
        if journal is not None:
            about = "Records of the trusted node's journal"
            metrics.watch_counts("trust_journal", about, lambda: journal.counts)

    def start(self) -> None:
        """Let the node live; call in the running loop."""
        self._driver.start()

    async def stop(self) -> None:
        """Answer what waits for the disk, and let go of the file."""
        await self._tickets.close(CLOSE_S)
        self.end_streams()
        self._driver.close()
        self._store.stop()
        if self.pushing is not None:
            await self.pushing.close()
        if self._journal is not None:
            await self._journal.close()
        await self._disk.close()

    @property
    def ready(self) -> bool:
        """Whether its first key is on disk, and the disk takes writes."""
        return self.node.ready and self._disk.problem is None

    def end_streams(self) -> None:
        """End everybody's connection: the node goes down."""
        for sink in self._sinks.values():
            sink.end()
        self._sinks.clear()

    async def welcome(self, subject: str) -> None:
        """Register somebody who comes by name for the first time."""
        opaque, at, node = subject.rpartition("@")
        if at and node == self.node.name and len(opaque) == OPAQUE_LENGTH:
            raise InputError("a vid is nobody: ask with a token that has your name")
        if not self.node.knows(subject):
            await self._ask(EnrolPerson, subject)

    async def draw(self, subject: str, keys: Sequence[VidKeys]) -> tuple[str, ...]:
        """Issue a pool of credentials; who asks for the first time is registered."""
        await self.welcome(subject)
        return cast("tuple[str, ...]", await self._ask(DrawPool, subject, tuple(keys)))

    async def deposit(self, given: Deposit) -> Deposited:
        """Take mail for the people behind some vids; answered when it is on disk."""
        fields = (given.cast, given.sender, given.kind, given.expires_us, given.back_s)
        return cast("Deposited", await self._ask(Deposit, *fields, given.parcels, given.urgent))

    async def ack(self, subject: str, cast_id: str) -> None:
        """Delete a mail that the person has."""
        await self._ask(AckMail, subject, cast_id)

    async def set_reach(self, subject: str, reach: Reach) -> None:
        """Set a person's reach rules; they are in force when this returns."""
        await self._ask(SetReach, subject, reach)

    async def erase(self, subject: str) -> int:
        """Forget a person; give how much of the mailbox was deleted."""
        return cast("int", await self._ask(ErasePerson, subject))

    async def set_wake_up(self, subject: str, endpoint: str) -> None:
        """Wake a device of a person when mail waits; on disk when this returns."""
        assert self.pushing is not None
        self.pushing.check(endpoint)
        await self._ask(SetWakeUp, subject, endpoint)

    async def remove_wake_up(self, subject: str, endpoint: str = "") -> None:
        """Wake a device no more, or none of the person's."""
        await self._ask(RemoveWakeUp, subject, endpoint)

    async def enrol(self, subjects: Sequence[str]) -> list[bytes]:
        """Give the handles of people whom a user agent knows by name; who is new is enrolled."""
        for subject in subjects:
            if not self.node.knows(subject):
                await self._ask(EnrolPerson, subject)
        return [self.node.handle_of(subject) for subject in subjects]

    async def share(self, ingest: str) -> TrustedKeys:
        """Give an ingest, which is a user agent, the key of an epoch of its own."""
        await self._ask(ShareEpoch, ingest)
        found = self.node.shared_keys(ingest)
        assert found is not None
        return found

    async def rotate(self) -> None:
        """Seal with a new key from now on."""
        await self._ask(RotateKeys)

    async def destroy(self, epoch: int) -> None:
        """Destroy an epoch's key, and its traces in the log of the database."""
        await self._ask(DestroyEpoch, epoch)
        self._disk.checkpoint()

    async def connect(self, subject: str, sink: MailSink) -> str:
        """Push a person's mail to this connection until it is closed; give its name."""
        inbox = secrets.token_hex(8)
        self._sinks[inbox] = sink
        try:
            await self._ask(OpenInbox, subject, inbox)
        except BaseException:
            self._sinks.pop(inbox, None)
            raise
        return inbox

    def disconnect(self, inbox: str) -> None:
        """A connection is over."""
        if self._sinks.pop(inbox, None) is not None:
            self._driver.give(CloseInbox(inbox))

    async def _ask(self, kind: Callable[..., Input], *fields: Any) -> Any:
        give = self._driver.give
        return await self._tickets.ask(lambda ticket: give(kind(ticket, *fields)))

    def _note(self, record: Record) -> None:
        if isinstance(record, TrustStep):
            what = f"{record.step}, {record.reason}" if record.reason else record.step
            self._steps[what] += 1 if record.step in EPOCH_STEPS else record.number
        if self._journal is not None:
            self._journal.write(self.clock(), self.node.name, record)

    def _wake(self, effect: PushWakeUp) -> None:
        if self.pushing is not None:
            self.pushing.push(effect)

    def _push(self, effect: MailPushed) -> None:
        sink = self._sinks.get(effect.inbox)
        if sink is not None:
            sink.push(effect.mail)

    def _replaced(self, effect: InboxReplaced) -> None:
        sink = self._sinks.pop(effect.inbox, None)
        if sink is not None:
            sink.end()


def load_private(path: Path) -> bytes:
    """Read the key that signs credentials; the first time, make it, for its owner only."""
    if not path.exists():
        files.write_whole(
            path, secrets.token_bytes(KEY_BYTES).hex().encode(), mode=files.OWNER_ONLY
        )
    if path.stat().st_mode & 0o077:
        raise InputError("others may read this key file: chmod 600 it", source=str(path))
    try:
        private = bytes.fromhex(path.read_text("ascii").strip())
    except ValueError:
        private = b""
    if len(private) != KEY_BYTES:
        raise InputError("not a trusted node's key", source=str(path))
    return private
