"""What survives a crash? Named values in SQLite, where acknowledged means on disk.

WAL with synchronous FULL: a commit returns when its log is synced. One thread writes; whoever
comes while it waits for the disk joins the next transaction, so a sync is shared by all of them
(group commit). A write is acknowledged by its future, and only after the sync. When the disk
refuses, those who wait are told so, the store says why it is not well, and the next write that
succeeds makes it well again. Answers come in the order of the writes.

Each write has a stamp, later than all before it, and of two copies of a name the later one is
right. So the stores of several hosts can be merged in any order (decision 0078).
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any, Final

import msgspec

from roamcast.errors import LimitError, StoreError
from roamcast.live.store.file import GONE_MAX, Entry, connect, prune

KEY_LENGTH_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
_LAST: Final = "\U0010ffff"

Write = tuple[str, bytes | None]
"""A name and its new value, or none to forget it."""

Spread = Callable[[Sequence[Entry]], "asyncio.Future[None] | None"]
"""Takes what was committed here to other hosts; the future is done when they have it, too."""


class _Waiting(msgspec.Struct):
    entries: Sequence[Entry]
    size: int
    done: "asyncio.Future[Any]"
    newer: list[Entry] | None = None
    """Of entries that came from elsewhere, those that were newer than ours."""


class _Committed(msgspec.Struct):
    batch: Sequence[_Waiting]
    problem: str | None
    elsewhere: "asyncio.Future[None] | None" = None
    """Done when those who follow have it, too; none if nobody is waited for."""


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
        self.spread: Spread | None = None
        self._connection = connection
        self._copied = copied
        self._writes_waiting_max = writes_waiting_max
        self._bytes_waiting_max = bytes_waiting_max
        self._commit_writes_max = commit_writes_max
        self._committed = committed
        self._waiting: deque[_Waiting] = deque()
        self._unanswered: deque[_Committed] = deque()
        self._writes_waiting = 0
        self._bytes_waiting = 0
        self._changed = threading.Condition()
        self._using = threading.Lock()
        self._closing = False
        self._problem: str | None = None
        self._gone = prune(connection, _now())
        newest = connection.execute("SELECT MAX(stamp) FROM entries").fetchone()[0]
        self._stamp: int = newest or 0
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
    ) -> "SqliteStore":
        """Open a file, or make it; `committed` hears each transaction's seconds and writes.

        `copied`: there are copies elsewhere, so it is remembered which names were forgotten.
        """
        return cls(
            connect(path),
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

    def write(self, writes: Sequence[Write]) -> "asyncio.Future[None]":
        """Write values, all or none of them; the future is done when they are on disk."""
        assert asyncio.get_running_loop() is self._loop
        for key, value in writes:
            assert 0 < len(key) <= KEY_LENGTH_MAX
            assert _LAST not in key
            assert "\0" not in key
            if value is not None and len(value) > VALUE_BYTES_MAX:
                raise LimitError(f"a stored value has at most {VALUE_BYTES_MAX} bytes")
        self._stamp = stamp = max(self._stamp + 1, _now())
        waiting = _waiting([Entry(key, value, stamp) for key, value in writes], self._loop)
        return self._queue(waiting)

    def merge(self, entries: Sequence[Entry]) -> "asyncio.Future[list[Entry]]":
        """Write what another host has where it is newer; the future gives what was."""
        assert self._copied
        self._stamp = max(self._stamp, *(entry.stamp for entry in entries))
        waiting = _waiting(entries, self._loop)
        waiting.newer = []
        return self._queue(waiting)

    def _queue(self, waiting: _Waiting) -> "asyncio.Future[Any]":
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
                (prefix, prefix + _LAST),
            )
            return dict(rows.fetchall())

    def page(self, after: str, until: str = "", bytes_max: int | None = None) -> list[Entry]:
        """Read entries beyond one name, up to another, forgotten ones too; any thread may ask.

        With `bytes_max` so many that one more would not fit, and at least one.
        """
        found: list[Entry] = []
        size = 0
        with self._using:
            rows = self._connection.execute(
                "SELECT key, value, stamp FROM entries WHERE key > ? AND key <= ? ORDER BY key",
                (after, until or _LAST),
            )
            for row in rows:
                entry = Entry(*row)
                size += entry_bytes(entry)
                if bytes_max is not None and found and size > bytes_max:
                    break
                found.append(entry)
            rows.close()
        return found

    async def close(self) -> None:
        """Write what waits, then let go of the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        while self._thread.is_alive():  # its last acknowledgements need this loop
            await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)
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
            problem, written = self._commit(batch)
            self._problem = problem
            seconds = perf_counter() - began
            with self._changed:
                self._writes_waiting -= sum(len(waiting.entries) for waiting in batch)
                self._bytes_waiting -= sum(waiting.size for waiting in batch)
            done = (batch, written, problem, seconds)
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

    def _commit(self, batch: Sequence[_Waiting]) -> tuple[str | None, list[Entry]]:
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
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", kept
                )
                if not self._copied:
                    self._connection.executemany("DELETE FROM entries WHERE key = ?", gone)
                elif gone:
                    self._gone += len(gone)
                    if self._gone > GONE_MAX:
                        self._gone = prune(self._connection, _now())
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                said = f"the disk refused to keep this: {error}; free space or mend it, then retry"
                return said, []
        return None, list(latest.values())

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
        self, batch: Sequence[_Waiting], written: list[Entry], problem: str | None, seconds: float
    ) -> None:
        """Acknowledge a batch when the hosts that follow have it on disk, too."""
        committed = _Committed(batch, problem)
        self._unanswered.append(committed)
        if problem is None:
            self._committed(seconds, sum(len(waiting.entries) for waiting in batch))
            if self.spread is not None and written:
                committed.elsewhere = self.spread(written)
        if committed.elsewhere is not None:
            committed.elsewhere.add_done_callback(self._answer_in_order)
        self._answer_in_order()

    def _answer_in_order(self, _: object = None) -> None:
        """Acknowledge what may be: never a write before one that was made earlier."""
        while self._unanswered:
            elsewhere = self._unanswered[0].elsewhere
            if elsewhere is not None and not elsewhere.done():
                return
            committed = self._unanswered.popleft()
            self._acknowledge(committed.batch, committed.problem)

    def _acknowledge(self, batch: Sequence[_Waiting], problem: str | None) -> None:
        for waiting in batch:
            if waiting.done.done():
                continue  # whoever waited has gone
            if problem is None:
                waiting.done.set_result(waiting.newer)
            else:
                waiting.done.set_exception(StoreError(problem))


def entry_bytes(entry: Entry) -> int:
    """Count an entry's bytes, about."""
    return len(entry.key) + len(entry.value or b"") + 16


def _waiting(entries: Sequence[Entry], loop: asyncio.AbstractEventLoop) -> _Waiting:
    return _Waiting(entries, sum(map(entry_bytes, entries)), loop.create_future())


def _now() -> int:
    return time_ns() // 1000
