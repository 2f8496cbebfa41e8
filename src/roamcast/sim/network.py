"""The simulated network: links that delay, queue, lose, duplicate, reorder and truncate.

Every directed link draws from its own generator, so adding a host changes no other link's draws
(decision 0020). A frame is encoded once and decoded once; copies share the frozen message. A
truncated copy is decoded by itself, and dropped with the decoder's reason if that fails.
"""

import random
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from roamcast.model.machine import Ignore, Listen, Multicast, Received, Send
from roamcast.model.records import Drop, Record, Transmission
from roamcast.model.wire import Message, Registry, Unreadable, tag_of
from roamcast.sim.host import Host
from roamcast.sim.kernel import Kernel

MICROSECONDS: Final = 1_000_000
GROUPS_MAX: Final = 1_000_000

Reach = Callable[[Host, Host], int | None]
"""The number of hops between two hosts, None if they are not connected (see `sim.radio`)."""


class LinkQuality(msgspec.Struct, frozen=True):
    """Delay, loss and the like of a link; probabilities from 0 to 1, times per hop."""

    delay_us: int = 1_000
    jitter_us: int = 0
    bandwidth_bps: int = 0
    """Bits per second, 0 for no limit."""
    queue_bytes_max: int = 1_000_000
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_us: int = 50_000
    """Maximum extra delay of a reordered message."""
    truncate: float = 0.0
    late: float = 0.0
    """Probability of a copy that arrives once more, up to `late_us` later."""
    late_us: int = 5_000_000


QualityOf = Callable[[str, str], LinkQuality | None]
"""The quality of the link from one host to another, None for the network's default."""


class SimulatedLink:
    """One direction between two hosts: its generator and its queue."""

    __slots__ = ("arrived_us", "busy_until_us", "draw", "quality")

    def __init__(self, draw: Callable[[], float], quality: LinkQuality | None) -> None:
        self.draw = draw
        self.quality = quality
        self.busy_until_us = 0
        self.arrived_us = 0


class NetworkCut(msgspec.Struct, frozen=True):
    """A partition: these hosts are cut off from all others, in one or both directions."""

    hosts: frozenset[str]
    inwards: bool = True
    outwards: bool = True

    def separates(self, source: str, destination: str) -> bool:
        """Return whether a message from source to destination is stopped."""
        leaves = source in self.hosts
        if leaves == (destination in self.hosts):
            return False
        return self.outwards if leaves else self.inwards


class Deaf(msgspec.Struct, frozen=True):
    """A fault: these hosts lose multicast messages, but receive unicast."""

    hosts: frozenset[str]
    loss: float = 1.0


