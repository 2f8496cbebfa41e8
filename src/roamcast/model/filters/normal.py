"""Normalisation: expressions that we recognise as equivalent get equal normal forms.

1. NOT is pushed down to the leaves, where it inverts comparisons. NOT unknown is unknown, so from
   here on a leaf counts only if it is true, and logic is two-valued.
2. Leaves become atoms. Sets of the same property are intersected (All) or united (Any).
3. Parts are flattened, absorbed, and sorted by their text.
"""

from collections.abc import Callable, Iterable, Sequence

from roamcast.model.filters import syntax, text
from roamcast.model.filters.atoms import (
    FALSE,
    T_D,
    T_R,
    TRUE,
    All,
    Any,
    Atom,
    Box,
    Conjunction,
    Normal,
    Presence,
    Values,
)
from roamcast.model.filters.leaves import leaf
from roamcast.model.filters.values import (
    FULL,
    Interval,
    Intervals,
    Kind,
    intersect,
    intersect_all,
    union,
)
from roamcast.model.filters.values import normalise as normalise_intervals
from roamcast.model.time import EARLIEST, FOREVER, LATEST

ABSORB_MAX = 64
"""Maximum parts that are compared pairwise; beyond it absorption, being quadratic, is skipped."""


def normalise(expression: syntax.Expression, wanted: bool = True) -> Normal:
    """Return the normal form of "the expression is true", or of "it is false" if not `wanted`."""
    match expression:
        case syntax.Truth(value):
            return TRUE if value == wanted else FALSE
        case syntax.Not(part):
            return normalise(part, not wanted)
        case syntax.And(parts):
            inner = [normalise(part, wanted) for part in parts]
            return all_of(inner) if wanted else any_of(inner)
        case syntax.Or(parts):
            inner = [normalise(part, wanted) for part in parts]
            return any_of(inner) if wanted else all_of(inner)
        case _:
            return _rebuild(leaf(expression, wanted))


def _rebuild(normal: Normal) -> Normal:
    """Simplify the translation of a leaf, which may be several atoms."""
    if isinstance(normal, All):
        return all_of([_rebuild(part) for part in normal.parts])
    if isinstance(normal, Any):
        return any_of([_rebuild(part) for part in normal.parts])
    return _simplified(normal)


def all_of(parts: Iterable[Normal]) -> Normal:
    """Join parts that must hold together."""
    flat = _flatten(parts, All)
    if FALSE in flat:
        return FALSE
    merged = _intersect_atoms([part for part in flat if not isinstance(part, All | Any)])
    if merged is None:
        return FALSE
    others = [part for part in flat if isinstance(part, Any)]
    kept = _absorb([*merged, *others], Any)
    return kept[0] if len(kept) == 1 else All(tuple(kept))


def any_of(parts: Iterable[Normal]) -> Normal:
    """Join parts of which one must hold."""
    flat = _flatten(parts, Any)
    if TRUE in flat:
        return TRUE
    merged = _unite_atoms([part for part in flat if not isinstance(part, All | Any)])
    if merged is None:
        return TRUE
    others = [part for part in flat if isinstance(part, All)]
    kept = _absorb([*merged, *others], All)
    return kept[0] if len(kept) == 1 else Any(tuple(kept))


def merge(conjunction: Conjunction) -> Conjunction | None:
    """Simplify atoms that hold together; None if they contradict each other."""
    merged = _intersect_atoms(conjunction)
    return None if merged is None else tuple(merged)


def _flatten(parts: Iterable[Normal], join: type[All] | type[Any]) -> list[Normal]:
    flat: list[Normal] = []
    for part in parts:
        flat += part.parts if isinstance(part, join) else [part]
    return list(dict.fromkeys(flat))


def _absorb(parts: Sequence[Normal], other: type[All] | type[Any]) -> list[Normal]:
    """Drop A ∧ B beside A (in Any) and A ∨ B beside A (in All), then sort."""
    kept = sorted(dict.fromkeys(parts), key=text.of)
    if not 1 < len(kept) <= ABSORB_MAX:
        return kept
    sets = [frozenset(p.parts) if isinstance(p, other) else frozenset((p,)) for p in kept]
    return [
        part
        for index, part in enumerate(kept)
        if not any(sets[o] < sets[index] for o in range(len(kept)) if o != index)
    ]


def _intersect_atoms(atoms: Iterable[Atom]) -> list[Atom] | None:
    """Merge atoms of one property that hold together; None if nothing can satisfy them."""
    sets: dict[tuple[str, Kind], list[Intervals]] = {}
    presence: dict[str, bool] = {}
    box: Box | None = None
    residuals: list[Atom] = []
    for atom in atoms:
        match atom:
            case Values(name, kind, intervals):
                sets.setdefault((name, kind), []).append(intervals)
            case Presence(name, present):
                if presence.setdefault(name, present) != present:
                    return None
            case Box():
                box = atom if box is None else _common(box, atom)
                if box is None:
                    return None
            case _:
                residuals.append(atom)
    # All sets of a property at once: folding them one by one would be quadratic.
    values = {
        (name, kind): Values(name, kind, _joined(found, kind, intersect_all))
        for (name, kind), found in sets.items()
    }
    _tie_ends(values)
    if _contradictory(values, presence, box):
        return None
    implied = {name for name, _ in values} | ({"geometry"} if box else set())
    asked = [Presence(n, p) for n, p in presence.items() if n not in implied]
    found: list[Atom] = [*values.values(), *asked, *([box] if box else []), *residuals]
    simple = [_simplified(atom) for atom in found]
    return None if FALSE in simple else [atom for atom in simple if not isinstance(atom, All | Any)]


