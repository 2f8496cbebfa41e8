"""Coarser places and points where a crowd is thin: few people in a place give each other away.

Where few people are, no grid of times hides who went where: the only context that begins next door
when one ends is the same person's. So a place is shortened, and a point moved to the middle of a
cell, until at least `crowd_min` contexts are there when this one begins and when it ends. A person
has one context at a time, so contexts at one moment are people. Who is shown on the floor only may
be in any room of it and counts for each: that the first who comes to a room in the morning is shown
on the floor does not make the second one the first.

The price is in addressing: who asks for a room no longer finds who was nearly alone in it, only who
asks for the building does. So it is off unless it is asked for (decision 0187).
"""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Degrees = npt.NDArray[np.float64]

CELLS_DEG = (0.001, 0.005, 0.02, 0.1, 0.5)
"""Sides of the cells that a point is moved to the middle of, one after the other."""


def coarsened(
    places: list[str | None],
    lons: Degrees | None,
    lats: Degrees | None,
    begin: Integers,
    end: Integers,
    crowd_min: int,
) -> tuple[list[str | None], Degrees | None, Degrees | None]:
    """Give places and points that at least so many share; NaN is a point that is not there.

    What has a place loses its point with the first segment that is cut off: the point would tell
    what was cut. The first segment of a place, and the widest cell of a point, stay in any case.
    Doing it twice changes nothing.
    """
    out = list(places)
    placed = np.array([place is not None for place in places], bool)
    lon, lat = _copy(lons), _copy(lats)
    depth = max((place.count("/") + 1 for place in out if place is not None), default=0)
    for level in range(depth, 1, -1):
        thin = _thin(out, level, begin, end, crowd_min)
        for row in thin.tolist():
            out[row] = _cut(out[row], level - 1)
        if lon is not None and lat is not None:
            lon[thin] = lat[thin] = np.nan
    if lon is not None and lat is not None:
        _move(lon, lat, np.flatnonzero(~placed & ~np.isnan(lon)), begin, end, crowd_min)
    return out, lon, lat


def _thin(
    places: list[str | None], level: int, begin: Integers, end: Integers, crowd_min: int
) -> Integers:
    """Give the rows at a level of the hierarchy that are in too small a crowd."""
    inside: dict[str, list[int]] = {}  # places of this level → who is shown there or deeper
    wider: dict[str, list[int]] = {}  # those above it → who is shown there and no deeper
    own: dict[str, list[int]] = {}
    for row, place in enumerate(places):
        if place is None:
            continue
        depth = place.count("/") + 1
        if depth < level:
            wider.setdefault(place, []).append(row)
            continue
        inside.setdefault("/".join(place.split("/", level)[:level]), []).append(row)
        if depth == level:
            own.setdefault(place, []).append(row)
    thin: list[int] = []
    for place, rows in own.items():
        segments = place.split("/")
        above = (wider.get("/".join(segments[:count]), []) for count in range(1, level))
        there = np.array([*inside[place], *chain.from_iterable(above)], np.int64)
        counts = _at_both_ends(begin, end, there, np.array(rows, np.int64))
        thin += [row for row, count in zip(rows, counts.tolist(), strict=True) if count < crowd_min]
    return np.array(thin, np.int64)


def _move(
    lon: Degrees, lat: Degrees, left: Integers, begin: Integers, end: Integers, crowd_min: int
) -> None:
    exact = [(x, y) for x, y in zip(lon.tolist(), lat.tolist(), strict=True)]
    left = left[_crowd(exact, begin, end, left) < crowd_min]
    for side in CELLS_DEG:
        if not len(left):
            return
        cells = np.stack([np.floor(lon / side), np.floor(lat / side)], axis=1)
        names: list[Any] = [tuple(cell) for cell in cells.tolist()]
        for axis, values in ((0, lon), (1, lat)):
            values[left] = (cells[left, axis] + 0.5) * side
        left = left[_crowd(names, begin, end, left) < crowd_min]


def _crowd(names: list[Any], begin: Integers, end: Integers, rows: Integers) -> Integers:
    """Count for some rows who is in the same place at both of their ends, the smaller number."""
    groups: dict[Any, list[int]] = {}
    for number, name in enumerate(names):
        if name is not None:
            groups.setdefault(name, []).append(number)
    found = np.zeros(len(names), np.int64)
    for name in {names[row] for row in rows.tolist()}:
        own = np.array(groups[name], np.int64)
        found[own] = _at_both_ends(begin, end, own, own)
    return found[rows]


def _at_both_ends(begin: Integers, end: Integers, there: Integers, rows: Integers) -> Integers:
    """Count who is there when each of these rows begins and when it ends, the smaller number."""
    begins, ends = np.sort(begin[there]), np.sort(end[there])
    at = [
        np.searchsorted(begins, moment[rows], side="right")
        - np.searchsorted(ends, moment[rows], side="left")
        for moment in (begin, end)
    ]
    return np.asarray(np.minimum(*at), np.int64)


def _cut(place: str | None, level: int) -> str | None:
    return None if place is None else "/".join(place.split("/", level)[:level])


def _copy(values: Degrees | None) -> Degrees | None:
    return None if values is None else values.copy()
