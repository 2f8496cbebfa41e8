"""By which way does a client hear its groups? The first that the server's probes come by.

The server says something on the probe group ever again, and how soon the next follows. A client
begins with its own socket, which always works, and moves its groups to UDP multicast or to NATS
once a probe came that way; when several in a row stay out, it moves them back. Whatever falls into
the gap of a move the channels heal.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from roamcast.channels.client.link_messages import KEY_BYTES, LinkWelcome, Tune
from roamcast.channels.server.messages import WELL_KNOWN
from roamcast.errors import InputError
from roamcast.transport.driver import Clock
from roamcast.transport.groups import (
    PROBE,
    Deliver,
    Groups,
    GroupsUnavailable,
    SocketGroups,
    probe_interval_us,
)
from roamcast.transport.sealing import seal_of_client

PROBES_MISSED_MAX: Final = 3.5
"""So many intervals without anything heard, and a way is taken for silent."""

LOOK_S: Final = 0.25
SOCKET: Final = "socket"

Way = tuple[str, Callable[[Deliver], Groups]]
"""A way's name, and how to make it once it is known whom it delivers to."""


class _Way:
    """A way in use: what reaches us by it, and since when nothing does."""

    def __init__(self, name: str, make: Callable[[Deliver], Groups], deliver: Deliver) -> None:
        self.name = name
        self.groups = make(deliver)
        self.silent_at = 0
        self.interval_us = 0

    def heard(self, now: int) -> None:
        """Put off the moment at which it counts as silent."""
        self.silent_at = now + int(self.interval_us * PROBES_MISSED_MAX)


class ChosenGroups:
    """Groups by the best way that works now; the well-known group always by the socket."""

    def __init__(
        self,
        ways: Sequence[Way],
        *,
        tune: Callable[[Tune], None],
        deliver: Deliver,
        clock: Clock,
    ) -> None:
        """`ways`: the best first."""
        self.using = SOCKET
        self.moves = 0
        self.refusals: dict[str, str] = {}
        self._socket = SocketGroups(tune)
        self._deliver = deliver
        self._clock = clock
        self._ways = [_Way(name, make, partial(self._heard, name)) for name, make in ways]
        self._groups: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to listen for probes; ways this machine cannot use are left out."""
        for way in list(self._ways):
            try:
                await way.groups.start()
            except GroupsUnavailable as error:
                self.refusals[way.name] = str(error)
                self._ways.remove(way)
            else:
                way.groups.listen(PROBE)
        if self._ways:
            self._look()

    def listen(self, group: str) -> None:
        """Hear a group by the way in use."""
        if group == WELL_KNOWN:
            self._socket.listen(group)
            return
        self._groups[group] = None
        self._used.listen(group)

    def ignore(self, group: str) -> None:
        """Hear a group no more."""
        if group == WELL_KNOWN:
            self._socket.ignore(group)
        elif group in self._groups:
            del self._groups[group]
            self._used.ignore(group)

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Clients say nothing to groups."""
        self._socket.send(group, frame, key_class)

    async def close(self) -> None:
        """Stop listening."""
        if self._timer is not None:
            self._timer.cancel()
        for way in self._ways:
            await way.groups.close()

    @property
    def _used(self) -> Groups:
        for way in self._ways:
            if way.name == self.using:
                return way.groups
        return self._socket

    def _heard(self, name: str, group: str, frame: bytes) -> None:
        way = next(one for one in self._ways if one.name == name)
        if group == PROBE:
            way.interval_us = probe_interval_us(frame) or way.interval_us
        way.heard(self._clock())
        if group == PROBE:
            self._choose()
        else:
            self._deliver(group, frame)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        self._choose()

    def _choose(self) -> None:
        """Move all groups when another way is the best now."""
        now = self._clock()
        best = next((way.name for way in self._ways if way.silent_at > now), SOCKET)
        if best == self.using:
            return
        before = self._used
        self.using = best
        self.moves += 1
        for group in self._groups:
            self._used.listen(group)
            before.ignore(group)


def chosen_groups(
    welcome: LinkWelcome,
    *,
    tune: Callable[[Tune], None],
    deliver: Deliver,
    clock: Clock,
    mark: bytes,
    interface: str = "",
) -> ChosenGroups:
    """Make the groups of a link from what the server offers; ways it words wrongly are left out.

    `mark` is drawn at random for each link, `interface` the address UDP multicast comes by.
    """
    ways: list[Way] = []
    seal_of = seal_of_client(welcome.key, mark) if len(welcome.key) == KEY_BYTES else None
    if seal_of is not None and welcome.udp:
        from roamcast.transport.groups_udp import UdpGroups, udp_range

        try:
            where = udp_range(welcome.udp)
        except InputError:
            pass  # a newer server's wording; the socket is left
        else:
            make = partial(UdpGroups, where, seal_of=seal_of, interface=interface)
            ways.append(("udp", lambda deliver: make(deliver=deliver)))
    if seal_of is not None and welcome.nats:
        from roamcast.transport.groups_nats import NatsGroups

        link = partial(NatsGroups, welcome.nats, prefix=welcome.prefix, seal_of=seal_of)
        ways.append(("nats", lambda deliver: link(deliver=deliver)))
    return ChosenGroups(ways, tune=tune, deliver=deliver, clock=clock)
