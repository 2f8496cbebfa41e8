"""Sets of values as unions of intervals, with their algebra.

Every comparison of one property with constants is such a set: `a > 3`, `a IN (1, 2)`,
`a LIKE 'ab%'`, `within(place, 'campus/b35')`, and TCC's temporal predicates as sets of t_r and t_d.
Merging, contradiction and covering are then plain set operations.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from roamcast.model import kinds
from roamcast.model.kinds import DISCRETE

Scalar = kinds.Scalar
Kind = kinds.Comparison
"""How values are compared; the table of attribute kinds is `model.kinds`."""


class Interval(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Values from `low` to `high`; None is unbounded, and that side counts as closed."""

    low: Scalar | None = None
    high: Scalar | None = None
    low_closed: bool = True
    high_closed: bool = True

    def __contains__(self, value: Scalar) -> bool:
        """Return whether the value lies inside."""
        return _starts_before(self, value) and _ends_after(self, value)


Intervals = tuple[Interval, ...]
"""A set of values: disjoint intervals in ascending order, none touching the next."""

SEARCHED_FROM = 4
"""Beyond so many intervals a value is searched by halving."""

EMPTY: Intervals = ()
FULL: Intervals = (Interval(),)


def point(value: Scalar) -> Intervals:
    """Return the set of one value."""
    return (Interval(value, value),)


def below(value: Scalar, *, closed: bool) -> Intervals:
    """Return all values up to one, with it or without."""
    return (Interval(high=value, high_closed=closed),)


def above(value: Scalar, *, closed: bool) -> Intervals:
    """Return all values from one on, with it or without."""
    return (Interval(low=value, low_closed=closed),)


def between(low: Scalar, high: Scalar) -> Intervals:
    """Return all values from low to high, both included; empty if low is above high."""
    return normalise([Interval(low, high)])


def prefixed(prefix: str) -> Intervals:
    """Return all strings with a prefix: one interval in the order of code points."""
    end = _after_prefix(prefix)
    if not prefix:
        return (Interval("", None),)
    return (Interval(prefix, end, high_closed=end is None),)


def inside_place(path: str) -> Intervals:
    """Return the paths of a place and of all places within it."""
    return union(point(path), prefixed(path + "/"))


def contains(intervals: Intervals, value: Scalar) -> bool:
    """Return whether the value is in the set."""
    if len(intervals) > SEARCHED_FROM:  # they ascend: only the last that begins before it can
        at = bisect_right(intervals, (0, value, 0), key=_low_cut)
        return at > 0 and value in intervals[at - 1]
    return any(value in interval for interval in intervals)


def normalise(intervals: Iterable[Interval], kind: Kind | None = None) -> Intervals:
    """Sort, drop empty intervals, join those that overlap or touch."""
    if kind in DISCRETE:
        intervals = [_closed(interval) for interval in intervals]
    kept = [interval for interval in intervals if not _empty(interval)]
    if len(kept) < 2:  # the common case
        return tuple(kept)
    kept.sort(key=_low_cut)
    joined: list[Interval] = []
    for interval in kept:
        if joined and _touch(joined[-1], interval, kind):
            last = joined.pop()
            longer = max(last, interval, key=_high_cut)
            interval = Interval(last.low, longer.high, last.low_closed, longer.high_closed)
        joined.append(interval)
    return tuple(joined)


def union(*sets: Intervals, kind: Kind | None = None) -> Intervals:
    """Return the values of any of the sets."""
    return normalise((interval for intervals in sets for interval in intervals), kind)


def intersect(left: Intervals, right: Intervals, kind: Kind | None = None) -> Intervals:
    """Return the values of both sets."""
    if len(left) == 1 and len(right) == 1:  # the common case
        return normalise([_overlap(left[0], right[0])], kind)
    return intersect_all((left, right), kind)


