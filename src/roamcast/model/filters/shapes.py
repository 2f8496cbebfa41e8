"""Shapes in filters: WKB inside, WKT or BBOX in texts."""

from decimal import Decimal
from typing import Any

import numpy as np
import shapely

from roamcast.errors import FilterError, LimitError
from roamcast.model.kinds import is_finite

VERTICES_MAX = 10_000
_KINDS = {
    "Point",
    "MultiPoint",
    "LineString",
    "MultiLineString",
    "Polygon",
    "MultiPolygon",
    "GeometryCollection",
}


def read(tree: Any) -> bytes:
    """Convert a decoded bbox or GeoJSON geometry to WKB of a valid, normalised, 2D shape."""
    if isinstance(tree, dict) and "bbox" in tree:
        shape = _box(tree["bbox"])
    elif isinstance(tree, dict) and tree.get("type") in _KINDS:
        shape = _shape(tree)
    else:
        raise FilterError("a spatial predicate needs geometry on one side and a shape on the other")
    return bytes(shapely.to_wkb(shapely.normalize(shape)))


def _box(numbers: Any) -> Any:
    finite = isinstance(numbers, list) and all(
        isinstance(number, int | float) and is_finite(number) for number in numbers
    )
    if not finite or len(numbers) != 4:
        raise FilterError("BBOX takes four numbers: west, south, east, north")
    west, south, east, north = numbers
    if south > north:
        raise FilterError("a BBOX has its south above its north")
    if west <= east:
        return upright(west, south, east, north)
    if not -180 <= east < west <= 180:
        raise FilterError("a BBOX has its west beyond its east")
    halves = [upright(west, south, 180, north), upright(-180, south, east, north)]
    return shapely.union_all(halves)  # across the antimeridian


def is_across(box: list[float]) -> bool:
    """Return whether a bbox that `read` accepts crosses the antimeridian."""
    return box[0] > box[2]


def is_one_point(box: list[float]) -> bool:
    """Return whether a bbox across the antimeridian is a single point of it."""
    west, south, east, north = box
    return west == 180 and east == -180 and south == north


def insides(box: list[float]) -> list[bytes]:
    """Return shapes whose insides make up that of a bbox across the antimeridian.

    These are its halves, if they have a width, and the antimeridian between them.
    """
    west, south, east, north = box
    parts = []
    if west < 180:
        parts.append(upright(west, south, 180, north))
    if east > -180:
        parts.append(upright(-180, south, east, north))
    if len(parts) != 1:  # else it only ends at the antimeridian, which is its border then
        parts.append(shapely.union_all([upright(x, south, x, north) for x in (-180, 180)]))
    return [bytes(shapely.to_wkb(shapely.normalize(part))) for part in parts]


def upright(west: float, south: float, east: float, north: float) -> Any:
    """Return a box; without width or height, a line or a point, as no polygon is that thin."""
    if west < east and south < north:
        return shapely.box(west, south, east, north)
    if west == east and south == north:
        return shapely.Point(west, south)
    return shapely.LineString([(west, south), (east, north)])


def _shape(tree: dict[str, Any]) -> Any:
    try:
        shape = shapely.geometry.shape(tree)
    except (ValueError, TypeError, KeyError, IndexError, shapely.errors.ShapelyError) as error:
        raise FilterError(f"{tree['type']} is malformed: {str(error).splitlines()[0]}") from None
    if shapely.has_z(shape):
        raise FilterError("shapes are flat: give longitude and latitude only")
    if shapely.get_num_coordinates(shape) > VERTICES_MAX:
        raise LimitError(f"a shape has at most {VERTICES_MAX} vertices")
    if shape.is_empty or not np.isfinite(shapely.get_coordinates(shape)).all():
        raise FilterError("a shape is empty or has a coordinate that is no number")
    if not shape.is_valid:
        raise FilterError(f"a shape is not valid: {shapely.is_valid_reason(shape)}")
    return shape


def rectangle(wkb: bytes) -> tuple[float, float, float, float] | None:
    """Return west, south, east and north if the shape is a box, else None."""
    shape = shapely.from_wkb(wkb)
    west, south, east, north = (float(bound) for bound in shape.bounds)
    same = shapely.normalize(upright(west, south, east, north))
    return (west, south, east, north) if shapely.equals_exact(shape, same) else None


def bounds(wkb: bytes) -> tuple[float, float, float, float]:
    """Return the west, south, east and north of a shape."""
    west, south, east, north = shapely.from_wkb(wkb).bounds
    return (float(west), float(south), float(east), float(north))


def text(wkb: bytes) -> str:
    """Format a shape as WKT that `cql2` parses back to the same bytes (it rejects exponents)."""
    return _wkt(shapely.geometry.mapping(shapely.from_wkb(wkb)))


def _wkt(tree: Any) -> str:
    kind = tree["type"]
    if kind == "GeometryCollection":
        return f"GEOMETRYCOLLECTION({','.join(_wkt(part) for part in tree['geometries'])})"
    return f"{kind.upper()}{_nested(tree['coordinates'], top=kind == 'Point')}"


def _nested(coordinates: Any, *, top: bool = False) -> str:
    if isinstance(coordinates[0], float | int):
        pair = " ".join(plain(number) for number in coordinates)
        return f"({pair})" if top else pair
    return f"({','.join(_nested(part) for part in coordinates)})"


def plain(number: float) -> str:
    """Format a number exactly, without an exponent."""
    if number == int(number) and abs(number) < 1e15:
        return str(int(number))
    return format(Decimal(repr(float(number))), "f")
