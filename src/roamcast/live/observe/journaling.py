"""The live journal: records collected into segments, which the pipeline reads whole."""

import asyncio
from pathlib import Path

from roamcast.journal.book import Entry
from roamcast.journal.segments import SEGMENT_RECORDS_MAX, Segments
from roamcast.model.records import Record

WAITING_MAX = 4
"""Segments that may wait for a slow disk; beyond it records are dropped and counted."""


class Journaling:
    """Collects records; a thread writes each segment when it is full or old."""

    def __init__(
        self, folder: Path, name: str, *, records_max: int = SEGMENT_RECORDS_MAX, age_s_max: float
    ) -> None:
        self._segments = Segments(folder, name, records_max=records_max)
        self._records_max = records_max
        self._age_s_max = age_s_max
        self._entries: list[Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._queue: list[list[Entry]] = []
        self.dropped = 0

    def write(self, time_us: int, host: str, record: Record) -> None:
        """Append a record."""
        self._entries.append((time_us, host, record))
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
            self.dropped += len(entries)
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

    async def close(self) -> None:
        """Write the records that are held, and wait for the disk."""
        self._roll()
        while self._writing is not None:
            await self._writing
