"""`LiveIndex`: the live contexts in columns with indexes, and which of them satisfy a term.

Every property is a column by the comparisons its values allow (`model.kinds`), places and vids
among them as texts, points as Morton codes. `put` and `remove` keep all of them; what did not
change is not touched. `bound` counts and `candidates` names the contexts of one term by its column,
and `mask` checks a term on given contexts in compiled code. `questions` joins terms to plans.

What float64 or a formula cannot decide exactly is left to the reference evaluator, context by
context: numbers beyond 2⁵³, distances on a circle's very edge, and terms that relate two properties
or calculate.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import shapely

from roamcast.matching.keys import number_key
from roamcast.matching.layout import HIGHEST, LOWEST, Array
from roamcast.matching.live import columns, texts
from roamcast.matching.live.columns import MISSING, NO_LABELS, Column
from roamcast.matching.morton import BITS, cell, morton
from roamcast.model import kinds
from roamcast.model.contexts import Context
from roamcast.model.earth import RADIUS_METRES
from roamcast.model.filters import price, syntax
from roamcast.model.filters.atoms import T_D, T_R, Atom, Box, Presence, Residual, Values
from roamcast.model.filters.evaluate import geometry
from roamcast.model.filters.holds import holds
from roamcast.model.filters.values import Interval, Intervals, Kind

Ranges = tuple[Array, Array]
"""Ascending closed ranges of values: lows and highs."""

EXACT_BELOW = 2.0**53
EVERYTHING: Ranges = (np.array([LOWEST], np.int64), np.array([HIGHEST], np.int64))
BOX_RANGES_MAX = 64
"""Ranges of Morton codes by which a box is searched; the exact check follows."""

MEMO_MAX = 8_192
EDGE_METRES = 1e-3
"""Distances this close to a circle's radius are decided by the reference's own arithmetic."""


class LiveIndex:
    """Live contexts by slot, indexed by everything that filters can ask."""

    def __init__(self) -> None:
        self.contexts: list[Context | None] = []
        self.slots: dict[str, int] = {}
        self.texts = texts.Texts()
        self.present: Array = np.zeros(64, np.bool_)
        """Slots that have a context now."""
        self.longitudes: Array = np.full(64, math.nan)
        self.latitudes: Array = np.full(64, math.nan)
        self.steps = 0
        """Steps taken so far, in the unit of `filters.price`: never more than prices said."""
        self._columns: dict[tuple[str, Kind], Column] = {}
        self._kinds: dict[str, set[Kind]] = {}
        self._points = Column()
        self._free: list[int] = []
        self._memo: dict[int | Atom, tuple[Atom, Ranges]] = {}
        self._bounds: dict[int | Atom, tuple[Atom, int | None]] = {}
        """Terms of questions under way → ranges and bounds; forgotten at every change."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def columns_count(self) -> int:
        """How many columns there are: they go with the last context that has the attribute."""
        return len(self._columns)

    def put(self, context: Context) -> None:
        """Add a context, or replace the one of this vid."""
        self.forget_terms()
        slot = self.slots.get(context.vid)
        if slot is None:
            slot = self._take_slot()
            self.slots[context.vid] = slot
            self._set(slot, "vid", "string", None, context.vid)
            before = None
        else:
            before = self.contexts[slot]
        self.contexts[slot] = context
        self.present[slot] = True
        if before is None:
            self._change(slot, "place", None, context.place)
            self._set(slot, T_R, "instant", None, context.t_r)
            self._set(slot, T_D, "instant", None, context.end)
            for name, value in context.attributes.items():
                self._change(slot, name, None, value)
        else:
            if before.place != context.place:
                self._change(slot, "place", before.place, context.place)
            if before.t_r != context.t_r:
                self._set(slot, T_R, "instant", before.t_r, context.t_r)
            if before.t_d != context.t_d:
                self._set(slot, T_D, "instant", before.end, context.end)
            self._change_attributes(slot, before.attributes, context.attributes)
        point = None if before is None else before.point
        if point != context.point:
            self._move(slot, context.point)

    def remove(self, vid: str) -> Context | None:
        """Remove the context of a vid; return it, None if there is none."""
        slot = self.slots.pop(vid, None)
        if slot is None:
            return None
        self.forget_terms()
        context = self.contexts[slot]
        assert context is not None
        self.contexts[slot] = None
        self.present[slot] = False
        self._set(slot, "vid", "string", vid, None)
        self._set(slot, T_R, "instant", context.t_r, None)
        self._set(slot, T_D, "instant", context.end, None)
        self._change(slot, "place", context.place, None)
        self._change_attributes(slot, context.attributes, {})
        if context.point is not None:
            self._move(slot, None)
        self._free.append(slot)
        if not self.slots:  # everything is given back
            self.contexts.clear()
            self._free.clear()
            self.present = np.zeros(64, np.bool_)
            self.longitudes, self.latitudes = np.full(64, math.nan), np.full(64, math.nan)
        return context

    def get(self, vid: str) -> Context | None:
        """Give the context of a vid."""
        slot = self.slots.get(vid)
        return None if slot is None else self.contexts[slot]

    # --- changes ---------------------------------------------------------------------------------

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self.contexts)
        self.contexts.append(None)
        if slot == len(self.longitudes):
            self.present = np.concatenate([self.present, np.zeros(slot, np.bool_)])
            self.longitudes = np.concatenate([self.longitudes, np.full(slot, math.nan)])
            self.latitudes = np.concatenate([self.latitudes, np.full(slot, math.nan)])
        return slot

    def _change_attributes(
        self, slot: int, before: dict[str, kinds.Attribute], after: dict[str, kinds.Attribute]
    ) -> None:
        for name, value in after.items():
            old = before.get(name)
            # 1, 1.0 and True are equal to Python but of different kinds.
            if old is not value and (old != value or type(old) is not type(value)):
                self._change(slot, name, old, value)
        for name, value in before.items():
            if name not in after:
                self._change(slot, name, value, None)

    def _change(
        self, slot: int, name: str, before: kinds.Attribute | None, after: kinds.Attribute | None
    ) -> None:
        """Move a slot from the columns of one value to those of another; None: no value."""
        old = {} if before is None else dict(kinds.scalars(before))
        new = {} if after is None else dict(kinds.scalars(after))
        for kind in {**old, **new}:
            self._set(slot, name, kind, old.get(kind), new.get(kind))

    def _set(
        self,
        slot: int,
        name: str,
        kind: Kind,
        before: kinds.Scalar | None,
        after: kinds.Scalar | None,
    ) -> None:
        column = self._columns.get((name, kind))
        if column is None:
            column = self._columns[name, kind] = Column(texts=kind == "string")
            self._kinds.setdefault(name, set()).add(kind)
        # The new text first: labels of both are needed to move the slot.
        column.set(slot, self._key(kind, after), self._labels(column))
        if column.texts and before is not None:
            assert isinstance(before, str)
            self.texts.drop(before)
        if not len(column):
            del self._columns[name, kind]
            self._kinds[name].discard(kind)
            if not self._kinds[name]:
                del self._kinds[name]

    def _key(self, kind: Kind, value: kinds.Scalar | None) -> int:
        if value is None:
            return MISSING
        if isinstance(value, str):
            return self.texts.take(value)
        return number_key(float(value)) if kind == "number" else int(value)

    def _labels(self, column: Column) -> Array:
        return self.texts.labels if column.texts else NO_LABELS

    def _move(self, slot: int, point: tuple[float, float] | None) -> None:
        longitude, latitude = point or (math.nan, math.nan)
        self.longitudes[slot], self.latitudes[slot] = longitude, latitude
        key = MISSING if point is None else morton(longitude, latitude)
        self._points.set(slot, key, NO_LABELS)

    # --- what one term says ----------------------------------------------------------------------

    def bound(self, atom: Atom) -> int | None:
        """Return at most how many contexts satisfy a term; None if no index can name them."""
        key = _memo_key(atom)
        known = self._bounds.get(key)
        if known is None:
            if len(self._bounds) >= MEMO_MAX:
                self._bounds.clear()
            known = self._bounds[key] = (atom, self._bound(atom))
        return known[1]

    def forget_terms(self) -> None:
        """Forget the ranges and bounds of terms: a question begins, or a context changes."""
        if self._bounds or self._memo:
            self._memo.clear()
            self._bounds.clear()

    def _bound(self, atom: Atom) -> int | None:
        match atom:
            case Values(name, kind):
                column = self._columns.get((name, kind))
                return 0 if column is None else self.count_in(column, self._ranges(atom))
            case Presence(_, False):
                return None
            case Presence("geometry"):
                return len(self._points)
            case Presence(name):
                return sum(len(self._columns[name, kind]) for kind in self._kinds.get(name, ()))
            case Box():
                return self.count_in(self._points, self._ranges(atom))
            case Residual(_, _, Box() as envelope):
                return self.count_in(self._points, self._ranges(envelope))
            case Residual(syntax.Like(syntax.Property(name))):
                column = self._columns.get((name, "string"))
                return 0 if column is None else len(column)
            case Residual(syntax.Spatial() | syntax.Near()):
                return len(self._points)
            case _:
                return None

    def count_in(self, column: Column, ranges: Ranges) -> int:
        """Count the contexts with a value in some ranges."""
        return int(columns.count(column.entries, self._labels(column), *ranges))

    def candidates(self, atom: Atom) -> Array:
        """Return the slots of at least all contexts that satisfy a term with a bound."""
        match atom:
            case Values(name, kind):
                column = self._columns.get((name, kind))
                return self.gather(column, self._ranges(atom))
            case Presence("geometry") | Residual(syntax.Spatial() | syntax.Near(), _, None):
                return self.gather(self._points, EVERYTHING)
            case Presence(name):
                found = [
                    self.gather(self._columns[name, kind], EVERYTHING)
                    for kind in self._kinds.get(name, ())
                ]
                return found[0] if len(found) == 1 else distinct(found)
            case Box():
                return self.gather(self._points, self._ranges(atom))
            case Residual(_, _, Box() as envelope):
                return self.gather(self._points, self._ranges(envelope))
            case Residual(syntax.Like(syntax.Property(name))):
                return self.gather(self._columns.get((name, "string")), EVERYTHING)
            case _:
                raise AssertionError(f"no index names the contexts of {atom}")

    def gather(self, column: Column | None, ranges: Ranges) -> Array:
        """Return the slots with a value in some ranges, in the order of values."""
        if column is None:
            return np.empty(0, np.int32)
        return self.gather_first(column, ranges, self.count_in(column, ranges))

    def gather_first(self, column: Column, ranges: Ranges, limit: int) -> Array:
        """Return the first slots with a value in some ranges."""
        found = np.empty(min(limit, len(column)), np.int32)
        count = columns.gather(column.entries, self._labels(column), *ranges, found)
        return found[:count]

    def decides(self, atom: Values) -> bool:
        """Whether the index alone decides a term, with nothing left to check."""
        return atom.kind != "number" or _exact(atom.intervals)

    def column(self, name: str, kind: Kind) -> Column | None:
        """Give the column of a property, None if no context has such a value."""
        return self._columns.get((name, kind))

    @property
    def points(self) -> Column:
        """The contexts by the Morton codes of their points."""
        return self._points

    def everything(self) -> Array:
        """Return all slots, by vid."""
        return self.gather(self._columns.get(("vid", "string")), EVERYTHING)

    def _ranges(self, atom: Values | Box) -> Ranges:
        key = _memo_key(atom)
        known = self._memo.get(key)
        if known is not None:
            return known[1]
        if isinstance(atom, Box):
            ranges = box_ranges(atom)
        elif atom.kind == "string":
            ranges = _arrays([self._labelled(interval) for interval in atom.intervals])
        elif atom.kind == "number":
            ranges = _arrays([_number_range(interval) for interval in atom.intervals])
        else:
            ranges = _arrays([_whole_range(interval) for interval in atom.intervals])
        if len(self._memo) >= MEMO_MAX:
            self._memo.clear()
        self._memo[key] = (atom, ranges)  # the atom itself, so that its id stays its own
        return ranges

    def _labelled(self, interval: Interval) -> tuple[int, int]:
        """Return an interval of texts as labels of texts that there are."""
        if interval.low is not None and interval.low == interval.high:
            number = self.texts.numbers.get(interval.low)  # type: ignore[arg-type]
            label = HIGHEST if number is None else int(self.texts.labels[number])
            return label, label if number is not None else LOWEST
        low, high = LOWEST, HIGHEST
        if interval.low is not None:
            assert isinstance(interval.low, str)
            low = self.texts.from_on(interval.low, after=not interval.low_closed)
        if interval.high is not None:
            assert isinstance(interval.high, str)
            high = self.texts.from_on(interval.high, after=interval.high_closed)
            high = high if high == HIGHEST else high - 1
        return low, high

    def mask(self, atom: Atom, slots: Array) -> Array:
        """Say of each slot whether its context satisfies a term, exactly."""
        self.steps += len(slots) * price.weight(atom)
        out = np.empty(len(slots), np.bool_)
        match atom:
            case Values(name, kind, intervals):
                column = self._columns.get((name, kind))
                if column is None:
                    out[:] = False
                    return out
                ranges = self._ranges(atom)
                columns.in_ranges(column.entries, self._labels(column), slots, *ranges, out)
                if kind == "number" and not _exact(intervals):
                    self._verify(atom, slots, out)
            case Presence(name, present):
                out[:] = self._has(name, slots) if present else ~self._has(name, slots)
            case Box(west, south, east, north):
                box = (west, south, east, north)
                columns.in_box(self.longitudes, self.latitudes, slots, box, out)
            case Residual(syntax.Like(syntax.Property(name), pattern), wanted):
                self._like(name, pattern, wanted, slots, out)
            case Residual(syntax.Spatial() as spatial, wanted):
                self._spatial(spatial, wanted, slots, out)
            case Residual(syntax.Near() as near, wanted):
                self._near(near, wanted, slots, out)
                doubtful = self._on_edge(near, slots)
                out[doubtful] = True
                self._verify(atom, slots, out, doubtful)
            case _:
                out[:] = True
                self._verify(atom, slots, out)
        return out

    def _verify(self, atom: Atom, slots: Array, out: Array, doubtful: Array | None = None) -> None:
        """Let the reference evaluator decide those that are True so far, or the doubtful ones."""
        for index in np.flatnonzero(out) if doubtful is None else doubtful:
            context = self.contexts[slots[index]]
            out[index] = context is not None and holds(atom, context)

    def _has(self, name: str, slots: Array) -> Array:
        if name == "geometry":
            there: Array = ~np.isnan(self.longitudes[slots])
            return there
        has = np.zeros(len(slots), np.bool_)
        keys = np.empty(len(slots), np.int64)
        for kind in self._kinds.get(name, ()):
            columns.keys_at(self._columns[name, kind].entries, slots, keys)
            has |= keys != MISSING
        return has

    def _like(self, name: str, pattern: str, wanted: bool, slots: Array, out: Array) -> None:
        column = self._columns.get((name, "string"))
        if column is None:
            out[:] = False
            return
        numbers = np.empty(len(slots), np.int64)
        columns.keys_at(column.entries, slots, numbers)
        codes, known = texts.pattern_codes(pattern), self.texts
        texts.like_each(known.data, known.spans, numbers, codes, out)
        if not wanted:
            np.logical_not(out, out)
            out &= numbers != MISSING

    def like_candidates(self, name: str, pattern: str, count_max: int) -> Array | None:
        """Return the slots whose text satisfies a pattern, by a search of all different texts.

        None if the pattern's literal runs are too short to rule texts out by their signatures, or
        more than `count_max` texts satisfy it.
        """
        column = self._columns.get((name, "string"))
        if column is None:
            return None
        numbers = np.empty(count_max + 1, np.int64)
        found = self.texts.liking(pattern, numbers)
        if found is None or found > count_max:
            return None
        labels = np.sort(self.texts.labels[numbers[:found]])
        return self.gather(column, (labels, labels))

    def _spatial(self, spatial: syntax.Spatial, wanted: bool, slots: Array, out: Array) -> None:
        """Ask GEOS about all points at once, as the reference evaluator asks about one."""
        longitudes, latitudes = self.longitudes[slots], self.latitudes[slots]
        shape = geometry(spatial.shape)
        there = ~np.isnan(longitudes)
        if spatial.op == "s_intersects":
            answer = shapely.intersects_xy(shape, longitudes, latitudes)
        else:
            points = shapely.points(longitudes[there], latitudes[there])
            ask = getattr(shapely, spatial.op.removeprefix("s_"))
            answer = np.zeros(len(slots), np.bool_)
            # Prepared shapes are fast on the left, so ask about the shape where that is the same.
            first = (points, shape) if spatial.point_first else (shape, points)
            answer[there] = ask(*first)
        out[:] = there & (answer == wanted)

    def distances(self, to: tuple[float, float], slots: Array) -> Array:
        """Return the distances in metres, equal to the reference's but for the last digits."""
        longitude, latitude = math.radians(to[0]), math.radians(to[1])
        longitudes, latitudes = (
            np.radians(self.longitudes[slots]),
            np.radians(self.latitudes[slots]),
        )
        h = np.sin((latitude - latitudes) / 2) ** 2
        h += np.cos(latitudes) * math.cos(latitude) * np.sin((longitude - longitudes) / 2) ** 2
        metres: Array = 2 * RADIUS_METRES * np.arcsin(np.minimum(1.0, np.sqrt(h)))
        return metres

    def _near(self, near: syntax.Near, wanted: bool, slots: Array, out: Array) -> None:
        metres = self.distances((near.longitude, near.latitude), slots)
        np.less_equal(metres, near.metres, out) if wanted else np.greater(metres, near.metres, out)

    def _on_edge(self, near: syntax.Near, slots: Array) -> Array:
        metres = self.distances((near.longitude, near.latitude), slots)
        # Near the antipodes asin is steep: rounding errors of 1e-16 become metres there.
        far = metres > 0.99 * math.pi * RADIUS_METRES
        close = np.abs(metres - near.metres) < EDGE_METRES
        edge: Array = np.flatnonzero(close | (far & (near.metres > 0.9 * math.pi * RADIUS_METRES)))
        return edge


