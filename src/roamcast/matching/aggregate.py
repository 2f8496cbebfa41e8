"""Summaries of many contexts: bounds that admit every filter that a member satisfies.

Brokers send summaries upwards instead of contexts (TCC II-A). A summary may admit a filter that no
member satisfies, which costs a message. It never rejects one that a member satisfies.
"""

from collections.abc import Iterable

import msgspec

from roamcast.model import kinds
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
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

INTERVALS_MAX = 16
"""Maximum intervals per property; beyond it, values are widened to the range they span."""

PROPERTIES_MAX = 256
"""Maximum properties of a summary; it excludes nothing by properties beyond it."""


class Summary(msgspec.Struct, frozen=True):
    """Bounds on a group of contexts; an empty group admits nothing."""

    count: int = 0
    values: dict[tuple[str, Kind], Intervals] = {}
    held: dict[str, int] = {}
    """Number of members that have a value for each property."""
    box: Box | None = None
    overflowed: bool = False

    def admits(self, wanted: Filter) -> bool:
        """Return whether some member may match; never False if one does."""
        return self.count > 0 and self._admits(wanted.normal)

    def _admits(self, normal: Normal) -> bool:
        match normal:
            case All(parts):
                return all(self._admits(part) for part in parts)
            case Any(parts):
                return any(self._admits(part) for part in parts)
            case Values(name, kind, intervals):
                known = self.values.get((name, kind))
                if known is None:
                    return self.overflowed
                return bool(sets.intersect(known, intervals, kind))
            case Presence(name, present):
                held = self.held.get(name, 0)
                return self.overflowed or (held > 0 if present else held < self.count)
            case Box():
                return _meet(self.box, normal)
            case Residual(_, _, envelope):
                return envelope is None or _meet(self.box, envelope)


EMPTY = Summary()


def summarise(contexts: Iterable[Context]) -> Summary:
    """Summarise contexts."""
    total = EMPTY
    for context in contexts:
        total = combine(total, _of_context(context))
    return total


def combine(left: Summary, right: Summary) -> Summary:
    """Merge two summaries. Every order is safe, but the order affects how fine the result is."""
    values: dict[tuple[str, Kind], Intervals] = {}
    for key in sorted(left.values.keys() | right.values.keys()):
        mine, theirs = left.values.get(key), right.values.get(key)
        forgotten = (mine is None and left.overflowed) or (theirs is None and right.overflowed)
        if not forgotten and len(values) < PROPERTIES_MAX:
            values[key] = _coarser(sets.union(mine or (), theirs or (), kind=key[1]))
    held = {
        name: left.held.get(name, 0) + right.held.get(name, 0)
        for name in sorted(left.held.keys() | right.held.keys())
    }
    overflowed = left.overflowed or right.overflowed
    overflowed = overflowed or len(left.values.keys() | right.values.keys()) > PROPERTIES_MAX
    if overflowed:  # presence no longer excludes anything, so the table need not grow
        held = {}
    return Summary(left.count + right.count, values, held, _hull(left.box, right.box), overflowed)


def _of_context(context: Context) -> Summary:
    values: dict[tuple[str, Kind], Intervals] = {
        (T_R, "instant"): sets.point(context.t_r),
        (T_D, "instant"): sets.point(context.end),
        ("vid", "string"): sets.point(context.vid),
    }
    held = {"vid": 1}
    named = {} if context.place is None else {"place": context.place}
    for name, value in (named | context.attributes).items():
        held[name] = 1
        for compared, scalar in kinds.scalars(value):
            values[name, compared] = sets.point(scalar)
    box = None
    if context.point is not None:
        held["geometry"] = 1
        longitude, latitude = context.point
        box = Box(longitude, latitude, longitude, latitude)
    return Summary(1, values, held, box)


def _coarser(intervals: Intervals) -> Intervals:
    if len(intervals) <= INTERVALS_MAX:
        return intervals
    first, last = intervals[0], intervals[-1]
    return (Interval(first.low, last.high, first.low_closed, last.high_closed),)


def _hull(a: Box | None, b: Box | None) -> Box | None:
    if a is None or b is None:
        return a or b
    return Box(
        min(a.west, b.west), min(a.south, b.south), max(a.east, b.east), max(a.north, b.north)
    )


def _meet(a: Box | None, b: Box) -> bool:
    if a is None:
        return False
    return a.west <= b.east and b.west <= a.east and a.south <= b.north and b.south <= a.north
