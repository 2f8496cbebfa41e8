"""The groups a client listens to, over one link after another.

Every welcome brings a new key and perhaps other addresses, so each link has its own `ChosenGroups`;
the set of groups that the machine listens to stays the same over all of them.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

from roamcast.channels.client.link_messages import LINK_PROTOCOL, LinkWelcome
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Clock
from roamcast.transport.groups import SOCKET, ChosenGroups, chosen_groups

MARK_BYTES: Final = 4

_LOG = logging.getLogger("roamcast.client")


class Ways:
    """The groups one client listens to."""

    def __init__(
        self,
        *,
        send: Callable[[Message], None],
        on_message: Callable[[str, Message], None],
        clock: Clock,
        interface: str = "",
    ) -> None:
        """`on_message` takes a group's name and a message that came by it."""
        self._send = send
        self._on_message = on_message
        self._clock = clock
        self._interface = interface
        self._listened: dict[str, None] = {}
        self._groups: ChosenGroups | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def using(self) -> str:
        """The way in use: udp, nats or socket."""
        return SOCKET if self._groups is None else self._groups.using

    def renew(self, welcome: LinkWelcome) -> None:
        """Listen by what a new welcome offers, and over the link itself meanwhile."""
        self._part()

        def deliver(group: str, frame: bytes) -> None:
            if self._groups is groups:  # else it came by a link that is over
                self._deliver(group, frame)

        groups = self._groups = chosen_groups(
            welcome,
            tune=self._send,
            deliver=deliver,
            clock=self._clock,
            mark=secrets.token_bytes(MARK_BYTES),
            interface=self._interface,
        )
        for group in self._listened:
            self._groups.listen(group)
        self._starting = asyncio.create_task(self._start(self._groups))

    def listen(self, group: str) -> None:
        """Become a member of a group."""
        self._listened[group] = None
        if self._groups is not None:
            self._groups.listen(group)

    def ignore(self, group: str) -> None:
        """Leave a group."""
        self._listened.pop(group, None)
        if self._groups is not None:
            self._groups.ignore(group)

    async def close(self) -> None:
        """Leave all groups."""
        self._part()
        await asyncio.gather(*self._closing)

    async def _start(self, groups: ChosenGroups) -> None:
        try:
            await groups.start()
        except OSError as error:
            _LOG.warning("groups come over the link only: %s", error)

    def _part(self) -> None:
        """Let go of the groups of an earlier link."""
        if self._groups is not None and self._starting is not None:
            task = asyncio.create_task(_end(self._groups, self._starting))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._groups = self._starting = None

    def _deliver(self, group: str, frame: bytes) -> None:
        message = LINK_PROTOCOL.decode(frame)
        if not isinstance(message, Unreadable):
            self._on_message(group, message)


async def _end(groups: ChosenGroups, starting: asyncio.Task[None]) -> None:
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await groups.close()
