"""What is the shortest way on foot from place to place? Doors between neighbours as a graph.

A door stands for both directions and is written at either end, or at both. Its length is what
`walking_m` says; else the great-circle distance between the two polygons' centres, at least one
metre; else one metre. Of several equally short ways the one that takes the lowest-numbered next
place, seen from the start, wins: the same file always gives the same ways.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import rustworkx as rx

EARTH_RADIUS_M = 6_371_008.8
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

    def next_to(self, goal: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Give for every place the next one on its way to `goal` (-1: none), and its length there.

        Dijkstra's lengths are sums along the way back from the goal, so on a shortest way the
        equality below holds exactly in floating point.
        """
        lengths = self.lengths_to(goal)
        after = np.full(len(self._paths), len(self._paths), dtype=np.int64)
        with np.errstate(invalid="ignore"):
            shortest = lengths[self.ends] + self.metres == lengths[self.starts]
        shortest &= np.isfinite(lengths[self.starts])
        np.minimum.at(after, self.starts[shortest], self.ends[shortest])
        after[after == len(self._paths)] = -1
        after[goal] = -1
        return after, lengths

    def route(self, start: int, goal: int) -> Route | None:
        """Give the shortest way between two places by number, or none."""
        after, lengths = self.next_to(goal)
        if not math.isfinite(lengths[start]):
            return None
        steps = [start]
        while steps[-1] != goal:
            steps.append(int(after[steps[-1]]))
        return Route(tuple(self._paths[step] for step in steps), float(lengths[start]))


def _straight_m(one: tuple[float, float] | None, other: tuple[float, float] | None) -> float:
    if one is None or other is None:
        return WALK_M_DEFAULT
    return max(WALK_M_DEFAULT, great_circle_m(one, other))


def great_circle_m(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Give the distance of two (longitude, latitude) points on the sphere (haversine)."""
    lon_a, lat_a, lon_b, lat_b = map(math.radians, (*one, *other))
    half = (
        math.sin((lat_b - lat_a) / 2) ** 2
        + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    )
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, half)))
