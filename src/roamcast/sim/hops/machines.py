"""The real machines of casts on a tree of routers: converged tables put in, nodes made when needed.

Links, custody and disks are as simple as can be: nothing fails, a parcel takes a millisecond. What
is real is `overlay.casts`: whom it hands a cast to, what it answers, and what it deposits.
"""

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from roamcast.identity.rules import Viewer
from roamcast.model.areas import Area, Patch
from roamcast.model.casts import Cast
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Store, Stored
from roamcast.model.time import MICROSECONDS, format_instant, parse_instant
from roamcast.overlay.casts.casts import Casts
from roamcast.overlay.casts.held import planned
from roamcast.overlay.casts.messages import (
    CAST,
    RESULT,
    CastResult,
    DepositMail,
    LookUpPast,
    MailDeposited,
    PastFound,
    PayloadRead,
    PlanFilter,
    ReadPayload,
    SendCast,
)
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.events import (
    HandleParcel,
    ParcelArrived,
    ParcelHandled,
    ParcelId,
    ParcelPosted,
    PostParcel,
    TreeChanged,
)
from roamcast.overlay.tables.areas import Areas
from roamcast.sim.hops.reference import ANSWER, ASK, Hop
from roamcast.sim.hops.routers import HistoricCast, Routers
from roamcast.sim.topology.graph import Ints, Topology

START = parse_instant("2026-11-17T12:00:00Z")
HOUR = 3_600 * MICROSECONDS
LINK_US = 1_000
LOOK_US = 20_000
CAST_ID = "cast-1"


class KnownAreas(Areas):
    """A table that has converged: it knows which routers' areas lie beyond each link."""

    def __init__(self, node: int, net: "CastNet") -> None:
        super().__init__()
        self._node = node
        self._net = net

    def beyond(self, thing: Area, came_from: str | None) -> list[str]:
        """Name the links beyond which an access node's area meets the target."""
        links = self._net.routers.topology.neighbours(self._node).tolist()
        return sorted(
            name_of(link)
            for link in links
            if name_of(link) != came_from and self._net.meets_beyond(self._node, link, thing)
        )

    def knows(self, link: str) -> bool:
        """Everything is known."""
        del link
        return True


class NoMatcher:
    """Nobody comes while a cast into the past is under way."""

    def add(self, name: str, wanted: Filter, /) -> None:
        """Add a filter."""

    def remove(self, name: str) -> None:
        """Remove a filter."""

    def match_numbers(self, context: Context) -> Any:
        """Match nothing."""
        del context
        return ()

    def name_of(self, number: int) -> str:
        """Name nothing."""
        raise AssertionError(number)


