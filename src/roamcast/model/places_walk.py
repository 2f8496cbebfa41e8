"""What is the shortest way on foot from place to place? Doors between neighbours as a graph.

A door stands for both directions and is written at either end, or at both. Its length is what
`walking_m` says; else the great-circle distance between the two polygons' centres, at least one
metre; else one metre. Of several equally short ways the one that takes the lowest-numbered next
place, seen from the start, wins: the same file always gives the same ways.
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
    """A way between two places by number, with its length where it is known."""

    start: int
    end: int
    metres: float | None


class Route(msgspec.Struct, frozen=True):
    """A way: the places in order, both ends included, and its length."""

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
        """Give the length of the shortest way to `goal` from every place, infinite where none."""
        lengths = np.full(len(self._paths), np.inf)
        found = rx.dijkstra_shortest_path_lengths(self.graph, goal, float)
        if found:
            lengths[np.fromiter(found.keys(), dtype=np.int64)] = np.fromiter(
                found.values(), dtype=np.float64
            )
        lengths[goal] = 0.0
        return lengths

    def door_of(self, place: int) -> int:
        """Give the only door of a dead end (most rooms), or the place itself."""
        doors = self.doors[place]
        return doors[0][0] if len(doors) == 1 else place

    def ways_to(self, goal: int) -> "WaysTo":
        """Give the ways to a goal; all dead ends behind one door can share them."""
        return WaysTo(self, self.door_of(goal))

    def route(self, start: int, goal: int) -> Route | None:
        """Give the shortest way between two places by number, or none."""
        ways = self.ways_to(goal)
        metres = ways.metres(start, goal)
        if metres is None:
            return None
        steps = [start, *ways.steps(start, goal)]
        return Route(tuple(self._paths[step] for step in steps), metres)

    @cached_property
    def doors(self) -> list[list[tuple[int, float]]]:
        """For each place its neighbours and their distance, ascending."""
        doors: list[list[tuple[int, float]]] = [[] for _ in self._paths]
        both = zip(self.starts.tolist(), self.ends.tolist(), self.metres.tolist(), strict=True)
        for start, end, metres in both:
            doors[start].append((end, metres))
        return doors


class WaysTo:
    """Dijkstra's search from a goal's door, resumed whenever a start further away is asked for.

    People mostly walk nearby, and most places are dead ends: on a campus of a hundred thousand
    places a way along a storey settles a few dozen. A library's search ends or covers everything;
    it cannot be resumed, nor told our ties.
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
        """Give the length of the shortest way, or none where no way leads."""
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
        """Give the places of the way after `start`, in order; there must be one.

        A length is the sum along the way back from the root, so on a shortest way the equality
        below holds exactly in floating point; doors are sorted, so the first is the lowest.
        """
        if start == goal:
            return []
        here = self._graph.door_of(start)
        steps = [] if here == start else [here]
        if here == goal:
            return steps
        reached = self._to_root(here)
        assert reached is not None, "ask metres first"
        while here != self._root:
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
                if other not in settled and len(self._doors[other]) > 1:
                    heapq.heappush(waiting, (metres + length, other))
        return settled.get(start)


def _straight_m(one: tuple[float, float] | None, other: tuple[float, float] | None) -> float:
    if one is None or other is None:
        return WALK_M_DEFAULT
    return max(WALK_M_DEFAULT, distance_metres(one, other))
