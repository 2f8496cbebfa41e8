"""What the overlay workload knows beside the machines: true links, areas, parcels and who has them.

`ParcelInbox` is a part that handles parcels as casts will: it counts each in the transaction that
ends its custody. `OverlayTruth` says what must hold, by clocks and by what users were told.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar, Final

import msgspec

from roamcast.model.areas import Area, Patch
from roamcast.model.machine import Effect, Entry, Input
from roamcast.model.parts import Part
from roamcast.overlay.custody.held import BODY, HELD, StoredTargets
from roamcast.overlay.events import HandleParcel, ParcelArrived, ParcelHandled, TablesTouched
from roamcast.overlay.links.proof import Sign, signer
from roamcast.overlay.overlay import Overlay
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.table import Table
from roamcast.overlay.topology.items import Graph
from roamcast.overlay.topology.trees import branches, shared_tree, tree_from
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host, HostState
from roamcast.sim.storage import Disk
from roamcast.sim.world import World

KIND: Final = "note"
INBOX: Final = "inbox/"


class ChangeArea(Input, frozen=True):
    """An operator gives the node another area, or takes one away."""

    name: str
    area: Area | None


class ParcelInbox(Part):
    """Counts the parcels that arrive, and keeps the node's own areas."""

    part: ClassVar[str] = "inbox"
    inputs: ClassVar = (ParcelArrived, ParcelHandled, ChangeArea)
    prefix: ClassVar[str] = INBOX

    def __init__(self, areas: Table) -> None:
        assert isinstance(areas, Areas)
        self.counts: dict[str, int] = {}
        self._areas = areas
        self._handling: dict[Any, str] = {}

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up what has arrived."""
        del now
        self.counts = {key: int(value) for key, value in stored.items()}
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Count a parcel once its end is on disk."""
        del now
        match given:
            case ParcelArrived(parcel, _, body):
                key = self._handling[parcel] = INBOX + number_of(body)
                value = str(self.counts.get(key, 0) + 1).encode()
                return (HandleParcel(parcel, ((key, value),)),)
            case ParcelHandled(parcel):
                key = self._handling.pop(parcel)
                self.counts[key] = self.counts.get(key, 0) + 1
                return ()
            case ChangeArea(name, area):
                if area is None:
                    self._areas.remove(name)
                else:
                    self._areas.put(name, area)
                return (TablesTouched(),)
        raise AssertionError(f"an inbox takes no {given!r}")


def number_of(body: bytes) -> str:
    """Read which parcel it is from its bytes."""
    return body[:8].decode()


def area_at(place: str) -> Area:
    """Make the area of one place."""
    return Area((Patch(places=(place,)),))


@cache
def key_pair(node: str) -> tuple[Sign, bytes]:
    """Make a node's signing end and its public key."""
    return signer(blake2b(node.encode(), digest_size=32).digest())


class Inert:
    """A host that does not serve its node: it says nothing and hears nothing."""

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take nothing."""
        del given, now
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Do nothing."""
        del now
        return ()

    def deadline(self) -> int | None:
        """Nothing is ever due."""
        return None