def intersect_all(sets: Sequence[Intervals], kind: Kind | None = None) -> Intervals:
    """Return the values of all sets, by one sweep over their ends.

    Folding the sets pairwise would cost the square of their number: `a <> 0 AND a <> 1 …` has one
    interval more at every step.
    """
    ends = [(_low_cut(span), 1, span) for intervals in sets for span in intervals]
    ends += [(_high_cut(span), -1, span) for intervals in sets for span in intervals]
    ends.sort(key=lambda end: end[:2])  # at one cut, what ends goes before what begins
    pieces: list[Interval] = []
    covered, last = 0, Interval()
    for _, step, span in ends:
        if step < 0 and covered == len(sets):
            pieces.append(Interval(last.low, span.high, last.low_closed, span.high_closed))
        covered += step
        last = span if step > 0 else last
    return normalise(pieces, kind)


def _overlap(a: Interval, b: Interval) -> Interval:
    later, earlier = max(a, b, key=_low_cut), min(a, b, key=_high_cut)
    return Interval(later.low, earlier.high, later.low_closed, earlier.high_closed)


def complement(intervals: Intervals, kind: Kind) -> Intervals:
    """Return the values of this kind that are not in the set."""
    gaps = []
    low: Scalar | None = None
    low_closed = True
    unbounded = False
    for interval in intervals:
        if interval.low is not None:
            gaps.append(Interval(low, interval.low, low_closed, not interval.low_closed))
        low, low_closed = interval.high, not interval.high_closed
        unbounded = interval.high is None
    if not unbounded:
        gaps.append(Interval(low, None, low_closed, True))
    if kind == "boolean":
        return intersect(tuple(gaps), (Interval(0, 1),), kind)
    return normalise(gaps, kind)


def subset(inner: Intervals, outer: Intervals) -> bool:
    """Return whether every value of `inner` is in `outer`; both normalised."""
    if len(inner) == 1:  # the common case
        at = bisect_left(outer, _high_cut(inner[0]), key=_high_cut)
        return at < len(outer) and _low_cut(outer[at]) <= _low_cut(inner[0])
    at = 0
    for span in inner:  # both ascend, so no interval of `outer` is looked at for two of `inner`
        while at < len(outer) and _high_cut(outer[at]) < _high_cut(span):
            at += 1
        if at == len(outer) or _low_cut(outer[at]) > _low_cut(span):
            return False
    return True


Cut = tuple[int, Scalar, int]
"""An interval's end as a position between values: (-1 for -∞, 0 at a value, 1 for ∞; the value;
0 just before it, 1 just after it)."""


def _low_cut(interval: Interval) -> Cut:
    if interval.low is None:
        return (-1, 0, 0)
    return (0, interval.low, 0 if interval.low_closed else 1)


def _high_cut(interval: Interval) -> Cut:
    if interval.high is None:
        return (1, 0, 0)
    return (0, interval.high, 1 if interval.high_closed else 0)


def _empty(interval: Interval) -> bool:
    return _low_cut(interval) >= _high_cut(interval)


def _touch(left: Interval, right: Interval, kind: Kind | None) -> bool:
    if _low_cut(right) <= _high_cut(left):
        return True
    if kind not in DISCRETE or left.high is None or right.low is None:
        return False
    assert isinstance(left.high, int)
    return right.low == left.high + 1


def _closed(interval: Interval) -> Interval:
    low, high = interval.low, interval.high
    if low is not None and not interval.low_closed:
        assert isinstance(low, int)
        low += 1
    if high is not None and not interval.high_closed:
        assert isinstance(high, int)
        high -= 1
    return Interval(low, high)


def _starts_before(interval: Interval, value: Scalar) -> bool:
    low = interval.low
    if low is None:
        return True
    return low < value or (interval.low_closed and low == value)  # type: ignore[operator]


def _ends_after(interval: Interval, value: Scalar) -> bool:
    high = interval.high
    if high is None:
        return True
    return value < high or (interval.high_closed and high == value)  # type: ignore[operator]


def _after_prefix(prefix: str) -> str | None:
    """Return the smallest text after all that begin with `prefix`, if there is one."""
    for end in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[end]) + 1
        if code == 0xD800:  # skip the surrogates, which are not characters
            code = 0xE000
        if code <= 0x10FFFF:
            return prefix[:end] + chr(code)
    return None
