"""How does a program follow a standing query? `async for change in view`."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from roamcast.client.inbox import Change, Inbox
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

TURN: Final = 64
"""After so many changes at a stretch the loop gets a turn: sockets must be read meanwhile."""


class Feed:
    """What the session fills and the view empties; it outlives the view only until it is told."""

    def __init__(self, name: str, wanted: Filter, inbox: Inbox) -> None:
        self.name = name
        self.filter = wanted
        self.inbox = inbox
        self.relists = False
        """Its next listing comes from somebody who does not know what was shown before."""
        self.doubtful: dict[str, None] = {}
        """Gone from the listing of a service that has just restarted, perhaps not for long."""
        self.error: BaseException | None = None
        self.ended = False
        self.news = asyncio.Event()

    def show(self, context: Context) -> None:
        """An object appeared or has a new state."""
        self.doubtful.pop(context.vid, None)
        self.inbox.show(context)
        self.news.set()

    def hide(self, vid: str, *, doubtful: bool) -> None:
        """An object left, or so it seems."""
        if doubtful:
            self.doubtful[vid] = None
        else:
            self.inbox.hide(vid)
            self.news.set()

    def believe(self) -> None:
        """What has not come back by now has left."""
        for vid in self.doubtful:
            self.inbox.hide(vid)
        self.doubtful.clear()
        self.news.set()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing will come any more; with an error, the reader gets it after what waits."""
        self.ended = True
        self.error = self.error or error
        self.news.set()


class View:
    """A standing query that is followed until it is closed or let go.

    Reading is safe to cancel: a change is taken out only in the step that returns it.
    """

    def __init__(self, feed: Feed, close: Callable[[str], None]) -> None:
        self._feed = feed
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._turn = 0

    @property
    def filter(self) -> Filter:
        """What is asked for."""
        return self._feed.filter

    @property
    def contexts(self) -> dict[str, Context]:
        """What satisfies the filter now as far as this client was told, by vid."""
        return dict(self._feed.inbox.shown)

    @property
    def waiting(self) -> int:
        """How many changes wait to be read."""
        return len(self._feed.inbox)

    def __aiter__(self) -> "View":
        return self

    async def __anext__(self) -> Change:
        self._turn = (self._turn + 1) % TURN
        if not self._turn:
            await asyncio.sleep(0)
        feed = self._feed
        while True:
            change = feed.inbox.take()
            if change is not None:
                return change
            if feed.error is not None:
                raise feed.error
            if feed.ended:
                raise StopAsyncIteration
            feed.news.clear()
            await feed.news.wait()

    async def aclose(self) -> None:
        """Follow it no more; whoever reads comes to the end."""
        self._feed.end()
        self._close(self._feed.name)

    async def __aenter__(self) -> "View":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # `async for … in me.watch(…)` left by `break` lets go of the view without closing it.
        if not self._feed.ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close, self._feed.name)
