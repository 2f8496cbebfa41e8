"""Summaries of many contexts: bounds that admit every filter that a member satisfies.

Brokers send summaries upwards instead of contexts (TCC II-A). A summary may admit a filter that no
member satisfies, which costs a message. It never refuses one that a member satisfies, or will
satisfy once it ends: the end of an open context is any time from its begin on.

A summary consists of parts, each with bounds on a group of members that lie near each other. It is
brought within a number of bytes by one chain of steps, each of which merges parts, joins intervals
or forgets properties. A smaller budget goes further along the same chain, so it only admits more.
Vids are not among the bounds: a summary names nobody.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from roamcast.errors import InputError
from roamcast.matching import aggregate_wire as wire
from roamcast.matching.aggregate_parts import (
    ANYTHING,
    INTERVALS_MAX,
    TEXT_MAX,
    WORLD,
    SummaryPart,
    begun_whenever,
    coarser,
    grouped,
    merged,
    part_of,
    place_of_part,
    without,
)
from roamcast.matching.aggregate_wire import PARTS_MAX, PROPERTIES_MAX
from roamcast.model.contexts import Context, segments
from roamcast.model.filters import Filter
from roamcast.model.filters import values as sets
from roamcast.model.filters.values import Intervals

BUDGET: Final = 16 * 1024
"""Bytes of a summary, unless told otherwise."""

BUDGET_MIN: Final = 128
"""Bytes into which every summary fits: by then it admits everything."""

_PLACE: Final = ("place", "string")

_STEPS: Final = (
    *((64, 16), (64, 8), (48, 8), (32, 8), (32, 4), (24, 4), (16, 4), (12, 4), (8, 4), (8, 2)),
    *((6, 2), (4, 2), (3, 2), (2, 2), (2, 1), (1, 2), (1, 1)),
)
"""Maximum parts, and intervals per property of each, from fine to coarse."""


class Summary(msgspec.Struct, frozen=True):
    """Bounds on a group of contexts; an empty group admits nothing.

    watermark: every begin and end before this time is accounted for; None: nothing is known of it.
    """

    count: int = 0
    parts: tuple[SummaryPart, ...] = ()
    watermark: int | None = None

    def admits(self, wanted: Filter) -> bool:
        """Return whether some member may match, now or once it ends; never False if one does."""
        normal = wanted.normal
        return any(part.admits(normal) for part in self.parts)

    def covers(self, other: "Summary") -> bool:
        """Return whether this surely admits whatever the other does; watermarks do not matter."""
        return all(any(mine.covers(part) for mine in self.parts) for part in other.parts)

    def holds(self, context: Context) -> bool:
        """Return whether the bounds are wide enough for a context already."""
        part = part_of((context,))
        place = part.values.get(_PLACE, ())
        # Parts differ by place most, and the place of one context is soon compared.
        return any(
            sets.subset(place, mine.values.get(_PLACE, place)) and mine.covers(part)
            for mine in self.parts
        )


EMPTY = Summary()


def summarise(
    contexts: Iterable[Context], *, budget: int = BUDGET, watermark: int | None = None
) -> Summary:
    """Summarise contexts in at most so many bytes."""
    members = list(contexts)
    parts = [part_of(group) for group in grouped(members, PARTS_MAX)]
    return _fitted(len(members), watermark, parts, budget)


def combine(left: Summary, right: Summary, *, budget: int = BUDGET) -> Summary:
    """Merge two summaries. Every order is safe, but the order affects how fine the result is."""
    known = [left.watermark, right.watermark]
    watermark = None if None in known else min(mark for mark in known if mark is not None)
    parts = sorted((*left.parts, *right.parts), key=place_of_part)
    return _fitted(left.count + right.count, watermark, parts, budget)


def begun_any_time(summary: Summary) -> Summary:
    """Forget when members began."""
    parts = tuple(begun_whenever(part) for part in summary.parts)
    return msgspec.structs.replace(summary, parts=parts)


def anything_in(places: Sequence[str]) -> Summary:
    """Admit whatever may be in these places, or in a wider one to which rules cut a path.

    Without places it admits everything.
    """
    if not places:
        return Summary(1, (ANYTHING,))
    found: list[Intervals] = []
    for path in places:
        parts = segments(path)
        found.append(sets.inside_place(path))
        found += (sets.point("/".join(parts[:end])) for end in range(1, len(parts)))
    bounds = sets.union(*found, kind="string")
    part = SummaryPart({("place", "string"): bounds}, frozenset(), WORLD, partial=True)
    return Summary(1, (coarser(part, INTERVALS_MAX, TEXT_MAX),))


def pack(summary: Summary) -> bytes:
    """Write a summary as bytes."""
    return wire.pack(summary.count, summary.watermark, summary.parts)


def unpack(data: bytes) -> Summary:
    """Read a summary that a neighbour sent; InputError if it is malformed."""
    count, watermark, parts = wire.unpack(data)
    if (count == 0) is not (not parts):
        raise InputError("a summary has parts if and only if it has members")
    return Summary(count, parts, watermark)


def _fitted(count: int, watermark: int | None, parts: list[SummaryPart], budget: int) -> Summary:
    assert budget >= BUDGET_MIN
    for tried in _chain(parts):
        if len(wire.pack(count, watermark, tried)) <= budget:
            return Summary(count, tuple(tried), watermark)
    raise AssertionError("a summary that admits everything fits into every budget")


def _chain(parts: list[SummaryPart]) -> Iterator[list[SummaryPart]]:
    """Give the parts, then coarser and coarser ones: each admits all that the ones before do."""
    parts = _fewer([coarser(part, INTERVALS_MAX, TEXT_MAX) for part in parts], PARTS_MAX)
    yield (parts := _listing(parts, PROPERTIES_MAX))
    for parts_max, intervals_max in _STEPS:
        fewer = _fewer(parts, parts_max)
        yield (parts := [coarser(part, intervals_max, TEXT_MAX) for part in fewer])
    for text_max in (16, 4):
        yield (parts := [coarser(part, 1, text_max) for part in parts])
    properties = max((len(part.values) for part in parts), default=0)
    while properties > 2:
        properties //= 2
        yield (parts := _listing(parts, properties))
    yield [ANYTHING] if parts else []


def _fewer(parts: list[SummaryPart], most: int) -> list[SummaryPart]:
    count = len(parts)
    if count <= most:
        return parts
    bounds = [at * count // most for at in range(most + 1)]
    return [merged(parts[a:b]) for a, b in pairwise(bounds)]


def _listing(parts: list[SummaryPart], most: int) -> list[SummaryPart]:
    """Forget the last properties by name beyond a number; t_r, t_d and place stay longest."""
    first = ("t_r", "t_d", "place")
    keys = {key for part in parts for key in part.values}
    ordered = sorted(keys, key=lambda key: (key[0] not in first, key))
    names = frozenset(name for name, _ in ordered[most:])
    if not names:
        return parts
    return [without(part, names) for part in parts]
