"""Nodes that link, learn the topology, exchange tables and hand parcels on, while all else fails.

Trees and cyclic graphs of 2 to 30 nodes, on hosts that crash, pause and part, with failing disks
and clocks that are off; one clock may be so wrong that nobody links with it, and one node may be
taken over by another host. All the time: somebody answers for every promised parcel, nothing
arrives twice, no bound is exceeded. Once everything is healed every topology is the true one, every
table equals one that is computed from scratch, every parcel has arrived, and all queues are empty.
"""

import random
from functools import partial
from typing import ClassVar, Final

from roamcast.broker import Acknowledged, Broker, Failed
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.past.messages import LookForEnded
from roamcast.channels.reliable.messages import MESSAGES
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.messages import MAP_MESSAGES
from roamcast.model.machine import Effect
from roamcast.model.parts import Load, Router
from roamcast.model.wire import Registry
from roamcast.overlay.custody.custody import CustodySettings
from roamcast.overlay.events import HangUp, ParcelExpired, SendParcel
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.overlay import Overlay, OverlayNode, OverlaySettings
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.topology.topology import TopologySettings
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.clocks import Clock
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._map_parts import ScanMatcher, quick_settings
from roamcast.sim.workloads._overlay_parts import (
    KIND,
    ChangeArea,
    Inert,
    OverlayTruth,
    ParcelInbox,
    area_at,
    copy_store,
    key_pair,
    overlay_of,
)
from roamcast.sim.world import World

WATCH_US: Final = 250_000
ROGUE_US: Final = 150_000_000
"""How far a clock is off that no neighbour accepts."""

WHOLE_MAX: Final = 4
"""Up to so many nodes may be whole brokers: more would take long."""

SETTINGS: Final = OverlaySettings(
    LinkSettings(
        greet_us=100_000,
        patience_us=800_000,
        retry_us=50_000,
        retry_us_max=800_000,
        steady_us=2_000_000,
        silent_us=1_500_000,
        stalled_us=3_000_000,
        queue_messages_max=64,
        queue_bytes_max=4 * 1024 * 1024,
        frames_per_s_max=20_000,
        channel=ChannelSettings(
            sync_interval_us=150_000,
            sync_interval_us_max=400_000,
            round_trip_us=25_000,
            retry_us_max=400_000,
            receivers_expected=1,
            buffer_messages_max=16,
            buffer_bytes_max=400_000,
            ahead_messages_max=16,
            ahead_bytes_max=400_000,
        ),
    ),
    TopologySettings(forget_us=600_000_000),
    CustodySettings(
        parcel_bytes_max=150_000,
        parcels_max=60,
        bytes_max=8_000_000,
        seen_max=200,
        under_way_max=4,
        busy_us=50_000,
        busy_us_max=400_000,
    ),
)
LINGER_US: Final = 700_000


class BareNode(Router):
    """A node with nothing but the overlay's parts."""

    def __init__(self, node: OverlayNode, *, epoch: int, now: int, load: Load) -> None:
        self.overlay = Overlay(node, epoch=epoch, now=now)
        super().__init__(self.overlay.parts)
        self.restore(load, now)


