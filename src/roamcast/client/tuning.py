"""By which way do a group's messages come? UDP or NATS while they work, else over the link.

The well-known group always comes over the link: who hears it knows that the service lives. Where
two ways overlap for a moment, messages come twice; receivers take each sequence number once.
"""

from collections.abc import Callable
from typing import Protocol

from roamcast.channels.link_messages import Tune
from roamcast.channels.map_messages import WELL_KNOWN
from roamcast.model.wire import Message


class Listening(Protocol):
    """Another way than the link; `groups.Groups` is one."""

    def listen(self, group: str) -> None:
        """Become a member."""

    def ignore(self, group: str) -> None:
        """Be one no more."""


class Tuning:
    """The groups a client listens to."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self.groups: Listening | None = None
        self._send = send
        self._listened: dict[str, None] = {}

    def listen(self, group: str) -> None:
        """Become a member of a group."""
        self._listened[group] = None
        if self.groups is not None and group != WELL_KNOWN:
            self.groups.listen(group)
        else:
            self._send(Tune(group, True))

    def ignore(self, group: str) -> None:
        """Be a member no more."""
        self._listened.pop(group, None)
        if self.groups is not None and group != WELL_KNOWN:
            self.groups.ignore(group)
        else:
            self._send(Tune(group, False))

    def linked(self) -> None:
        """A new link knows nothing of what an earlier one was asked for."""
        for group in self._listened:
            if self.groups is None or group == WELL_KNOWN:
                self._send(Tune(group, True))

    def use(self, groups: Listening) -> None:
        """Listen by another way from now on."""
        self.groups = groups
        for group in self._others():
            groups.listen(group)
            self._send(Tune(group, False))

    def fall_back(self) -> Listening | None:
        """Let everything come over the link; give what was used before, to be closed."""
        groups, self.groups = self.groups, None
        if groups is not None:
            for group in self._others():
                self._send(Tune(group, True))
        return groups

    def _others(self) -> list[str]:
        return [group for group in self._listened if group != WELL_KNOWN]