class Network:
    """Carries `Send` and `Multicast` between hosts."""

    def __init__(
        self,
        kernel: Kernel,
        registry: Registry,
        *,
        quality: LinkQuality,
        note: Callable[[Host, Record], None],
    ) -> None:
        self.quality = quality
        self.quality_of: QualityOf | None = None
        self.reach: Reach | None = None
        self.hosts: dict[str, Host] = {}
        self.unicast_only: dict[str, None] = {}
        """Hosts whose links carry no multicast (AMS, unicast wireless links)."""
        self._kernel = kernel
        self._registry = registry
        self._note = note
        self._groups: dict[str, dict[str, Host]] = {}
        self._qualities: dict[tuple[str, str], LinkQuality] = {}
        self._egress: dict[str, LinkQuality] = {}
        self._cuts: list[NetworkCut] = []
        self._deaf: list[Deaf] = []
        kernel.on(Send, self._send)
        kernel.on(Multicast, self._multicast)
        kernel.on(Listen, self._listen)
        kernel.on(Ignore, self._ignore)

    def set_quality(self, source: str, destination: str, quality: LinkQuality) -> None:
        """Set the quality of one direction."""
        self._qualities[source, destination] = quality
        self.hosts[source].links.pop(destination, None)

    def set_egress(self, host: str, *, bandwidth_bps: int, queue_bytes_max: int) -> None:
        """Limit a host's outgoing bandwidth over all its links; a multicast counts once."""
        self._egress[host] = LinkQuality(
            bandwidth_bps=bandwidth_bps, queue_bytes_max=queue_bytes_max
        )

    def cut(self, cut: NetworkCut) -> None:
        """Begin a partition."""
        self._cuts.append(cut)

    def mend(self, cut: NetworkCut) -> None:
        """End a partition."""
        if cut in self._cuts:
            self._cuts.remove(cut)

    def deafen(self, deaf: Deaf) -> None:
        """Begin a loss of multicast at some hosts."""
        self._deaf.append(deaf)

    def undeafen(self, deaf: Deaf) -> None:
        """End a loss of multicast."""
        if deaf in self._deaf:
            self._deaf.remove(deaf)

    def mend_all(self, quality: LinkQuality) -> None:
        """End every partition and set every link to the same quality."""
        self._cuts.clear()
        self._deaf.clear()
        self._qualities.clear()
        self.quality_of = None
        self.quality = quality
        for host in self.hosts.values():
            for link in host.links.values():
                link.quality = None

    def members(self, group: str) -> list[str]:
        """Return the members of a group, in the order in which they joined."""
        return list(self._groups.get(group, ()))

    def joined(self, name: str) -> list[str]:
        """Return the groups that a host is a member of."""
        return [group for group, members in self._groups.items() if name in members]

    def forget(self, host: Host) -> None:
        """Remove a crashed host from all groups."""
        for members in self._groups.values():
            members.pop(host.name, None)

    def _listen(self, host: Host, effect: Listen) -> None:
        if host.name in self.unicast_only:
            return
        assert len(self._groups) < GROUPS_MAX
        self._groups.setdefault(effect.group, {})[host.name] = host

    def _ignore(self, host: Host, effect: Ignore) -> None:
        members = self._groups.get(effect.group, {})
        members.pop(host.name, None)
        if not members:
            self._groups.pop(effect.group, None)

    def _send(self, source: Host, effect: Send) -> None:
        destination = self.hosts.get(effect.to.name)
        receivers = [] if destination is None else [destination]
        if destination is None:
            self._drop(source, "no such host", effect.message, 0, effect.to.name)
        self._transmit(source, effect.message, "", effect.to.name, receivers)

    def _multicast(self, source: Host, effect: Multicast) -> None:
        members = self._groups.get(effect.group, {}).values()
        scope = effect.scope
        if not within(source.site, scope):
            self._drop(source, "outside scope", effect.message, 0, "")
            return
        receivers = [host for host in members if host is not source and within(host.site, scope)]
        self._transmit(source, effect.message, effect.group, "", receivers)

    def _transmit(
        self, source: Host, message: Message, group: str, to: str, receivers: list[Host]
    ) -> None:
        frame = self._registry.encode(message)
        tag = tag_of(type(message))
        self._note(source, Transmission(tag, len(frame), group, to, len(receivers)))
        start = self._kernel.now
        if source.name in self._egress:
            leaves = queued(source, self._egress[source.name], len(frame), start)
            if leaves is None:
                self._drop(source, "egress queue full", message, len(frame), to)
                return
            start = leaves
        # Decode what was encoded, so that a message which does not survive the wire fails here.
        read = self._registry.decode(frame)
        assert not isinstance(read, Unreadable), f"we sent what nobody can read: {read}"
        received = Received(source.name, read, group)
        for destination in receivers:
            self._carry(source, destination, received, frame, start)

    def _carry(
        self, source: Host, destination: Host, received: Received, frame: bytes, start: int
    ) -> None:
        """Deliver one copy from host to host, or drop it with a reason."""
        size = len(frame)
        if self._cuts and any(cut.separates(source.name, destination.name) for cut in self._cuts):
            return self._drop(source, "partition", received.message, size, destination.name)
        hops = 1 if self.reach is None else self.reach(source, destination)
        if hops is None:
            return self._drop(source, "out of reach", received.message, size, destination.name)
        link = source.links.get(destination.name) or self._link(source, destination)
        quality, draw = link.quality or self.quality, link.draw
        if received.group and self._misses(destination.name, draw):
            return self._drop(source, "group lost", received.message, size, destination.name)
        # Draw only for faults that are switched on: adding one leaves other runs' draws unchanged.
        if quality.loss and draw() >= (1.0 - quality.loss) ** hops:
            return self._drop(source, "loss", received.message, size, destination.name)
        if quality.bandwidth_bps:
            sent = queued(link, quality, size, start)
            if sent is None:
                return self._drop(source, "queue full", received.message, size, destination.name)
            start = sent
        copies = 2 if quality.duplicate and draw() < quality.duplicate else 1
        for _ in range(copies):
            arrival = start + quality.delay_us * hops
            if quality.jitter_us:
                arrival += int(draw() * quality.jitter_us)
            if quality.reorder and draw() < quality.reorder:
                arrival += int(draw() * quality.reorder_us)
            else:  # a link is FIFO unless it reorders
                link.arrived_us = arrival = max(arrival, link.arrived_us)
            if quality.truncate and draw() < quality.truncate:
                self._deliver_truncated(source, destination, received, frame, draw, arrival)
            else:
                self._kernel.give(arrival, destination, received)
        if quality.late and draw() < quality.late:
            self._kernel.give(start + int(draw() * quality.late_us), destination, received)
        return None

    def _misses(self, name: str, draw: Callable[[], float]) -> bool:
        """Return whether a host loses a multicast message; the worst of its faults counts."""
        loss = max((deaf.loss for deaf in self._deaf if name in deaf.hosts), default=0.0)
        return loss > 0 and draw() < loss

    def _deliver_truncated(
        self,
        source: Host,
        destination: Host,
        received: Received,
        frame: bytes,
        draw: Callable[[], float],
        arrival: int,
    ) -> None:
        read = self._registry.decode(frame[: int(draw() * len(frame))])
        if isinstance(read, Unreadable):
            reason = f"unreadable: {read.reason}"
            self._drop(source, reason, received.message, len(frame), destination.name)
        else:
            item = Received(source.name, read, received.group)
            self._kernel.give(arrival, destination, item)

    def _link(self, source: Host, destination: Host) -> SimulatedLink:
        generator: random.Random = self._kernel.generator(f"link/{source.name}/{destination.name}")
        quality = self._qualities.get((source.name, destination.name))
        if quality is None and self.quality_of is not None:
            quality = self.quality_of(source.name, destination.name)
        link = source.links[destination.name] = SimulatedLink(generator.random, quality)
        return link

    def _drop(self, source: Host, reason: str, message: Message, size: int, to: str) -> None:
        self._note(source, Drop(reason, tag_of(type(message)), size, to))


def queued(queue: SimulatedLink | Host, quality: LinkQuality, size: int, now: int) -> int | None:
    """Queue bytes on a link; return when they have left at its bandwidth, None if it is full."""
    start = max(now, queue.busy_until_us)
    waiting_bytes = (start - now) * quality.bandwidth_bps // (8 * MICROSECONDS)
    if waiting_bytes + size > quality.queue_bytes_max:
        return None
    queue.busy_until_us = start + -(-size * 8 * MICROSECONDS // quality.bandwidth_bps)
    return queue.busy_until_us


def within(site: str, scope: str) -> bool:
    """Return whether a site is the scope or below it; "" contains every site."""
    return not scope or site == scope or site.startswith(scope + "/")


def connect(network: Network, pairs: Iterable[tuple[str, str]], quality: LinkQuality) -> None:
    """Set both directions of each pair to the same quality."""
    for left, right in pairs:
        network.set_quality(left, right, quality)
        network.set_quality(right, left, quality)
