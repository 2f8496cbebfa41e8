"""One-time questions over live contexts: a count, a page by vid, the nearest.

A plan follows the filter's normal form: a conjunction starts from its most selective term and
checks the others on what that names; a disjunction unites its parts; what no index answers is
checked on every context. A page of a filter that many contexts satisfy is found by walking the
vids instead, for as long as that costs no more than the index would (`filters.price`).

Every question is a generator that yields after each slice of SLICE contexts, so that a driver can
serve others in between; `run` goes through at once. The index may change between two slices: each
context is judged as it is when its slice comes.
"""

import numpy as np

from roamcast.errors import InputError, LimitError
from roamcast.matching.layout import HIGHEST, Array
from roamcast.matching.live import columns
from roamcast.matching.live.index import LiveIndex, box_ranges, distinct
from roamcast.matching.live.slices import ContextPage, Question, run
from roamcast.matching.live.texts import Texts
from roamcast.matching.morton import morton
from roamcast.model.contexts import Context
from roamcast.model.earth import distance_metres
from roamcast.model.filters import Filter, price, syntax
from roamcast.model.filters.atoms import TRUE, All, Any, Normal, Residual, Values
from roamcast.model.filters.leaves import leaf
from roamcast.model.nearest import COUNT_MAX, Found

SLICE = 16_384
"""Contexts checked between two yields: a millisecond or two of compiled terms."""

SLICE_STEPS = 2 * SLICE
"""Steps of a slice: terms that the reference evaluator decides get fewer contexts."""

WALK_MIN = 256
WALK_LIKE_MAX = 4_096
WINDOW = 64
LOOKED_AT = 8
"""Contexts looked at around a point for each that lies there, at worst: beside a curve's edges."""

TEXTS_A_CONTEXT_MAX = 64
"""Different texts for each one of a column, up to which LIKE searches all texts first."""


def count(index: LiveIndex, wanted: Filter) -> Question[int]:
    """Count the contexts that satisfy a filter."""
    normal = wanted.normal
    index.forget_terms()
    if normal == TRUE:
        return len(index)
    if isinstance(normal, Values) and index.decides(normal):
        return index.bound(normal) or 0
    slots = yield from satisfying(index, normal)
    # The index may have changed since the slice of a slot, or even be empty.
    return int(np.count_nonzero(index.present[slots[slots < len(index.present)]]))


def every(index: LiveIndex, wanted: Filter) -> Question[list[Context]]:
    """Give all contexts that satisfy a filter, by vid."""
    index.forget_terms()
    slots = yield from satisfying(index, wanted.normal)
    labels = _labels(index, slots)
    return _contexts(index, slots[np.argsort(labels)])


def page(index: LiveIndex, wanted: Filter, after: str, limit: int) -> Question[ContextPage]:
    """Give the first `limit` contexts after a vid that satisfy a filter, by vid."""
    normal = wanted.normal
    index.forget_terms()
    named = price.bound(normal, index)
    budget = None if named is None else named // 4
    liked = None
    if budget is not None and _has_like(normal):
        # All texts are searched in less than a long walk; of many hits a short one finds enough.
        budget = min(budget, WALK_LIKE_MAX)
        parts = normal.parts if isinstance(normal, All) else (normal,)
        liked = _liked(index, parts, named or 0, WALK_LIKE_MAX)
    if liked is None and (budget is None or limit * len(index) < budget * (named or 0)):
        walked = yield from _walk(index, normal, after, limit, budget)
        if walked is not None:
            return walked
    if liked is None:
        slots = yield from satisfying(index, normal)
    else:
        slots = yield from _checked(index, normal, liked)
    labels = _labels(index, slots)
    first = index.texts.from_on(after, after=True) if after else None
    if first is not None:
        slots, labels = slots[labels >= first], labels[labels >= first]
    if len(slots) > limit:
        least = np.argpartition(labels, limit)[: limit + 1]
        slots, labels = slots[least], labels[least]
    found = _contexts(index, slots[np.argsort(labels)])
    return ContextPage(found[:limit], len(found) > limit)


