"""What about a client that may see something else than its relay? It is passed through, unread.

Its messages go to the service by its own link and the service's answers come back by it, so it sees
exactly what it would see without the relay, and the relay's machine has no part in it. Nothing is
kept here: what does not fit a slow socket is lost, and repeated or healed by the machines.
"""

from collections.abc import Callable
from typing import Final

from roamcast.channels.client.link_messages import LINK_PROTOCOL, Goodbye, Grouped, LinkWelcome
from roamcast.channels.server.messages import REASON_LENGTH_MAX
from roamcast.live.config.settings import Limits
from roamcast.live.links.link import LinkSocket
from roamcast.live.links.sockets import POLICY, TRY_AGAIN, binary_frame
from roamcast.live.relay.guest import Guest
from roamcast.live.service.limits import Bucket
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Clock

UNREADABLE_MAX: Final = 8


class Tunnel:
    """One client's connection, and its own link."""

    def __init__(
        self,
        socket: LinkSocket,
        guest: Guest,
        limits: Limits,
        clock: Clock,
        count: Callable[[str], None],
    ) -> None:
        self._socket = socket
        self._guest = guest
        self._limits = limits
        self._clock = clock
        self._count = count
        self._bucket = Bucket(limits.frames_per_s, limits.frames_burst, clock())
        self._unreadable = 0
        self._over = False
        guest.told = self._told
        guest.renewed = self._write
        assert guest.welcome is not None
        self._write(guest.welcome)

    def received(self, data: bytes | str) -> None:
        """Take a client's message to the service."""
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
            self._guest.link.send(message)
            return
        self._unreadable += 1
        if self._unreadable >= UNREADABLE_MAX:
            self.end(f"unreadable: {message.reason} ({message.detail})")

    def paused(self) -> None:
        """The connection takes no more; it is looked at before every write anyway."""

    def resumed(self) -> None:
        """The connection takes more again."""

    def end(self, reason: str, *, retry_us: int = 0) -> None:
        """Tell the client why its link ends and when to come again (0: not by itself)."""
        if self._over:
            return
        self._over = True
        said = Goodbye(reason[:REASON_LENGTH_MAX], retry_us)
        self._socket.write(binary_frame(LINK_PROTOCOL.encode(said)))
        self._socket.close(TRY_AGAIN if retry_us else POLICY, reason)

    def _told(self, group: str, message: Message) -> None:
        self._write(Grouped(group, LINK_PROTOCOL.encode(message)) if group else message)

    def _write(self, message: Message | LinkWelcome) -> None:
        if self._over:
            return
        if self._socket.waiting_bytes > self._limits.socket_high_bytes:
            self._count("passed over")
        else:
            self._socket.write(binary_frame(LINK_PROTOCOL.encode(message)))
