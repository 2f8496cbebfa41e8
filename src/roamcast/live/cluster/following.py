"""How does a host that stands by have what another acknowledged? It follows that one's store.

Everything told is merged into the store here and answered when it is on disk. What this host has
and the service lacks, because it served while nobody followed, is offered in return.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from roamcast.channels.failover.replica_messages import Follow, FollowerAck, StoreChanges, StorePage
from roamcast.errors import RoamcastError
from roamcast.live.cluster.followers import heard, pages
from roamcast.live.observe.logs import Log
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore
from roamcast.model.wire import Message

MESSAGES_MAX: Final = 4_096
"""Waiting for the disk; a service that is told nothing for a while leaves us behind."""

NOT_WRITTEN: Final = "what another host acknowledged is not written here"

_LOG = Log("following")

Send = Callable[[Message], None]


class Following:
    """The store of a host that stands by, and those it follows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disk: SqliteStore | None = None
        self._tasks: dict[str, tuple[asyncio.Queue[Message], asyncio.Task[None]]] = {}
        self._offers = 0

    @property
    def on(self) -> bool:
        """Whether this host stands by with its store open."""
        return self._disk is not None

    def start(self) -> None:
        """Open the store: this host does not serve."""
        assert self._disk is None
        self._disk = SqliteStore.open(self._path, copied=True)

    async def stop(self) -> None:
        """Let go of the store: this host serves, or ends."""
        for host in list(self._tasks):
            self.gone(host)
        disk, self._disk = self._disk, None
        if disk is not None:
            await disk.close()

    def follow(self, host: str, send: Send) -> None:
        """Begin to follow the service of a host."""
        assert self._disk is not None
        self.gone(host)
        queue: asyncio.Queue[Message] = asyncio.Queue(MESSAGES_MAX)
        task = asyncio.get_running_loop().create_task(self._take_all(self._disk, queue, send))
        self._tasks[host] = queue, task
        send(Follow())

    def gone(self, host: str) -> None:
        """The connection to a host is over: what it told is written, and no more answered.

        It may have been acknowledged there, because nobody waits for who has gone.
        """
        queue, task = self._tasks.pop(host, (None, None))
        if queue is None or task is None:
            return
        task.cancel()
        while not queue.empty():
            self._write(queue.get_nowait())

    def _write(self, message: Message) -> None:
        assert self._disk is not None
        if not isinstance(message, StorePage | StoreChanges) or not message.entries:
            return
        try:
            written = self._disk.merge(heard(message.entries))
        except RoamcastError as error:
            _LOG.error(NOT_WRITTEN, error)
            return
        written.add_done_callback(_note_failure)

    def told(self, host: str, message: Message) -> None:
        """Take what a service tells; more than the disk can take ends the following."""
        queue, _ = self._tasks.get(host, (None, None))
        if queue is None:
            return
        if queue.full():
            self.gone(host)
        else:
            queue.put_nowait(message)

    async def _take_all(
        self, disk: SqliteStore, queue: "asyncio.Queue[Message]", send: Send
    ) -> None:
        while True:
            message = await queue.get()
            try:
                await self._take(disk, message, send)
            except RoamcastError as error:
                _LOG.error(NOT_WRITTEN, error)
                return

    async def _take(self, disk: SqliteStore, message: Message, send: Send) -> None:
        match message:
            case StorePage(number, after, until, entries):
                if entries:
                    await disk.merge(heard(entries))
                theirs = {one.key: one for one in heard(entries)}
                ours = await asyncio.to_thread(disk.page, after, until)
                newer = [
                    one for one in ours if one.key not in theirs or one.rank > theirs[one.key].rank
                ]
                for page in pages(newer):
                    self._offers += 1
                    send(StoreChanges(self._offers, page))
                send(FollowerAck(number))
            case StoreChanges(number, entries) if entries:
                await disk.merge(heard(entries))
                send(FollowerAck(number))


def _note_failure(written: "asyncio.Future[list[Entry]]") -> None:
    problem = None if written.cancelled() else written.exception()
    if problem is not None:
        _LOG.error(NOT_WRITTEN, problem)
