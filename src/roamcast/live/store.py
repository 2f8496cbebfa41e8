"""What survives a crash? Named values in SQLite, where acknowledged means on disk.

WAL with synchronous FULL: a commit returns when its log is synced. One thread writes; whoever
comes while it waits for the disk joins the next transaction, so a sync is shared by all of them
(group commit). A write is acknowledged by its future, and only after the sync. When the disk
refuses, those who wait are told so, the store says why it is not well, and the next write that
succeeds makes it well again.
"""

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from roamcast.errors import InputError, LimitError, StoreError

VERSION: Final = 1
KEY_LENGTH_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
_LAST: Final = "\U0010ffff"
_WAL_BYTES_KEPT: Final = 64 * 1024 * 1024

Write = tuple[str, bytes | None]
"""A name and its new value, or none to forget it."""


class _Waiting(NamedTuple):
    writes: Sequence[Write]
    size: int
    done: "asyncio.Future[None]"


class Store:
    """Values by name; open it once per file, in the loop that writes to it."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        writes_waiting_max: int,
        bytes_waiting_max: int,
        commit_writes_max: int,
        committed: Callable[[float, int], None],
    ) -> None:
        self._connection = connection
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
    ) -> "Store":
        """Open a file, or make it; `committed` hears each transaction's seconds and writes."""
        return cls(
            connect(path),
            writes_waiting_max=writes_waiting_max,
            bytes_waiting_max=bytes_waiting_max,
            commit_writes_max=commit_writes_max,
            committed=committed,
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
        size = 0
        for key, value in writes:
            assert 0 < len(key) <= KEY_LENGTH_MAX
            assert _LAST not in key
            assert "\0" not in key
            if value is not None and len(value) > VALUE_BYTES_MAX:
                raise LimitError(f"a stored value has at most {VALUE_BYTES_MAX} bytes")
            size += len(key) + len(value or b"")
        done = self._loop.create_future()
        with self._changed:
            if self._closing:
                raise StoreError("the store is closed: nothing was written")
            self._refuse_flood(len(writes), size)
            self._waiting.append(_Waiting(writes, size, done))
            self._writes_waiting += len(writes)
            self._bytes_waiting += size
            self._changed.notify()
        return done

    def load(self, prefix: str) -> dict[str, bytes]:
        """Read all values whose names begin so, in the order of their names."""
        with self._using:
            rows = self._connection.execute(
                "SELECT key, value FROM pairs WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + _LAST),
            )
            return dict(rows.fetchall())

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
            problem = self._commit(batch)
            self._problem = problem
            seconds = perf_counter() - began
            with self._changed:
                self._writes_waiting -= sum(len(waiting.writes) for waiting in batch)
                self._bytes_waiting -= sum(waiting.size for waiting in batch)
            try:
                self._loop.call_soon_threadsafe(self._acknowledge, batch, problem, seconds)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell

    def _taken(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        count = len(batch[0].writes)
        while self._waiting and count + len(self._waiting[0].writes) <= self._commit_writes_max:
            batch.append(self._waiting.popleft())
            count += len(batch[-1].writes)
        return batch

    def _commit(self, batch: Sequence[_Waiting]) -> str | None:
        """Commit a batch as one transaction; of several writes to a name the last counts."""
        last: dict[str, bytes | None] = {}
        for waiting in batch:
            last.update(waiting.writes)
        puts = [(key, value) for key, value in last.items() if value is not None]
        drops = [(key,) for key, value in last.items() if value is None]
        with self._using:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT OR REPLACE INTO pairs VALUES (?, ?)", puts)
                self._connection.executemany("DELETE FROM pairs WHERE key = ?", drops)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                return f"the disk refused to keep this: {error}; free space or mend it, then retry"
        return None

    def _acknowledge(self, batch: Sequence[_Waiting], problem: str | None, seconds: float) -> None:
        if problem is None:
            self._committed(seconds, sum(len(waiting.writes) for waiting in batch))
        for waiting in batch:
            if waiting.done.done():
                continue  # whoever waited has gone
            if problem is None:
                waiting.done.set_result(None)
            else:
                waiting.done.set_exception(StoreError(problem))


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for this process alone, durable by every commit; errors name the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=16
        )
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"cannot open the store: {error}", source=str(path)) from None
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # no second service on one folder
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise InputError(
                f"written by a newer Roamcast (version {version}, ours is {VERSION}): update",
                source=str(path),
            )
        connection.execute(
            "CREATE TABLE IF NOT EXISTS pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL) "
            "WITHOUT ROWID"
        )
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        if "locked" in str(error):
            raise InputError(
                "another service uses this data folder: stop it, or choose another with --data",
                source=str(path),
            ) from None
        raise InputError(f"not a store of ours: {error}", source=str(path)) from None
    except InputError:
        connection.close()
        raise
    return connection
