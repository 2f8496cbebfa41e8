"""Service areas of a node: places, and polygons of longitudes and latitudes.

Either is one text: a place's path, or `POLYGON ((…))` or `MULTIPOLYGON (((…)))` in WKT. A context
that has a place is judged by the places, one that has a point by the polygons; it is served if one
of them holds it. Nothing tells against a context that no area can judge.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import shapely

from roamcast.errors import InputError, LimitError, MessageError
from roamcast.model.areas import Edges
from roamcast.model.contexts import check_path, path_within

VERTICES_MAX: Final = 256
TEXT_LENGTH_MAX: Final = 64 * VERTICES_MAX
POLYGONS_MAX: Final = 16
"""Polygons of one node."""

Point = tuple[float, float]

_WKT: Final = ("POLYGON", "MULTIPOLYGON")


def is_polygon(area: str) -> bool:
    """Whether an area is a polygon and no place's path."""
    return area.startswith(_WKT) and "(" in area


def check_area(area: str) -> str:
    """Return the area if it is valid; InputError otherwise."""
    if not is_polygon(area):
        if is_polygon(area.strip().upper()):
            raise MessageError("a polygon of an area begins with POLYGON or MULTIPOLYGON")
        return check_path(area)
    if len(area) > TEXT_LENGTH_MAX:
        raise LimitError(f"a polygon has at most {TEXT_LENGTH_MAX} characters")
    shape = _shape(area)
    if shape.is_empty or shapely.has_z(shape):
        raise MessageError("a polygon of an area has corners: longitude and latitude of each")
    if shapely.get_num_coordinates(shape) > VERTICES_MAX:
        raise LimitError(f"a polygon of an area has at most {VERTICES_MAX} corners")
    if not shape.is_valid:
        raise MessageError(f"a polygon is not valid: {shapely.is_valid_reason(shape)}")
    west, south, east, north = shape.bounds
    if not (-180 <= west <= east <= 180 and -90 <= south <= north <= 90):
        raise MessageError("a polygon of an area has longitudes and latitudes in degrees")
    return area


def check_areas(areas: Iterable[str]) -> None:
    """Raise InputError unless all are valid, and not too many."""
    polygons = [area for area in areas if is_polygon(check_area(area))]
    if len(polygons) > POLYGONS_MAX:
        raise LimitError(f"a node serves at most {POLYGONS_MAX} polygons")


def judges(area: str, place: str | None, point: Point | None) -> bool | None:
    """Whether an area holds what is at a place and a point; None: it cannot tell."""
    if is_polygon(area):
        return None if point is None else bool(_shape(area).covers(shapely.Point(point)))
    return None if place is None else path_within(place, area)


def serves(areas: Iterable[str], place: str | None, point: Point | None) -> bool:
    """Whether areas serve what is at a place and a point: some does, or none can tell."""
    known = False
    for area in areas:
        found = judges(area, place, point)
        if found:
            return True
        known = known or found is not None
    return not known


def box_of(polygon: str) -> Edges:
    """Give the west, south, east and north of a polygon."""
    west, south, east, north = _shape(polygon).bounds
    return (float(west), float(south), float(east), float(north))


@lru_cache(1_024)
def _shape(polygon: str) -> Any:
    try:
        shape = shapely.from_wkt(polygon)
    except shapely.errors.ShapelyError as error:
        raise InputError(f"not a polygon in WKT: {str(error).splitlines()[0]}") from None
    shapely.prepare(shape)
    return shape