class CastNet:
    """Routers, of which those that are asked run the machine."""

    def __init__(self, routers: Routers, settings: CastSettings | None = None) -> None:
        self.routers = routers
        self.hops: list[Hop] = []
        self.deposits: list[tuple[int, int, frozenset[int]]] = []
        """(router, the trusted node's router, vids)"""
        self.posts: list[tuple[str, int]] = []
        """Kinds of parcels that are neither casts nor results, and their senders."""
        assert routers.topology.points is not None
        points = routers.topology.points[routers.access].tolist()
        self._areas = {
            node: Area((Patch(((*point, *point),)),))
            for node, point in zip(routers.access.tolist(), points, strict=True)
        }
        self._met: dict[Area, list[int]] = {}
        self._enter, self._leave = _preorder(routers.topology)
        self._settings = settings or CastSettings()
        self._nodes: dict[int, Casts] = {}
        self._disks: dict[int, dict[str, bytes]] = {}
        self._queue: list[tuple[int, int, int, Any]] = []
        self._next = count(1).__next__
        self._target: set[int] = set()

    def meets_beyond(self, node: int, link: int, target: Area) -> bool:
        """Say whether an access node beyond a link meets a target."""
        if target not in self._met:
            met = [one for one, area in self._areas.items() if target.meets(area)]
            self._met[target] = sorted(int(self._enter[one]) for one in met)
        places = self._met[target]
        down = self.routers.topology.parents[link] == node  # type: ignore[index]
        lower = link if down else node
        first, last = int(self._enter[lower]), int(self._leave[lower])
        inside = bisect_left(places, last) - bisect_left(places, first)
        return inside > 0 if down else inside < len(places)

    def send(self, cast: HistoricCast, policy: str, *, seconds: int = 300) -> None:
        """Send a cast into the past, and run until nothing more can come of it."""
        self._target = set(self.routers.addressed(cast).tolist())
        edges = (cast.west, cast.south, cast.west + cast.edge, cast.south + cast.edge)
        span = f"'{format_instant(START - 2 * HOUR)}','{format_instant(START - HOUR)}'"
        text = (
            f"S_INTERSECTS(geometry, BBOX({','.join(repr(edge) for edge in edges)})) "
            f"AND overlaps(time, INTERVAL({span}))"
        )
        given = SendCast(1, Cast(CAST_ID, text, b"minutes", START), Viewer("sender"), policy=policy)
        self._give(cast.origin, given, START)
        while self._queue and self._queue[0][0] <= START + seconds * MICROSECONDS:
            at, _, node, given = heappop(self._queue)
            machine = self._machine(node)
            if given is not None:
                self._carry(node, machine.receive(given, at), at)
            due = machine.deadline()
            if due is not None and due <= at:
                self._carry(node, machine.advance(at), at)
            due = machine.deadline()
            if due is not None:
                self._give(node, None, max(due, at + 1))

    def _machine(self, node: int) -> Casts:
        if node not in self._nodes:
            links = tuple(name_of(n) for n in self.routers.topology.neighbours(node).tolist())
            overlay: Any = SimpleNamespace(
                links=SimpleNamespace(node=name_of(node), neighbours=links),
                feeding=SimpleNamespace(may_serve=lambda _: True),
                exchange=SimpleNamespace(tables={"areas": KnownAreas(node, self)}, links=links),
                topology=SimpleNamespace(
                    tree={name_of(node), *links}, table=SimpleNamespace(items={})
                ),
            )
            trusted = {trusted_name(one) for one in self.routers.trusted.tolist()}
            self._disks[node] = {}
            made = self._nodes[node] = Casts(
                self._settings,
                now=START - HOUR,
                draw=lambda: 0.5,
                see=lambda context, _viewer, _now: context,
                state_of=lambda _vid: None,
                key_of=lambda _vid: b"key",
                trusted_nodes=trusted,
                make_matcher=NoMatcher,
                overlay=overlay,
            )
            made.receive(TreeChanged(links), START - HOUR)
        return self._nodes[node]

    def _give(self, node: int, given: Any, at: int) -> None:
        heappush(self._queue, (at, self._next(), node, given))

    def _carry(self, node: int, effects: Sequence[Effect], now: int) -> None:
        disk = self._disks[node]
        for effect in effects:
            match effect:
                case Store(token, writes):
                    self._write(disk, writes)
                    self._give(node, Stored(token), now + 1)
                case PostParcel(part, token, _, targets, _, writes):
                    self._write(disk, writes)
                    parcel = ParcelId(name_of(node), 1, self._next())
                    self._give(node, ParcelPosted(part, token, parcel), now + 1)
                    for target in targets:
                        self._post(node, number_of(target), parcel, effect, now)
                case HandleParcel(parcel, writes):
                    self._write(disk, writes)
                    self._give(node, ParcelHandled(parcel), now + 1)
                case PlanFilter():
                    self._give(node, planned(effect), now + 1)
                case ReadPayload(token, name):
                    self._give(node, PayloadRead(token, disk.get(name)), now + 1)
                case LookUpPast(token, questions):
                    assert len(questions) == 1
                    found = self._archived(node)
                    self._give(node, PastFound(token, 0, found), now + LOOK_US)
                case DepositMail(token, trusted):
                    vids = frozenset(vid_number(vid) for vid, _ in effect.parcels)
                    self.deposits.append((node, trusted_number(trusted), vids))
                    self._give(node, MailDeposited(token, len(vids), 0, 0, 0), now + LINK_US)

    def _post(self, node: int, to: int, parcel: ParcelId, effect: PostParcel, now: int) -> None:
        if effect.kind == CAST:
            self.hops.append(Hop(ASK, node, to))
        elif effect.kind == RESULT:
            result = msgspec.msgpack.decode(effect.body, type=CastResult)
            vids = frozenset(vid_number(pair.vid) for pair in result.pairs)
            self.hops.append(Hop(ANSWER, node, to, vids=vids))
        else:
            self.posts.append((effect.kind, node))
        self._give(to, ParcelArrived(parcel, effect.kind, effect.body), now + LINK_US)

    def _archived(self, node: int) -> tuple[str, ...]:
        if node not in self._target:
            return ()
        rows = slice(self.routers.starts[node], self.routers.starts[node + 1])
        pairs = zip(
            self.routers.vids[rows].tolist(), self.routers.trusted[rows].tolist(), strict=True
        )
        return tuple(vid_name(vid, trusted) for vid, trusted in pairs)

    @staticmethod
    def _write(disk: dict[str, bytes], writes: Any) -> None:
        for key, value in writes:
            if value is None:
                disk.pop(key, None)
            else:
                disk[key] = value


def _preorder(topology: Topology) -> tuple[Ints, Ints]:
    """Number a tree's nodes so that a subtree is an interval; give where each begins and ends."""
    parents = topology.parents
    assert parents is not None, "casts are counted on trees"
    sizes = np.ones(topology.nodes, np.int64)
    for node in range(topology.nodes - 1, 0, -1):
        sizes[parents[node]] += sizes[node]
    enter = np.zeros(topology.nodes, np.int64)
    free = enter + 1  # the next number below each node
    for node in range(1, topology.nodes):  # a parent comes before its children
        above = parents[node]
        enter[node] = free[above]
        free[above] += sizes[node]
        free[node] = enter[node] + 1
    return enter, enter + sizes


def name_of(node: int) -> str:
    """Name a router."""
    return f"n{node}"


def number_of(name: str) -> int:
    """Give a router's number."""
    return int(name[1:])


def trusted_name(node: int) -> str:
    """Name the trusted node at a router."""
    return f"t{node}.example.org"


def trusted_number(name: str) -> int:
    """Give the router of a trusted node."""
    return int(name[1:].partition(".")[0])


def vid_name(vid: int, trusted: int) -> str:
    """Write a vid."""
    return f"{vid:012}@{trusted_name(trusted)}"


def vid_number(vid: str) -> int:
    """Read a vid."""
    return int(vid.partition("@")[0])
