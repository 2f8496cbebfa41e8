"""Shared parts of OO's simulations: nodes that roam, and what brokers know of their overlay.

No events are sent (OO 4.1): one matrix of physical hops a second gives every path length. A broker
links to its six nearest brokers by physical hops; among equally near ones to those it has links
with, then drawn. A link exists while either end chose the other, and both ends state it. All
brokers renew their choice at the same moments, then pass on what changed since the last time, so a
change travels one overlay hop a period. Paths have the fewest overlay hops, by name among equals.
`RoamingOverlay` does with arrays what `TopologyTable` and `tree_from` do; a test holds them equal.
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.lab._cbm import mean_error
from roamcast.sim.movement.waypoint import RandomWaypoint, RoamingArea
from roamcast.sim.topology.radio import OO_RANGE_M

NODES = 100
BROKERS = 40
SECONDS = 600
NEIGHBOURS = 6
SEEDS, SEEDS_QUICK = 10, 2
ROWS_AT_ONCE = 4_000
"""Nodes times seconds whose hops are searched for at once, so that memory is bounded."""

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Trace(msgspec.Struct, frozen=True):
    """Physical hops between all nodes in each second; infinite where there is no path."""

    hops: Floats
    """Second × node × node."""

    @property
    def seconds(self) -> int:
        """How long the nodes roam."""
        return len(self.hops) - 1


@lru_cache(maxsize=2)
def trace(
    seed: int,
    *,
    nodes: int = NODES,
    seconds: int = SECONDS,
    area: RoamingArea | None = None,
    range_m: float = OO_RANGE_M,
    first: int | None = None,
) -> Trace:
    """Let nodes roam, and take the hops between the `first` ones, else all, every second.

    Traces are shared: do not write to them.
    """
    model = RandomWaypoint(nodes, area or RoamingArea(), random.Random(seed))
    wanted = first or nodes
    hops = np.empty((seconds + 1, wanted, wanted))
    at_once = max(1, ROWS_AT_ONCE // nodes)
    for begin in range(0, seconds + 1, at_once):
        part = range(begin, min(begin + at_once, seconds + 1))
        points = np.stack([model.positions(second * 1_000_000) for second in part])
        hops[part.start : part.stop] = radio_hops(points, range_m)[:, :wanted, :wanted]
    return Trace(hops)


def radio_hops(points_m: Floats, range_m: float) -> Floats:
    """Give the hops between nodes at most `range_m` apart, in each of several seconds.

    All nodes of all seconds search at once, a step a round: each has a row of bits, the nodes that
    it has found, and takes over those of its neighbours. It is `radio_graph` and a search in each.
    """
    seconds, nodes, _ = points_m.shape
    across, up = (points_m[:, :, None, axis] - points_m[:, None, :, axis] for axis in (0, 1))
    near = across * across + up * up <= range_m * range_m  # each is near itself, too
    second, _, to = np.nonzero(near)
    ends = second * nodes + to
    starts = np.concatenate([[0], near.sum(axis=2).ravel().cumsum()[:-1]])
    words = -(-nodes // 64)
    bits = np.zeros((nodes, words), dtype="<u8")
    everyone = np.arange(nodes)
    bits[everyone, everyone // 64] = np.uint64(1) << (everyone % 64).astype(np.uint64)
    found = np.tile(bits, (seconds, 1))
    rounds = np.zeros((seconds, nodes, nodes), dtype=np.int16)
    while True:
        unpacked = np.unpackbits(found.view(np.uint8), axis=1, count=nodes, bitorder="little")
        unseen = unpacked.reshape(seconds, nodes, nodes) == 0
        rounds += unseen
        more = np.bitwise_or.reduceat(found[ends], starts, axis=0)
        if (more == found).all():
            return np.where(unseen, np.inf, rounds)
        found = more


class Trees(msgspec.Struct, frozen=True):
    """For each broker the tree of shortest paths from it, as it knows the overlay."""

    parents: Ints
    """Broker × broker: the one before it on the path; -1 where there is no path."""
    levels: list[tuple[Ints, Ints]]
    """For each number of overlay hops from 1: (root, broker) that are so far apart."""


class RoamingOverlay:
    """What each broker knows of all links: the version of each, which counts its changes."""

    def __init__(self, hops: Floats, neighbours: int, generator: np.random.Generator) -> None:
        """`hops`: between brokers, when all of them know everything."""
        brokers = len(hops)
        self._neighbours = neighbours
        self._generator = generator
        self._one, self._other = np.triu_indices(brokers, 1)
        self.links: Flags = np.zeros((brokers, brokers), dtype=bool)
        """Which links there are."""
        self.links = self._chosen(hops)
        self._first = self.links[self._one, self._other].copy()
        pairs = len(self._one)
        self._version = np.zeros(pairs, dtype=np.int16)
        self._known = np.zeros((brokers, pairs), dtype=np.int16)
        self._changed = np.zeros((brokers, pairs), dtype=bool)
        self.items_sent = 0
        """Links that brokers passed on, once for each neighbour they sent them to."""
        self.messages_sent = 0

    def _chosen(self, hops: Floats) -> Flags:
        """Give the links of which at least one end is among the other's nearest."""
        brokers = len(hops)
        away = hops.copy()
        np.fill_diagonal(away, np.inf)
        # A tie goes to a link that stands, as in `Discovery`; the rest is drawn.
        key = away - 0.5 * self.links + 0.4 * self._generator.random((brokers, brokers))
        nearest = np.argsort(key, axis=1)[:, : self._neighbours]
        rows = np.repeat(np.arange(brokers), nearest.shape[1])
        chosen = np.zeros((brokers, brokers), dtype=bool)
        chosen[rows, nearest.ravel()] = True
        chosen &= np.isfinite(away)
        return chosen | chosen.T

    def renew(self, hops: Floats) -> None:
        """Choose neighbours anew, state what changed, and pass on what changed since last time."""
        before = self.links
        self.links = self._chosen(hops)
        differs = (self.links != before)[self._one, self._other]
        self._version[differs] += 1
        for ends in (self._one, self._other):
            at, pair = ends[differs], np.flatnonzero(differs)
            self._known[at, pair] = self._version[pair]
            self._changed[at, pair] = True
        sent, known = self._changed, self._known.copy()
        self._changed = np.zeros_like(sent)
        counts = sent.sum(axis=1)
        for broker, to in np.argwhere(self.links).tolist():
            if counts[broker]:
                pairs = np.flatnonzero(sent[broker])
                newer = pairs[known[broker, pairs] > self._known[to, pairs]]
                self._known[to, newer] = known[broker, newer]
                self._changed[to, newer] = True
                self.items_sent += int(counts[broker])
                self.messages_sent += 1

    def view(self, broker: int) -> Flags:
        """Give the links that one broker believes in."""
        up = self._first ^ (self._known[broker] & 1).astype(bool)
        links = np.zeros_like(self.links)
        links[self._one[up], self._other[up]] = True
        return links | links.T

    def weights(self, hops: Floats) -> Floats:
        """Give the physical hops of the links that a choice made now would give."""
        return np.where(self._chosen(hops), hops, np.inf)

    def trees(self) -> Trees:
        """Give each broker's paths by what it knows."""
        return trees([self.view(broker) for broker in range(len(self.links))])


