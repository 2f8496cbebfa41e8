"""Circles (`near`) for many candidates at once.

The reference evaluator defines the distance (`model.earth`). A compiled sine may differ from its in
the last bits, so the kernel only decides what is clear: points within a relative margin of the
border are left to the reference, and the answers are the same to the last bit (decision 0156).
"""

import math

from roamcast.matching.layout import Array
from roamcast.model.earth import RADIUS_METRES
from roamcast.model.filters.syntax import Near
from roamcast.model.kernels import kernel

OUT, IN, DOUBTFUL = 0, 1, 2
MARGIN = 1e-12
"""Relative width of the border; both ways to compute a haversine agree to some 1e-15."""

SMALLEST = 1e-280
"""Below, squares underflow and no relative margin holds: everything is doubtful."""

PARAMETERS = 5
"""Of a circle: longitude, latitude, latitude in radians, radius of its parallel, haversine."""


def parameters(near: Near) -> tuple[float, ...]:
    """Give what the kernel needs to know of a circle."""
    latitude = math.radians(near.latitude)
    parallel = 0.0 if abs(near.latitude) == 90 else math.cos(latitude)
    half = near.metres / RADIUS_METRES / 2
    reach = math.inf if half > 1.6 else math.sin(half) ** 2  # 1.6 > π/2: the whole earth
    return (near.longitude, near.latitude, latitude, parallel, reach)


@kernel
def locate(circles: Array, which: Array, lon: Array, lat: Array, sides: Array) -> None:
    """Say of each point whether it is in its circle, out of it, or too near the border to say."""
    for i in range(len(which)):
        circle = which[i]
        reach = circles[circle, 4]
        turn = abs(circles[circle, 0] - lon[i])
        if turn > 180:
            turn = 360 - turn
        latitude = math.radians(lat[i])
        parallel = 0.0 if abs(lat[i]) == 90 else math.cos(latitude)
        rise = math.sin((circles[circle, 2] - latitude) / 2)
        along = math.sin(math.radians(turn) / 2)
        found = rise * rise + parallel * circles[circle, 3] * (along * along)
        if reach < SMALLEST:
            sides[i] = DOUBTFUL if found < 2 * SMALLEST else OUT
        elif found < reach * (1 - MARGIN):
            sides[i] = IN
        elif found > reach * (1 + MARGIN):
            sides[i] = OUT
        else:
            sides[i] = DOUBTFUL
