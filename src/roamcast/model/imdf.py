"""IMDF venues as places: a building's published indoor map becomes a hierarchy.

IMDF (Indoor Mapping Data Format, an OGC community standard) is one GeoJSON FeatureCollection for
each type of feature. A venue, its buildings, their levels and the units on them become places,
`venue/building/level/unit`. A level is a place of the kind `floor` with IMDF's `ordinal` and
`short_name`; a unit's kind is its category, in our words where we have one. Openings become
neighbours on a level. Stairs and lifts that lie above each other become neighbours, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec
import shapely

from roamcast.errors import LimitError, PlaceError
from roamcast.model.places import LIMITS, Place, Places, shape

KINDS: Final = {"walkway": "corridor", "elevator": "lift", "stairs": "stairs", "steps": "stairs"}
"""IMDF's categories of units → our kinds; every other category is a kind as it is."""

BETWEEN_LEVELS: Final = frozenset({"lift", "stairs", "escalator", "ramp"})
FILES: Final = ("venue", "building", "footprint", "level", "unit", "opening")
NEEDED: Final = ("venue", "level", "unit")
UNNAMED: Final = ("footprint", "opening")
"""What becomes no place of its own, so nothing refers to it."""

DOOR_DEG: Final = 5e-6
"""How far an opening may lie from the wall of a unit it opens, about half a metre."""

SEGMENT_LENGTH_MAX: Final = 80


class _Feature(msgspec.Struct, frozen=True):
    id: str
    feature_type: str
    geometry: dict[str, Any] | None
    properties: dict[str, Any]


def from_imdf(texts: Mapping[str, bytes]) -> Places:
    """Convert an archive, as texts by file name (`unit.geojson`), to a hierarchy."""
    found = {kind: _read(texts, kind) for kind in FILES}
    if len(found["venue"]) != 1:
        raise PlaceError("venue.geojson: an archive has exactly one venue")
    made = _Maker(found["venue"][0])
    made.buildings(found["building"], found["footprint"])
    made.levels(found["level"])
    made.units(found["unit"])
    made.openings(found["opening"])
    made.stack()
    return Places(made.places())


