"""How does a message reach a whole group? One small interface, three ways behind it.

UDP multicast on a LAN, NATS subjects in a cluster, and the client's own socket, which always works.
None of them promises anything: what is lost, doubled or overtaken the channels heal themselves.
"""

from collections.abc import Callable
from typing import Final, Protocol

from roamcast.channels.client.link_messages import Tune
from roamcast.errors import GroupsUnavailable

__all__ = ["PROBE", "Deliver", "Groups", "GroupsUnavailable", "SocketGroups"]

Deliver = Callable[[str, bytes], None]
"""Takes a group's name and a frame of `LINK_PROTOCOL` that came by it."""

PROBE: Final = "probe"
"""The group a server says something on ever again, so that clients learn what reaches them."""

PROBE_BYTES: Final = 8


class Groups(Protocol):
    """One way to send to groups and to listen to them."""

    async def start(self) -> None:
        """Open what is needed; `GroupsUnavailable` when this machine cannot."""

    def listen(self, group: str) -> None:
        """Become a member of a group."""

    def ignore(self, group: str) -> None:
        """Leave a group."""

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Send a frame once to all members that may read what this view class may read."""

    async def close(self) -> None:
        """Leave all groups and close what was opened."""


class SocketGroups:
    """Groups over the client's own link: the server sends it what the others hear."""

    def __init__(self, tune: Callable[[Tune], None]) -> None:
        self._tune = tune

    async def start(self) -> None:
        """There is nothing to open."""

    def listen(self, group: str) -> None:
        """Ask the server to send a group's messages here."""
        self._tune(Tune(group, True))

    def ignore(self, group: str) -> None:
        """Ask the server to send them no more."""
        self._tune(Tune(group, False))

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Clients say nothing to groups, and a server has `Links` for this."""
        raise AssertionError(f"nobody sends to {group} by a socket ({len(frame)}, {key_class!r})")

    async def close(self) -> None:
        """The link closes with its client."""


def probe_frame(interval_us: int) -> bytes:
    """Say how soon the next probe follows."""
    return interval_us.to_bytes(PROBE_BYTES, "big")


def probe_interval_us(frame: bytes) -> int | None:
    """Read how soon the next probe follows; None for what is no probe."""
    return int.from_bytes(frame, "big") if len(frame) == PROBE_BYTES else None
