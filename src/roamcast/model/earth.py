"""Great-circle distance on a sphere with WGS84's mean radius."""

import math

RADIUS_METRES = 6_371_008.8

Point = tuple[float, float]
"""Longitude and latitude in degrees, WGS84."""


def distance_metres(a: Point, b: Point) -> float:
    """Return the great-circle distance between two points (haversine)."""
    lon_a, lat_a, lon_b, lat_b = map(math.radians, (*a, *b))
    h = (
        math.sin((lat_b - lat_a) / 2) ** 2
        + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    )
    # Rounding can lift h above 1 for antipodes, where asin is undefined.
    return 2 * RADIUS_METRES * math.asin(min(1.0, math.sqrt(h)))
