"""Who waits for an answer of the broker? Requests by their tickets, each answered once."""

import asyncio
from collections.abc import Callable
from typing import Final

from roamcast.errors import LimitError, RoamcastError, StoreError

TICKETS_MAX: Final = 100_000

PAUSED: Final = "this host hands over to another: ask again in a moment"
CLOSED: Final = "the service is going down: ask again in a moment"
UNSURE: Final = "the service went down before this was safe: look, and ask again if it is not there"


class Tickets:
    """Requests that wait for the disk."""

    def __init__(self) -> None:
        self.paused = False
        """Whether nothing is taken for now."""
        self._closed = False
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, give: Callable[[int], None]) -> bool:
        """Give the broker something with a ticket, and wait for what it answers."""
        if self._closed or self.paused:
            raise StoreError(CLOSED if self._closed else PAUSED)
        if len(self._waiting) >= TICKETS_MAX:
            raise LimitError("too many requests wait for the disk: try again in a moment")
        self._last += 1
        ticket = self._last
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = waiting
        try:
            give(ticket)
        except BaseException:
            self._waiting.pop(ticket, None)
            waiting.cancel()
            raise
        return await waiting

    def answer(self, ticket: int, fresh: bool) -> None:
        """What was asked is done."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(fresh)

    def refuse(self, ticket: int, error: RoamcastError) -> None:
        """What was asked is not done."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    async def settled(self, seconds: float | None = None) -> None:
        """Wait until everything that waits now is answered, or for so long."""
        if self._waiting:
            await asyncio.wait([*self._waiting.values()], timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Take nothing more; what is not answered in so many seconds is refused."""
        self._closed = True
        await self.settled(seconds)
        for ticket in [*self._waiting]:
            self.refuse(ticket, StoreError(UNSURE))
