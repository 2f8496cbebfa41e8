"""A guest that is passed through: its connection and its own link, joined end to end.

Its messages go to the service by its own link and the service's answers come back by it, so it sees
exactly what it would see without the relay. Nothing is stored here: what does not fit a slow socket
is lost, and repeated or healed by the machines.
"""

from collections.abc import Callable
from typing import Final

from roamcast.channels.client.link_messages import LINK_PROTOCOL, Goodbye, Grouped, LinkWelcome
from roamcast.channels.server.messages import REASON_LENGTH_MAX
from roamcast.live.auth.admission import Bucket
from roamcast.live.config.settings import Limits
from roamcast.live.links.link import LinkSocket
from roamcast.live.links.sockets import POLICY, TRY_AGAIN, binary_frame
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Clock

UNREADABLE_MAX: Final = 8
"""A connection that sends this many unreadable frames is ended."""


class Tunnel:
    """One guest's connection, and the way to its own link."""

    def __init__(
        self,
        socket: LinkSocket,
        welcome: LinkWelcome,
        *,
        send_up: Callable[[Message], None],
        limits: Limits,
        clock: Clock,
        count: Callable[[str], None],
    ) -> None:
        """`send_up` sends by the guest's own link; `count` counts what is lost, by reason."""
        self._socket = socket
        self._send_up = send_up
        self._limits = limits
        self._clock = clock
        self._count = count
        self._bucket = Bucket(limits.frames_per_s, limits.frames_burst, clock())
        self._unreadable = 0
        self._over = False
        self.welcome(welcome)

    def received(self, data: bytes | str) -> None:
        """Take a guest's frame to the service."""
        if self._over:
            return
        wait_us = self._bucket.take(self._clock())
        if wait_us:
            self._socket.hold(wait_us / MICROSECONDS)
        if isinstance(data, str) or len(data) > self._limits.frame_bytes_max:
            self.end("too large or text: this link speaks short binary messages")
            return
        message = LINK_PROTOCOL.decode(data)
        if not isinstance(message, Unreadable):
            self._send_up(message)
            return
        self._unreadable += 1
        if self._unreadable >= UNREADABLE_MAX:
            self.end(f"unreadable: {message.reason} ({message.detail})")

    def paused(self) -> None:
        """The connection takes no more; every write looks at it anyway."""

    def resumed(self) -> None:
        """The connection takes more again."""

    def welcome(self, welcome: LinkWelcome) -> None:
        """Pass a welcome on: the first one, or one with another key."""
        self._write(welcome)

    def send(self, group: str, message: Message) -> None:
        """Take a message of the service, by a group or "" for unicast, to the guest."""
        self._write(Grouped(group, LINK_PROTOCOL.encode(message)) if group else message)

    def end(self, reason: str, *, retry_us: int = 0) -> None:
        """Tell the guest why its connection ends and when to come again (0: not by itself)."""
        if not self._over:
            self._over = True
            say_goodbye(self._socket, reason, retry_us=retry_us)

    def _write(self, message: Message) -> None:
        if self._over:
            return
        if self._socket.waiting_bytes > self._limits.socket_high_bytes:
            self._count("passed over")
        else:
            self._socket.write(binary_frame(LINK_PROTOCOL.encode(message)))


def say_goodbye(socket: LinkSocket, reason: str, *, retry_us: int) -> None:
    """Write why a connection ends, and close it."""
    goodbye = Goodbye(reason[:REASON_LENGTH_MAX], retry_us)
    socket.write(binary_frame(LINK_PROTOCOL.encode(goodbye)))
    socket.close(TRY_AGAIN if retry_us else POLICY, reason)