def trees(views: Sequence[Flags]) -> Trees:
    """Search breadth-first from each broker in its own view; the first name wins a tie."""
    adjacent = np.stack(views)
    brokers = len(adjacent)
    everyone = np.arange(brokers)
    parents = np.full((brokers, brokers), -1)
    parents[everyone, everyone] = everyone
    level = np.eye(brokers, dtype=bool)
    levels: list[tuple[Ints, Ints]] = []
    while True:
        reach = adjacent & level[:, :, None]
        level = reach.any(axis=1) & (parents < 0)
        if not level.any():
            return Trees(parents, levels)
        parents[level] = reach.argmax(axis=1)[level]
        roots, found = np.nonzero(level)
        levels.append((roots, found))


def path_lengths(found: Trees, hops: Floats) -> Floats:
    """Give the physical hops of each path, at each of several seconds (second × from × to)."""
    brokers = len(found.parents)
    lengths = np.full((len(hops), brokers, brokers), np.inf)
    everyone = np.arange(brokers)
    lengths[:, everyone, everyone] = 0.0
    for roots, nodes in found.levels:
        before = found.parents[roots, nodes]
        lengths[:, roots, nodes] = lengths[:, roots, before] + hops[:, before, nodes]
    return lengths


def mean_length(lengths: Floats) -> Floats:
    """Average over the pairs of different nodes that have a path, for each second."""
    apart = ~np.eye(lengths.shape[1], dtype=bool)
    counts = np.isfinite(lengths) & apart
    total: Floats = np.where(counts, lengths, 0.0).sum(axis=(1, 2))
    means: Floats = total / np.maximum(counts.sum(axis=(1, 2)), 1)
    return means