class _Maker:
    """Gives features their paths, from the venue down, and finds their neighbours."""

    def __init__(self, venue: _Feature) -> None:
        self._taken: set[str] = set()
        self._places: dict[str, Place] = {}
        self._path_of: dict[tuple[str, str], str] = {}
        """Type and id: published archives have levels with the id of their building."""
        self._neighbours: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._ordinals: dict[str, int] = {}
        self._units: defaultdict[str, list[str]] = defaultdict(list)
        """Level → the paths of its units."""
        self._venue = self._add(venue, "", "venue")

    def places(self) -> Iterable[Place]:
        """Give the places with their neighbours."""
        for path, place in self._places.items():
            known = tuple(self._neighbours.get(path, ()))
            yield msgspec.structs.replace(place, neighbours=known)

    def buildings(self, buildings: list[_Feature], footprints: list[_Feature]) -> None:
        """Add the buildings; a building's outline is its footprint on the ground."""
        outlines: dict[str, dict[str, Any]] = {}
        for footprint in footprints:
            for owner in _ids(footprint, "building_ids"):
                if owner not in outlines or footprint.properties.get("category") == "ground":
                    outlines[owner] = _polygon(footprint)
        for building in buildings:
            geometry = outlines.get(building.id)
            self._add(building, self._venue, "building", geometry)

    def levels(self, levels: list[_Feature]) -> None:
        """Add the levels, each to its first building, or to the venue if it has none."""
        for level in sorted(levels, key=_ordinal):
            owners = _ids(level, "building_ids")
            above = self._parent(level, "building", owners[0]) if owners else self._venue
            more: dict[str, Any] = {"ordinal": _ordinal(level)}
            short = _text(level.properties.get("short_name"))
            if short:
                more["short_name"] = short
            path = self._add(level, above, "floor", _polygon(level), more, name=short)
            self._ordinals[path] = _ordinal(level)

    def units(self, units: list[_Feature]) -> None:
        """Add the units to their levels."""
        for unit in units:
            category = unit.properties.get("category")
            if not isinstance(category, str) or not category:
                raise _wrong(unit, "has no category")
            level = self._parent(unit, "level", unit.properties.get("level_id"))
            path = self._add(unit, level, KINDS.get(category, category), _polygon(unit))
            self._units[level].append(path)

    def openings(self, openings: list[_Feature]) -> None:
        """Let units be neighbours that an opening joins."""
        trees: dict[str, shapely.STRtree] = {}
        for opening in openings:
            level = self._parent(opening, "level", opening.properties.get("level_id"))
            paths = self._units[level]
            if level not in trees:
                trees[level] = shapely.STRtree([self._outline(path) for path in paths])
            line = _line(opening)
            near = trees[level].query(line, predicate="dwithin", distance=DOOR_DEG)
            close = sorted(int(n) for n in near)
            # a door stands in the wall between two units; those at its corners touch it only there
            along = [n for n in close if _shared(line, self._outline(paths[n])) > 0.5]
            for first in along:
                for second in along:
                    if first < second:
                        self._join(paths[first], paths[second])

    def stack(self) -> None:
        """Let stairs and lifts be neighbours of those above them in the same building."""
        floors: defaultdict[str, list[str]] = defaultdict(list)
        for level in self._ordinals:
            floors[level.rpartition("/")[0]].append(level)
        for levels in floors.values():
            levels.sort(key=self._ordinals.__getitem__)
            for lower, upper in pairwise(levels):
                for start in self._climbing(lower):
                    for end in self._climbing(upper):
                        if self._above(start, end):
                            self._join(start, end)

    def _climbing(self, level: str) -> list[str]:
        return [path for path in self._units[level] if self._places[path].kind in BETWEEN_LEVELS]

    def _above(self, start: str, end: str) -> bool:
        same = self._places[start].kind == self._places[end].kind
        return same and bool(self._outline(start).intersects(self._outline(end).centroid))

    def _join(self, first: str, second: str) -> None:
        self._neighbours[first][second] = None
        self._neighbours[second][first] = None

    def _outline(self, path: str) -> shapely.Geometry:
        geometry = self._places[path].geometry
        assert geometry is not None
        return shape(geometry)

    def _parent(self, feature: _Feature, kind: str, wanted: object) -> str:
        found = self._path_of.get((kind, str(wanted)))
        if found is None:
            raise _wrong(feature, f"refers to {str(wanted)[:60]!r}, which is not there")
        return found

    def _add(
        self,
        feature: _Feature,
        above: str,
        kind: str,
        geometry: dict[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> str:
        if len(self._places) >= LIMITS.count_max:
            raise LimitError(f"more than the limit of {LIMITS.count_max} places")
        said = _text(feature.properties.get("name"))
        path = self._free(above, name or said or _text(feature.properties.get("alt_name")) or kind)
        properties = {"imdf": feature.id, **(more or {})}
        if said:
            properties["name"] = said
        outline = geometry if geometry is not None else _outline_or_none(feature)
        self._places[path] = Place(path, kind, outline, properties=properties)
        self._path_of[feature.feature_type, feature.id] = path
        return path

    def _free(self, above: str, name: str) -> str:
        """Make a path out of a name; of equal names, later ones get a number."""
        kept = "".join(letter if letter.isprintable() else " " for letter in name)
        segment = " ".join(kept.replace("/", "-").split())[:SEGMENT_LENGTH_MAX] or "unnamed"
        start = f"{above}/{segment}" if above else segment
        path, number = start, 1
        while path in self._taken:
            number += 1
            path = f"{start}-{number}"
        self._taken.add(path)
        return path


def _read(texts: Mapping[str, bytes], kind: str) -> list[_Feature]:
    name = f"{kind}.geojson"
    text = texts.get(name)
    if text is None:
        if kind in NEEDED:
            raise PlaceError(f"{name} is missing: is this an IMDF archive?")
        return []
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
        features = msgspec.convert(document.get("features"), list[_Feature])
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PlaceError(f"{name}: {error}") from None
    for feature in features:
        if feature.feature_type != kind:
            raise _wrong(feature, f"is in {name}")
    return features if kind in UNNAMED else _once(features)


def _once(features: list[_Feature]) -> list[_Feature]:
    """Give each feature once: published archives have some that are written down twice."""
    found: dict[str, _Feature] = {}
    for feature in features:
        if found.setdefault(feature.id, feature) != feature:
            raise _wrong(feature, "has an id that was given before")
    return list(found.values())


def _ids(feature: _Feature, name: str) -> list[str]:
    listed = feature.properties.get(name)
    return [str(one) for one in listed] if isinstance(listed, list) else []


def _ordinal(level: _Feature) -> int:
    ordinal = level.properties.get("ordinal")
    if not isinstance(ordinal, int) or isinstance(ordinal, bool):
        raise _wrong(level, "has no ordinal that is a whole number")
    return ordinal


def _text(labels: object) -> str:
    """Give a label's English text, or the first one."""
    if not isinstance(labels, dict) or not labels:
        return ""
    found = labels.get("en", next(iter(labels.values())))
    return found.strip() if isinstance(found, str) else ""


def _polygon(feature: _Feature) -> dict[str, Any]:
    found = _outline_or_none(feature)
    if found is None:
        raise _wrong(feature, "has no polygon")
    return found


def _outline_or_none(feature: _Feature) -> dict[str, Any] | None:
    geometry = feature.geometry
    if geometry is None or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        return None
    try:
        if shape(geometry).is_empty:
            raise _wrong(feature, "has an empty polygon")
    except (shapely.errors.ShapelyError, KeyError, TypeError, ValueError, IndexError) as error:
        raise _wrong(feature, f"has a polygon that can not be read: {error}") from None
    return {"type": geometry["type"], "coordinates": geometry["coordinates"]}


def _line(opening: _Feature) -> shapely.Geometry:
    try:
        positions = (opening.geometry or {})["coordinates"]
        return shapely.LineString([position[:2] for position in positions])
    except (shapely.errors.ShapelyError, KeyError, TypeError, ValueError, IndexError):
        raise _wrong(opening, "is no line") from None


def _shared(line: shapely.Geometry, outline: shapely.Geometry) -> float:
    """Give which part of a line lies at an outline."""
    whole = line.length
    near = line.intersection(outline.buffer(DOOR_DEG))
    return 0.0 if whole == 0 else float(near.length / whole)


def _wrong(feature: _Feature, problem: str) -> PlaceError:
    return PlaceError(f"{feature.feature_type} {feature.id[:60]!r} {problem}")
