"""Parts of a summary: bounds on a group of contexts, their union, and how they are made coarser."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.matching.morton import morton
from roamcast.model import kinds
from roamcast.model.contexts import Context
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import (
    T_D,
    T_R,
    All,
    Any,
    Box,
    Normal,
    Presence,
    Residual,
    Values,
)
from roamcast.model.filters.values import Interval, Intervals, Kind

INTERVALS_MAX: Final = 16
"""Maximum intervals per property of a part; beyond it, those nearest to each other are joined."""

TEXT_MAX: Final = 64
"""Characters of an interval's end; longer texts are bounded by their prefix."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

WORLD: Final = Box(-180.0, -90.0, 180.0, 90.0)


class SummaryPart(msgspec.Struct, frozen=True):
    """Bounds on a group of contexts.

    values: the values of each property under each comparison; t_r and t_d always have one.
    every: the properties that all members have.
    box: holds every point; None: no member has one.
    partial: properties that `values` does not list may have any value.
    """

    values: dict[tuple[str, Kind], Intervals]
    every: frozenset[str]
    box: Box | None = None
    partial: bool = False

    def admits(self, normal: Normal) -> bool:
        """Return whether a member may satisfy a normal form; unknown means yes."""
        match normal:
            case All(parts):
                return all(self.admits(part) for part in parts)
            case Any(parts):
                return any(self.admits(part) for part in parts)
            case Values("vid"):
                return True
            case Values(name, kind, intervals):
                known = self.values.get((name, kind))
                if known is None:
                    return self.partial
                return bool(sets.intersect(known, intervals, kind))
            case Presence(name, False):
                return name != "vid" and name not in self.every
            case Presence(name, _):
                return name == "vid" or self._has(name)
            case Box():
                return _meet(self.box, normal)
            case Residual(_, _, envelope):
                return envelope is None or _meet(self.box, envelope)

    def covers(self, other: "SummaryPart") -> bool:
        """Return whether this part surely admits whatever the other does."""
        if (other.partial and not self.partial) or not self.every <= other.every:
            return False
        if other.box is not None and not _inside(other.box, self.box):
            return False
        for key, intervals in other.values.items():
            known = self.values.get(key)
            if known is None:
                if not self.partial:
                    return False
            elif not sets.subset(intervals, known):
                return False
        # What the other may have forgotten, this one must not bound.
        return not other.partial or self.values.keys() <= other.values.keys()

    def _has(self, name: str) -> bool:
        if name == "geometry":
            return self.box is not None
        return self.partial or any(known == name for known, _ in self.values)


ANYTHING: Final = SummaryPart({}, frozenset(), WORLD, partial=True)
"""Admits every filter."""


def part_of(contexts: Sequence[Context]) -> SummaryPart:
    """Give the bounds on a group of contexts, at least one."""
    found: dict[tuple[str, Kind], set[kinds.Scalar]] = {}
    had: dict[str, int] = {}
    open_from: int | None = None
    points = []
    for context in contexts:
        found.setdefault((T_R, "instant"), set()).add(context.t_r)
        if context.t_d is None:
            open_from = context.t_r if open_from is None else min(open_from, context.t_r)
        else:
            found.setdefault((T_D, "instant"), set()).add(context.t_d)
        if context.point is not None:
            points.append(context.point)
        if context.place is not None:
            had["place"] = had.get("place", 0) + 1
            found.setdefault(("place", "string"), set()).add(context.place)
        for name, value in context.attributes.items():
            had[name] = had.get(name, 0) + 1
            for compared, scalar in kinds.scalars(value):
                found.setdefault((name, compared), set()).add(scalar)
    values = {key: _intervals(seen, key[1]) for key, seen in found.items()}
    if open_from is not None:
        # The end of an open context is any time from its begin on, not the point FOREVER:
        # `before`, `during` and `end_by` may come true when it ends.
        ended = values.get((T_D, "instant"), ())
        values[T_D, "instant"] = sets.union(ended, (Interval(low=open_from),), kind="instant")
    if points:
        had["geometry"] = len(points)
    every = frozenset(name for name, number in had.items() if number == len(contexts))
    return SummaryPart(values, every, _hull(points))


def grouped(contexts: Sequence[Context], most: int) -> list[list[Context]]:
    """Divide contexts into groups that lie near each other, neighbouring groups side by side.

    The group is halved again and again along place, longitude, latitude or begin, whichever it
    spreads over most, so that merging two neighbours undoes the last halving.
    """
    ranks = {path: rank for rank, path in enumerate(sorted({c.place or "" for c in contexts}))}
    rows = [(ranks[c.place or ""], *(c.point or (-180.0, -90.0)), float(c.t_r)) for c in contexts]
    where = np.array(rows, np.float64).reshape(len(rows), 4)
    where /= np.maximum(np.ptp(where, axis=0), 1e-9) if rows else 1.0
    groups = [np.arange(len(rows))]
    while len(groups) * 2 <= most and any(len(group) > 1 for group in groups):
        groups = [half for group in groups for half in _halves(group, where)]
    return [[contexts[at] for at in group.tolist()] for group in groups if len(group)]


def _halves(group: Integers, where: Floats) -> list[Integers]:
    if len(group) < 2:
        return [group]
    inside = where[group]
    widest = int(np.argmax(np.ptp(inside, axis=0)))
    ordered = group[np.argsort(inside[:, widest], kind="stable")]
    return [ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]]


