"""Prediction: to which nodes is somebody heading? By heading and speed, or by counted crossings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

STEPS: Final = 24
"""Points that are looked at along the way ahead."""

WIDTH: Final = 0.35
"""How far beside the heading is looked, as a share of the way: people do not walk along rulers."""

COUNT_MIN: Final = 5
"""Crossings below which a place's counts say nothing, about nobody (k)."""


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


def transitions(
    crossings: Iterable[tuple[str, str]], *, count_min: int = COUNT_MIN
) -> dict[str, dict[str, float]]:
    """Count from which place people cross to which node; the share of each, rare ones left out."""
    counts: dict[str, dict[str, int]] = {}
    for place, node in crossings:
        row = counts.setdefault(place, {})
        row[node] = row.get(node, 0) + 1
    shares: dict[str, dict[str, float]] = {}
    for place, row in counts.items():
        whole = sum(row.values())
        kept = {node: count / whole for node, count in sorted(row.items()) if count >= count_min}
        if kept:
            shares[place] = kept
    return shares


def likely(
    place: str, border: Iterable[str], shares: Mapping[str, Mapping[str, float]], *, least: float
) -> tuple[str, ...]:
    """Name the nodes that are likely from a place; all that border it if nothing is known."""
    row = shares.get(place)
    if row is None:
        return tuple(border)
    return tuple(node for node in border if row.get(node, 0.0) >= least)
