"""Which hosts have what was acknowledged here? Those that follow the store, and how far they are.

A host that stands by asks for a copy and gets every commit from then on. Once it has the whole copy
on disk it is current, and a write is acknowledged only when every current follower has it on disk
(decision 0078). One that takes too long is left behind: it is current no more, and comes again.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from roamcast.channels.failover.replica_messages import (
    ENTRIES_MAX,
    PAGE_BYTES_MAX,
    StoreChanges,
    StoreEntry,
    StorePage,
)
from roamcast.live.observe.logs import Log
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore, entry_bytes
from roamcast.model.wire import Message

COPY_S_MAX: Final = 60.0
"""A page of the copy that is not on disk by then is not waited for."""

BEHIND_MAX: Final = 100_000
"""So many entries may be on their way to a host that is not current yet."""

_LOG = Log("followers")


class Follower:
    """One host that follows."""

    def __init__(self, host: str, send: Callable[[Message], None], drop: Callable[[], None]):
        self.host = host
        self.send = send
        self.drop = drop
        self.current = False
        self.awaited = False
        """Whether writes are acknowledged only when they are on its disk: sooner than current."""
        self.behind = 0
        """Entries told and not yet on its disk."""
        self.number = 0
        self.waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self.copying: asyncio.Task[None] | None = None


class Followers:
    """All hosts that follow this one's store."""

    def __init__(self, disk: SqliteStore, *, follow_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._disk = disk
        self._follow_s = follow_s
        self._followers: dict[str, Follower] = {}
        disk.spread = self.spread

    @property
    def current(self) -> int:
        """How many hosts have everything that was acknowledged."""
        return sum(one.current for one in self._followers.values())

    @property
    def behind(self) -> int:
        """How many entries are on their way, to all of them."""
        return sum(one.behind for one in self._followers.values())

    def follow(self, host: str, send: Callable[[Message], None], drop: Callable[[], None]) -> None:
        """A host asks for everything: tell it news from now on, and the rest page by page."""
        self.gone(host)
        one = self._followers[host] = Follower(host, send, drop)
        one.copying = asyncio.get_running_loop().create_task(self._copy(one))

    def gone(self, host: str) -> None:
        """A host's connection is over: nobody waits for it any more."""
        one = self._followers.pop(host, None)
        if one is None:
            return
        self.counts["gone"] += 1
        if one.copying is not None:
            one.copying.cancel()
        one.current = one.awaited = False
        waiting, one.waiting = one.waiting, {}
        for _, written in waiting.values():
            if not written.done():
                written.set_result(None)

    def close(self) -> None:
        """Wait for nobody any more."""
        for host in list(self._followers):
            self.gone(host)

    def on_disk(self, host: str, number: int) -> None:
        """A host has something on disk; it takes everything in order."""
        one = self._followers.get(host)
        if one is None:
            return
        entries, written = one.waiting.pop(number, (0, None))
        one.behind -= entries
        if written is not None and not written.done():
            written.set_result(None)

    def spread(self, entries: Sequence[Entry]) -> "asyncio.Future[None] | None":
        """Tell what was committed; the future is done when every current follower has it."""
        needed: list[asyncio.Future[None]] = []
        for one in list(self._followers.values()):
            for page in pages(entries):
                written = self._tell(one, page)
                if one.awaited:
                    needed.append(written)
            if not one.awaited and one.behind > BEHIND_MAX:
                self._leave_behind(one)
        if not needed:
            return None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = deque(needed)

        def check(_: object) -> None:
            while left and left[0].done():
                left.popleft()
            if not left and not done.done():
                done.set_result(None)

        for written in needed:
            written.add_done_callback(check)
        return done

    def _tell(self, one: Follower, page: tuple[StoreEntry, ...]) -> "asyncio.Future[None]":
        number, written = self._expect(one, len(page))
        one.send(StoreChanges(number, page))
        if one.awaited:
            loop = asyncio.get_running_loop()
            loop.call_later(self._follow_s, self._late, one, number)
        return written

    def _expect(self, one: Follower, entries: int) -> "tuple[int, asyncio.Future[None]]":
        one.number += 1
        one.behind += entries
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one.waiting[one.number] = entries, written
        return one.number, written

    def _late(self, one: Follower, number: int) -> None:
        if number in one.waiting and self._followers.get(one.host) is one:
            self._leave_behind(one)

    def _leave_behind(self, one: Follower) -> None:
        self.counts["left behind"] += 1
        _LOG.warning("a host does not keep up with what is acknowledged: it is left behind")
        self.gone(one.host)
        one.drop()

    async def _copy(self, one: Follower) -> None:
        """Tell a host everything, one page after the other is on its disk."""
        after = ""
        while True:
            found = await asyncio.to_thread(self._disk.page, after, bytes_max=PAGE_BYTES_MAX)
            page = found[:ENTRIES_MAX]
            until = page[-1].key if page else ""
            # What is written after the last page was sent is waited for, what came before it is
            # on that host's disk when the last page is.
            one.awaited = not page
            number, written = self._expect(one, len(page))
            one.send(StorePage(number, after, until, told(page)))
            try:
                async with asyncio.timeout(COPY_S_MAX):
                    await written
            except TimeoutError:
                self._leave_behind(one)
                return
            if not page:
                break
            after = until
        one.current = True
        self.counts["current"] += 1
        _LOG.info("a host has a whole copy and stands by")


def told(entries: Sequence[Entry]) -> tuple[StoreEntry, ...]:
    """Give entries as hosts tell them."""
    return tuple(StoreEntry(*entry) for entry in entries)


def heard(entries: Sequence[StoreEntry]) -> list[Entry]:
    """Give entries as the store takes them."""
    return [Entry(one.key, one.value, one.stamp) for one in entries]


def pages(entries: Sequence[Entry]) -> list[tuple[StoreEntry, ...]]:
    """Part entries into what a message holds."""
    found: list[tuple[StoreEntry, ...]] = []
    page: list[Entry] = []
    size = 0
    for entry in entries:
        size += entry_bytes(entry)
        if page and (size > PAGE_BYTES_MAX or len(page) >= ENTRIES_MAX):
            found.append(told(page))
            page, size = [], entry_bytes(entry)
        page.append(entry)
    if page:
        found.append(told(page))
    return found
