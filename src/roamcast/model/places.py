"""The containment hierarchy of places, of any depth, with polygons and neighbours.

Places are numbered in pre-order (siblings by their segment's text), so everything within a place
is one interval of numbers (decision 0030). `places_geojson` reads and writes hierarchies,
`places_walk` finds shortest walks.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import shapely

from roamcast.errors import LimitError, PlaceError
from roamcast.model.contexts import check_path, parent_path, segments
from roamcast.model.places_walk import Doorway, WalkingGraph, WalkRoute

Point = tuple[float, float]
"""Longitude and latitude in degrees (WGS84), in GeoJSON's order."""


class PlaceLimits(msgspec.Struct, frozen=True):
    """Limits of a hierarchy; those of depth and path length are in `contexts`."""

    count_max: int = 500_000
    neighbours_max: int = 10_000
    vertices_max: int = 100_000
    bytes_max: int = 1 << 30


LIMITS = PlaceLimits()


class Place(msgspec.Struct, frozen=True):
    """One node of the hierarchy.

    `walking_m`, where known, is the walk to each neighbour, in the same order. `properties` and
    `members` preserve what a GeoJSON Feature has beyond the fields we interpret.
    """

    path: str
    kind: str
    geometry: dict[str, Any] | None = None
    neighbours: tuple[str, ...] = ()
    walking_m: tuple[float, ...] | None = None
    properties: Mapping[str, Any] = msgspec.field(default_factory=dict)
    members: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Places:
    """A validated hierarchy. A place's number is its position in pre-order, from 0."""

    def __init__(
        self,
        places: Iterable[Place],
        *,
        members: Mapping[str, Any] | None = None,
        limits: PlaceLimits = LIMITS,
    ) -> None:
        self.as_given = tuple(places)
        self.members = dict(members or {})
        if len(self.as_given) > limits.count_max:
            raise LimitError(f"more than the limit of {limits.count_max} places")
        for index, place in enumerate(self.as_given):
            _checked_alone(index, place, limits)
        # Numbers depend on the paths alone, not on the order of the file (0030); `as_given` keeps
        # that order for writing.
        order = sorted(range(len(self.as_given)), key=lambda i: segments(self.as_given[i].path))
        self._places = [self.as_given[index] for index in order]
        self._numbers = {place.path: number for number, place in enumerate(self._places)}
        self._check_together()
        self._parents, self._ends, self._depths = self._numbered()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, path: object) -> bool:
        return path in self._numbers

    def __getitem__(self, path: str) -> Place:
        return self._places[self.number(path)]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Places)
            and self.as_given == other.as_given
            and self.members == other.members
        )

    __hash__ = None  # type: ignore[assignment]

    def number(self, path: str) -> int:
        """Return a place's number in pre-order."""
        found = self._numbers.get(path)
        if found is None:
            raise PlaceError(f"there is no place {path!r}")
        return found

    def path(self, number: int) -> str:
        """Return the path of a number."""
        return self._places[number].path

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """All paths, in pre-order."""
        return tuple(place.path for place in self._places)

    def interval(self, path: str) -> tuple[int, int]:
        """Return the half-open interval of the numbers within a place, itself first."""
        number = self.number(path)
        return number, int(self._ends[number])

    def within(self, path: str, region: str) -> bool:
        """Return whether a place is `region` or lies below it, by their intervals."""
        first, end = self.interval(region)
        return first <= self.number(path) < end

    def parent(self, path: str) -> str | None:
        """Return the place one level up, or none for a root."""
        above = int(self._parents[self.number(path)])
        return None if above < 0 else self.path(above)

    def ancestors(self, path: str) -> tuple[str, ...]:
        """Return the places that contain this one, the nearest first."""
        found = []
        above = int(self._parents[self.number(path)])
        while above >= 0:
            found.append(self.path(above))
            above = int(self._parents[above])
        return tuple(found)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the places one level down, in pre-order."""
        number, end = self.interval(path)
        found = []
        child = number + 1
        while child < end:
            found.append(self.path(child))
            child = int(self._ends[child])
        return tuple(found)

    def roots(self) -> tuple[str, ...]:
        """Return the places without a parent."""
        return tuple(self.path(int(n)) for n in np.flatnonzero(self._parents < 0))

    def of_kind(self, kind: str, inside: str | None = None) -> tuple[str, ...]:
        """Return the places of one kind, within `inside` if given, in pre-order."""
        first, end = (0, len(self)) if inside is None else self.interval(inside)
        return tuple(place.path for place in self._places[first:end] if place.kind == kind)

    def deepest(self, point: Point, inside: str | None = None) -> str | None:
        """Return the deepest place whose polygon covers the point, or none; see `deepest_many`."""
        found = int(self.deepest_many([point], inside)[0])
        return None if found < 0 else self.path(found)

    def deepest_many(
        self, points: npt.ArrayLike, inside: str | None = None
    ) -> npt.NDArray[np.int64]:
        """Return for each (longitude, latitude) the number of its deepest place, -1 for none.

        Polygons are closed: a border belongs to all places that share it. Of equally deep places
        the first in pre-order wins (decision 0030). Storeys lie above each other on the map: a
        caller that knows the storey passes it as `inside`.
        """
        wanted = np.asarray(points, dtype=np.float64).reshape(-1, 2)
        if not np.isfinite(wanted).all():
            raise PlaceError("a point needs a finite longitude and latitude")
        first, end = (0, len(self)) if inside is None else self.interval(inside)
        tree, numbers = self._tree
        asked, hit = tree.query(shapely.points(wanted), predicate="intersects")
        numbers = numbers[hit]
        kept = (first <= numbers) & (numbers < end)
        asked, numbers = asked[kept], numbers[kept]
        order = np.lexsort((numbers, -self._depths[numbers], asked))
        asked, numbers = asked[order], numbers[order]
        result = np.full(len(wanted), -1, dtype=np.int64)
        lead, positions = np.unique(asked, return_index=True)
        result[lead] = numbers[positions]
        return result

    def polygon(self, path: str) -> shapely.Geometry | None:
        """Return the place's polygon, if it has one."""
        return self._polygons[self.number(path)]

    def centre(self, path: str) -> Point | None:
        """Return a point inside the place's polygon: the centroid if it lies inside."""
        polygon = self.polygon(path)
        if polygon is None:
            return None
        centre = polygon.centroid
        if not polygon.covers(centre):
            centre = polygon.point_on_surface()
        return centre.x, centre.y

    @cached_property
    def walks(self) -> WalkingGraph:
        """The graph of doors between neighbours, by number."""
        doorways = [
            Doorway(self._numbers[place.path], self._numbers[neighbour], metres)
            for place in self._places
            for neighbour, metres in zip(place.neighbours, _walks(place), strict=True)
        ]
        centres = [self.centre(place.path) for place in self._places]
        return WalkingGraph(self.paths, doorways, centres)

    def route(self, start: str, goal: str) -> WalkRoute | None:
        """Return the shortest walk, or None if there is none; see `places_walk`."""
        return self.walks.route(self.number(start), self.number(goal))

    @cached_property
    def _polygons(self) -> list[shapely.Geometry | None]:
        return [None if place.geometry is None else shape(place.geometry) for place in self._places]

    @cached_property
    def _tree(self) -> tuple[shapely.STRtree, npt.NDArray[np.int64]]:
        drawn = [(n, polygon) for n, polygon in enumerate(self._polygons) if polygon is not None]
        numbers = np.array([number for number, _ in drawn], dtype=np.int64)
        return shapely.STRtree([polygon for _, polygon in drawn]), numbers

    def _check_together(self) -> None:
        walks: dict[tuple[str, str], float] = {}
        seen: set[str] = set()
        for index, place in enumerate(self.as_given):
            if place.path in seen:
                raise _wrong(index, place, "is a path given before")
            seen.add(place.path)
            above = parent_path(place.path)
            if above is not None and above not in self._numbers:
                raise _wrong(index, place, f"has no parent: add a feature for {above!r}")
            for neighbour, metres in zip(place.neighbours, _walks(place), strict=True):
                if neighbour not in self._numbers:
                    raise _wrong(index, place, f"has an unknown neighbour {neighbour[:80]!r}")
                if metres is None:
                    continue
                ends = min(place.path, neighbour), max(place.path, neighbour)
                if walks.setdefault(ends, metres) != metres:
                    text = f"and its neighbour {neighbour!r} disagree about the walk between them"
                    raise _wrong(index, place, text)

    def _numbered(
        self,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        count = len(self._places)
        parents = np.full(count, -1, dtype=np.int64)
        ends = np.arange(1, count + 1, dtype=np.int64)
        depths = np.ones(count, dtype=np.int64)
        for number, place in enumerate(self._places):
            above = parent_path(place.path)
            if above is not None:
                parents[number] = self._numbers[above]
                depths[number] = depths[parents[number]] + 1
        for number in range(count - 1, -1, -1):
            if parents[number] >= 0:
                ends[parents[number]] = max(ends[parents[number]], ends[number])
        return parents, ends, depths


def shape(geometry: Mapping[str, Any]) -> shapely.Geometry:
    """Convert a GeoJSON Polygon or MultiPolygon to shapely, without altitudes."""
    parts = geometry["coordinates"]
    if geometry["type"] == "Polygon":
        parts = [parts]
    rings = [[[position[:2] for position in ring] for ring in part] for part in parts]
    polygons = [shapely.Polygon(part[0], part[1:]) for part in rings]
    return polygons[0] if geometry["type"] == "Polygon" else shapely.MultiPolygon(polygons)


def _walks(place: Place) -> tuple[float | None, ...]:
    return place.walking_m or (None,) * len(place.neighbours)


def _checked_alone(index: int, place: Place, limits: PlaceLimits) -> None:
    """Check what can be checked without the other places."""
    try:
        check_path(place.path)
    except PlaceError as error:
        raise PlaceError(f"feature {index}: {error.problem}") from None
    except LimitError as error:
        raise LimitError(f"feature {index}: {error.problem}") from None
    if not place.kind:
        raise _wrong(index, place, "has an empty kind")
    if len(place.neighbours) > limits.neighbours_max:
        text = f"feature {index} ({place.path!r}) has more neighbours than the limit of"
        raise LimitError(f"{text} {limits.neighbours_max}")
    if len(set(place.neighbours)) < len(place.neighbours) or place.path in place.neighbours:
        raise _wrong(index, place, "names a neighbour twice, or itself")
    walks = place.walking_m
    if walks is not None and len(walks) != len(place.neighbours):
        raise _wrong(index, place, "needs one walking_m for each neighbour")
    if walks is not None and not all(0 < metres < 1e7 for metres in walks):
        raise _wrong(index, place, "has a walking_m that is not between 0 and 10,000 km")


def _wrong(index: int, place: Place, problem: str) -> PlaceError:
    return PlaceError(f"feature {index} ({place.path!r}) {problem}")
