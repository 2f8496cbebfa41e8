"""Open contexts and waiting filters: when an answer is final, when a filter expires (TCC figure 4).

An open context has its t_d at some time from now on. A filter over it is decided as soon as no
later end can change the answer; until then `decide` returns when to ask again. A filter that waits
for contexts expires when no context, open or still to come, can match it.
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
    """True or False, final; or None, with the time to ask again (None: when the context ends)."""

    answer: bool | None
    again: int | None = None


def decide(wanted: Filter, context: Context, now: int) -> Decision:
    """Decide a filter over a context at `now`; None while a later end can change it."""
    return decide_normal(wanted.normal, context, now)


def decide_normal(normal: Normal, context: Context, now: int) -> Decision:
    """Decide a normal form over a context, as `decide` does a filter."""
    if context.t_d is not None:
        return Decision(holds(normal, context))
    return _end_decided(_ends(normal, context), now)


def _ends(normal: Normal, context: Context) -> Intervals:
    """Return the set of t_d with which the context satisfies the filter; all else is known."""
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
    """Decide whether an end is in the set, given that it lies at `now` or later, or never comes."""
    ahead = sets.intersect(intervals, (Interval(low=now),), "instant")
    if not ahead:
        return Decision(False)
    if ahead == (Interval(low=now),):
        return Decision(True)
    edges = [i.low for i in ahead] + [i.high + 1 for i in ahead if isinstance(i.high, int)]
    later = [edge for edge in edges if isinstance(edge, int) and edge > now]
    return Decision(None, min(later, default=None))


def _known(relation: syntax.Temporal, wanted: bool, context: Context) -> Normal:
    """Substitute the context's known values into a relation, leaving only its end open."""
    sides: list[syntax.Lifetime | syntax.Span] = []
    for side in (relation.left, relation.right):
        if isinstance(side, syntax.Lifetime):
            # `leaves` reduces `time` to `time` to t_meets: the end equals the begin.
            again = bool(sides) and isinstance(sides[0], syntax.Lifetime)
            sides.append(syntax.Span(context.t_r, context.t_r) if again else side)
            continue
        known = stretch(side, context)
        if known is None:  # unknown: neither the relation nor its negation is true
            return FALSE
        sides.append(syntax.Span(*known))
    return normalise(syntax.Temporal(relation.op, sides[0], sides[1]), wanted)


class Waiting(msgspec.Struct, frozen=True):
    """Lifetime bounds of one conjunction of a waiting filter.

    last: the last moment at which a match can be decided; None: no bound.
    starts: the t_r that can match. After `last_start`, only contexts already open can match.
    """

    last: int | None
    last_start: int | None
    starts: Intervals


class Expiration(msgspec.Struct, frozen=True):
    """When a waiting filter may be dropped. Without parts, nothing ever matches it."""

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
        """Return whether nothing can match from `now` on.

        open_starts: the t_r of all open contexts, if known (TCC: ∀c ∈ C).
        lateness: maximum delay between a begin or end and its report: the heartbeat time-out plus
        the propagation delay.
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
    """Return when the filter, waiting for contexts, can be dropped."""
    conjunctions = wanted.conjunctions()
    if conjunctions is None:  # too many alternatives to analyse: it never expires by itself
        return Expiration((Waiting(None, None, sets.FULL),))
    return Expiration(tuple(dict.fromkeys(_waiting(part) for part in conjunctions)))


def _waiting(conjunction: Conjunction) -> Waiting:
    starts, ends = lifetime(conjunction)
    last_start = _integer(starts[-1].high)
    last_end = _integer(ends[-1].high)
    if last_end is not None:  # decided by the context's end at the latest
        return Waiting(last_end, last_start, starts)
    if any(relates_time(atom) for atom in conjunction):  # the bound differs from context to context
        return Waiting(None, last_start, starts)
    # The end may never come: decided once the last interval of ends has been reached.
    reached = _integer(ends[-1].low)
    last = last_start if reached is None or last_start is None else max(last_start, reached)
    return Waiting(last, last_start, starts)


def relates_time(normal: Normal) -> bool:
    """Return whether this relates the lifetime to an attribute of the context."""
    if not isinstance(normal, Residual) or not isinstance(normal.expression, syntax.Temporal):
        return False
    sides = normal.expression.left, normal.expression.right
    return any(isinstance(side, syntax.Lifetime) for side in sides)


def lifetime(conjunction: Conjunction) -> tuple[Intervals, Intervals]:
    """Return the sets of t_r and t_d that a conjunction allows, ignoring `relates_time` atoms.

    Neither is empty: a filter's conjunctions do not contradict themselves.
    """
    found = {T_R: sets.FULL, T_D: sets.FULL}
    for atom in conjunction:
        if isinstance(atom, Values) and atom.property in found:
            found[atom.property] = sets.intersect(found[atom.property], atom.intervals, "instant")
    return found[T_R], found[T_D]


def _integer(value: sets.Scalar | None) -> int | None:
    assert value is None or isinstance(value, int)
    return value
