"""Hierarchies of places as GeoJSON FeatureCollections, read and written without loss.

Each Feature has the properties `path` and `kind`. It may have `neighbours` (a list of paths) with
`walking_m` (a length for each), and a Polygon or MultiPolygon. Order, ids, foreign members and
further properties are preserved. An error names the feature by its position and path.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import shapely

from roamcast.errors import LimitError, PlaceError
from roamcast.model.places import LIMITS, Place, PlaceLimits, Places, shape

_OURS = {"path", "kind", "neighbours", "walking_m"}


def read_places(text: bytes | str, *, limits: PlaceLimits = LIMITS) -> Places:
    """Parse a hierarchy from the text of a FeatureCollection."""
    if len(text) > limits.bytes_max:
        raise LimitError(f"larger than the limit of {limits.bytes_max} bytes")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PlaceError(f"not JSON: {error}") from None
    return from_geojson(document, limits=limits)


def from_geojson(document: object, *, limits: PlaceLimits = LIMITS) -> Places:
    """Convert a decoded FeatureCollection to a hierarchy."""
    if not isinstance(document, dict) or document.get("type") != "FeatureCollection":
        raise PlaceError("not a GeoJSON FeatureCollection")
    features = document.get("features")
    if not isinstance(features, list):
        raise PlaceError("the FeatureCollection has no list of features")
    if len(features) > limits.count_max:
        raise LimitError(f"more than the limit of {limits.count_max} places")
    places = [_place(index, feature, limits) for index, feature in enumerate(features)]
    kept = {name: value for name, value in document.items() if name not in {"type", "features"}}
    return Places(places, members=kept, limits=limits)


def to_geojson(places: Places) -> dict[str, Any]:
    """Return the hierarchy as a FeatureCollection, features in their original order."""
    features = [_feature(place) for place in places.as_given]
    return {"type": "FeatureCollection", **places.members, "features": features}


def write_places(places: Places) -> bytes:
    """Return the hierarchy as JSON text."""
    return msgspec.json.encode(to_geojson(places))


def _feature(place: Place) -> dict[str, Any]:
    properties: dict[str, Any] = {"path": place.path, "kind": place.kind}
    if place.neighbours:
        properties["neighbours"] = list(place.neighbours)
    if place.walking_m is not None:
        properties["walking_m"] = list(place.walking_m)
    properties.update(place.properties)
    return {
        "type": "Feature",
        **place.members,
        "geometry": place.geometry,
        "properties": properties,
    }


def _place(index: int, feature: object, limits: PlaceLimits) -> Place:
    if not isinstance(feature, dict) or feature.get("type") != "Feature":
        raise PlaceError(f"feature {index}: not a GeoJSON Feature")
    properties = feature.get("properties")
    if not isinstance(properties, dict):
        raise PlaceError(f"feature {index}: has no properties")
    path, kind = properties.get("path"), properties.get("kind")
    if not isinstance(path, str):
        raise PlaceError(f"feature {index}: needs a property 'path' that is text")
    name = f"feature {index} ({path[:80]!r})"
    if not isinstance(kind, str):
        raise PlaceError(f"{name} needs a property 'kind' that is text")
    return Place(
        path=path,
        kind=kind,
        geometry=_geometry(name, feature.get("geometry"), limits),
        neighbours=_neighbours(name, properties.get("neighbours")),
        walking_m=_walking_m(name, properties.get("walking_m")),
        properties={key: value for key, value in properties.items() if key not in _OURS},
        members={
            key: value
            for key, value in feature.items()
            if key not in {"type", "geometry", "properties"}
        },
    )


def _neighbours(name: str, listed: object) -> tuple[str, ...]:
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise PlaceError(f"{name} needs 'neighbours' to be a list of paths")
    return tuple(listed)


def _walking_m(name: str, listed: object) -> tuple[float, ...] | None:
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(_is_number(metres) for metres in listed):
        raise PlaceError(f"{name} needs 'walking_m' to be a list of metres")
    return tuple(listed)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _geometry(name: str, geometry: object, limits: PlaceLimits) -> dict[str, Any] | None:
    if geometry is None:
        return None
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise PlaceError(f"{name} needs a Polygon, a MultiPolygon or null as its geometry")
    coordinates = geometry.get("coordinates")
    parts = [coordinates] if geometry["type"] == "Polygon" else coordinates
    vertices = _vertices(name, parts)
    if vertices > limits.vertices_max:
        raise LimitError(f"{name} has more vertices than the limit of {limits.vertices_max}")
    _check_valid(name, geometry)
    return geometry


def _vertices(name: str, parts: object) -> int:
    """Count the vertices of well-formed parts; raise on the first that is not."""
    if not isinstance(parts, list) or not parts:
        raise PlaceError(f"{name} has a geometry without coordinates")
    count = 0
    for part in parts:
        if not isinstance(part, list) or not part:
            raise PlaceError(f"{name} has a polygon without rings")
        for ring in part:
            if not isinstance(ring, list) or len(ring) < 4 or ring[0] != ring[-1]:
                raise PlaceError(f"{name} has a ring that is not closed, or shorter than 4")
            if not all(_is_position(position) for position in ring):
                raise PlaceError(
                    f"{name} has a position that is not a WGS84 longitude and latitude"
                )
            count += len(ring)
    return count


def _is_position(position: object) -> bool:
    if not isinstance(position, list) or len(position) not in {2, 3}:
        return False
    if not all(_is_number(number) for number in position):
        return False
    return bool(-180 <= position[0] <= 180 and -90 <= position[1] <= 90)


def _check_valid(name: str, geometry: Mapping[str, Any]) -> None:
    polygon = shape(geometry)
    if not polygon.is_valid:
        raise PlaceError(f"{name} has an invalid polygon: {shapely.is_valid_reason(polygon)}")