class OverlayWorkload(Workload):
    """Nodes, what their users ask of them, and what users were promised."""

    name: ClassVar[str] = "overlay"
    registry = Registry((*LINK_MESSAGES, *MESSAGES, *MAP_MESSAGES, *FAILOVER_MESSAGES))
    # Nobody publishes here: whoever looks for what has ended would find nothing.
    effects: ClassVar = (Acknowledged, Failed, HangUp, LookForEnded, ParcelExpired)
    sizes: ClassVar = {
        "nodes": (2, 30),
        "more_edges": (0, 12),
        "parcels": (1, 40),
        "large": (0, 3),
        "moves": (0, 8),
        "rogue": (0, 1),
        "takeovers": (0, 1),
        "whole": (0, 1),
    }

    def __init__(self) -> None:
        self._truth = OverlayTruth(SETTINGS.links.skew_us_max)
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self._dials: set[tuple[str, str]] = set()
        self._hosts_of: dict[str, tuple[str, ...]] = {}
        self._ticket = 0
        self._counts = {"promised": 0, "refused": 0}

    def setup(self, world: World, sizes: Sizes) -> None:
        """A tree, some more links, a place for each node; one clock may be badly off."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/overlay")
        truth = self._truth
        nodes = [f"n{number:02}" for number in range(sizes["nodes"])]
        for number, node in enumerate(nodes):
            truth.areas[node] = {"own": area_at(f"campus/b{draw.randrange(4)}/{node}")}
            self._hosts_of[node] = (node,)
            if number:
                self._join(node, nodes[draw.randrange(number)])
        for _ in range(sizes["more_edges"]):
            self._join(*draw.sample(nodes, 2))
        if sizes["takeovers"]:
            self._hosts_of[nodes[0]] = (nodes[0], nodes[0] + "-spare")
        truth.serving = {node: hosts[0] for node, hosts in self._hosts_of.items()}
        if sizes["rogue"] and len(nodes) > 2:
            fair, rogue = world.clock_of, draw.choice(nodes)
            world.clock_of = lambda name: Clock(ROGUE_US) if name == rogue else fair(name)
        world.observe(self._observe)
        for node, hosts in self._hosts_of.items():
            for host in hosts:
                world.add_host(host, partial(self._boot, node))

    def _join(self, one: str, other: str) -> None:
        ends = (min(one, other), max(one, other))
        if ends in self._truth.edges:
            return
        self._truth.edges.append(ends)
        for node, far in (ends, ends[::-1]):
            self._beside.setdefault(node, []).append(far)
        # Either end may dial, or both: one that does not is found by the other.
        both = (ends, ends[::-1])
        self._dials.update(self._draw.choice((both[:1], both[1:], both)))

    def _boot(self, node: str, boot: Boot) -> Router | Inert:
        if self._truth.serving[node] != boot.host:
            return Inert()
        areas = Areas(linger_us=LINGER_US)
        for name, area in self._truth.areas[node].items():
            areas.put(name, area)
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {
                far: NeighbourSettings(
                    key_pair(far)[1],
                    self._hosts_of[far] if (node, far) in self._dials else (),
                )
                for far in self._beside.get(node, ())
            },
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            SETTINGS,
            (areas,),
            (ParcelInbox(areas),),
            frozenset({KIND}),
        )
        seat = self._hosts_of[node].index(boot.host)
        epoch = epoch_at(boot.now, seat, 0)
        load = boot.disk.open().load
        if not self._sizes["whole"] or self._sizes["nodes"] > WHOLE_MAX:
            return BareNode(made, epoch=epoch, now=boot.now, load=load)
        return Broker(
            boot.host,
            epoch=epoch,
            now=boot.now,
            load=load,
            stamp=boot.disk.stamp,
            map_settings=quick_settings(receivers=1, buffer=16, sync_us_max=1_000_000),
            make_matcher=ScanMatcher,
            overlay=made,
        )

    def start(self, world: World, duration_us: int) -> None:
        """Send parcels, move areas and take a node over at random moments."""
        draw, call = self._draw, world.kernel.call
        nodes = list(self._truth.serving)
        large = self._sizes["large"]
        for number in range(self._sizes["parcels"]):
            origin = draw.choice(nodes)
            targets = tuple(draw.sample(nodes, min(len(nodes), draw.choice((1, 1, 2, 3, 30)))))
            size = draw.choice((50_000, 120_000)) if number < large else draw.randrange(200)
            body = f"{number:08}".encode() + draw.randbytes(size)
            post = partial(self._post, world, origin, targets, body)
            call(draw.randrange(duration_us), post)
        for _ in range(self._sizes["moves"]):
            node = draw.choice(nodes)
            call(draw.randrange(duration_us), partial(self._move, world, node))
        if self._sizes["takeovers"]:
            call(draw.randrange(duration_us), partial(self._take_over, world, nodes[0]))
        for at in range(WATCH_US, duration_us, WATCH_US):
            call(at, lambda _: self._watch(world))

    def _post(
        self, world: World, origin: str, targets: tuple[str, ...], body: bytes, now: int
    ) -> None:
        del now
        host = self._truth.host(world, origin)
        if host.state is not HostState.UP:
            return
        self._ticket += 1
        self._truth.asked[self._ticket] = (origin, targets, body[:8].decode())
        world.give(host, SendParcel(self._ticket, KIND, targets, body))

    def _move(self, world: World, node: str, now: int) -> None:
        """Give a node another area; what it archived stays where it was (trap 7)."""
        del now
        areas = self._truth.areas[node]
        old, new = areas["own"], area_at(f"campus/b{self._draw.randrange(4)}/{node}")
        changes = [("own", new)]
        if self._draw.random() < 0.5:
            changes.append((f"archive-{len(areas)}", old))
        host = self._truth.host(world, node)
        for name, area in changes:
            areas[name] = area
            if host.state is not HostState.DOWN:  # else it boots with it
                world.give(host, ChangeArea(name, area))

    def _take_over(self, world: World, node: str, now: int) -> None:
        """Let another host serve a node, with everything that was durable, in a newer epoch."""
        del now
        old, new = (world.hosts[name] for name in self._hosts_of[node])
        copy_store(old.disk, new.disk)
        self._truth.serving[node] = new.name
        for host in (old, new):
            world.crash(host)
            world.restart(host)

    def settled(self, world: World) -> bool:
        """Everything that must be true in the end is."""
        return self._truth.lacking(world) is None

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        self._watch(world)
        lacking = self._truth.lacking(world)
        if lacking is not None:
            raise Violation(*lacking)

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {**self._counts, "nodes": self._sizes["nodes"]}

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        del host, now
        if isinstance(effect, Acknowledged):
            self._truth.promised.add(effect.ticket)
            self._counts["promised"] += 1
        elif isinstance(effect, Failed):
            self._truth.refused.add(effect.ticket)
            self._counts["refused"] += 1
        elif isinstance(effect, ParcelExpired):
            raise Violation("no loss", f"{effect.parcel} was given up for {effect.targets}")

    def _watch(self, world: World) -> None:
        self._truth.check_custody(world)
        self._truth.check_once(world)
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is not None:
                for part in overlay.parts:
                    check_bounds(f"{host.name}'s {part.part}", part)


WORKLOAD = OverlayWorkload
