"""Who may cast where: a token names places, the highest priority, and how far into the past.

The whole world is for administrators. An area is what a filter cannot match beyond
(`model/areas.py`), so a filter that may match outside the granted places is refused, whatever it
would find today.
"""

import re
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta

from roamcast.errors import ForbiddenError, InputError
from roamcast.model.areas import Area, area_of
from roamcast.model.casts import Priority, tense
from roamcast.model.contexts import check_path, path_within
from roamcast.model.filters import Filter
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.casts.looking import window_of

DAY_S: Final = 86_400
PAST_S_DEFAULT: Final = 14 * DAY_S
AREAS_MAX: Final = 64

PRIORITIES: Final[dict[str, int]] = {name: rank for rank, name in enumerate(get_args(Priority))}
"""The highest overrides people's quiet hours; nothing else does."""

_ZONELESS: Final = re.compile(r"'\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d[\d:.]*'")


class CastAuthority(msgspec.Struct, frozen=True):
    """What a token may cast."""

    areas: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=AREAS_MAX)
    ] = ()
    priority_max: Priority = "notice"
    past_s: Annotated[int, Meta(ge=0)] = PAST_S_DEFAULT


NOWHERE: Final = CastAuthority()


def check_zones(text: str) -> None:
    """Refuse a moment without a time zone: a cast to the wrong hour can not be called back."""
    found = _ZONELESS.search(text)
    if found is not None:
        raise InputError(f"{found[0][:40]} has no time zone: write Z or an offset such as +01:00")


def check_priority(authority: CastAuthority, priority: str) -> None:
    """Refuse a priority above a token's highest."""
    if PRIORITIES[priority] > PRIORITIES[authority.priority_max]:
        raise ForbiddenError(
            f"your token may send up to {authority.priority_max}, not {priority}: "
            "ask for one with a higher --priority-max"
        )


def check_area(authority: CastAuthority, wanted: Filter, now: int) -> None:
    """Refuse a filter that may match outside the places or beyond the past of a token."""
    if not authority.areas:
        raise ForbiddenError(
            "your token grants no area to cast to: ask for one with `roamcast token --cast-area`"
        )
    area = area_of(wanted)
    for patch in area.patches:
        if patch.places is None:
            named = "the filter names no place" if patch.boxes is None else "a box is no place"
            raise ForbiddenError(
                f"{named}, and only administrators cast to the whole world: "
                f"add within(place, '{authority.areas[0][:60]}')"
            )
        for place in patch.places:
            if not any(path_within(place, granted) for granted in authority.areas):
                granted = ", ".join(authority.areas)[:100]
                raise ForbiddenError(f"{place[:100]} is not granted: your token has {granted}")
    if tense(wanted, now) != "present":
        _check_past(authority, area, now)


def _check_past(authority: CastAuthority, area: Area, now: int) -> None:
    earliest, _ = window_of(area)
    if earliest < now - authority.past_s * MICROSECONDS:
        days = authority.past_s / DAY_S
        raise ForbiddenError(
            f"the filter reaches further back than the {days:g} days that your token grants"
        )


def checked(areas: list[str], priority_max: str, past_s: int) -> CastAuthority:
    """Make what a token shall grant, or say what is wrong with it."""
    if priority_max not in PRIORITIES:
        raise InputError(f"{priority_max[:40]!r} is no priority: choose from {[*PRIORITIES]}")
    if len(areas) > AREAS_MAX:
        raise InputError(f"a token grants at most {AREAS_MAX} areas")
    for path in areas:
        check_path(path)
    return CastAuthority(tuple(areas), priority_max, past_s)  # type: ignore[arg-type]
