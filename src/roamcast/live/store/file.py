"""What does the store's file look like? One table of entries in SQLite, durable by every commit.

Beside it are the tables of the index of the log of steps, which follow from the entries (0350).
An entry is a name, its value and the stamp of the write. Where other hosts may take over, a name
that was forgotten stays for a while without a value, so that no copy of it brings the value back.
"""

import os
import sqlite3
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from roamcast.channels.past.index import StepIndex, make_tables
from roamcast.errors import InputError

VERSION: Final = 3
WAL_BYTES_SPARED: Final = 64 * 1024 * 1024
GONE_US_MAX: Final = 7 * 86_400_000_000
"""So long a name is known to be forgotten; a host that was away for longer may bring it back."""

GONE_MAX: Final = 1_000_000
"""Beyond so many names without a value, the older half is let go."""


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
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_SPARED}")
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise InputError(
                f"written by a newer Roamcast (version {version}, ours is {VERSION}): update",
                source=str(path),
            )
        _make_tables(connection, version)
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


def _make_tables(connection: sqlite3.Connection, version: int) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS entries "
        "(key TEXT PRIMARY KEY, value BLOB, stamp INTEGER NOT NULL) WITHOUT ROWID"
    )
    if version == 1:  # as it was before stores had copies
        connection.execute("INSERT INTO entries SELECT key, value, 1 FROM pairs")
        connection.execute("DROP TABLE pairs")
    make_tables(connection)
    if version < 3:  # as it was before the log of steps had an index
        StepIndex(connection, nullcontext()).build()


def prune(connection: sqlite3.Connection, now: int) -> int:
    """Let go of names that were forgotten long ago, or too many; give how many are left."""
    connection.execute(
        "DELETE FROM entries WHERE value IS NULL AND stamp < ?", (now - GONE_US_MAX,)
    )
    counted = "SELECT COUNT(*) FROM entries WHERE value IS NULL"
    left: int = connection.execute(counted).fetchone()[0]
    if left <= GONE_MAX:
        return left
    connection.execute(
        "DELETE FROM entries WHERE value IS NULL AND stamp <= (SELECT stamp FROM entries "
        "WHERE value IS NULL ORDER BY stamp LIMIT 1 OFFSET ?)",
        (left - GONE_MAX // 2 - 1,),
    )
    return int(connection.execute(counted).fetchone()[0])