def _joined(
    sets: Sequence[Intervals], kind: Kind, join: Callable[[Sequence[Intervals], Kind], Intervals]
) -> Intervals:
    return sets[0] if len(sets) == 1 else join(sets, kind)


def _union_all(sets: Sequence[Intervals], kind: Kind) -> Intervals:
    return union(*sets, kind=kind)


def _contradictory(
    values: dict[tuple[str, Kind], Values], presence: dict[str, bool], box: Box | None
) -> bool:
    if any(not atom.intervals for atom in values.values()):
        return True
    if box is not None and presence.get("geometry") is False:
        return True
    kinds: dict[str, set[Kind]] = {}
    for name, kind in values:
        if presence.get(name) is False:
            return True
        kinds.setdefault(name, set()).add(kind)
    # A string may also be an instant (0004); otherwise a value has exactly one kind.
    return any(len(kind) > 1 and kind != {"string", "instant"} for kind in kinds.values())


def _tie_ends(values: dict[tuple[str, Kind], Values]) -> None:
    """Apply t_r ≤ t_d: no begin after the last end, no end before the first begin."""
    begins, ends = values.get((T_R, "instant")), values.get((T_D, "instant"))
    if begins is None or ends is None or not begins.intervals or not ends.intervals:
        return
    last_end, first_begin = ends.intervals[-1].high, begins.intervals[0].low
    tied = intersect(begins.intervals, (Interval(high=last_end),), "instant")
    values[T_R, "instant"] = Values(T_R, "instant", tied)
    tied = intersect(ends.intervals, (Interval(low=first_begin),), "instant")
    values[T_D, "instant"] = Values(T_D, "instant", tied)


def _unite_atoms(atoms: Iterable[Atom]) -> list[Atom] | None:
    """Merge atoms of one property of which one must hold; None if every context satisfies one."""
    sets: dict[tuple[str, Kind], list[Intervals]] = {}
    presence: dict[str, bool] = {}
    boxes: list[Box] = []
    residuals: list[Atom] = []
    for atom in atoms:
        match atom:
            case Values(name, kind, intervals):
                sets.setdefault((name, kind), []).append(intervals)
            case Presence(name, present):
                if presence.setdefault(name, present) != present:
                    return None
            case Box():
                boxes.append(atom)
            case _:
                residuals.append(atom)
    there = {name for name, present in presence.items() if present}
    boxes = [] if "geometry" in there else _outer(boxes)
    found: list[Atom] = [
        *(
            Values(name, kind, _joined(known, kind, _union_all))
            for (name, kind), known in sets.items()
            if name not in there
        ),
        *(Presence(name, present) for name, present in presence.items()),
        *boxes,
        *residuals,
    ]
    simple = [_simplified(atom) for atom in found]
    return None if TRUE in simple else [atom for atom in simple if not isinstance(atom, All | Any)]


def _simplified(atom: Atom) -> Normal:
    """Reduce atoms that are always or never true, and give each set one representation."""
    if isinstance(atom, Presence):
        return atom if atom.property != "vid" else TRUE if atom.present else FALSE
    if not isinstance(atom, Values):
        return atom
    name, kind, intervals = atom.property, atom.kind, atom.intervals
    if kind == "number":
        return FALSE if name in ("vid", "place") else _or_false(atom)
    if kind == "string":
        # "" is the smallest string, so ["", ∞) is the same set as (-∞, ∞).
        if intervals and intervals[0].low is None:
            intervals = intersect(intervals, (Interval("", None),))
        always = name == "vid" and intervals == (Interval("", None),)
        return TRUE if always else _or_false(Values(name, kind, intervals))
    if kind == "boolean":
        both = intersect(intervals, (Interval(0, 1),), kind)
        return FALSE if name in ("vid", "place") else _or_false(Values(name, kind, both))
    clipped = _clip(intervals, forever=name == T_D)
    always = name in (T_R, T_D) and clipped == FULL
    return TRUE if always else _or_false(Values(name, kind, clipped))


def _clip(intervals: Intervals, *, forever: bool) -> Intervals:
    """Clip a set of instants to the range that instants have.

    That is EARLIEST to LATEST, and for t_d also FOREVER, represented here as LATEST + 1.
    """
    clipped = []
    for low, high in ((interval.low, interval.high) for interval in intervals):
        assert low is None or isinstance(low, int)
        assert high is None or isinstance(high, int)
        lasts = forever and (high is None or high >= FOREVER) and (low is None or low <= FOREVER)
        top = LATEST + 1 if lasts else LATEST
        low = EARLIEST if low is None or low < EARLIEST else low
        low = LATEST + 1 if lasts and low > LATEST else low
        high = top if high is None or high > top else high
        if low <= high:
            at_top = high == LATEST + (1 if forever else 0)
            clipped.append(Interval(None if low == EARLIEST else low, None if at_top else high))
    return normalise_intervals(clipped, "instant")


def _or_false(atom: Values) -> Normal:
    return atom if atom.intervals else FALSE


def _common(a: Box, b: Box) -> Box | None:
    west, south = max(a.west, b.west), max(a.south, b.south)
    east, north = min(a.east, b.east), min(a.north, b.north)
    return Box(west, south, east, north) if west <= east and south <= north else None


def _outer(boxes: list[Box]) -> list[Box]:
    """Drop every box that lies in another."""
    boxes = list(dict.fromkeys(boxes))
    if len(boxes) > ABSORB_MAX:
        return boxes
    return [a for a in boxes if not any(b != a and _common(a, b) == a for b in boxes)]
