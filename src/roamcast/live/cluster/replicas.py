"""What has the service to do with the other hosts? It answers, tells, hears and hands over.

Watchdogs of other hosts call to probe and to follow the store. Servers call each other, and an
older one hands over: first what it keeps on disk, so that no object comes before its rules, then
its map, as the machines decide (`channels.failover.merging`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from roamcast.channels.failover.messages import Alive, HandOver, HandOverTaken, Probe
from roamcast.channels.failover.replica_messages import (
    PAGE_BYTES_MAX,
    REPLICA_PROTOCOL,
    Follow,
    FollowerAck,
    ReplicaHere,
    StoreChanges,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.errors import AuthError, RoamcastError
from roamcast.live.cluster.followers import Followers, heard, told
from roamcast.live.cluster.link import ReplicaLink
from roamcast.live.cluster.proof import Caller, answer, check_call
from roamcast.live.config.settings import Settings
from roamcast.live.links.sockets import POLICY, TRY_AGAIN, Socket, binary_frame
from roamcast.live.observe.logs import Log
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore
from roamcast.model.machine import Received, Send
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Clock

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
_LOG = Log("peers")


class Serving(Protocol):
    """What the service does for its peers."""

    def give(self, given: Received) -> None:
        """Give the map server a message of another host."""

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Let come into force what another host had newer; it is on disk."""

    def pause(self, paused: bool) -> None:
        """Take no writes while what is kept goes to another host."""

    async def settled(self) -> None:
        """Wait until every write that was taken is on disk, or refused."""


class Called:
    """A host's call to this service; what comes on it goes through `received`."""

    def __init__(
        self, caller: Caller, socket: Socket, take: Callable[["Called", bytes], None]
    ) -> None:
        self.caller = caller
        self.socket = socket
        self._take = take

    def received(self, data: bytes | str) -> None:
        """A message came."""
        if isinstance(data, bytes):
            self._take(self, data)

    def send(self, message: Message) -> None:
        """Send a message; who takes none for too long calls again."""
        if self.socket.waiting_bytes > WAITING_BYTES_MAX:
            self.drop()
        self.socket.write(binary_frame(REPLICA_PROTOCOL.encode(message)))

    def drop(self) -> None:
        """End the call; the host calls again."""
        self.socket.close(TRY_AGAIN, "too slow: call again")

    def paused(self) -> None:
        """The connection takes no more for now; followers are left behind by the clock."""

    def resumed(self) -> None:
        """The connection takes more again."""


