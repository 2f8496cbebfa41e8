"""Prediction by heading and speed: which nodes lie ahead of somebody who moves?"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from roamcast.model.earth import RADIUS_METRES, Point, distance_metres
from roamcast.model.time import MICROSECONDS

STEPS: Final = 24
"""Points that are looked at along the way ahead."""

WIDTH: Final = 0.35
"""How far beside the heading is looked, as a share of the way: people do not walk along rulers."""

HORIZON_S: Final = 30.0
"""How far ahead is looked, in time: what one reaches later is asked again before."""

STEP_M: Final = 2.0
"""Who came less far since the last report may as well stand: positions are not exact."""

OLD_US: Final = 60 * MICROSECONDS
"""A position that is older says nothing about where somebody is going now."""

NodesAt = Callable[[Sequence[Point]], Iterable[str | None]]
"""Points → the nodes that serve there, None where that is not known."""


class Seen(msgspec.Struct, frozen=True):
    """Where somebody was, and when."""

    point: Point
    at_us: int


def heading_for(before: Seen | None, now: Seen, nodes_at: NodesAt) -> frozenset[str] | None:
    """Name the nodes that lie ahead by two positions; None: they say nothing."""
    if before is None or not 0 < now.at_us - before.at_us <= OLD_US:
        return None
    if distance_metres(before.point, now.point) < STEP_M:
        return None
    seconds = (now.at_us - before.at_us) / MICROSECONDS
    east_m = math.radians(1) * RADIUS_METRES * math.cos(math.radians(now.point[1]))
    north_m = math.radians(1) * RADIUS_METRES
    turn = (now.point[0] - before.point[0] + 180) % 360 - 180
    velocity = (turn * east_m / seconds, (now.point[1] - before.point[1]) * north_m / seconds)

    def nodes_around(points: Sequence[tuple[float, float]]) -> Iterable[str | None]:
        degrees = [
            ((now.point[0] + x / max(east_m, 1.0) + 180) % 360 - 180,
             max(-90.0, min(90.0, now.point[1] + y / north_m)))
            for x, y in points
        ]  # fmt: skip
        return nodes_at(degrees)

    reach_m = math.hypot(*velocity) * HORIZON_S
    return frozenset(nodes_ahead((0.0, 0.0), velocity, nodes_around, "", reach_m=reach_m))


def nodes_ahead(
    at: tuple[float, float],
    velocity: tuple[float, float],
    nodes_at: Callable[[Sequence[tuple[float, float]]], Iterable[str | None]],
    own: str,
    *,
    reach_m: float,
) -> tuple[str, ...]:
    """Name the nodes whose areas lie ahead within a distance; somebody who stands has none."""
    speed = float((velocity[0] ** 2 + velocity[1] ** 2) ** 0.5)
    if not speed:
        return ()
    ahead = (velocity[0] / speed, velocity[1] / speed)
    points: list[tuple[float, float]] = []
    for number in range(1, STEPS + 1):
        away = reach_m * number / STEPS
        for side in (0.0, WIDTH, -WIDTH):
            x = at[0] + away * (ahead[0] - side * ahead[1])
            y = at[1] + away * (ahead[1] + side * ahead[0])
            points.append((x, y))
    found = {node for node in nodes_at(points) if node is not None}
    return tuple(sorted(found - {own}))
