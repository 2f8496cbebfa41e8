"""Carries a machine's disk effects to the store, and the store's answers back.

When the disk refuses a write, the machine is told, and the disk is tried every second until it is
well, so that `/readyz` recovers though nobody writes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from roamcast.errors import RoamcastError
from roamcast.live.store.store import SqliteStore
from roamcast.model.machine import (
    Entry,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Store,
    Stored,
    StoreFailed,
)

PROBE: Final = "probe"
"""A key that stands for nothing."""

PROBE_S: Final = 1.0


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
