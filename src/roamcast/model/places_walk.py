"""Shortest walks between places: neighbours form a graph of doors.

A door works in both directions and may be listed at either end, or at both. Its length is its
`walking_m`; failing that, the great-circle distance between the two polygons' centres, at least
one metre; failing that, one metre. Of equally short walks, the one with the lowest-numbered next
place wins, seen from the start: the same file always gives the same walks (decision 0031).
"""

import heapq
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import rustworkx as rx

from roamcast.model.earth import distance_metres

WALK_M_DEFAULT = 1.0


class Doorway(NamedTuple):
    """A door between two places, by number, with its length where known."""

    start: int
    end: int
    metres: float | None


class WalkRoute(msgspec.Struct, frozen=True):
    """A walk: its places in order, both ends included, and its length."""

    places: tuple[str, ...]
    metres: float


class WalkingGraph:
    """The doors of a hierarchy as arrays (both directions, sorted) and as a rustworkx graph."""

    def __init__(
        self,
        paths: Sequence[str],
        doorways: Sequence[Doorway],
        centres: Sequence[tuple[float, float] | None],
    ) -> None:
        self._paths = paths
        lengths: dict[tuple[int, int], float] = {}
        for start, end, metres in doorways:
            ends = min(start, end), max(start, end)
            if metres is not None:
                lengths[ends] = metres
            elif ends not in lengths:
                lengths[ends] = _straight_m(centres[start], centres[end])
        doors = sorted((a, b, metres) for (a, b), metres in lengths.items())
        both = sorted(doors + [(b, a, metres) for a, b, metres in doors])
        self.starts = np.array([a for a, _, _ in both], dtype=np.int64)
        self.ends = np.array([b for _, b, _ in both], dtype=np.int64)
        self.metres = np.array([metres for _, _, metres in both], dtype=np.float64)
        self.graph: rx.PyGraph[int, float] = rx.PyGraph(multigraph=False)
        self.graph.add_nodes_from(range(len(paths)))
        self.graph.add_edges_from(doors)

    def lengths_to(self, goal: int) -> npt.NDArray[np.float64]:
        """Return the length of the shortest walk to `goal` from every place, inf where none."""
        lengths = np.full(len(self._paths), np.inf)
        found = rx.dijkstra_shortest_path_lengths(self.graph, goal, float)
        if found:
            lengths[np.fromiter(found.keys(), dtype=np.int64)] = np.fromiter(
                found.values(), dtype=np.float64
            )
        lengths[goal] = 0.0
        return lengths

    def door_of(self, place: int) -> int:
        """Return the only door of a dead end (most rooms), or the place itself."""
        doors = self.doors[place]
        return doors[0][0] if len(doors) == 1 else place

    def ways_to(self, goal: int) -> "WaysTo":
        """Return the walks to a goal; all dead ends behind one door can share them."""
        return WaysTo(self, self.door_of(goal))

    def route(self, start: int, goal: int) -> WalkRoute | None:
        """Return the shortest walk between two places by number, or None."""
        ways = self.ways_to(goal)
        metres = ways.metres(start, goal)
        if metres is None:
            return None
        steps = [start, *ways.steps(start, goal)]
        return WalkRoute(tuple(self._paths[step] for step in steps), metres)

    @cached_property
    def doors(self) -> list[list[tuple[int, float]]]:
        """Each place's neighbours and their distances, ascending."""
        doors: list[list[tuple[int, float]]] = [[] for _ in self._paths]
        both = zip(self.starts.tolist(), self.ends.tolist(), self.metres.tolist(), strict=True)
        for start, end, metres in both:
            doors[start].append((end, metres))
        return doors


class WaysTo:
    """Dijkstra's search from a goal's door, resumed when a query comes from further away.

    People mostly walk nearby, and most places are dead ends: on a campus of 100,000 places, a walk
    along a storey settles a few dozen. rustworkx's search cannot be resumed and does not
    promise how it breaks ties, hence our own (decision 0031).
    """

    def __init__(self, graph: WalkingGraph, root: int) -> None:
        self._graph = graph
        self._doors = graph.doors
        self._root = root
        self._settled: dict[int, float] = {}
        self._open: list[tuple[float, int]] = [(0.0, root)]

    def __len__(self) -> int:
        return len(self._settled)

    def metres(self, start: int, goal: int) -> float | None:
        """Return the length of the shortest walk, or None if there is none."""
        assert self._graph.door_of(goal) == self._root
        if start == goal:
            return 0.0
        first, last = self._graph.door_of(start), self._root
        if goal == first or start == last:
            return next(metres for other, metres in self._doors[start] if other == goal)
        between = self._to_root(first)
        if between is None:
            return None
        head = 0.0 if first == start else self._doors[start][0][1]
        tail = 0.0 if last == goal else self._doors[goal][0][1]
        return head + between + tail

    def steps(self, start: int, goal: int) -> list[int]:
        """Return the places of the walk after `start`, in order. There must be a walk."""
        if start == goal:
            return []
        here = self._graph.door_of(start)
        steps = [] if here == start else [here]
        if here == goal:
            return steps
        reached = self._to_root(here)
        assert reached is not None, "ask metres first"
        while here != self._root:
            # Settled lengths are sums along the way back from the root, so the equality is exact in
            # floating point. Doors are sorted: the first match is the lowest-numbered place.
            here = next(
                other
                for other, metres in self._doors[here]
                if other in self._settled and self._settled[other] + metres == self._settled[here]
            )
            steps.append(here)
        return steps if here == goal else [*steps, goal]

    def _to_root(self, start: int) -> float | None:
        settled, waiting = self._settled, self._open
        while start not in settled and waiting:
            metres, place = heapq.heappop(waiting)
            if place in settled:
                continue
            settled[place] = metres
            for other, length in self._doors[place]:
                if other not in settled and len(self._doors[other]) > 1:  # never enter a dead end
                    heapq.heappush(waiting, (metres + length, other))
        return settled.get(start)


def _straight_m(start: tuple[float, float] | None, end: tuple[float, float] | None) -> float:
    if start is None or end is None:
        return WALK_M_DEFAULT
    return max(WALK_M_DEFAULT, distance_metres(start, end))
