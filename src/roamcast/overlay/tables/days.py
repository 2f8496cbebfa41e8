"""On which days a node may have had somebody, place by place: what its archive holds, in short.

A cast into the past goes only where a day of the node's meets it (TCC part 10). Terms about times
are asked of stretches, which run over days and over the places of a node. A stretch has no gap, so
all its days are days of the node, without a gap either. So a stretch with a state at this place on
these days begins no earlier than the first of the node's days around them, and ends by the last.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from roamcast.model.areas import PATCHES_MAX, Area, Patch, Span
from roamcast.model.service_areas import box_of, is_polygon

Range = tuple[int, int]
"""The first and the last of some days, numbered from 1970."""

RANGES_MAX: Final = PATCHES_MAX - 1
"""Ranges of one place; beyond it the two that lie closest become one."""

FIRST_DAY: Final = -(2**31)
"""Before any other: who does not know since when it has a past has one since then."""


class Days:
    """Ranges of days, in order, none beside another."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.ranges: list[Range] = []
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> bool:
        """Add days; give whether any of them was new."""
        if any(low <= first and last <= high for low, high in self.ranges):
            return False
        apart = [one for one in self.ranges if one[1] < first - 1 or last + 1 < one[0]]
        joined = [one for one in self.ranges if one not in apart]
        low = min([first, *(one[0] for one in joined)])
        high = max([last, *(one[1] for one in joined)])
        self.ranges = sorted([*apart, (low, high)])
        if len(self.ranges) > RANGES_MAX:
            gaps = [after[0] - one[1] for one, after in zip(self.ranges, self.ranges[1:])]  # noqa: B905 — pairs
            at = gaps.index(min(gaps))
            self.ranges[at : at + 2] = [(self.ranges[at][0], self.ranges[at + 1][1])]
        return True

    def forget_before(self, day: int) -> bool:
        """Forget ranges that ended earlier; give whether there were any."""
        left = [one for one in self.ranges if one[1] >= day]
        changed, self.ranges = left != self.ranges, left
        return changed


def areas_of(
    days: Mapping[str, Days], served: Iterable[str], since: int, *, day_us: int, margin_us: int
) -> dict[str, Area]:
    """Give the area of each place, "" for all; the days from `since` on count for those served.

    Times in an archive are rounded outwards, and clocks differ: by less than the margin.
    """
    served = frozenset(served)
    whole = Days(one for found in days.values() for one in found.ranges)
    end = max([since, *(last for _, last in whole.ranges)])
    if served:
        whole.add(since, end)

    def span(low: int | None, high: int | None) -> Span:
        return (
            None if low is None or low <= FIRST_DAY else low * day_us - margin_us,
            None if high is None or high >= end else (high + 1) * day_us - 1 + margin_us,
        )

    areas = {}
    for place in sorted({*days, *served}):
        here = Days(days[place].ranges if place in days else ())
        if place in served:
            here.add(since, end)
        patches = []
        for first, last in here.ranges:
            low, high = next(one for one in whole.ranges if one[0] <= first and last <= one[1])
            polygon = is_polygon(place)
            boxes = (box_of(place),) if polygon else None
            places = (place,) if place and not polygon else None
            patches.append(Patch(boxes, places, span(low, last), span(first, high)))
        if patches:
            areas[place] = Area(tuple(patches))
    return areas
