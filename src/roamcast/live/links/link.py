"""Who is at the other end of a link, and how has it behaved so far?"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from roamcast.channels.server.messages import (
    Hello,
    Operation,
    Publish,
    Refresh,
    Subscribe,
    Unpublish,
)
from roamcast.live.auth.admission import Bucket

SCOPE_OF: Final = {
    Publish: "publish",
    Unpublish: "publish",
    Subscribe: "subscribe",
    Refresh: "subscribe",
}
"""What a token must allow for an operation; the others are harmless without it."""

RELAY: Final = "relay"
"""Stands among the scopes of a client that may stand for many others (`channels.relays`)."""

ALL_SCOPES: Final = frozenset(SCOPE_OF.values())


class LinkSocket(Protocol):
    """What a link needs of its connection (`live.links.sockets.WebSocket`)."""

    @property
    def waiting_bytes(self) -> int:
        """How much is written and not yet taken by the network."""

    def write(self, framed: bytes) -> None:
        """Write a whole frame."""

    def hold(self, seconds: float) -> None:
        """Read nothing for a while."""

    def close(self, code: int, reason: str) -> None:
        """Say why, and close."""


class ClientLink:
    """One client's connection; what comes on it goes through `received`.

    `view_class` stays as long as the link: another one needs another key, and so another link.
    """

    __slots__ = (
        "_take",
        "bucket",
        "held",
        "name",
        "reading",
        "scopes",
        "slow_since_us",
        "socket",
        "tuned",
        "unreadable",
        "view_class",
    )

    def __init__(
        self,
        take: Callable[["ClientLink", bytes | str], None],
        socket: LinkSocket,
        name: str,
        view_class: str,
        scopes: Collection[str],
        bucket: Bucket,
    ) -> None:
        self.socket = socket
        self.name = name
        self.view_class = view_class
        self.scopes = scopes
        self.tuned: dict[str, None] = {}
        self.slow_since_us: int | None = None
        self.unreadable = 0
        self.bucket = bucket
        self.held = 0
        self.reading: asyncio.Task[None] | None = None
        """There is one while a request's filters are read beside the loop."""
        self._take = take

    def received(self, data: bytes | str) -> None:
        """A message came."""
        self._take(self, data)

    def paused(self) -> None:
        """The connection takes no more; it is looked at before every write anyway."""

    def resumed(self) -> None:
        """The connection takes more again."""


def lacking(scope: str) -> str:
    """Say what to do about what a token does not allow."""
    if scope == RELAY:
        return "scope: this is no relay's token: name its subject in channels.relays"
    return f"scope: your token does not allow to {scope}"


def scope_of(operation: Operation) -> str | None:
    """Say what a token must allow for an operation; None if nothing."""
    if isinstance(operation, Hello) and operation.relay:
        return RELAY
    return SCOPE_OF.get(type(operation))
