"""Sockets between the server of this host and the other hosts that may serve the same node.

Other hosts call: their watchdogs to probe and to follow the store, their servers to hand over. This
host's server calls them in turn, whoever of them serves. Messages go to and from the broker; what
they mean is decided there.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from roamcast.channels.failover.messages import Alive
from roamcast.channels.failover.replica_messages import REPLICA_PROTOCOL, ReplicaHere
from roamcast.channels.failover.replication import ReplicaGone
from roamcast.channels.server.messages import ServerHere
from roamcast.errors import AuthError
from roamcast.live.cluster.link import ReplicaLink
from roamcast.live.cluster.proof import Caller, answer, check_call
from roamcast.live.config.settings import Settings
from roamcast.live.links.sockets import POLICY, TRY_AGAIN, Socket, binary_frame
from roamcast.model.addresses import Address, Replica, Watchdog
from roamcast.model.machine import Input, Received, Send
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Clock

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""A socket with more than this unsent is closed; the host calls again."""


class ReplicaCall:
    """A call of another host to this host's server."""

    def __init__(
        self, caller: Caller, socket: Socket, take: Callable[["ReplicaCall", bytes], None]
    ) -> None:
        self.caller = caller
        self.socket = socket
        self._take = take

    @property
    def address(self) -> Address:
        """Which part of the host calls."""
        host = self.caller.host
        return Watchdog(host) if self.caller.part == "watchdog" else Replica(host)

    def received(self, data: bytes | str) -> None:
        """A message came."""
        if isinstance(data, bytes):
            self._take(self, data)

    def send(self, message: Message) -> None:
        """Send a message."""
        if self.socket.waiting_bytes > WAITING_BYTES_MAX:
            self.drop("too slow: call again")
            return
        self.socket.write(binary_frame(REPLICA_PROTOCOL.encode(message)))

    def drop(self, reason: str) -> None:
        """End the call; the host calls again."""
        self.socket.close(TRY_AGAIN, reason)

    def paused(self) -> None:
        """The connection takes no more for now; the machines give up on a slow host."""

    def resumed(self) -> None:
        """The connection takes more again."""


class Replicas:
    """The other hosts, as this host's server reaches them."""

    def __init__(
        self,
        settings: Settings,
        *,
        epoch: int,
        key_id: Callable[[], str],
        give: Callable[[Input], None],
        takes: Callable[[Message], bool],
        clock: Clock,
    ) -> None:
        """`give` takes inputs to the broker, `takes` says which messages are for it."""
        cluster, self.name = settings.cluster, settings.server.name
        self.on_alive: Callable[[Alive], None] = lambda _: None
        """The watchdog of this host, which asks by a pipe of its own."""
        self._hosts = tuple(cluster.replicas)
        self._secret = cluster.secret() if cluster.replicas else b""
        self._epoch = epoch
        self._key_id = key_id
        self._give = give
        self._takes = takes
        self._clock = clock
        self._calls: dict[Address, ReplicaCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._links = {
            host: ReplicaLink(
                host,
                own=self.name,
                part="server",
                cluster=cluster,
                clock=clock,
                on_here=lambda _: None,
                on_message=self._hear,
                on_lost=self._lost,
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
        self._closed = True
        for call in list(self._calls.values()):
            call.drop("this host serves no more")
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self, authorization: str) -> Caller:
        """Let a host in, or say why not."""
        if not self._hosts:
            raise AuthError("this service is none of a cluster: see [cluster] in the settings")
        return check_call(self._secret, authorization, self.name, self._hosts, self._clock())

    def connect(self, caller: Caller, socket: Socket) -> ReplicaCall:
        """Welcome a host; an earlier call of the same part of it gives way."""
        call = ReplicaCall(caller, socket, self._received)
        before = self._calls.get(call.address)
        if before is not None:
            # The host knows better than we do that its earlier call is over: we might learn of it
            # only by a timeout, and would count a follower that is none.
            self.disconnected(before)
            before.socket.close(POLICY, "replaced: this host called again")
        self._calls[call.address] = call
        proof = answer(self._secret, caller.nonce, self.name)
        call.send(ReplicaHere(self.name, self._epoch, self._key_id(), proof))
        return call

    def disconnected(self, call: ReplicaCall) -> None:
        """A call is over."""
        if self._calls.get(call.address) is call:
            del self._calls[call.address]
            if not self._closed:
                self._give(ReplicaGone(call.address))

    def announce(self, here: ServerHere) -> None:
        """Carry an announcement to every host that has called."""
        for call in list(self._calls.values()):
            call.send(here)

    def send(self, effect: Send) -> None:
        """Carry a message to a part of another host, or to this host's own watchdog."""
        to, message = effect.to, effect.message
        if to.name == self.name:
            if isinstance(message, Alive):
                self.on_alive(message)
        # Two servers that meet call each other, and either call will do.
        elif (call := self._calls.get(to)) is not None:
            call.send(message)
        elif isinstance(to, Replica) and (link := self._links.get(to.name)) is not None:
            link.send(message)

    def drop(self, address: Address, reason: str) -> None:
        """End the connection to a part of another host."""
        call = self._calls.get(address)
        if call is not None:
            call.drop(reason)

    def _received(self, call: ReplicaCall, data: bytes) -> None:
        """Take what a host says that called."""
        if self._calls.get(call.address) is not call:
            return
        message = REPLICA_PROTOCOL.decode(data)
        if isinstance(message, Unreadable):
            # A message that is skipped would leave a gap in a copy of the store.
            call.socket.close(POLICY, "unreadable: do all hosts run the same version?")
        elif self._takes(message):
            self._give(Received(call.caller.host, message))

    def _hear(self, host: str, message: Message) -> None:
        """Take what another host's server says to our call."""
        if self._takes(message):
            self._give(Received(host, message))

    def _lost(self, host: str) -> None:
        """Our call to another host's server is over."""
        # It may still call us: then it is not gone.
        if Replica(host) not in self._calls and not self._closed:
            self._give(ReplicaGone(Replica(host)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
