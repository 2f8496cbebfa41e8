"""Who waits for an answer of the broker? Requests by their tickets, each answered once."""

import asyncio
from collections.abc import Callable
from typing import Final

from roamcast.errors import LimitError, RoamcastError, StoreError

TICKETS_MAX: Final = 100_000

PAUSED: Final = "this host hands over to another: ask again in a moment"


class Tickets:
    """Requests that wait for the disk."""

    def __init__(self) -> None:
        self.refusal = ""
        """Why nothing is taken now; none if it is."""
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, give: Callable[[int], None]) -> bool:
        """Give the broker something with a ticket, and wait for what it answers."""
        if self.refusal:
            raise StoreError(self.refusal)
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
