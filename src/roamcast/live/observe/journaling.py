"""The live journal: records collected into segments, which the pipeline reads whole.

A record names nobody. Clients and view classes are called after people, and filters ask for them,
so each such text is replaced by a keyed hash before it is held. The key is drawn at every start and
written nowhere: within a run the same client has the same pseudonym, and nobody finds out whose.
"""

import asyncio
import hmac
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import structs

from roamcast.journal.book import Entry
from roamcast.journal.segments import SEGMENT_RECORDS_MAX, Segments, segments_of
from roamcast.live.config.settings import DAY_S, JournalSection
from roamcast.model.records import Delivery, Drop, QueryStep, Record, Transmission

JOURNAL_FOLDER: Final = "journal"
PSEUDONYMS_MAX: Final = 65_536
"""Pseudonyms cached; an older one is computed again."""

_NAMED: Final[dict[type[Record], tuple[str, ...]]] = {
    QueryStep: ("receiver", "view_class"),
    Transmission: ("peer",),
    Drop: ("peer",),
    Delivery: ("receiver", "producer"),
}
"""Fields that hold the name of a client or of a view class."""

_LITERAL: Final = re.compile(r"(place(?: [<>=]+|,) )?('(?:[^']|'')*')")
"""A text in a filter; with what stands before it where it is a place."""


class Pseudonyms:
    """Replaces names of people in records."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._of = lru_cache(PSEUDONYMS_MAX)(self._hash)

    def _hash(self, name: str) -> str:
        return hmac.digest(self._secret, name.encode(), "sha256")[:8].hex()

    def applied(self, record: Record) -> Record:
        """Give a record that names nobody."""
        fields = _NAMED.get(type(record))
        if fields is None:
            return record
        changes = {name: self._of(text) for name in fields if (text := getattr(record, name))}
        if isinstance(record, QueryStep):
            changes["filter"] = _LITERAL.sub(self._literal, record.filter)
        return structs.replace(record, **changes) if changes else record

    def _literal(self, found: re.Match[str]) -> str:
        return found[0] if found[1] else f"'{self._of(found[2])}'"


WAITING_MAX = 4
"""Segments that may wait for a slow disk; beyond it records are dropped and counted."""


def journaling_of(section: JournalSection, folder: Path, name: str) -> "Journaling":
    """Make the journal of these settings, with a key for its pseudonyms that nobody keeps."""
    return Journaling(
        folder,
        name,
        secret=secrets.token_bytes(32),
        records_max=section.segment_records_max,
        age_s_max=section.segment_s_max,
        retention_s=section.retention_days * DAY_S,
    )


class Journaling:
    """Collects records; a thread writes each segment when it is full or old."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        secret: bytes,
        age_s_max: float,
        records_max: int = SEGMENT_RECORDS_MAX,
        retention_s: float = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`retention_s`: age at which a segment is deleted; 0: none is."""
        self._segments = Segments(folder, name, records_max=records_max, private=True)
        self._folder = folder
        self._name = name
        self._pseudonyms = Pseudonyms(secret)
        self._retention_s = retention_s
        self._clock = clock
        self._records_max = records_max
        self._age_s_max = age_s_max
        self._entries: list[Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._queue: list[list[Entry]] = []
        self.counts = Counter(taken=0, dropped=0)

    def write(self, time_us: int, host: str, record: Record) -> None:
        """Append a record."""
        self.counts["taken"] += 1
        self._entries.append((time_us, host, self._pseudonyms.applied(record)))
        if len(self._entries) >= self._records_max:
            self._roll()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._age_s_max, self._roll)

    def _roll(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._entries = self._entries, []
        if not entries:
            return
        if len(self._queue) >= WAITING_MAX:
            self.counts["dropped"] += len(entries)
            return
        self._queue.append(entries)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._queue:
                await asyncio.to_thread(self._write, self._queue[0])
                del self._queue[0]
        finally:
            self._writing = None

    def _write(self, entries: list[Entry]) -> None:
        self._segments.add(entries)
        self._segments.close()
        if self._retention_s:
            self._segments.prune(self._clock() - self._retention_s)

    @property
    def segments(self) -> list[Path]:
        """The segments that are written, in order."""
        return segments_of(self._folder, self._name)

    async def flush(self) -> None:
        """Write the records that are held, and wait for the disk."""
        self._roll()
        while self._writing is not None:
            await self._writing

    close = flush
