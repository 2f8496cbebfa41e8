"""The store: keys and values in SQLite, where acknowledged means on disk.

WAL with synchronous FULL: a commit returns when its log is synced. One thread writes; whoever comes
while it waits for the disk joins the next transaction, so that a sync is shared (group commit). A
write is answered by its future, after the sync, in the order of the writes. When the disk refuses,
those who wait learn why, and the next write that succeeds makes the store well again.

Stamps are the machines' (decision 0078): of two copies of a key the one with the higher rank is
right, so the stores of several hosts can be merged in any order.

`DiskDriver` carries a machine's disk effects to the store, and the answers back. When the disk
refuses a write, the machine is told, and the disk is tried every second until it is well, so that
`/readyz` recovers though nobody writes.
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, time_ns
from typing import Final

import msgspec

from roamcast.channels.past.index import StepIndex
from roamcast.errors import LimitError, RoamcastError, StoreError
from roamcast.live.store.file import GONE_MAX, connect, prune
from roamcast.model.machine import (
    ENTRY_BYTES,
    KEY,
    KEY_LAST,
    Entry,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Store,
    Stored,
    StoreFailed,
    Writes,
)

PROBE: Final = "probe"
"""A key that stands for nothing."""

PROBE_S: Final = 1.0


class _Waiting(msgspec.Struct):
    entries: Sequence[Entry]
    size: int
    done: "asyncio.Future[tuple[Entry, ...]]"
    newer: list[Entry] | None = None
    """Of entries of another host, those that rank higher than ours; None for our own writes."""


class SqliteStore:
    """Values by name; open it once per file, in the loop that writes to it."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        writes_waiting_max: int,
        bytes_waiting_max: int,
        commit_writes_max: int,
        committed: Callable[[float, int], None],
        copied: bool,
    ) -> None:
        self._connection = connection
        self._copied = copied
        self._writes_waiting_max = writes_waiting_max
        self._bytes_waiting_max = bytes_waiting_max
        self._commit_writes_max = commit_writes_max
        self._committed = committed
        self._waiting: deque[_Waiting] = deque()
        self._writes_waiting = 0
        self._bytes_waiting = 0
        self._changed = threading.Condition()
        self._using = threading.Lock()
        self._closing = False
        self._problem: str | None = None
        self.steps = StepIndex(connection, self._using)
        """The index of the log of steps (0350)."""
        self._gone = prune(connection, _now())
        newest = connection.execute("SELECT MAX(stamp) FROM entries").fetchone()[0]
        self.stamp: int = newest or 0
        """The newest stamp that was on disk when the store was opened."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        writes_waiting_max: int = 100_000,
        bytes_waiting_max: int = 64 * 1024 * 1024,
        commit_writes_max: int = 10_000,
        committed: Callable[[float, int], None] = lambda _seconds, _writes: None,
        copied: bool = False,
        secure_delete: bool = False,
    ) -> "SqliteStore":
        """Open a file, or make it; `committed` hears each transaction's seconds and writes.

        `copied`: there are copies elsewhere, so it is remembered which names were forgotten.
        `secure_delete`: what is deleted is overwritten in the file.
        """
        connection = connect(path)
        if secure_delete:
            connection.execute("PRAGMA secure_delete = ON")
        return cls(
            connection,
            writes_waiting_max=writes_waiting_max,
            bytes_waiting_max=bytes_waiting_max,
            commit_writes_max=commit_writes_max,
            committed=committed,
            copied=copied,
        )

    @property
    def problem(self) -> str | None:
        """Why the last transaction failed, or none: then the store is well."""
        return self._problem

    @property
    def writes_waiting(self) -> int:
        """How many writes wait for the disk."""
        return self._writes_waiting

    def write(self, writes: Writes, stamp: int = 0) -> "asyncio.Future[tuple[Entry, ...]]":
        """Write values, all or none of them; the future is done when they are on disk."""
        assert asyncio.get_running_loop() is self._loop
        assert all(KEY.fullmatch(key) for key, _ in writes)
        return self._queue(_waiting([Entry(*pair, stamp) for pair in writes], self._loop))

    def merge(self, entries: Sequence[Entry]) -> "asyncio.Future[tuple[Entry, ...]]":
        """Write entries of another host where they rank higher; the future gives those."""
        assert self._copied
        waiting = _waiting(entries, self._loop)
        waiting.newer = []
        return self._queue(waiting)

    def _queue(self, waiting: _Waiting) -> "asyncio.Future[tuple[Entry, ...]]":
        with self._changed:
            if self._closing:
                raise StoreError("the store is closed: nothing was written")
            self._refuse_flood(len(waiting.entries), waiting.size)
            self._waiting.append(waiting)
            self._writes_waiting += len(waiting.entries)
            self._bytes_waiting += waiting.size
            self._changed.notify()
        return waiting.done

    def load(self, prefix: str) -> dict[str, bytes]:
        """Read all values whose names begin so, in the order of their names."""
        with self._using:
            rows = self._connection.execute(
                "SELECT key, value FROM entries "
                "WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key",
                (prefix, prefix + KEY_LAST),
            )
            return dict(rows.fetchall())

    def value(self, key: str) -> bytes | None:
        """Read one value; None where there is none. Any thread may ask."""
        with self._using:
            try:
                known = self._known(key)
            except sqlite3.Error as error:
                raise StoreError(f"the store can not be read: {error}") from None
        return None if known is None else known.value

    def page(self, after: str, until: str = "", bytes_max: int | None = None) -> list[Entry]:
        """Read entries beyond one name, up to another, forgotten ones too; any thread may ask.

        With `bytes_max` so many that one more would not fit, and at least one.
        """
        found: list[Entry] = []
        size = 0
        with self._using:
            try:
                rows = self._connection.execute(
                    "SELECT key, value, stamp FROM entries WHERE key > ? AND key <= ? ORDER BY key",
                    (after, until or KEY_LAST),
                )
                for key, value, stamp in rows:
                    size += len(key) + len(value or b"") + ENTRY_BYTES
                    if bytes_max is not None and found and size > bytes_max:
                        break
                    found.append(Entry(key, value, stamp))
                rows.close()
            except sqlite3.Error as error:
                raise StoreError(f"the store can not be read: {error}") from None
        return found

    def checkpoint(self) -> None:
        """Empty the write-ahead log into the file: what was deleted is then in neither."""
        with self._using:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"the log of the store could not be emptied: {error}") from None

    async def close(self) -> None:
        """Write what waits, then let go of the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        while self._thread.is_alive():  # its last acknowledgements need this loop
            await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)
        with self._using:  # a page may be on its way in another thread
            self._connection.close()

    def _refuse_flood(self, writes: int, size: int) -> None:
        """Bound what waits; a single large write is taken when nothing else waits."""
        if not self._waiting:
            return
        if self._writes_waiting + writes > self._writes_waiting_max:
            raise LimitError(
                f"{self._writes_waiting_max} writes wait for the disk: try again later"
            )
        if self._bytes_waiting + size > self._bytes_waiting_max:
            raise LimitError(f"{self._bytes_waiting_max} bytes wait for the disk: try again later")

    def _run(self) -> None:
        """Be the writer: take all that waits, commit it, acknowledge it together."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                batch = self._taken()
            began = perf_counter()
            problem = self._commit(batch)
            self._problem = problem
            seconds = perf_counter() - began
            with self._changed:
                self._writes_waiting -= sum(len(waiting.entries) for waiting in batch)
                self._bytes_waiting -= sum(waiting.size for waiting in batch)
            done = (batch, problem, seconds)
            try:
                self._loop.call_soon_threadsafe(self._committed_now, *done)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell

    def _taken(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        count = len(batch[0].entries)
        while self._waiting and count + len(self._waiting[0].entries) <= self._commit_writes_max:
            batch.append(self._waiting.popleft())
            count += len(batch[-1].entries)
        return batch

    def _commit(self, batch: Sequence[_Waiting]) -> str | None:
        """Commit a batch as one transaction; of several writes to a name the latest counts."""
        with self._using:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                latest: dict[str, Entry] = {}
                for waiting in batch:
                    self._choose(waiting, latest)
                kept = [one for one in latest.values() if self._copied or one.value is not None]
                gone = [(one.key,) for one in latest.values() if one.value is None]
                self._connection.executemany(
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)",
                    [(entry.key, entry.value, entry.stamp) for entry in kept],
                )
                self.steps.update({entry.key: entry.value for entry in latest.values()})
                if not self._copied:
                    self._connection.executemany("DELETE FROM entries WHERE key = ?", gone)
                elif gone:
                    self._gone += len(gone)
                    if self._gone > GONE_MAX:
                        self._gone = prune(self._connection, _now())
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self.steps.undone()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                return f"the disk refused to keep this: {error}; free space or mend it, then retry"
        return None

    def _choose(self, waiting: _Waiting, latest: dict[str, Entry]) -> None:
        """Take what is newer than what is there; what was written here always is."""
        if waiting.newer is None:
            latest.update((entry.key, entry) for entry in waiting.entries)
            return
        for entry in waiting.entries:
            known = latest.get(entry.key) or self._known(entry.key)
            if known is None or entry.rank > known.rank:
                latest[entry.key] = entry
                waiting.newer.append(entry)

    def _known(self, key: str) -> Entry | None:
        asked = self._connection.execute("SELECT * FROM entries WHERE key = ?", (key,))
        row = asked.fetchone()
        return None if row is None else Entry(*row)

    def _committed_now(
        self, batch: Sequence[_Waiting], problem: str | None, seconds: float
    ) -> None:
        """Answer everybody of a batch, in the order of their writes."""
        if problem is None:
            self._committed(seconds, sum(len(waiting.entries) for waiting in batch))
        for waiting in batch:
            if waiting.done.done():
                continue  # whoever waited has gone
            if problem is None:
                waiting.done.set_result(tuple(waiting.newer or ()))
            else:
                waiting.done.set_exception(StoreError(problem))


class DiskDriver:
    """One machine's way to one store."""

    def __init__(
        self,
        disk: SqliteStore,
        give: Callable[[Input], None],
        *,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._give = give
        self._on_failure = on_failure
        self._probing: asyncio.TimerHandle | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._stopped = False

    def stop(self) -> None:
        """Answer nothing any more."""
        self._stopped = True
        if self._probing is not None:
            self._probing.cancel()
        for task in self._reading:
            task.cancel()

    def carry(self, effect: Store | Merge | ReadPage) -> None:
        """Do what a machine asks of its disk; the answer carries the effect's token."""
        if isinstance(effect, ReadPage):
            task = asyncio.get_running_loop().create_task(self._read(effect))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
            return
        try:
            if isinstance(effect, Store):
                done = self._disk.write(effect.writes, effect.stamp)
            else:
                done = self._disk.merge(effect.entries)
        except RoamcastError as error:
            # Not at once: the machine is in the middle of its effects.
            reason = str(error)
            asyncio.get_running_loop().call_soon(self._answer, StoreFailed(effect.token, reason))
            return
        done.add_done_callback(lambda answer: self._written(effect, answer))

    def _written(self, effect: Store | Merge, done: "asyncio.Future[tuple[Entry, ...]]") -> None:
        if done.cancelled():
            return
        problem = done.exception()
        if problem is not None:
            self._probe_soon()
            self._answer(StoreFailed(effect.token, f"the disk did not take it: {problem}"))
        elif isinstance(effect, Store):
            self._answer(Stored(effect.token))
        else:
            self._answer(Merged(effect.token, done.result()))

    async def _read(self, effect: ReadPage) -> None:
        try:
            page = await asyncio.to_thread(
                self._disk.page, effect.after, effect.until, effect.bytes_max
            )
        except RoamcastError as error:
            self._answer(StoreFailed(effect.token, str(error)))
        else:
            self._answer(PageRead(effect.token, tuple(page)))

    def _answer(self, given: Input) -> None:
        if not self._stopped:
            self._give(given)

    def _probe_soon(self) -> None:
        """Find out when the disk is well again, though nobody may dare to write."""
        self._on_failure()
        if self._probing is None and not self._stopped:
            self._probing = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        self._probing = None
        if self._disk.problem is not None:
            self._disk.write(((PROBE, b""),)).add_done_callback(self._probed)

    def _probed(self, done: "asyncio.Future[tuple[Entry, ...]]") -> None:
        if not done.cancelled() and done.exception() is not None:
            self._probe_soon()


def _waiting(entries: Sequence[Entry], loop: asyncio.AbstractEventLoop) -> _Waiting:
    size = sum([len(entry.key) + len(entry.value or b"") for entry in entries])
    return _Waiting(entries, size, loop.create_future())


def _now() -> int:
    return time_ns() // 1000
