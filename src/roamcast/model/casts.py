"""Casts: messages to every context that satisfies a filter, and their division in time (TCC II-C).

A filter without a temporal predicate addresses the present. With one, it has two parts. The past
part is what the archive can answer now, for good: contexts that have ended, and open ones whose
answer no later end can change. The future part waits at the brokers. A hybrid cast has both.
"""

from typing import Literal

import msgspec

from roamcast.errors import LimitError, MessageError
from roamcast.model import time
from roamcast.model.areas import Area, area_of
from roamcast.model.areas import check as check_area
from roamcast.model.filters import Filter, recent
from roamcast.model.filters import text as writing
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import FALSE, T_D, T_R, All, Any, Normal, Values
from roamcast.model.filters.lasting import lifetime, relates_time
from roamcast.model.filters.normal import all_of, any_of, merge
from roamcast.model.filters.values import Interval

PAYLOAD_BYTES_MAX = 102_400
"""TCC III-E assumes 100 KB per message."""

LIFETIME_MAX = 60 * 86_400 * time.MICROSECONDS
"""TCC III-E caches a future message for at most 60 days."""

ID_LENGTH_MAX = 128

Tense = Literal["historic", "present", "future", "hybrid"]
Priority = Literal["routine", "notice", "warning", "emergency"]
"""The highest overrides people's quiet hours; nothing else does."""


class PlaceCount(msgspec.Struct, frozen=True):
    """Pseudonyms at one place."""

    place: str
    about: int


class Counted(msgspec.Struct, frozen=True):
    """About how many pseudonyms; 0: too few to be told, perhaps nobody."""

    about: int
    places: tuple[PlaceCount, ...]


class Cast(msgspec.Struct, frozen=True, tag="cast"):
    """A message to every context that satisfies a filter."""

    id: str
    filter: str
    payload: bytes
    sent: int
    target: Area | None = None
    """A narrower area to route by than the filter's own; contexts outside it may be missed."""
    expires: int | None = None
    media_type: str = "text/plain; charset=utf-8"


def check(cast: Cast) -> Filter:
    """Return the cast's filter, or raise if the cast is invalid; every entry point calls this."""
    if not cast.id or len(cast.id) > ID_LENGTH_MAX:
        raise MessageError(f"a cast needs an id of at most {ID_LENGTH_MAX} characters")
    if len(cast.payload) > PAYLOAD_BYTES_MAX:
        raise LimitError(f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes")
    if cast.target is not None:
        check_area(cast.target)
    if not time.EARLIEST <= cast.sent <= time.LATEST:
        raise MessageError("the time of sending lies outside the years 1 to 9999")
    if cast.expires is not None and not 0 < cast.expires - cast.sent <= LIFETIME_MAX:
        raise MessageError("a cast expires after it is sent, within 60 days")
    wanted = recent.read(cast.filter)  # a driver has read it already, beside its loop
    if wanted.normal == FALSE:
        raise MessageError("the filter contradicts itself: no context can ever match")
    return wanted


def target(cast: Cast, wanted: Filter) -> Area:
    """Return the area by which a cast is routed (TCC II-B); by default its filter implies it."""
    return area_of(wanted) if cast.target is None else cast.target


def tense(wanted: Filter, now: int) -> Tense:
    """Classify a filter at `now`: can the archive answer it, must it wait, or both?"""
    if not _is_temporal(wanted.normal):
        return "present"
    past, future = _parts(wanted, now)
    if past != FALSE and future != FALSE:
        return "hybrid"
    return "historic" if future == FALSE else "future"


def split(wanted: Filter, now: int) -> tuple[Filter, Filter]:
    """Split a filter into its past and its future part; their disjunction equals the filter.

    An open context may satisfy both parts, through different alternatives. That is harmless:
    delivery is at most once per user and cast anyway.
    """
    past, future = _parts(wanted, now)
    return _filter(past), _filter(future)


def _parts(wanted: Filter, now: int) -> tuple[Normal, Normal]:
    conjunctions = wanted.conjunctions()
    if conjunctions is None:  # too many alternatives: split by the end alone, which is always exact
        return all_of([wanted.normal, _ends_before(now)]), all_of([wanted.normal, _lasts(now)])
    past: list[Normal] = []
    future: list[Normal] = []
    for conjunction in conjunctions:
        _, ends = lifetime(conjunction)
        ahead = sets.intersect(ends, (Interval(low=now),), "instant")
        # With a relation of the lifetime to an attribute, the end may matter in a way that differs
        # from context to context, so such a conjunction is split by the end.
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
