"""How does what the broker must not forget reach the disk? Each write, and the answer it waits for.

When the disk refuses, the broker is told so, and the disk is tried every second until it is well.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from roamcast.broker import StoreFailed
from roamcast.errors import LimitError, RoamcastError
from roamcast.live.observe.metrics import Metrics
from roamcast.live.store.store import SqliteStore, Write
from roamcast.model.machine import Input, Stored

PROBE: Final = "probe"
"""A name in the store that stands for nothing."""

PROBE_S: Final = 1.0


class Writes:
    """The broker's writes on their way to one disk."""

    def __init__(
        self,
        disk: SqliteStore,
        metrics: Metrics,
        give: Callable[[Input], None],
        *,
        value_bytes_max: int,
    ) -> None:
        self._disk = disk
        self._metrics = metrics
        self._give = give
        self._value_bytes_max = value_bytes_max
        self._probing: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Try no more."""
        self._stopped = True
        if self._probing is not None:
            self._probing.cancel()

    def write(self, token: int, writes: Sequence[Write]) -> None:
        """Write, and tell the broker by the token when it is on disk, or why it is not."""
        try:
            self._check(writes)
            written = self._disk.write(writes)
        except RoamcastError as error:
            self._give(StoreFailed(token, str(error)))
            return
        written.add_done_callback(lambda done: self._written(token, done))

    def _check(self, writes: Sequence[Write]) -> None:
        most = self._value_bytes_max
        if any(len(value or b"") > most for _, value in writes):
            raise LimitError(f"what is kept has at most {most} bytes: these are more rules")

    def _written(self, token: int, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        problem = done.exception()
        given: Input = Stored(token)
        if problem is not None:
            self._probe_soon()
            given = StoreFailed(token, f"the disk did not take it: {problem}")
        self._give(given)

    def _probe_soon(self) -> None:
        """Find out when the disk is well again, though nobody may dare to write."""
        self._metrics.store_failures.inc()
        if self._probing is None and not self._stopped:
            self._probing = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        self._probing = None
        if self._disk.problem is not None:
            self._disk.write([(PROBE, b"")]).add_done_callback(self._probed)

    def _probed(self, done: "asyncio.Future[None]") -> None:
        if not done.cancelled() and done.exception() is not None:
            self._probe_soon()
