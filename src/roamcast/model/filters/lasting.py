"""When is a filter's answer final, and when can nothing match it any more? (TCC figure 4)

A context that still lasts has a t_d somewhere from now on. A filter over it is decided as soon as
no later end can change the answer; until then `decide` says when to ask again. A filter waiting
for contexts expires when none, open or still to come, can match it.
"""

from collections.abc import Iterable

import msgspec

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import (
    FALSE,
    T_D,
    T_R,
    All,
    Any,
    Conjunction,
    Normal,
    Residual,
    Values,
)
from roamcast.model.filters.evaluate import stretch
from roamcast.model.filters.holds import holds
from roamcast.model.filters.normal import normalise
from roamcast.model.filters.values import Interval, Intervals
from roamcast.model.time import FOREVER


class Decision(msgspec.Struct, frozen=True):
    """True or False for good; or None, and when it is worth asking again (or at the end)."""

    answer: bool | None
    again: int | None = None


def decide(wanted: Filter, context: Context, now: int) -> Decision:
    """Decide a filter over a context at `now`, never sooner than its future allows."""
    if context.t_d is not None:
        return Decision(holds(wanted.normal, context))
    return _end_decided(_ends(wanted.normal, context), now)


def _ends(normal: Normal, context: Context) -> Intervals:
    """Give the ends with which the context, of which all else is known, satisfies the filter."""
    match normal:
        case All(parts):
            accepted = sets.FULL
            for part in parts:
                accepted = sets.intersect(accepted, _ends(part, context), "instant")
            return accepted
        case Any(parts):
            return sets.union(*(_ends(part, context) for part in parts), kind="instant")
        case Values(name, _, intervals) if name == T_D:
            return intervals
        case Residual(syntax.Temporal() as relation, wanted):
            return _ends(_known(relation, wanted, context), context)
        case _:
            return sets.FULL if holds(normal, context) else sets.EMPTY


def _end_decided(intervals: Intervals, now: int) -> Decision:
    """Decide whether an end that lies at `now` or later, perhaps never comes, is in the set."""
    ahead = sets.intersect(intervals, (Interval(low=now),), "instant")
    if not ahead:
        return Decision(False)
    if ahead == (Interval(low=now),):
        return Decision(True)
    edges = [i.low for i in ahead] + [i.high + 1 for i in ahead if isinstance(i.high, int)]
    later = [edge for edge in edges if isinstance(edge, int) and edge > now]
    return Decision(None, min(later, default=None))


def _known(relation: syntax.Temporal, wanted: bool, context: Context) -> Normal:
    """Put what is known of the context into a relation, so that only its end is left open."""
    sides: list[syntax.Lifetime | syntax.Span] = []
    for side in (relation.left, relation.right):
        if isinstance(side, syntax.Lifetime):
            # of `time` to `time` only t_meets is left (leaves): the end is the beginning
            again = bool(sides) and isinstance(sides[0], syntax.Lifetime)
            sides.append(syntax.Span(context.t_r, context.t_r) if again else side)
            continue
        known = stretch(side, context)
        if known is None:  # unknown is never true, nor is its opposite
            return FALSE
        sides.append(syntax.Span(*known))
    return normalise(syntax.Temporal(relation.op, sides[0], sides[1]), wanted)


class Waiting(msgspec.Struct, frozen=True):
    """One conjunction of a filter that waits: when must a context begin, when is it settled?

    last: the last moment at which a match can be decided; None: there is no last.
    starts: the t_r that can match. Once `last_start` has passed, only open contexts count.
    """

    last: int | None
    last_start: int | None
    starts: Intervals


class Expiration(msgspec.Struct, frozen=True):
    """When a waiting filter may be forgotten; without parts it never matches at all."""

    parts: tuple[Waiting, ...]

    @property
    def last(self) -> int | None:
        """The last moment at which anything can match; None if there is none."""
        moments = [part.last for part in self.parts]
        if any(moment is None for moment in moments):
            return None
        return max((moment for moment in moments if moment is not None), default=-FOREVER)

    def expired(
        self, now: int, open_starts: Iterable[int] | None = None, *, lateness: int = 0
    ) -> bool:
        """Tell whether nothing can match from `now` on.

        open_starts: the t_r of all contexts that are open now, if known (TCC: ∀c ∈ C).
        lateness: how long ago a context may have begun or ended that we hear of only now: the
        heartbeat time-out plus the propagation delay.
        """
        starts = None if open_starts is None else list(open_starts)
        return all(_over(part, now - lateness, starts) for part in self.parts)


def _over(part: Waiting, now: int, open_starts: list[int] | None) -> bool:
    if part.last is not None and now > part.last:
        return True
    if part.last_start is None or now <= part.last_start or open_starts is None:
        return False
    return not any(sets.contains(part.starts, start) for start in open_starts)


def expiration(wanted: Filter) -> Expiration:
    """Say when the filter, waiting for contexts, can be forgotten."""
    conjunctions = wanted.conjunctions()
    if conjunctions is None:  # too many alternatives to look through: keep it
        return Expiration((Waiting(None, None, sets.FULL),))
    return Expiration(tuple(dict.fromkeys(_waiting(part) for part in conjunctions)))


def _waiting(conjunction: Conjunction) -> Waiting:
    starts, ends = lifetime(conjunction)
    if not starts or not ends:
        return Waiting(-FOREVER, -FOREVER, sets.EMPTY)
    last_start = _integer(starts[-1].high)
    last_end = _integer(ends[-1].high)
    if last_end is not None:  # settled when the context ends, at the latest then
        return Waiting(last_end, last_start, starts)
    if any(relates_time(atom) for atom in conjunction):  # each context has an end of its own
        return Waiting(None, last_start, starts)
    # The end may be never: settled once the last stretch of ends has been reached.
    reached = _integer(ends[-1].low)
    last = last_start if reached is None or last_start is None else max(last_start, reached)
    return Waiting(last, last_start, starts)


def relates_time(normal: Normal) -> bool:
    """Tell whether this is a relation of the lifetime to what only the context knows."""
    if not isinstance(normal, Residual) or not isinstance(normal.expression, syntax.Temporal):
        return False
    sides = normal.expression.left, normal.expression.right
    return any(isinstance(side, syntax.Lifetime) for side in sides)


def lifetime(conjunction: Conjunction) -> tuple[Intervals, Intervals]:
    """Give the sets of t_r and t_d that a conjunction allows, but for what `relates_time`."""
    found = {T_R: sets.FULL, T_D: sets.FULL}
    for atom in conjunction:
        if isinstance(atom, Values) and atom.property in found:
            found[atom.property] = sets.intersect(found[atom.property], atom.intervals, "instant")
    return found[T_R], found[T_D]


def _integer(value: sets.Scalar | None) -> int | None:
    assert value is None or isinstance(value, int)
    return value
