"""Privacy rules: what one viewer may see of one context.

A rule says who may see, how precisely, when, which attributes, and whether also the past (AMS: the
user agent publishes "subject to any privacy constraints the user has set"). Without a rule that
allows it nothing is shown; a rule that hides wins over all others. Brokers apply `visible` to
queries, subscriptions and current sets alike.

Precision cuts the place's path (`campus/b35/2/2104` on the floor is `campus/b35/2`) and moves the
point to the centre of what is left, or removes it where no polygon is known. It means places of
that kind or wider: without a hierarchy that knows kinds, a path is cut rather too short. A rule for
the present alone shows a context from now on and hides since when it lasts; one that shows a part
of a context shows since when that part lasts (decision 0090). For the past, a rule with hours shows
a context only if it lies within one span of them: a longer one would reveal the time outside.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from roamcast.errors import InputError, LimitError
from roamcast.model import json_text
from roamcast.model.contexts import ATTRIBUTES_MAX, NAME_LENGTH_MAX, Context, segments
from roamcast.model.places import Places
from roamcast.model.time import MICROSECONDS

Precision = Literal["hidden", "presence", "region", "building", "floor", "room", "exact"]
"""From nothing to everything; `presence` shows that a context exists, without where."""

LEVELS: tuple[Precision, ...] = (
    "hidden",
    "presence",
    "region",
    "building",
    "floor",
    "room",
    "exact",
)
DEPTHS: dict[Precision, int] = {"region": 1, "building": 2, "floor": 3, "room": 4}
"""Segments of a path that a precision keeps at most, where no hierarchy knows kinds of places."""

EVERYONE = "*"
RULES_MAX = 1_000
VIEWERS_MAX = 10_000
VIEWER_LENGTH_MAX = 128
FEW: Final = 8
"""Viewers of a rule that are sooner walked through than looked up."""
DAYS_MAX = 7
MINUTES_A_DAY = 1_440
_MINUTE = 60 * MICROSECONDS
_DAY = MINUTES_A_DAY * _MINUTE

# The limits stand on the fields: the decoder enforces them and the API's schema shows them.
# `check_rules` repeats them for rules that Python made.
ViewerName = Annotated[
    str,
    Meta(
        min_length=1, max_length=VIEWER_LENGTH_MAX, description="a subject, a group, or * for all"
    ),
]
Weekday = Annotated[int, Meta(ge=0, le=6, description="0 is Monday")]
ShownAttribute = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A span of minutes on some weekdays, `offset_min` east of UTC; `end_min` is exclusive."""

    days: Annotated[tuple[Weekday, ...], Meta(max_length=DAYS_MAX)] = (0, 1, 2, 3, 4, 5, 6)
    start_min: Annotated[int, Meta(ge=0, lt=MINUTES_A_DAY)] = 0
    end_min: Annotated[int, Meta(gt=0, le=MINUTES_A_DAY)] = MINUTES_A_DAY
    offset_min: Annotated[int, Meta(ge=-MINUTES_A_DAY, le=MINUTES_A_DAY)] = 0

    def span(self, instant: int) -> tuple[int, int] | None:
        """Give the span around an instant, half-open, or none if it lies outside."""
        local = instant + self.offset_min * _MINUTE
        day, within = divmod(local, _DAY)
        weekday = (day + 3) % 7  # 1 January 1970 was a Thursday
        if weekday not in self.days:
            return None
        if not self.start_min * _MINUTE <= within < self.end_min * _MINUTE:
            return None
        midnight = day * _DAY - self.offset_min * _MINUTE
        return midnight + self.start_min * _MINUTE, midnight + self.end_min * _MINUTE

    def next_edge(self, instant: int) -> int | None:
        """Give when a span begins or ends next, after an instant; none if there is no day."""
        today = (instant + self.offset_min * _MINUTE) // _DAY
        for day in range(today, today + 8):
            if (day + 3) % 7 in self.days:
                midnight = day * _DAY - self.offset_min * _MINUTE
                for minute in (self.start_min, self.end_min):
                    if midnight + minute * _MINUTE > instant:
                        return midnight + minute * _MINUTE
        return None


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What some viewers may see; an unknown field is an error, for it might have hidden something.

    `attributes` None shows all of them, with `presence` none. `past` false shows the present only,
    and not since when.
    """

    viewers: Annotated[tuple[ViewerName, ...], Meta(max_length=VIEWERS_MAX)]
    precision: Precision
    hours: Hours | None = None
    past: bool = False
    attributes: Annotated[tuple[ShownAttribute, ...], Meta(max_length=ATTRIBUTES_MAX)] | None = None

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(self.viewers)

    @property
    def names(self) -> Collection[str]:
        """The viewers, to be searched: everybody who watches is looked for among them."""
        return self.viewers if len(self.viewers) <= FEW else self._named


Shape = tuple[Precision, tuple[str, ...] | None]
"""What part of a context a rule shows: its precision and its attributes."""

WHOLE: Final[Shape] = ("exact", None)

Rules = Annotated[tuple[Rule, ...], Meta(max_length=RULES_MAX)]
"""The rules of one vid."""


class Viewer(msgspec.Struct, frozen=True):
    """Who looks: a name, and the groups the viewer belongs to."""

    name: str
    groups: frozenset[str] = frozenset()


_decode = msgspec.json.Decoder(Rules).decode


def decode_rules(body: bytes) -> tuple[Rule, ...]:
    """Decode rules from JSON, checked."""
    try:
        try:
            rules = _decode(body)
        except msgspec.ValidationError:
            # To JSON Schema 1.0 is an integer, to msgspec it is not; few programs write it so.
            rules = msgspec.convert(_with_integers(msgspec.json.decode(body)), Rules)
        return tuple(check_rules(rules))
    except msgspec.ValidationError as error:
        raise InputError(f"these are not rules: {error}") from None
    except RecursionError:
        raise InputError(f"these are not rules: {json_text.TOO_DEEP}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        json_text.read(body, InputError)  # raises, with the position
        raise


def _with_integers(value: Any) -> Any:
    """Turn every float with an integral value into an integer."""
    if isinstance(value, dict):
        return {name: _with_integers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_rules(rules: Sequence[Rule]) -> Sequence[Rule]:
    """Return the rules if they are valid."""
    if len(rules) > RULES_MAX:
        raise LimitError(f"a vid has at most {RULES_MAX} rules")
    for rule in rules:
        if len(rule.viewers) > VIEWERS_MAX:
            raise LimitError(f"a rule names at most {VIEWERS_MAX} viewers")
        if not all(0 < len(viewer) <= VIEWER_LENGTH_MAX for viewer in rule.viewers):
            raise LimitError(f"a viewer's name has 1 to {VIEWER_LENGTH_MAX} characters")
        if rule.precision not in LEVELS:
            raise InputError(f"precision is not one of {', '.join(LEVELS)}")
        if rule.attributes is not None and len(rule.attributes) > ATTRIBUTES_MAX:
            raise LimitError(f"a rule names at most {ATTRIBUTES_MAX} attributes")
        hours = rule.hours
        if hours is None:
            continue
        if not 0 <= hours.start_min < hours.end_min <= MINUTES_A_DAY:
            raise InputError("hours begin before they end, within one day")
        if len(hours.days) > DAYS_MAX:
            raise LimitError(f"hours name at most {DAYS_MAX} days")
        if not all(0 <= day <= 6 for day in hours.days) or abs(hours.offset_min) > MINUTES_A_DAY:
            raise InputError("days are 0 (Monday) to 6, the offset at most a day")
    return rules


def visible(
    context: Context,
    rules: Collection[Rule],
    viewer: Viewer,
    now: int,
    places: Places | None = None,
    since: Mapping[Shape, int] | None = None,
) -> Context | None:
    """Give the context as this viewer may see it now, or nothing.

    `since` says since when each part that some rule shows has been as it is: the context's own t_r
    would tell when something changed that the rule hides.
    """
    best = deciding(context, rules, viewer, now)
    return None if best is None else shown_by(best, context, now, places, since)


def shown_by(
    best: Rule,
    context: Context,
    now: int,
    places: Places | None = None,
    since: Mapping[Shape, int] | None = None,
) -> Context:
    """Give the context as a rule that decides shows it now."""
    shape = shape_of(best)
    t_r = context.t_r if since is None else since.get(shape, context.t_r)
    if not best.past:
        t_r = max(context.t_r, now)
    if best.hours is not None and _lasts(context, now):
        span = best.hours.span(now)
        assert span is not None
        t_r = max(t_r, span[0])
    seen = part_of(context, shape, places)
    return Context(context.vid, seen.place, seen.point, seen.attributes, t_r, context.t_d)


def deciding(context: Context, rules: Collection[Rule], viewer: Viewer, now: int) -> Rule | None:
    """Give the rule that decides what a viewer sees of a context; None: nothing is shown."""
    theirs = [rule for rule in rules if _names(rule, viewer)]
    shown = [rule for rule in theirs if _applies(rule, context, now)]
    if any(rule.precision == "hidden" for rule in shown) or not shown:
        return None
    # The finest precision granted decides alone: attributes or a past that a coarser rule grants
    # are granted at that rule's precision only.
    return max(shown, key=lambda rule: (LEVELS.index(rule.precision), rule.past))


def shape_of(rule: Rule) -> Shape:
    """Give what part of a context a rule shows."""
    if rule.precision == "presence" and rule.attributes is None:
        return "presence", ()  # that somebody is there, and not who or what
    return rule.precision, rule.attributes


def part_of(context: Context, shape: Shape, places: Places | None) -> Context:
    """Give the part of a context that a rule of this shape shows, with its own times."""
    precision, named = shape
    attributes = context.attributes
    if named is not None:
        attributes = {name: value for name, value in attributes.items() if name in named}
    place, point = context.place, context.point
    if precision != "exact":
        place, point = truncated(place, precision, places), None
        if place is not None and places is not None and place in places:
            point = places.centre(place)
    return Context(context.vid, place, point, attributes, context.t_r, context.t_d)


def both_show(first: Context, other: Context) -> Context:
    """Give what two views of the same context both show: the coarser place, common attributes.

    To cut what is cut already would hide more than either does: a path is cut by its length.
    """
    coarse, fine = sorted((first, other), key=lambda view: len(view.place or ""))
    attributes = {
        name: value for name, value in first.attributes.items() if name in other.attributes
    }
    point = coarse.point if fine.point is not None else None
    return Context(first.vid, coarse.place, point, attributes, max(first.t_r, other.t_r), first.t_d)


def changes_at(context: Context, rules: Collection[Rule], now: int) -> int | None:
    """Give when time alone may next change what anybody sees, apart from t_r; None: never.

    Hours begin and end, and so does the context: from then on rules about the past decide.
    """
    edges = [rule.hours.next_edge(now) for rule in rules if rule.hours is not None]
    edges += [instant for instant in (context.t_r, context.t_d) if instant is not None]
    return min((edge for edge in edges if edge is not None and edge > now), default=None)


def truncated(place: str | None, precision: Precision, places: Places | None) -> str | None:
    """Cut a path to places of a kind or wider ones; None if it may contain no such place."""
    if place is None or precision not in DEPTHS:
        return place if precision == "exact" else None
    path = segments(place)
    if places is not None:
        prefixes = ("/".join(path[:end]) for end in range(1, len(path) + 1))
        known = [prefix for prefix in prefixes if prefix in places]
        if known:
            return _of_kind([(prefix, places[prefix].kind) for prefix in known], precision)
    # Nobody knows the kinds. Paths may leave out wide levels (`hq/2/204`), so what counts is also
    # how much is hidden: a floor hides at least one segment, a building two.
    keep = min(DEPTHS[precision], len(path) - (DEPTHS["room"] - DEPTHS[precision]))
    return "/".join(path[:keep]) if keep > 0 else None


def _of_kind(known: Sequence[tuple[str, str]], precision: Precision) -> str | None:
    """Give the innermost place that is of a kind or wider, of those on a path, outermost first."""
    found, depth = None, 0
    for path, kind in known:
        if kind in DEPTHS:
            if DEPTHS[kind] > DEPTHS[precision]:
                break
            found, depth = path, DEPTHS[kind]
        elif precision == "room" and 0 < depth < DEPTHS["room"]:
            # 0400: whatever else is on a storey, in a building or a region is a room there
            found, depth = path, DEPTHS["room"]
    return found


def showing(context: Context, rules: Collection[Rule], now: int) -> list[Rule]:
    """Give the rules that may decide what somebody sees of a context now."""
    return [rule for rule in rules if rule.precision != "hidden" and _applies(rule, context, now)]


def _names(rule: Rule, viewer: Viewer) -> bool:
    named = rule.names
    if EVERYONE in named or viewer.name in named:
        return True
    return any(group in named for group in viewer.groups)


def _lasts(context: Context, now: int) -> bool:
    return context.t_r <= now < context.end


def _applies(rule: Rule, context: Context, now: int) -> bool:
    if _lasts(context, now):
        return rule.hours is None or rule.hours.span(now) is not None
    if rule.precision == "hidden":
        return True  # hidden in some hours is hidden from later questions about the past, too
    if not rule.past:
        return False
    if rule.hours is None:
        return True
    span = rule.hours.span(context.t_r)
    return span is not None and context.end <= span[1]
