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

from roamcast.broker import (
    Acknowledged,
    Broker,
    Failed,
    PublishFor,
    SetRules,
    UnpublishFor,
)
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.past.messages import LookForEnded
from roamcast.channels.past.settings import PastSettings
from roamcast.channels.reliable.messages import MESSAGES
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.messages import MAP_MESSAGES
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.parts import Load, Router
from roamcast.model.records import OverlayStep
from roamcast.model.wire import Registry
from roamcast.overlay.custody.custody import CustodySettings
from roamcast.overlay.events import HangUp, ParcelExpired, SendParcel
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.overlay import Overlay, OverlayNode, OverlaySettings
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.feeding import TableSettings, standard_tables
from roamcast.overlay.tables.table import Table
from roamcast.overlay.topology.topology import TopologySettings
from roamcast.overlay.topology.trees import branches, shared_tree
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.clocks import Clock
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._crowd_parts import STAFF, CrowdTruth, Publication
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

WHOLE_MAX: Final = 6
"""Up to so many nodes may be whole brokers: more would take long."""

LINGER_US: Final = 700_000

CONTEXTS_MAX: Final = 40
"""Contexts that are published at whole brokers."""

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
    TableSettings(
        watermark_us=500_000,
        flush_us=50_000,
        linger_us=LINGER_US,
        day_us=2_000_000,
        margin_us=0,
    ),
)


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
    # Nothing leaves the log here: who looks for what has ended never hears of it.
    effects: ClassVar = (Acknowledged, Failed, HangUp, LookForEnded, ParcelExpired)
    sizes: ClassVar = {
        "nodes": (2, 30),
        "more_edges": (0, 12),
        "parcels": (1, 40),
        "large": (0, 3),
        "moves": (0, 8),
        "rogue": (0, 1),
        "takeovers": (0, 1),
        "whole": (0, 3),
    }

    def __init__(self) -> None:
        self._truth = OverlayTruth(SETTINGS.links.skew_us_max)
        self._crowds = CrowdTruth(LINGER_US)
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self._dials: set[tuple[str, str]] = set()
        self._hosts_of: dict[str, tuple[str, ...]] = {}
        self._node_of: dict[str, str] = {}
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
        self._node_of = {host: node for node, hosts in self._hosts_of.items() for host in hosts}
        truth.serving = {node: hosts[0] for node, hosts in self._hosts_of.items()}
        if sizes["rogue"] and len(nodes) > 2:
            fair, rogue = world.clock_of, draw.choice(nodes)
            world.clock_of = lambda name: Clock(ROGUE_US) if name == rogue else fair(name)
        self._crowds.clocks(tuple(nodes), lambda node: truth.host(world, node).local(world.now))
        world.observe(self._observe)
        for node, hosts in self._hosts_of.items():
            for host in hosts:
                world.add_host(host, partial(self._boot, node))

    def _join(self, first: str, other: str) -> None:
        ends = (min(first, other), max(first, other))
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
        own = self._truth.areas[node]["own"].patches[0].places or ()
        if self._whole:
            tables: tuple[Table, ...] = standard_tables(SETTINGS.tables)
            self._crowds.tick(node, boot.now)
            if boot.number > 1:
                self._crowds.change(node)
        else:
            areas = Areas(linger_us=LINGER_US)
            for name, area in self._truth.areas[node].items():
                areas.put(name, area)
            tables = (areas,)
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
            tables,
            (ParcelInbox(tables[0]),),
            frozenset({KIND}),
            places=own,
        )
        seat = self._hosts_of[node].index(boot.host)
        epoch = epoch_at(boot.now, seat, 0)
        load = boot.disk.open().load
        if not self._whole:
            return BareNode(made, epoch=epoch, now=boot.now, load=load)
        return Broker(
            boot.host,
            epoch=epoch,
            now=boot.now,
            load=load,
            stamp=boot.disk.stamp,
            map_settings=quick_settings(receivers=1, buffer=16, sync_us_max=1_000_000),
            make_matcher=ScanMatcher,
            past_settings=PastSettings(return_us=1_000_000),
            overlay=made,
        )

    @property
    def _whole(self) -> bool:
        return bool(self._sizes["whole"]) and self._sizes["nodes"] <= WHOLE_MAX

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
        for number in range(draw.randrange(CONTEXTS_MAX) if self._whole else 0):
            node, at = draw.choice(nodes), draw.randrange(duration_us)
            hidden = draw.random() < 0.1
            lasts_us = draw.choice((1, 20_000, 200_000, 2_000_000, duration_us))
            call(at, partial(self._publish, world, node, number, hidden, lasts_us))
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

    def _publish(
        self, world: World, node: str, number: int, hidden: bool, lasts_us: int, now: int
    ) -> None:
        """Publish something where the node is now, for some time."""
        host = self._truth.host(world, node)
        if host.state is not HostState.UP:
            return
        place = (self._truth.areas[node]["own"].patches[0].places or ("",))[0]
        one = Publication(node, number, f"{place}/{number}", hidden, host.local(now))
        if hidden:
            self._ticket += 1
            world.give(host, SetRules(self._ticket, "ann", one.vid, STAFF))
        self._ticket += 1
        self._crowds.publications[self._ticket] = one
        context = Context(one.vid, one.place, None, {"n": number}, one.begins)
        world.give(host, PublishFor(self._ticket, "ann", context))
        world.kernel.call(now + lasts_us, partial(self._unpublish, world, one))

    def _unpublish(self, world: World, publication: Publication, now: int) -> None:
        host = self._truth.host(world, publication.node)
        if host.state is HostState.UP and publication.acknowledged is not None:
            self._ticket += 1
            publication.ended = now
            self._crowds.ends[self._ticket] = publication
            world.give(host, UnpublishFor(self._ticket, "ann", publication.vid))

    def _move(self, world: World, node: str, now: int) -> None:
        """Give a node another area; what it archived stays where it was (trap 7)."""
        del now
        if self._whole:  # its settings change: it starts again
            self._truth.areas[node]["own"] = area_at(f"campus/b{self._draw.randrange(4)}/{node}")
            host = self._truth.host(world, node)
            world.crash(host)
            world.restart(host)
            return
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

    def _overlays(self, world: World) -> dict[str, Overlay]:
        found = {node: overlay_of(self._truth.host(world, node)) for node in self._truth.serving}
        return {node: overlay for node, overlay in found.items() if overlay is not None}

    def settled(self, world: World) -> bool:
        """Everything that must be true in the end is."""
        return self._lacking(world) is None

    def _lacking(self, world: World) -> tuple[str, str] | None:
        lacking = self._truth.lacking(world)
        if lacking is None and self._whole:
            graph = self._truth.graph(world)
            for node, overlay in self._overlays(world).items():
                hops = branches(shared_tree(graph, node), node)
                wrong = self._crowds.wrong(node, overlay, hops)
                if wrong:
                    return "every table is right in the end", wrong
        return lacking

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        self._watch(world)
        lacking = self._lacking(world)
        if lacking is not None:
            raise Violation(*lacking)

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {**self._counts, "nodes": self._sizes["nodes"], "found": self._crowds.checked}

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        node = self._node_of[host.name]
        self._crowds.tick(node, host.local(now))
        if isinstance(effect, Acknowledged):
            self._crowds.acknowledge(effect.ticket)
            if effect.ticket in self._truth.asked:
                self._truth.promised.add(effect.ticket)
                self._counts["promised"] += 1
        elif isinstance(effect, Failed):
            if effect.ticket in self._truth.asked:
                self._truth.refused.add(effect.ticket)
                self._counts["refused"] += 1
        elif isinstance(effect, OverlayStep):
            if effect.layer == "tables":
                self._crowds.change(node)
        elif isinstance(effect, ParcelExpired):
            raise Violation("no loss", f"{effect.parcel} was given up for {effect.targets}")

    def _watch(self, world: World) -> None:
        self._truth.check_custody(world)
        self._truth.check_once(world)
        if self._whole:
            self._crowds.check(self._overlays(world), world.now)
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is not None:
                for part in overlay.parts:
                    check_bounds(f"{host.name}'s {part.part}", part)


WORKLOAD = OverlayWorkload