class OverlayTruth:
    """Who may link with whom, which areas each node has, and which parcels are owed to whom."""

    def __init__(self, skew_us_max: int) -> None:
        self.edges: list[tuple[str, str]] = []
        self.serving: dict[str, str] = {}
        """Nodes → the host that serves each."""
        self.areas: dict[str, dict[str, Area]] = {}
        self.asked: dict[int, tuple[str, tuple[str, ...], str]] = {}
        """Tickets → the node that was asked, the nodes a parcel is for, its number."""
        self.promised: set[int] = set()
        self.refused: set[int] = set()
        self._skew_us_max = skew_us_max

    def host(self, world: World, node: str) -> Host:
        """Give the host that serves a node."""
        return world.hosts[self.serving[node]]

    def graph(self, world: World) -> Graph:
        """Give the links that must stand once everything is healed: clocks decide."""
        beside: dict[str, list[str]] = {}
        for one, other in self.edges:
            clocks = [self.host(world, node).local(world.now) for node in (one, other)]
            if abs(clocks[0] - clocks[1]) <= self._skew_us_max:
                beside.setdefault(one, []).append(other)
                beside.setdefault(other, []).append(one)
        return {node: tuple(sorted(found)) for node, found in beside.items()}

    def owed(self, graph: Graph) -> list[tuple[str, str]]:
        """Give (node, parcel) for everything that must have arrived: promised, and in reach."""
        found = []
        for ticket in sorted(self.promised):
            origin, targets, number = self.asked[ticket]
            reached = tree_from(graph, origin)
            found += [(target, number) for target in targets if target in reached]
        return found

    def check_custody(self, world: World) -> None:
        """Check that somebody answers for every promised parcel, whatever crashes now."""
        durable = {name: durable_of(host.disk) for name, host in world.hosts.items()}
        held: set[tuple[str, str]] = set()
        for disk in durable.values():
            for key, value in disk.items():
                body = disk.get(BODY + key[len(HELD) :]) if key.startswith(HELD) else None
                if body is not None:
                    stored = msgspec.msgpack.decode(value, type=StoredTargets)
                    number = number_of(msgspec.msgpack.decode(body)[1])
                    held.update((target, number) for target in stored.targets)
        for ticket in sorted(self.promised):
            _, targets, number = self.asked[ticket]
            for target in targets:
                arrived = INBOX + number in durable[self.serving[target]]
                if not arrived and (target, number) not in held:
                    detail = f"nobody holds parcel {number} for {target}"
                    raise Violation("somebody answers for every parcel", detail)

    def check_once(self, world: World) -> None:
        """Check that nothing arrived twice, or although it was refused."""
        refused = {self.asked[ticket][2] for ticket in self.refused}
        for node in self.serving:
            counts = {
                key[len(INBOX) :]: int(value)
                for key, value in self.host(world, node).disk.keys.items()
                if key.startswith(INBOX)
            }
            for number, count in counts.items():
                if count > 1:
                    raise Violation("exactly once", f"{node} got parcel {number} {count} times")
                if number in refused:
                    raise Violation("a refused parcel never arrives", f"{number} at {node}")

    def lacking(self, world: World) -> tuple[str, str] | None:
        """Name the first promise that is not yet true, and how; None once all are."""
        graph = self.graph(world)
        for node in self.serving:
            overlay = overlay_of(self.host(world, node))
            if overlay is None:
                return "liveness", f"{node} is not up"
            reached = tree_from(graph, node)
            known = overlay.topology.graph()
            seen = {one: known.get(one, ()) for one in tree_from(known, node)}
            right = {one: graph.get(one, ()) for one in reached}
            if seen != right:
                return "every topology is right in the end", f"{node} knows {seen}, not {right}"
            tree = shared_tree(graph, node)
            if overlay.topology.tree != tree:
                return "all share one tree", f"{node} has {overlay.topology.tree}, not {tree}"
            wrong = self._wrong_tables(node, overlay, branches(tree, node))
            if wrong:
                return "every table is right in the end", wrong
        for node, number in self.owed(graph):
            if INBOX + number not in self.host(world, node).disk.keys:
                return "no loss", f"{node} lacks parcel {number}"
        return self._not_empty(world, graph)

    def _wrong_tables(self, node: str, overlay: Overlay, hops: Mapping[str, str]) -> str:
        """Compare a node's table with one that is computed from scratch."""
        table = overlay.exchange.tables["areas"]
        probes = {area for areas in self.areas.values() for area in areas.values()}
        for probe in sorted(probes, key=str):
            right = {
                hops[other]
                for other, areas in self.areas.items()
                if other in hops and any(area.meets(probe) for area in areas.values())
            }
            found = table.beyond(probe, None)
            if found != sorted(right):
                return f"{node} looks for {probe} beyond {found}, not {sorted(right)}"
        return ""

    def _not_empty(self, world: World, graph: Graph) -> tuple[str, str] | None:
        for node in self.serving:
            overlay = overlay_of(self.host(world, node))
            assert overlay is not None
            reached = tree_from(graph, node)
            for parcel, held in overlay.custody.held.items():
                if any(target in reached for target in held.states):
                    return "queues are empty at rest", f"{node} holds {parcel}: {held.states}"
            if not overlay.links.idle() or not overlay.topology.idle():
                return "queues are empty at rest", f"{node} has something to say"
        return None


def overlay_of(host: Host) -> Overlay | None:
    """Find the overlay's parts on a host, if it is up."""
    if host.state is not HostState.UP:
        return None
    found = getattr(host.machine, "overlay", None)
    return found if isinstance(found, Overlay) else None


def durable_of(disk: Disk) -> dict[str, bytes]:
    """Read what a crash at this moment keeps for certain."""
    return {key: one.value for key, one in disk.durable().items() if one.value is not None}


def copy_store(source: Disk, destination: Disk) -> None:
    """Give a follower what it had confirmed: everything that is durable."""
    entries: list[Entry] = list(source.durable().values())
    end, _ = destination.merge([Entry(one.key, one.value, one.stamp or 1) for one in entries])
    destination.sync(end)
