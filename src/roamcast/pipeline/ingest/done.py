"""Which files have been ingested? What all batches but the last have said, in one SQLite file.

A batch's manifest lists its files and the names that its dead letters need. Months of a watch would
leave a million manifests, so those of older batches are folded into this file: a hash of 16 bytes
a file, under an index, and the names. Folding is one transaction, it may be repeated, and what it
costs depends on what is added, not on what is there (docs/decisions/0056).
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from roamcast.errors import RoamcastError
from roamcast.pipeline.ingest.files import SightingFile

HASH_BYTES = 16
_TABLES = (
    "CREATE TABLE IF NOT EXISTS files (hash BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS names (batch INTEGER PRIMARY KEY, paths BLOB NOT NULL)",
)
Said = tuple[int, Sequence[SightingFile], Mapping[int, str]]
"""Of a batch: its number, its files, the paths behind the numbers in its dead letters."""


class Done:
    """The files of all committed batches. `recent`: those of batches that are not folded yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recent: set[SightingFile] = set()
        with self._told():
            # a watch works in a thread of Spark's, one batch after the other
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # EXTRA: a commit counts only when the journal's end is on disk, for then the
            # manifests are removed
            self._database.execute("PRAGMA synchronous = EXTRA")
            for table in _TABLES:
                self._database.execute(table)

    @property
    def through(self) -> int:
        """The number of the last batch that was folded."""
        with self._told():
            return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    def __contains__(self, file: object) -> bool:
        """Say whether a file was ingested as it is now."""
        assert isinstance(file, SightingFile)
        if file in self.recent:
            return True
        with self._told():
            found = self._database.execute("SELECT 1 FROM files WHERE hash = ?", (_hash(file),))
            return found.fetchone() is not None

    def fold(self, batches: Iterable[Said]) -> None:
        """Take over what batches said: all of it, or nothing."""
        through = self.through
        with self._told():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for number, files, names in batches:
                    self._database.executemany(
                        "INSERT OR IGNORE INTO files VALUES (?)", ((_hash(file),) for file in files)
                    )
                    if names:
                        self._database.execute(
                            "INSERT OR REPLACE INTO names VALUES (?, ?)",
                            (number, msgspec.json.encode(names)),
                        )
                    through = max(through, number)
                self._database.execute(f"PRAGMA user_version = {through}")
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def names(self, number: int) -> dict[int, str]:
        """Give the paths behind the numbers by which a folded batch's dead letters name files."""
        with self._told():
            found = self._database.execute("SELECT paths FROM names WHERE batch = ?", (number,))
            row = found.fetchone()
        return {} if row is None else msgspec.json.decode(row[0], type=dict[int, str])

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RoamcastError(f"cannot use {self.path}: {error}") from None


def _hash(file: SightingFile) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(file), digest_size=HASH_BYTES).digest()
