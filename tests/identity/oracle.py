"""What a viewer may see, read anew out of docs/identity.md; shares no code with `identity/`."""

from datetime import UTC, datetime, timedelta
from typing import Any

from roamcast.model.contexts import Context
from roamcast.model.places import Places

FINER = ["presence", "region", "building", "floor", "room", "exact"]
FAR = 1 << 62


def span(hours: Any, instant: int) -> tuple[int, int] | None:
    """The span of hours around an instant, both in microseconds; the clock is the calendar's."""
    zone = timedelta(minutes=hours.offset_min)
    local = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant) + zone
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    begin, end = (midnight + timedelta(minutes=m) for m in (hours.start_min, hours.end_min))
    if local.weekday() not in hours.days or not begin <= local < end:
        return None
    zero = datetime(1970, 1, 1, tzinfo=UTC)
    return tuple((edge - zone - zero) // timedelta(microseconds=1) for edge in (begin, end))  # type: ignore[return-value]


def shown(context: Context, rules: Any, viewer: Any, now: int, places: Places | None) -> Any:
    """The context as a viewer may see it, or None."""
    end = FAR if context.t_d is None else context.t_d
    lasts = context.t_r <= now < end
    granted = []
    for rule in rules:
        if not {"*", viewer.name, *viewer.groups} & set(rule.viewers):
            continue
        inside = span(rule.hours, now if lasts else context.t_r) if rule.hours else (-FAR, FAR)
        if rule.precision == "hidden":
            if inside or not lasts:  # what was hidden is not told later, either
                return None
        elif inside and (lasts or (rule.past and end <= inside[1])):
            granted.append((FINER.index(rule.precision), rule.past, -len(granted), rule, inside))
    if not granted:
        return None
    level, past, _, rule, inside = max(granted)  # one rule decides: its attributes and its past
    everything = () if rule.precision == "presence" else context.attributes
    names = everything if rule.attributes is None else rule.attributes
    attributes = {name: context.attributes[name] for name in context.attributes if name in names}
    begin = max(context.t_r, inside[0] if lasts else -FAR, -FAR if past else now)
    place, point = context.place, context.point
    if FINER[level] != "exact":
        place = coarse(place, level, places)
        point = places.centre(place) if places and place in places else None  # type: ignore[arg-type]
    return Context(context.vid, place, point, attributes, begin, context.t_d)


def coarse(place: str | None, level: int, places: Places | None) -> str | None:
    """The nearest place around it, or itself, that is of the level's kind or of a coarser one."""
    if place is None or level == 0:
        return None
    parts = place.split("/")
    around = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    kinds = {path: places[path].kind for path in around if path in places} if places else {}
    if kinds:
        if FINER[level] == "room":  # what is right inside of a level, of whatever kind, is a room
            levels = {path for path, kind in kinds.items() if kind in FINER[1:4]}
            others = [path for path in kinds if path.rpartition("/")[0] in levels]
            kinds |= {path: "room" for path in others if path not in levels}
        finer = [path for path, kind in kinds.items() if kind in FINER[level + 1 :]]
        wide = [path for path, kind in kinds.items() if kind in FINER[1 : level + 1]]
        outside = [path for path in wide if not any(path.startswith(one + "/") for one in finer)]
        return max(outside, key=len, default=None)
    hidden = len(FINER) - 2 - level  # of four segments: none of a room, one of a floor, …
    return "/".join(parts[: min(level, len(parts) - hidden)]) if len(parts) > hidden else None
