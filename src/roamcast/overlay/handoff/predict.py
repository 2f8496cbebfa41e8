"""Prediction by heading: which nodes lie ahead of somebody who moves?"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

STEPS: Final = 24
"""Points that are looked at along the way ahead."""

WIDTH: Final = 0.35
"""How far beside the heading is looked, as a share of the way: people do not walk along rulers."""


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
