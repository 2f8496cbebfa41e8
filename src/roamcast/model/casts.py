"""To whom does a message go? A cast: payload, filter, target area, validity; and its parts in time.

A filter without a temporal predicate addresses the present. With one, its past part is what the
archive can answer now and for good: contexts that have ended, and those still open if no end can
change the answer any more. Its future part waits at the brokers (TCC II-C). A hybrid cast is split.
"""

from typing import Literal

import msgspec

from roamcast.errors import LimitError, MessageError
from roamcast.model import time
from roamcast.model.filters import Filter
from roamcast.model.filters import text as writing
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import FALSE, T_D, T_R, All, Any, Normal, Values
from roamcast.model.filters.lasting import lifetime, relates_time
from roamcast.model.filters.normal import all_of, any_of, merge
from roamcast.model.filters.values import Interval

PAYLOAD_BYTES_MAX = 102_400
"""TCC III-E reckons with 100 KB a message."""

LIFETIME_MAX = 60 * 86_400 * time.MICROSECONDS
"""TCC III-E keeps a future message 60 days at the most."""

ID_LENGTH_MAX = 128

Tense = Literal["historic", "present", "future", "hybrid"]


class Cast(msgspec.Struct, frozen=True, tag="cast"):
    """A message to every context that satisfies a filter."""

    id: str
    filter: str
    payload: bytes
    sent: int
    target: tuple[float, float, float, float]
    """West, south, east and north of the target area: TCC routes by it, so it is mandatory."""
    expires: int | None = None
    media_type: str = "text/plain; charset=utf-8"


def check(cast: Cast) -> Filter:
    """Return the cast's filter if the cast is valid; every way in calls this once."""
    if not cast.id or len(cast.id) > ID_LENGTH_MAX:
        raise MessageError(f"a cast needs an id of at most {ID_LENGTH_MAX} characters")
    if len(cast.payload) > PAYLOAD_BYTES_MAX:
        raise LimitError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes")
    west, south, east, north = cast.target
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        raise MessageError("the target area is west, south, east, north in degrees")
    if not time.EARLIEST <= cast.sent <= time.LATEST:
        raise MessageError("the time of sending lies outside the years 1 to 9999")
    if cast.expires is not None and not 0 < cast.expires - cast.sent <= LIFETIME_MAX:
        raise MessageError("a cast expires after it is sent, within 60 days")
    wanted = Filter.parse(cast.filter)
    if wanted.normal == FALSE:
        raise MessageError("the filter contradicts itself: no context can ever match")
    return wanted


def tense(wanted: Filter, now: int) -> Tense:
    """Classify a filter at `now`: can the archive answer it, must it wait, or both?"""
    if not _is_temporal(wanted.normal):
        return "present"
    past, future = _parts(wanted, now)
    if past != FALSE and future != FALSE:
        return "hybrid"
    return "historic" if future == FALSE else "future"


def split(wanted: Filter, now: int) -> tuple[Filter, Filter]:
    """Split a filter into its past part and its future part; together they mean the same.

    An open context may satisfy both, through different alternatives: who delivers, delivers at
    most once per user and cast in any case.
    """
    past, future = _parts(wanted, now)
    return _filter(past), _filter(future)


def _parts(wanted: Filter, now: int) -> tuple[Normal, Normal]:
    conjunctions = wanted.conjunctions()
    if conjunctions is None:  # too many alternatives to look into each
        return all_of([wanted.normal, _ends_before(now)]), all_of([wanted.normal, _lasts(now)])
    past: list[Normal] = []
    future: list[Normal] = []
    for conjunction in conjunctions:
        _, ends = lifetime(conjunction)
        ahead = sets.intersect(ends, (Interval(low=now),), "instant")
        known = not any(relates_time(atom) for atom in conjunction)
        if known and ahead == (Interval(low=now),):  # no end from now on can change the answer
            halves = _begins_before(now), _begins(now)
        else:
            halves = _ends_before(now), _lasts(now)
        for part, half in zip((past, future), halves, strict=True):
            merged = merge((*conjunction, half))
            if merged is not None:
                part.append(all_of(merged))
    return any_of(past), any_of(future)


def _ends_before(now: int) -> Values:
    return Values(T_D, "instant", (Interval(high=now - 1),))


def _lasts(now: int) -> Values:
    return Values(T_D, "instant", (Interval(low=now),))


def _begins_before(now: int) -> Values:
    return Values(T_R, "instant", (Interval(high=now - 1),))


def _begins(now: int) -> Values:
    return Values(T_R, "instant", (Interval(low=now),))


def _filter(normal: Normal) -> Filter:
    return Filter.parse(writing.of(normal))


def _is_temporal(normal: Normal) -> bool:
    match normal:
        case All(parts) | Any(parts):
            return any(_is_temporal(part) for part in parts)
        case Values(name, _, _):
            return name in (T_R, T_D)
        case _:
            return relates_time(normal)
