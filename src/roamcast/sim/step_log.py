"""The log of steps on a simulated disk, with the index that a real store has.

A simulated disk keeps no index, so this follows it: what is different since it was last asked goes
through the index as a store's transaction does, whether a broker wrote it, a crash lost it or
another host brought it.
"""

import sqlite3
import weakref
from collections.abc import Mapping
from contextlib import nullcontext

from roamcast.channels.past.index import StepIndex, make_tables


class SimStepLog:
    """One disk's log of steps."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        make_tables(self._connection)
        self._index = StepIndex(self._connection, nullcontext())
        weakref.finalize(self._index, self._connection.close)
        self._rows: dict[str, bytes] = {}

    def of(self, rows: Mapping[str, bytes]) -> StepIndex:
        """Give the index of the log with these steps."""
        changed: dict[str, bytes | None] = {
            key: value for key, value in rows.items() if self._rows.get(key) != value
        }
        changed.update((key, None) for key in self._rows if key not in rows)
        for key, value in changed.items():
            if value is None:
                self._connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            else:
                self._connection.execute("REPLACE INTO entries VALUES (?, ?)", (key, value))
        self._index.update(changed)
        self._rows = dict(rows)
        return self._index
