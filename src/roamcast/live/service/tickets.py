"""Requests that wait for the broker's answer, each by its ticket, each answered once."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from roamcast.errors import LimitError, RoamcastError, StoreError

TICKETS_MAX: Final = 100_000

CLOSED: Final = "the service is going down: ask again in a moment"
UNSURE: Final = "the service went down before this was safe: look, and ask again if it is not there"

_OPEN: Final = object()


class Tickets:
    """Requests that wait, for the disk or for the broker's next word."""

    def __init__(self) -> None:
        self._closed = False
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._at_once: dict[int, Any] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask_now(self, give: Callable[[int], None]) -> Any:
        """Give the broker something that it answers at once; raise if it refuses."""
        self._last += 1
        ticket = self._last
        self._at_once[ticket] = _OPEN
        try:
            give(ticket)
        finally:
            answer = self._at_once.pop(ticket)
        if isinstance(answer, RoamcastError):
            raise answer
        assert answer is not _OPEN, "the broker did not answer at once"
        return answer

    async def ask(self, give: Callable[[int], None]) -> Any:
        """Give the broker something with a ticket, and wait for its answer."""
        if self._closed:
            raise StoreError(CLOSED)
        if len(self._waiting) >= TICKETS_MAX:
            raise LimitError("too many requests wait for the disk: try again in a moment")
        self._last += 1
        ticket = self._last
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = waiting
        try:
            give(ticket)
        except BaseException:
            self._waiting.pop(ticket, None)
            waiting.cancel()
            raise
        return await waiting

    def answer(self, ticket: int, result: Any) -> None:
        """What was asked is done."""
        if ticket in self._at_once:
            self._at_once[ticket] = result
            return
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def refuse(self, ticket: int, error: RoamcastError) -> None:
        """What was asked is not done."""
        if ticket in self._at_once:
            self._at_once[ticket] = error
            return
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    async def close(self, seconds: float) -> None:
        """Take nothing more; what is not answered in so many seconds is refused."""
        self._closed = True
        if self._waiting:
            await asyncio.wait([*self._waiting.values()], timeout=seconds)
        for ticket in [*self._waiting]:
            self.refuse(ticket, StoreError(UNSURE))
