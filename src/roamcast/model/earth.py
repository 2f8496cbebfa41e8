"""Great-circle distance on a sphere with WGS84's mean radius."""

import math

RADIUS_METRES = 6_371_008.8

Point = tuple[float, float]
"""Longitude and latitude in degrees, WGS84."""


def distance_metres(a: Point, b: Point) -> float:
    """Return the great-circle distance between two points (haversine)."""
    turn = abs(b[0] - a[0])
    lon = math.radians(360 - turn if turn > 180 else turn)  # 180 and -180 are one meridian
    lat_a, lat_b = math.radians(a[1]), math.radians(b[1])
    h = (
        math.sin((lat_b - lat_a) / 2) ** 2
        + _parallel(a[1], lat_a) * _parallel(b[1], lat_b) * math.sin(lon / 2) ** 2
    )
    # Rounding can lift h above 1 for antipodes, where asin is undefined.
    return 2 * RADIUS_METRES * math.asin(min(1.0, math.sqrt(h)))


def _parallel(degrees: float, radians: float) -> float:
    """Return the radius of a parallel. cos(π/2) is 6e-17, so a pole would be 0.4 nm from itself."""
    return 0.0 if abs(degrees) == 90 else math.cos(radians)