class Replicas:
    """The other hosts, as this host's server knows them."""

    def __init__(
        self,
        settings: Settings,
        *,
        epoch: int,
        key_id: Callable[[], str],
        disk: SqliteStore,
        serving: Serving,
        clock: Clock,
    ) -> None:
        cluster, self.name = settings.cluster, settings.server.name
        self.followers = Followers(disk, follow_s=cluster.follow_s)
        self.told: Callable[[Alive], None] = lambda _: None
        """The watchdog of this host, which asks by a way of its own."""
        self._hosts = tuple(cluster.replicas)
        self._secret = cluster.secret() if cluster.replicas else b""
        self._epoch = epoch
        self._key_id = key_id
        self._disk = disk
        self._serving = serving
        self._clock = clock
        self._calls: dict[tuple[str, str], Called] = {}
        self._handing: dict[str, asyncio.Task[None]] = {}
        self._handed: dict[str, None] = {}
        self._awaited: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._links = {
            host: ReplicaLink(
                host,
                own=self.name,
                part="server",
                cluster=cluster,
                clock=clock,
                here=lambda _: None,
                told=self._hear,
                gone=self._lost,
            )
            for host in self._hosts
            if host != self.name
        }

    def start(self) -> None:
        """Call the others from now on, whoever of them serves."""
        for link in self._links.values():
            self._spawn(link.run())

    async def close(self) -> None:
        """Call nobody any more."""
        self.followers.close()
        for call in list(self._calls.values()):
            call.socket.close(TRY_AGAIN, "this host serves no more")
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self, said: str) -> Caller:
        """Let a host in, or say why not."""
        if not self._hosts:
            raise AuthError("this service is none of a cluster: see [cluster] in the settings")
        return check_call(self._secret, said, self.name, self._hosts, self._clock())

    def connect(self, caller: Caller, socket: Socket) -> Called:
        """Welcome a host; an earlier call of the same part of it gives way."""
        before = self._calls.get((caller.host, caller.part))
        if before is not None:
            self.disconnected(before)
            before.socket.close(POLICY, "replaced: this host called again")
        call = self._calls[caller.host, caller.part] = Called(caller, socket, self._received)
        proof = answer(self._secret, caller.nonce, self.name)
        call.send(ReplicaHere(self.name, self._epoch, self._key_id(), proof))
        return call

    def disconnected(self, call: Called) -> None:
        """A call is over."""
        caller = call.caller
        if self._calls.get((caller.host, caller.part)) is call:
            del self._calls[caller.host, caller.part]
            if caller.part == "watchdog":
                self.followers.gone(caller.host)

    def announce(self, here: ServerHere) -> None:
        """Tell every host that this one serves."""
        for call in list(self._calls.values()):
            call.send(here)

    def send(self, effect: Send) -> None:
        """Carry what the map server says to another host, or to its own watchdog."""
        host, message = effect.to.name, effect.message
        if isinstance(message, HandOver):
            link = self._links.get(host)
            if link is not None:
                link.send(message)
        elif host == self.name:
            if isinstance(message, Alive):
                self.told(message)
        else:
            part = "server" if isinstance(message, HandOverTaken) else "watchdog"
            call = self._calls.get((host, part))
            if call is not None:
                call.send(message)

    def _received(self, call: Called, data: bytes) -> None:
        """Take what a host says that called."""
        host = call.caller.host
        if self._calls.get((host, call.caller.part)) is not call:
            return
        message = REPLICA_PROTOCOL.decode(data)
        match message:
            case Probe() | HandOver():
                self._serving.give(Received(host, message))
            case Follow():
                self.followers.follow(host, call.send, call.drop)
            case FollowerAck(number):
                self.followers.on_disk(host, number)
            case StoreChanges(number, entries) if entries:
                self._spawn(self._merge(call, number, heard(entries)))
            case Unreadable():
                call.socket.close(POLICY, "unreadable: do all hosts run the same version?")

    async def _merge(self, call: Called, number: int, entries: list[Entry]) -> None:
        try:
            newer = await self._disk.merge(entries)
        except RoamcastError as error:
            _LOG.error("what another host kept is not written here", error)
            return
        if newer:
            self._serving.adopt(newer)
        call.send(FollowerAck(number))

    def _hear(self, host: str, message: Message) -> None:
        """Take what another host's service says to our call: there should be only one."""
        match message:
            case ServerHere(epoch=epoch) if epoch > self._epoch and host not in self._handed:
                if not self._handing:
                    task = self._spawn(self._hand(host, message))
                    self._handing[host] = task
            case ServerHere() | HandOverTaken():
                self._serving.give(Received(host, message))
            case FollowerAck(number):
                written = self._awaited.pop(number, None)
                if written is not None and not written.done():
                    written.set_result(None)

    def _lost(self, host: str) -> None:
        """The call to another host's service is over."""
        task = self._handing.pop(host, None)
        if task is not None:
            task.cancel()
        if not self._handed:
            self._serving.pause(False)

    async def _hand(self, host: str, here: Message) -> None:
        """Give a newer server what is on disk here; then the machines hear of it."""
        self._serving.pause(True)
        await self._serving.settled()  # else a page might be read before a write to it
        after, number = "", 0
        while page := await asyncio.to_thread(self._disk.page, after, bytes_max=PAGE_BYTES_MAX):
            number += 1
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited[number] = written
            self._links[host].send(StoreChanges(number, told(page)))
            await written
            after = page[-1].key
        self._handed[host] = None
        self._handing.pop(host, None)
        self._serving.give(Received(host, here))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
