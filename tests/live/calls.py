"""Another host's call to a service in the test's own process, without a network between them."""

import asyncio
import os

from roamcast.channels.failover.replica_messages import (
    REPLICA_PROTOCOL,
    Follow,
    FollowerAck,
    StoreChanges,
    StorePage,
)
from roamcast.live.cluster.proof import NONCE_BYTES, Caller, Part
from roamcast.live.cluster.replicas import ReplicaCall
from roamcast.live.service.service import Service
from roamcast.model.wire import Message, Unreadable

DEADLINE_S = 60.0


class CallSocket:
    """The service's end of the call: what it writes is decoded, and confirmed while `confirms`."""

    def __init__(self, service: Service, host: str, part: Part = "watchdog") -> None:
        self.messages: list[Message] = []
        self.closed = ""
        self.confirms = True
        self.waiting_bytes = 0
        self._epoch = service.broker.epoch
        self._loop = asyncio.get_running_loop()
        caller = Caller(host, part, os.urandom(NONCE_BYTES))
        self.call: ReplicaCall = service.replicas.connect(caller, self)

    def say(self, message: Message) -> None:
        """Let the other host say something."""
        self.call.received(REPLICA_PROTOCOL.encode(message))

    def follow(self) -> None:
        """Ask for the store, as a host that stands by does."""
        self.say(Follow(self._epoch))

    def confirm(self) -> None:
        """Confirm everything from now on, the last message included."""
        self.confirms = True
        last = next(m for m in reversed(self.messages) if isinstance(m, StorePage | StoreChanges))
        self.say(FollowerAck(self._epoch, last.number))

    def changes(self) -> list[str]:
        """Name the keys of the changes that were sent."""
        return [
            entry.key
            for message in self.messages
            if isinstance(message, StoreChanges)
            for entry in message.entries
        ]

    def write(self, framed: bytes) -> None:
        """Take a frame of the service's."""
        size = {126: 2, 127: 8}.get(framed[1], 0)
        message = REPLICA_PROTOCOL.decode(framed[2 + size :])
        assert not isinstance(message, Unreadable)
        self.messages.append(message)
        if self.confirms and isinstance(message, StorePage | StoreChanges):
            self._loop.call_soon(self.say, FollowerAck(self._epoch, message.number))

    def close(self, code: int, reason: str) -> None:
        """The service ends the call."""
        self.closed = self.closed or f"{code} {reason}"


async def followed(service: Service, followers: int = 1) -> None:
    """Wait until so many hosts have everything."""
    async with asyncio.timeout(DEADLINE_S):
        while service.broker.held()["followers"] != followers:
            await asyncio.sleep(0.001)