def nearest(
    index: LiveIndex,
    to: tuple[float, float],
    wanted: Filter,
    *,
    count: int = 1,
    metres_max: float | None = None,
) -> Question[list[Found]]:
    """Give the nearest contexts that satisfy a filter, ties by vid, as `model.nearest` does."""
    if not 1 <= count <= COUNT_MAX:
        raise LimitError(f"count is between 1 and {COUNT_MAX}, not {count}")
    if not (-180 <= to[0] <= 180 and -90 <= to[1] <= 90):
        raise InputError(f"{to[0]}, {to[1]} is not a valid longitude and latitude")
    normal = wanted.normal
    index.forget_terms()
    named = price.bound(normal, index)
    most = len(index.points) if named is None else min(named, len(index.points))
    around = None
    if most > max(WINDOW, LOOKED_AT * count * len(index) // max(1, most)):
        metres = yield from _radius(index, to, normal, count, most)
        if metres is not None:
            if metres_max is not None:
                metres = min(metres, metres_max)
            # A little larger: rounding must not cut off what is exactly as far as the last one.
            near = leaf(syntax.Near(*to, metres * (1 + 1e-6) + 0.01), True)
            assert isinstance(near, Residual)
            assert near.envelope is not None
            ranges = box_ranges(near.envelope)
            around = index.points if index.count_in(index.points, ranges) <= most else None
    if around is None:  # few satisfy the filter, or the points lie badly along the curve
        slots = yield from satisfying(index, normal)
        slots = slots[~np.isnan(index.longitudes[slots])]
    else:
        slots = yield from _checked(index, normal, index.gather(around, ranges))
    return _nearest(index, to, slots, count, metres_max)


def _nearest(
    index: LiveIndex, to: tuple[float, float], slots: Array, count: int, metres_max: float | None
) -> list[Found]:
    metres = index.distances(to, slots)
    if len(slots) > count:
        last = np.partition(metres, count - 1)[count - 1]
        slots = slots[metres <= last * (1 + 1e-6) + 0.01]
    found = []
    for slot in slots.tolist():
        context = index.contexts[slot]
        if context is not None and context.point is not None:
            found.append(Found(distance_metres(context.point, to), context))
    found.sort(key=lambda near: (near.metres, near.context.vid))
    return [near for near in found if metres_max is None or near.metres <= metres_max][:count]


def _radius(
    index: LiveIndex, to: tuple[float, float], normal: Normal, wanted: int, budget: int
) -> Question[float | None]:
    """Return a distance within which enough contexts satisfy the filter.

    None if the budget of contexts would be exceeded, or there are too few.

    Contexts whose codes are close to the point's are looked at, ever more of them; each only once.
    """
    code, size, have = morton(*to), WINDOW * 4, np.empty(0, np.int32)
    seen_before = seen_after = 0
    while True:
        onwards = np.array([code], np.int64), np.array([HIGHEST], np.int64)
        upper = index.gather_first(index.points, onwards, size)
        lower = np.empty(size, np.int32)
        lower = lower[: columns.before(index.points.entries, code, lower)]
        fresh = np.concatenate([upper[seen_after:], lower[seen_before:]])
        seen_after, seen_before = len(upper), len(lower)
        if seen_after + seen_before > budget:
            return None
        hits = yield from _checked(index, normal, fresh)
        have = np.concatenate([have, hits])
        if len(have) >= wanted:
            metres = index.distances(to, have)
            return float(np.partition(metres, wanted - 1)[wanted - 1])
        if len(upper) < size and len(lower) < size:
            return None
        size *= 4


def satisfying(index: LiveIndex, normal: Normal) -> Question[Array]:
    """Return the slots of all contexts that satisfy a normal form, each once."""
    if isinstance(normal, Any):
        if price.bound(normal, index) is None:
            return (yield from _checked(index, normal, index.everything()))
        found = []
        for part in normal.parts:
            found.append((yield from satisfying(index, part)))
            yield
        return found[0] if len(found) == 1 else distinct(found)
    parts = normal.parts if isinstance(normal, All) else (normal,)
    at, named = price.best(parts, index)
    least = len(index) if named is None else named
    liked = _liked(index, parts, least)
    if liked is not None:
        return (yield from _checked(index, normal, liked))
    if named is None:
        return (yield from _checked(index, normal, index.everything()))
    best, others = parts[at], All((*parts[:at], *parts[at + 1 :]))
    if isinstance(best, All | Any):
        slots = yield from satisfying(index, best)
        return (yield from _checked(index, others, slots))
    slots = index.candidates(best)
    rest = others if isinstance(best, Values) and index.decides(best) else normal
    return (yield from _checked(index, rest, slots))


def _has_like(normal: Normal) -> bool:
    parts = normal.parts if isinstance(normal, All) else (normal,)
    return any(
        isinstance(part, Residual) and part.wanted and isinstance(part.expression, syntax.Like)
        for part in parts
    )


def _liked(
    index: LiveIndex, parts: tuple[Normal, ...], least: int, most: int | None = None
) -> Array | None:
    """Let a LIKE term name the contexts, if its texts are fewer than what other terms name.

    `most`: or if they are fewer than that.
    """
    if index.texts.count > TEXTS_A_CONTEXT_MAX * least:
        return None
    most = least if most is None else min(most, least)
    for part in parts:
        if isinstance(part, Residual) and part.wanted and isinstance(part.expression, syntax.Like):
            operand = part.expression.operand
            if isinstance(operand, syntax.Property):
                found = index.like_candidates(operand.name, part.expression.pattern, most)
                if found is not None and len(found) < most:
                    return found
    return None


def _checked(index: LiveIndex, normal: Normal, slots: Array) -> Question[Array]:
    """Return those of some slots whose contexts satisfy a normal form, slice by slice."""
    if normal == TRUE:
        return slots
    size = max(1, min(SLICE, SLICE_STEPS // price.steps(normal)))
    if len(slots) <= size:
        few: Array = slots[_mask(index, normal, slots)]
        return few
    found = []
    for start in range(0, len(slots), size):
        part = slots[start : start + size]
        found.append(part[_mask(index, normal, part)])
        yield
    return np.concatenate(found)


def _mask(index: LiveIndex, normal: Normal, slots: Array) -> Array:
    if not isinstance(normal, All | Any):
        return index.mask(normal, slots)
    every = isinstance(normal, All)
    out = np.full(len(slots), every)
    for part in sorted(normal.parts, key=price.steps):  # cheap terms first
        # Only those that this part can still decide: True so far in All, False so far in Any.
        open_yet = np.flatnonzero(out == every)
        if not len(open_yet):
            break
        out[open_yet] = _mask(index, part, slots[open_yet])
    return out


def _walk(
    index: LiveIndex, normal: Normal, after: str, limit: int, budget: int | None
) -> Question[ContextPage | None]:
    """Look for a page in the order of vids; None if the budget of contexts is used up first."""
    vids = index.column("vid", "string")
    found: list[Context] = []
    walked, size = 0, max(WALK_MIN, 2 * limit)
    most = max(1, min(SLICE, SLICE_STEPS // price.steps(normal)))
    while vids is not None:
        size = min(size, most)
        if budget is not None and walked + size > budget:
            return None
        first = index.texts.from_on(after, after=True) if after else -HIGHEST
        ranges = np.array([first], np.int64), np.array([HIGHEST], np.int64)
        slots = index.gather_first(vids, ranges, size)
        found += _contexts(index, slots[_mask(index, normal, slots)])
        if len(found) > limit or len(slots) < size:
            break
        last = index.contexts[slots[-1]]
        assert last is not None
        after = last.vid
        walked += size
        size *= 2
        yield
        vids = index.column("vid", "string")
    return ContextPage(found[:limit], len(found) > limit)


def _labels(index: LiveIndex, slots: Array) -> Array:
    """Return the labels of the vids, which are in the order of the vids."""
    numbers = np.empty(len(slots), np.int64)
    vids = index.column("vid", "string")
    if vids is None:
        return numbers[:0]
    columns.keys_at(vids.entries, slots, numbers)
    labels: Array = index.texts.labels[np.maximum(numbers, 0)]
    return labels


def _contexts(index: LiveIndex, slots: Array) -> list[Context]:
    found = map(index.contexts.__getitem__, slots.tolist())
    return [context for context in found if context is not None]


def warm_up() -> None:
    """Load all compiled code now, so that no question or change ever waits for it.

    A test compares with what a large map calls: machine code made or loaded later stops everybody.
    """
    index = LiveIndex()
    numbers = range(columns.TABLE_MIN)  # so many that a table grows
    for number in numbers:
        index.put(Context(f"v{number}", "a/b", (1.0, 2.0), {"n": number % 7, "w": f"word{number}"}))
    for text in (
        "n > 0 AND w LIKE '%ord%'", "S_INTERSECTS(geometry, BBOX(0,0,3,3))", "n IS NULL",
        "n IN (1, 3) AND w > 'word1' AND w < 'word2'",
    ):  # fmt: skip
        run(page(index, Filter.parse(text), "", 1))
    for text in ("true", "n = 3"):
        run(nearest(index, (0.0, 0.0), Filter.parse(text), count=len(numbers)))
    columns.before(index.points.entries, 0, np.empty(1, np.int32))  # where many surround a point
    for number in numbers:
        index.remove(f"v{number}")
    Texts.warm_up()