def place_of_part(part: SummaryPart) -> tuple[str, int, int]:
    """Give the order in which the parts of several summaries are merged."""
    place = part.values.get(("place", "string"), ())
    path = place[0].low if place else ""
    begins = part.values.get((T_R, "instant"), ())
    begin = begins[0].low if begins else 0
    box = part.box
    code = -1 if box is None else morton((box.west + box.east) / 2, (box.south + box.north) / 2)
    return (str(path or ""), code, begin if isinstance(begin, int) else 0)


def merged(parts: Sequence[SummaryPart]) -> SummaryPart:
    """Give the bounds on all members of some parts."""
    if len(parts) == 1:
        return parts[0]
    partial = any(part.partial for part in parts)
    values: dict[tuple[str, Kind], Intervals] = {}
    for key in dict.fromkeys(key for part in parts for key in part.values):
        if not any(part.partial and key not in part.values for part in parts):
            known = [part.values[key] for part in parts if key in part.values]
            values[key] = sets.union(*known, kind=key[1])
    every = frozenset.intersection(*(part.every for part in parts))
    corners = [
        corner
        for part in parts
        if (box := part.box) is not None
        for corner in ((box.west, box.south), (box.east, box.north))
    ]
    return SummaryPart(values, every, _hull(corners), partial)


def coarser(part: SummaryPart, intervals_max: int, text_max: int) -> SummaryPart:
    """Allow fewer intervals and shorter texts."""
    values = {}
    for key, intervals in part.values.items():
        # Most texts are short, and what is within the bounds stays as it is: summaries are
        # combined whenever somebody appears where nobody was.
        if key[1] == "string" and any(_is_long(one, text_max) for one in intervals):
            intervals = sets.union(
                *(_shortened(interval, text_max) for interval in intervals), kind="string"
            )
        values[key] = _joined(intervals, key[1], intervals_max)
    return SummaryPart(values, part.every, part.box, part.partial)


def begun_whenever(part: SummaryPart) -> SummaryPart:
    """Allow any begin."""
    values = {**part.values, (T_R, "instant"): (Interval(),)}
    return SummaryPart(values, part.every, part.box, part.partial)


def without(part: SummaryPart, names: frozenset[str]) -> SummaryPart:
    """Forget some properties: they may have any value, or none."""
    values = {key: found for key, found in part.values.items() if key[0] not in names}
    partial = part.partial or bool(names)
    return SummaryPart(values, part.every - names, part.box, partial)


def _intervals(seen: set[kinds.Scalar], kind: Kind) -> Intervals:
    """Give the values as intervals, at most `INTERVALS_MAX`."""
    ordered = sorted(seen)
    if len(ordered) > INTERVALS_MAX:
        gaps = [_gap(low, high) for low, high in pairwise(ordered)]
        widest = sorted(range(len(gaps)), key=lambda at: (-gaps[at], at))
        cuts = [-1, *sorted(widest[: INTERVALS_MAX - 1]), len(ordered) - 1]
        spans = [Interval(ordered[before + 1], ordered[last]) for before, last in pairwise(cuts)]
    else:
        spans = [Interval(value, value) for value in ordered]
    return sets.normalise(spans, kind)


def _joined(intervals: Intervals, kind: Kind, most: int) -> Intervals:
    """Join the intervals nearest to each other until there are at most so many."""
    if len(intervals) <= most:
        return intervals
    gaps = [_gap(left.high, right.low) for left, right in pairwise(intervals)]
    widest = sorted(range(len(gaps)), key=lambda at: (-gaps[at], at))
    cuts = [-1, *sorted(widest[: most - 1]), len(intervals) - 1]
    spans = []
    for before, last in pairwise(cuts):
        low, high = intervals[before + 1], intervals[last]
        spans.append(Interval(low.low, high.high, low.low_closed, high.high_closed))
    return sets.normalise(spans, kind)


def _gap(low: kinds.Scalar | None, high: kinds.Scalar | None) -> float:
    """Give how far apart two values are; texts with a longer prefix in common are nearer."""
    if isinstance(low, str) and isinstance(high, str):
        return -float(_common(low, high))
    assert low is not None
    assert high is not None
    return float(high) - float(low)


def _common(first: str, second: str) -> int:
    for at, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return at
    return min(len(first), len(second))


def _is_long(interval: Interval, text_max: int) -> bool:
    low, high = interval.low, interval.high
    return (isinstance(low, str) and len(low) > text_max) or (
        isinstance(high, str) and len(high) > text_max
    )


def _shortened(interval: Interval, text_max: int) -> Intervals:
    low, high = interval.low, interval.high
    low_closed, high_closed = interval.low_closed, interval.high_closed
    if isinstance(low, str) and len(low) > text_max:
        low, low_closed = low[:text_max], True
    if isinstance(high, str) and len(high) > text_max:
        prefix = sets.prefixed(high[:text_max])[0]
        high, high_closed = prefix.high, prefix.high_closed
    return (Interval(low, high, low_closed, high_closed),)


def _hull(points: Iterable[tuple[float, float]]) -> Box | None:
    listed = list(points)
    if not listed:
        return None
    longitudes, latitudes = zip(*listed, strict=True)
    return Box(min(longitudes), min(latitudes), max(longitudes), max(latitudes))


def _meet(a: Box | None, b: Box) -> bool:
    if a is None:
        return False
    return a.west <= b.east and b.west <= a.east and a.south <= b.north and b.south <= a.north


def _inside(inner: Box, outer: Box | None) -> bool:
    return outer is not None and (
        outer.west <= inner.west
        and inner.east <= outer.east
        and outer.south <= inner.south
        and inner.north <= outer.north
    )
