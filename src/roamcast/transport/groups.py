"""Groups: how one message reaches many clients, and by which way one client hears them.

There are three ways: UDP multicast on a LAN, NATS subjects in a cluster, and the client's own
socket, which always works. None of them promises anything: the channels heal what is lost, doubled
or overtaken. The server sends a probe by UDP and NATS at a fixed interval. A client begins with its
socket, moves its groups to UDP or NATS once a probe came that way, and moves them back when several
probes in a row are missing (decision 0073).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from roamcast.channels.client.link_messages import KEY_BYTES, LinkWelcome, Tune
from roamcast.channels.server.messages import WELL_KNOWN
from roamcast.errors import GroupsUnavailable, InputError
from roamcast.transport.driver import Clock
from roamcast.transport.sealing import seal_of_client

Deliver = Callable[[str, bytes], None]
"""Takes a group's name and a frame of `LINK_PROTOCOL` that came by it."""

PROBE: Final = "probe"
"""Group that carries periodic reachability probes."""

PROBE_BYTES: Final = 8
PROBES_MISSED_MAX: Final = 3.5
"""A way is silent after this many probe intervals without any message."""

LOOK_S: Final = 0.25
"""Interval at which a client compares its ways."""

SOCKET: Final = "socket"


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
    """Groups over the client's own link: the server copies their messages to it."""

    def __init__(self, tune: Callable[[Tune], None]) -> None:
        self._tune = tune

    async def start(self) -> None:
        """There is nothing to open."""

    def listen(self, group: str) -> None:
        """Ask the server to copy a group's messages to this link."""
        self._tune(Tune(group, True))

    def ignore(self, group: str) -> None:
        """Ask the server to stop copying them."""
        self._tune(Tune(group, False))

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Refuse: clients send nothing to groups, and a server has `Links` for this."""
        raise AssertionError(f"nobody sends to {group} by a socket ({len(frame)}, {key_class!r})")

    async def close(self) -> None:
        """The link closes with its client."""


def probe_frame(interval_us: int) -> bytes:
    """Encode a probe: the interval until the next one."""
    return interval_us.to_bytes(PROBE_BYTES, "big")


def probe_interval_us(frame: bytes) -> int | None:
    """Decode a probe; None for a frame that is none."""
    return int.from_bytes(frame, "big") if len(frame) == PROBE_BYTES else None


MakeGroups = Callable[[Deliver], Groups]
Way = tuple[str, MakeGroups]
"""A way's name, and how to make its groups once it is known whom they deliver to."""


class _ProbedWay:
    """A way that may be used: its groups, and until when it counts as alive."""

    def __init__(self, name: str, make: MakeGroups, deliver: Deliver) -> None:
        self.name = name
        self.groups = make(deliver)
        self.silent_at = 0
        self.interval_us = 0

    def touch(self, now: int) -> None:
        """Postpone the moment at which the way counts as silent."""
        self.silent_at = now + int(self.interval_us * PROBES_MISSED_MAX)


class ChosenGroups:
    """Groups by the best way that works now.

    The well-known group always comes by the socket: by it a client notices a dead link.
    """

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
        self._ways = [_ProbedWay(name, make, partial(self._received, name)) for name, make in ways]
        self._groups: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to listen for probes; leave out the ways that this machine cannot use."""
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
        """Become a member of a group by the way in use."""
        if group == WELL_KNOWN:
            self._socket.listen(group)
            return
        self._groups[group] = None
        self._used.listen(group)

    def ignore(self, group: str) -> None:
        """Leave a group."""
        if group == WELL_KNOWN:
            self._socket.ignore(group)
        elif group in self._groups:
            del self._groups[group]
            self._used.ignore(group)

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Refuse: clients send nothing to groups."""
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

    def _received(self, name: str, group: str, frame: bytes) -> None:
        way = next(way for way in self._ways if way.name == name)
        if group == PROBE:
            way.interval_us = probe_interval_us(frame) or way.interval_us
        way.touch(self._clock())
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
        # Join before leaving: a message that comes by both ways is dropped as a duplicate, one
        # that comes by neither must be healed.
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
    """Make the groups of a link from what the server offers, without the ways we cannot read.

    `mark` is drawn at random for each link, `interface` the address UDP multicast comes by.
    """
    ways: list[Way] = []
    seal_of = seal_of_client(welcome.key, mark) if len(welcome.key) == KEY_BYTES else None
    if seal_of is not None and welcome.udp:
        from roamcast.transport.groups_udp import UdpGroups, udp_range

        try:
            where = udp_range(welcome.udp)
        except InputError:
            pass  # a newer server's notation; NATS or the socket remain
        else:
            make = partial(UdpGroups, where, seal_of=seal_of, interface=interface)
            ways.append(("udp", lambda deliver: make(deliver=deliver)))
    if seal_of is not None and welcome.nats:
        from roamcast.transport.groups_nats import NatsGroups

        link = partial(NatsGroups, welcome.nats, prefix=welcome.prefix, seal_of=seal_of)
        ways.append(("nats", lambda deliver: link(deliver=deliver)))
    return ChosenGroups(ways, tune=tune, deliver=deliver, clock=clock)
