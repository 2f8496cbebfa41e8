"""Views: how a program follows a subscription, with `async for change in view`.

A session shows every state of every context; a reader may take its time. Between them stands an
`Inbox` for each subscription: it knows what is there now and what the reader has read, and a change
is the difference between the two at the moment of reading (decision 0074). So whatever the network,
a restarted server or a second listing repeats, the reader sees each context appear once, and a
reader that sleeps wakes to the present. What waits is bounded by the contexts themselves.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal

import msgspec

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

TURN: Final = 64
"""After this many changes without a pause the loop gets a turn, so that sockets are read."""

Kind = Literal["appeared", "changed", "left", "current"]

_CURRENT: Final = ""
"""Key of the mark behind the current set; no vid is empty."""


class Change(msgspec.Struct, frozen=True):
    """A context appeared, changed or left; or, once for each view, the current set is complete.

    `context` is the new state, for a context that left its last one; None for `current`, which has
    the number of contexts and whether a bandwidth limit left some out.
    """

    kind: Kind
    context: Context | None = None
    count: int = 0
    complete: bool = True

    @property
    def vid(self) -> str:
        """The context's vid, empty for `current`."""
        return "" if self.context is None else self.context.vid


class Inbox:
    """The contexts of one subscription, and which of them its reader has read.

    The session bounds how many contexts a subscription shows.
    """

    def __init__(self) -> None:
        self.shown: dict[str, Context] = {}
        self._read: dict[str, Context] = {}
        self._waiting: dict[str, None] = {}
        self._current: Change | None = None
        self._stale: set[str] = set()
        """What another service showed, and this one has not shown yet."""

    def __len__(self) -> int:
        """How many changes wait for the reader."""
        return len(self._waiting)

    def show(self, context: Context) -> None:
        """A context appeared or has a new state."""
        self.shown[context.vid] = context
        self._stale.discard(context.vid)
        self._note(context.vid)

    def hide(self, vid: str) -> None:
        """A context left."""
        self.shown.pop(vid, None)
        self._note(vid)

    def renew(self) -> None:
        """Another service shows its current set from now on."""
        self._stale = set(self.shown)

    def current(self, count: int, *, complete: bool) -> None:
        """The current set has been shown; only the first time is a change."""
        for vid in self._stale:
            self.hide(vid)
        self._stale = set()
        if self._current is None:
            self._current = Change("current", None, count, complete)
            self._waiting[_CURRENT] = None

    def take(self) -> Change | None:
        """Give the next change, None if the reader knows everything."""
        while self._waiting:
            vid = next(iter(self._waiting))
            del self._waiting[vid]
            if vid == _CURRENT:
                return self._current
            now, before = self.shown.get(vid), self._read.get(vid)
            if now is not None:
                self._read[vid] = now
                if before is None:
                    return Change("appeared", now)
                if not _same(now, before):
                    return Change("changed", now)
            elif before is not None:
                del self._read[vid]
                return Change("left", before)
        return None

    def _note(self, vid: str) -> None:
        """Queue a context, unless it came and went before the reader looked."""
        if vid in self.shown or vid in self._read:
            self._waiting.setdefault(vid)
        else:
            self._waiting.pop(vid, None)


def _same(known: Context, other: Context) -> bool:
    """Whether only t_r differs: a device that registers again has not changed."""
    return (
        known.place == other.place
        and known.point == other.point
        and known.attributes == other.attributes
        and known.t_d == other.t_d
    )


class Feed:
    """What the runner fills and the view empties."""

    def __init__(self, name: str, wanted: Filter) -> None:
        self.name = name
        self.filter = wanted
        self.inbox = Inbox()
        self.error: BaseException | None = None
        self.ended = False
        self.news = asyncio.Event()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more will come; the reader gets the error, if any, after what waits."""
        self.ended = True
        self.error = self.error or error
        self.news.set()


class View:
    """A subscription that is followed until it is closed or let go.

    Reading is safe to cancel: a change is taken out only in the step that returns it.
    """

    def __init__(self, feed: Feed, close: Callable[[str], None]) -> None:
        self._feed = feed
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._turn = 0

    @property
    def filter(self) -> Filter:
        """The subscription's filter."""
        return self._feed.filter

    @property
    def contexts(self) -> dict[str, Context]:
        """What satisfies the filter now as far as this client knows, by vid."""
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
        """Unsubscribe; whoever reads comes to the end."""
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
