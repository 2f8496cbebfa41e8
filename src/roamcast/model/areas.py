"""Areas: where and when contexts can be, as boxes, places and bounds on their lifetime.

An area is a list of patches. A patch bounds a context in each dimension in which it has a value: a
context without a point lies in all boxes, one without a place in all places. A filter's area holds
every context that can satisfy it, so a message need not go where nothing meets its area (TCC II-B
routes by the target area). Areas of an archive stay as they are when a broker's own area changes.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from roamcast.errors import LimitError, MessageError
from roamcast.model.contexts import Context, check_path, path_within
from roamcast.model.filters import Filter
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import Box, Conjunction, Residual, Values
from roamcast.model.filters.lasting import lifetime
from roamcast.model.filters.values import Interval, Intervals

PATCHES_MAX: Final = 64
PIECES_MAX: Final = 64
"""Boxes, and places, of one patch."""

Span = tuple[int | None, int | None]
"""From and to, both included; None is unbounded."""

Edges = tuple[float, float, float, float]
"""West, south, east and north in degrees; a box across the antimeridian is written as two."""

T = TypeVar("T")

ALWAYS: Final[Span] = (None, None)


class Patch(msgspec.Struct, frozen=True, array_like=True):
    """A context is in one of the boxes, in one of the places, and begins and ends in the spans.

    None is no bound; an empty list of boxes or places holds only contexts that have none.
    """

    boxes: Annotated[tuple[Edges, ...], Meta(max_length=PIECES_MAX)] | None = None
    places: Annotated[tuple[str, ...], Meta(max_length=PIECES_MAX)] | None = None
    begins: Span = ALWAYS
    ends: Span = ALWAYS

    def holds(self, context: Context) -> bool:
        """Return whether the context lies in the patch."""
        return self.meets(_at(context))

    def meets(self, other: "Patch") -> bool:
        """Return whether a context may lie in both."""
        return (
            _meet(self.begins, other.begins)
            and _meet(self.ends, other.ends)
            and _any_meet(self.boxes, other.boxes, _touch)
            and _any_meet(self.places, other.places, _related)
        )


class Area(msgspec.Struct, frozen=True, array_like=True):
    """A context lies in an area if it lies in one of its patches."""

    patches: Annotated[tuple[Patch, ...], Meta(max_length=PATCHES_MAX)] = ()

    def holds(self, context: Context) -> bool:
        """Return whether the context lies in the area."""
        return any(patch.holds(context) for patch in self.patches)

    def meets(self, other: "Area") -> bool:
        """Return whether a context may lie in both."""
        return any(one.meets(two) for one in self.patches for two in other.patches)


def _at(context: Context) -> Patch:
    """Return the patch of one context. An open one may end at any time from its begin on."""
    end = context.t_r if context.t_d is None else context.t_d
    return Patch(
        None if context.point is None else ((*context.point, *context.point),),
        None if context.place is None else (context.place,),
        (context.t_r, context.t_r),
        (end, context.t_d),
    )


EVERYWHERE: Final = Area((Patch(),))


def check(area: Area) -> Area:
    """Return the area if it is valid; InputError otherwise."""
    if len(area.patches) > PATCHES_MAX:
        raise LimitError(f"an area exceeds the limit of {PATCHES_MAX} patches")
    for patch in area.patches:
        if max(len(patch.boxes or ()), len(patch.places or ())) > PIECES_MAX:
            raise LimitError(f"a patch exceeds the limit of {PIECES_MAX} boxes or places")
        for west, south, east, north in patch.boxes or ():
            if not (-180 <= west <= east <= 180 and -90 <= south <= north <= 90):
                raise MessageError("a box of an area is west, south, east, north in degrees")
        for path in patch.places or ():
            check_path(path)
        for low, high in (patch.begins, patch.ends):
            if low is not None and high is not None and low > high:
                raise MessageError("a span of an area ends before it begins")
    return area


def area_of(wanted: Filter) -> Area:
    """Return an area that holds every context that can satisfy the filter, now or once it ends."""
    conjunctions = wanted.conjunctions(PATCHES_MAX)
    if conjunctions is None:
        return EVERYWHERE
    patches = (_patch(part) for part in conjunctions)
    return Area(tuple(dict.fromkeys(patch for patch in patches if patch is not None)))


def _patch(conjunction: Conjunction) -> Patch | None:
    starts, ends = lifetime(conjunction)
    edges: Edges | None = None
    places: tuple[str, ...] | None = None
    for atom in conjunction:
        if isinstance(atom, Values) and (atom.property, atom.kind) == ("place", "string"):
            places = _paths(atom.intervals)
        box = atom.envelope if isinstance(atom, Residual) else atom
        if isinstance(box, Box):
            edges = _common(edges, (box.west, box.south, box.east, box.north))
            if edges[0] > edges[2] or edges[1] > edges[3]:
                return None  # no point lies in two boxes that do not meet
    return Patch(None if edges is None else (edges,), places, _span(starts), _span(ends))


def _common(first: Edges | None, second: Edges) -> Edges:
    if first is None:
        return second
    west, south = max(first[0], second[0]), max(first[1], second[1])
    return (west, south, min(first[2], second[2]), min(first[3], second[3]))


def _paths(intervals: Intervals) -> tuple[str, ...] | None:
    """Return places that together hold every path in the set; None if there are no such few."""
    paths: dict[str, None] = {}
    for interval in intervals:
        path = _path(interval)
        if path is None:
            return None
        paths[path] = None
    kept = tuple(path for path in paths if not any(one in paths for one in _holders(path)))
    return kept if len(kept) <= PIECES_MAX else None


def _holders(path: str) -> Iterator[str]:
    """Give the places that hold a place, from the nearest on."""
    while path := path.rpartition("/")[0]:
        yield path


def _path(interval: Interval) -> str | None:
    """Return the deepest place that holds all paths of an interval."""
    low = interval.low
    if not isinstance(low, str):
        return None
    path = low
    while path:
        if not path.endswith("/") and sets.subset((interval,), sets.inside_place(path)):
            return path
        path = path.rpartition("/")[0]
    return None


def _span(intervals: Intervals) -> Span:
    low, high = intervals[0].low, intervals[-1].high
    assert not isinstance(low, str | float)
    assert not isinstance(high, str | float)
    return low, high


def _meet(first: Span, second: Span) -> bool:
    def before(high: int | None, low: int | None) -> bool:
        return high is not None and low is not None and high < low

    return not before(first[1], second[0]) and not before(second[1], first[0])


def _any_meet(
    ours: tuple[T, ...] | None, theirs: tuple[T, ...] | None, meet: Callable[[T, T], bool]
) -> bool:
    if ours is None or theirs is None:
        return True
    return any(meet(one, two) for one in ours for two in theirs)


def _touch(a: Edges, b: Edges) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def _related(first: str, second: str) -> bool:
    return path_within(first, second) or path_within(second, first)