def _memo_key(atom: Atom) -> int | Atom:
    """Return what names a term: itself, or its id if hashing it would cost its length."""
    small = isinstance(atom, Values) and len(atom.intervals) == 1
    return atom if small else id(atom)


def distinct(found: Iterable[Array]) -> Array:
    """Return the slots of several arrays, each once."""
    together: Array = np.sort(np.concatenate([np.empty(0, np.int32), *found]))
    if len(together) < 2:
        return together
    first = np.empty(len(together), np.bool_)
    first[0] = True
    np.not_equal(together[1:], together[:-1], first[1:])
    once: Array = together[first]
    return once


def box_ranges(box: Box) -> Ranges:
    """Return ranges of Morton codes that contain a box, coarser at its rim."""
    west, east = cell(max(box.west, -180.0), 360.0), cell(min(box.east, 180.0), 360.0)
    south, north = cell(max(box.south, -90.0), 180.0), cell(min(box.north, 90.0), 180.0)
    empty = box.west > 180 or box.east < -180 or box.south > 90 or box.north < -90
    if empty or west > east or south > north:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    lows, highs = np.empty(BOX_RANGES_MAX, np.int64), np.empty(BOX_RANGES_MAX, np.int64)
    count = columns.cover(west, south, east, north, BITS, lows, highs)
    return lows[:count], highs[:count]