def follow(overlay: RoamingOverlay, hops: Floats, period_s: int) -> Floats:
    """Renew an overlay every period; give the length of each broker's paths in each second."""
    parts = [path_lengths(overlay.trees(), hops[:period_s])]
    for second in range(period_s, len(hops), period_s):
        overlay.renew(hops[second])
        parts.append(path_lengths(overlay.trees(), hops[second : second + period_s]))
    return np.concatenate(parts)


def shortest(weights: Floats) -> Floats:
    """Give the shortest paths over weighted links, in each second (Floyd and Warshall)."""
    lengths = weights.copy()
    everyone = np.arange(lengths.shape[1])
    lengths[:, everyone, everyone] = 0.0
    for middle in everyone:
        through = lengths[:, :, middle, None] + lengths[:, None, middle, :]
        np.minimum(lengths, through, out=lengths)
    return lengths


class BrokerRun(msgspec.Struct, frozen=True):
    """Path lengths in each second, and what one broker sent on average."""

    static: Floats
    opportunistic: Floats
    physical: Floats
    items_s: float
    messages_s: float


def run_brokers(found: Trace, seed: int, period_s: int, brokers: int = BROKERS) -> BrokerRun:
    """Let the overlay of the first nodes, as brokers, follow the network, or stay as it began.

    Nodes are alike, so the first ones are as random a choice as any.
    """
    hops = found.hops[:, :brokers, :brokers]
    overlay = RoamingOverlay(hops[0], NEIGHBOURS, np.random.default_rng(seed))
    first = overlay.trees()
    lengths = follow(overlay, hops, period_s)
    shares = brokers * found.seconds
    return BrokerRun(
        mean_length(path_lengths(first, hops)),
        mean_length(lengths),
        mean_length(hops),
        overlay.items_sent / shares,
        overlay.messages_sent / shares,
    )


def row(case: dict[str, Any], quantity: str, values: Sequence[float] | Floats) -> dict[str, Any]:
    """Give a row: the mean over the seeds and its standard error."""
    mean, error = mean_error(values)
    return {**case, "quantity": quantity, "ours": mean, "error": error}


PAPER_SHARE = 0.15
"""Ours counts as the paper's number within this share of it."""


def parameters(seeds: int, **more: Any) -> dict[str, Any]:
    """Give the parameters that all of OO's simulations share."""
    return {
        "nodes": NODES,
        "area": "1000 m x 1000 m",
        "range m": OO_RANGE_M,
        "pause s": RoamingArea().pause_s,
        "seconds": SECONDS,
        "seeds": seeds,
        "neighbours": f"{NEIGHBOURS} nearest by physical hops",
        **more,
    }
