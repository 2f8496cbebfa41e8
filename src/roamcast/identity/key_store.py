"""A person's own vids and the seeds that open mail to them, in one file that they alone can read.

Mail to a vid of last month is opened by last month's seed, so a seed outlives its credential. The
file also holds the person's inbox. Several programs of a person may share it: a vid is taken from
its pool in one transaction, and nobody else takes it again.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from roamcast.errors import InputError, StoreError
from roamcast.identity.credentials import own_credential
from roamcast.identity.sealing import VidSecrets
from roamcast.model.machine import Writes

SEEDS_MAX: Final = 100_000
"""Vids remembered, used ones among them; beyond it the oldest are forgotten."""

BUSY_S: Final = 10.0
"""How long to wait for another program of the same person."""

_MET: Final = "met/"
_LAST: Final = "\U0010ffff"
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS vids (
    number INTEGER PRIMARY KEY, vid TEXT UNIQUE NOT NULL, credential TEXT NOT NULL,
    seed BLOB NOT NULL, hybrid INTEGER NOT NULL, expires_us INTEGER NOT NULL, used TEXT);
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_INSERT: Final = "INSERT OR IGNORE INTO vids VALUES (NULL, ?, ?, ?, ?, ?, ?)"
_Row = tuple[int, str, str, bytes, int, int, str | None]


class OwnVid(msgspec.Struct, frozen=True):
    """A vid of one's own, with everything that it takes to use it."""

    vid: str
    credential: str
    secrets: VidSecrets
    expires_us: int


def store_of(folder: Path, subject: str) -> Path:
    """Name a person's file in a folder with those of several people."""
    return folder / f"{sha256(subject.encode()).hexdigest()[:32]}.keys"


class KeyStore:
    """The file; every change is on disk when the call returns."""

    def __init__(self, connection: sqlite3.Connection, path: Path, seeds_max: int) -> None:
        self.path = path
        self._connection = connection
        self._seeds_max = seeds_max

    @classmethod
    def open(cls, path: Path, seeds_max: int = SEEDS_MAX) -> "KeyStore":
        """Open a person's file, or make it, for its owner only."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise InputError("others may read this key store: chmod 600 it", source=str(path))
            connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"the key store can not be opened: {error}", source=str(path)
            ) from None
        return cls(connection, path, seeds_max)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    # --- vids -----------------------------------------------------------------------------------

    def add_pool(
        self, credentials: Sequence[str], secrets: Sequence[VidSecrets], use: str | None = None
    ) -> None:
        """Keep a pool that was drawn; the seeds of the oldest vids give way to it.

        `use`: it is used already, somewhere else; it serves to open mail.
        """
        rows = []
        for text, own in zip(credentials, secrets, strict=True):
            read = own_credential(text)
            rows.append((read.vid, text, own.seed, own.hybrid, read.expires_us, use))
        with self._writing() as connection:
            connection.executemany(_INSERT, rows)
            connection.execute(
                "DELETE FROM vids WHERE number <= (SELECT MAX(number) FROM vids) - ?",
                (self._seeds_max,),
            )

    def add_held(self, vids: Sequence[str], secrets: Sequence[VidSecrets], use: str) -> None:
        """Keep the seeds of vids that somebody else used for this person; they open mail."""
        rows = [
            (vid, "", own.seed, own.hybrid, 0, use) for vid, own in zip(vids, secrets, strict=True)
        ]
        with self._writing() as connection:
            connection.executemany(_INSERT, rows)

    def take(self, now: int, use: str = "used") -> OwnVid | None:
        """Take an unused vid that is valid now, for good; None if another pool is needed.

        `use` may say what for: `used_for` finds it again.
        """
        assert use
        with self._writing() as connection:
            row = connection.execute(
                "UPDATE vids SET used = ? WHERE number = (SELECT number FROM vids WHERE used IS "
                "NULL AND expires_us > ? ORDER BY number LIMIT 1) RETURNING *",
                (use, now),
            ).fetchone()
        return None if row is None else _own(row)

    def left(self, now: int) -> int:
        """Count the unused vids that are valid now."""
        asked = "SELECT COUNT(*) FROM vids WHERE used IS NULL AND expires_us > ?"
        return int(self._read(asked, (now,))[0][0])

    def of(self, vid: str) -> OwnVid | None:
        """Find a vid of one's own, used or not."""
        rows = self._read("SELECT * FROM vids WHERE vid = ?", (vid,))
        return _own(rows[0]) if rows else None

    def used_for(self, use: str) -> OwnVid | None:
        """Find the vid that was taken for a use."""
        rows = self._read("SELECT * FROM vids WHERE used = ?", (use,))
        return _own(rows[0]) if rows else None

    def all_used(self) -> list[OwnVid]:
        """Give the vids that were taken, in their order."""
        asked = "SELECT * FROM vids WHERE used IS NOT NULL ORDER BY number"
        return [_own(row) for row in self._read(asked, ())]

    # --- services that the person has met -------------------------------------------------------

    def meet(self, key: bytes, url: str) -> None:
        """Remember the key that a service signs receipts with, and where it was met."""
        name = f"{_MET}{key.hex()}"
        if self.load(name).get(name) != url.encode():
            self.write(((name, url.encode()),))

    def met(self) -> dict[bytes, str]:
        """Give the keys of the services that were met, with their addresses."""
        found = self.load(_MET)
        return {bytes.fromhex(key[len(_MET) :]): url.decode() for key, url in found.items()}

    # --- entries of the inbox -------------------------------------------------------------------

    def load(self, prefix: str) -> Mapping[str, bytes]:
        """Read the entries whose keys begin with a prefix."""
        asked = "SELECT key, value FROM entries WHERE key >= ? AND key < ? ORDER BY key"
        return dict(self._read(asked, (prefix, prefix + _LAST)))

    def write(self, writes: Writes) -> None:
        """Write entries, all or none; None deletes one."""
        with self._writing() as connection:
            for key, value in writes:
                if value is None:
                    connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                else:
                    connection.execute("REPLACE INTO entries VALUES (?, ?)", (key, value))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"the key store {self.path} can not be written: {error}") from None

    def _read(self, asked: str, values: tuple[object, ...]) -> list[Any]:
        try:
            return self._connection.execute(asked, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the key store {self.path} can not be read: {error}") from None


def _own(row: _Row) -> OwnVid:
    _, vid, credential, seed, hybrid, expires_us, _ = row
    return OwnVid(vid, credential, VidSecrets(seed, bool(hybrid)), expires_us)