def _arrays(ends: Sequence[tuple[int, int]]) -> Ranges:
    """Return ascending ranges without the empty ones; those that touch or overlap are joined."""
    if len(ends) == 1 and ends[0][0] <= ends[0][1]:  # the common case
        return np.array(ends[0][:1], np.int64), np.array(ends[0][1:], np.int64)
    joined: list[tuple[int, int]] = []
    for first, last in ends:
        if first > last:
            continue
        if joined and joined[-1][1] + 1 >= first:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return (
        np.array([low for low, _ in joined], np.int64),
        np.array([high for _, high in joined], np.int64),
    )


def _number_range(interval: Interval) -> tuple[int, int]:
    """Return an interval of numbers as keys; beyond 2⁵³ at least its values (`_exact`)."""
    low, high = LOWEST, HIGHEST
    if interval.low is not None:
        assert not isinstance(interval.low, str)
        value = float(interval.low)
        low = number_key(value) + (not interval.low_closed and abs(value) < EXACT_BELOW)
    if interval.high is not None:
        assert not isinstance(interval.high, str)
        value = float(interval.high)
        high = number_key(value) - (not interval.high_closed and abs(value) < EXACT_BELOW)
    return low, high


def _exact(intervals: Intervals) -> bool:
    """Return whether keys decide exactly: integers from 2⁵³ on are rounded in them."""
    return all(
        end is None or abs(end) < EXACT_BELOW  # type: ignore[arg-type]
        for interval in intervals
        for end in (interval.low, interval.high)
    )


def _whole_range(interval: Interval) -> tuple[int, int]:
    low = LOWEST if interval.low is None else int(interval.low) + (not interval.low_closed)
    high = HIGHEST if interval.high is None else int(interval.high) - (not interval.high_closed)
    return max(low, LOWEST), min(high, HIGHEST)
