"""Predicates that the index cannot decide; they are evaluated for candidates only.

Circles, shapes and LIKE are tested for all candidates of a batch together, straight from its
columns. Everything else, and everything for a single context, goes to the reference evaluator.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from roamcast.matching import circles
from roamcast.matching.layout import Array, grown
from roamcast.matching.regions import Region
from roamcast.model.context_arrow import from_arrow
from roamcast.model.contexts import Context
from roamcast.model.earth import distance_metres
from roamcast.model.filters.atoms import T_D, T_R, Normal, Presence, Residual
from roamcast.model.filters.evaluate import evaluate, geometry, like
from roamcast.model.filters.holds import holds
from roamcast.model.filters.syntax import Folded, Like, Near, Property, Spatial

OTHER, CIRCLE, SHAPE = 0, 1, 2
"""What a row's conditions are: one circle, one shape, or anything else."""

SHAPE_ALONE_MIN = 64
"""Candidates from which a shape is tested by itself, not in one call with the other shapes."""

Test = Callable[["Candidates", Array], Array]
"""Says for candidates by number whether a condition is exactly what is wanted."""

Decide = Callable[[pa.Array], Array]
"""Says the same of texts."""

FIXED_PROPERTIES = frozenset({"vid", "place", "geometry", "time", T_R, T_D})
"""Properties that are no attributes."""


class Residuals:
    """By row, the conditions beyond its indexed predicates."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[Normal, ...]] = {}
        self._kinds: Array = np.zeros(64, np.int8)
        self._wanted: Array = np.zeros(64, bool)
        self._shapes: Array = np.empty(64, object)
        self._circles: Array = np.zeros((64, circles.PARAMETERS))
        self._tests: dict[int, list[Test]] = {}

    def add(self, row: int, parts: Sequence[Normal]) -> None:
        """Add a row's conditions."""
        self.parts[row] = tuple(parts)
        self._kinds = grown(self._kinds, row + 1)
        self._kinds[row] = OTHER
        part = parts[0]
        if len(parts) > 1 or not isinstance(part, Residual):
            return
        if isinstance(part.expression, Near):
            self._circles = grown(self._circles, row + 1)
            self._circles[row] = circles.parameters(part.expression)
            self._kinds[row] = CIRCLE
        elif isinstance(part.expression, Spatial) and part.expression.op == "s_intersects":
            self._shapes = grown(self._shapes, row + 1)
            self._shapes[row] = geometry(part.expression.shape)
            self._kinds[row] = SHAPE
        self._wanted = grown(self._wanted, row + 1)
        self._wanted[row] = part.wanted

    def drop(self, row: int) -> None:
        """Remove a row."""
        if self.parts.pop(row, None) is not None:
            self._tests.pop(row, None)
            if self._kinds[row] == SHAPE:
                self._shapes[row] = None

    def hold(self, rows: Array, context: Context) -> Array:
        """Return, for each row, whether its conditions hold for one context."""
        shapes = self._kinds[rows] == SHAPE
        point = context.point
        held: Array
        if point is not None and shapes.all():
            held = shapely.intersects_xy(self._shapes[rows], *point) == self._wanted[rows]
        else:
            held = np.zeros(len(rows), bool)
            if point is not None:
                asked = rows[shapes]
                inside = shapely.intersects_xy(self._shapes[asked], *point)
                held[shapes] = inside == self._wanted[asked]
            for place in np.flatnonzero(~shapes).tolist():
                held[place] = all(holds(part, context) for part in self.parts[int(rows[place])])
        return held

    def hold_batch(self, rows: Array, where: Array, batch: pa.RecordBatch | pa.Table) -> Array:
        """Return, for each row, whether its conditions hold for the batch's context in `where`."""
        held = np.zeros(len(rows), bool)
        candidates = Candidates(where, batch)
        kinds = self._kinds[rows]
        self._hold_circles(rows, np.flatnonzero(kinds == CIRCLE), candidates, held)
        rest = np.flatnonzero(kinds != CIRCLE)
        rest = rest[np.argsort(rows[rest], kind="stable")]
        starts, lengths = _runs(rows[rest])
        few = (kinds[rest[starts]] == SHAPE) & (lengths < SHAPE_ALONE_MIN)
        self._hold_shapes(rows, rest[np.repeat(few, lengths)], candidates, held)
        for start, length in zip(starts[~few].tolist(), lengths[~few].tolist(), strict=True):
            same = rest[start : start + length]
            for test in self._tests_of(int(rows[same[0]])):
                same = same[test(candidates, same)]
            held[same] = True
        return held

    def _hold_circles(
        self, rows: Array, chosen: Array, candidates: "Candidates", held: Array
    ) -> None:
        chosen = chosen[candidates.has_point(chosen)]
        if not len(chosen):
            return
        lon, lat = candidates.points(chosen)
        found = np.empty(len(chosen), np.int8)
        circles.locate(self._circles, rows[chosen], lon, lat, found)
        for place in np.flatnonzero(found == circles.DOUBTFUL).tolist():
            part: Any = self.parts[int(rows[chosen[place]])][0]
            found[place] = _is_near(part.expression, float(lon[place]), float(lat[place]))
        held[chosen] = (found == circles.IN) == self._wanted[rows[chosen]]

    def _hold_shapes(
        self, rows: Array, chosen: Array, candidates: "Candidates", held: Array
    ) -> None:
        """Test many shapes with few candidates each in one call."""
        chosen = chosen[candidates.has_point(chosen)]
        if len(chosen):
            asked = rows[chosen]
            inside = shapely.intersects_xy(self._shapes[asked], *candidates.points(chosen))
            held[chosen] = inside == self._wanted[asked]

    def _tests_of(self, row: int) -> list[Test]:
        found = self._tests.get(row)
        if found is None:
            found = self._tests[row] = [test_of(part)[0] for part in self.parts[row]]
        return found


class Candidates:
    """Contexts of a batch by their numbers among the candidates."""

    def __init__(self, where: Array, batch: pa.RecordBatch | pa.Table) -> None:
        self._where = where
        self._batch = batch
        self._lon: Array | None = None
        self._lat: Array | None = None

    def has_point(self, chosen: Array) -> Array:
        """Say which candidates have a point."""
        valid: Array = ~np.isnan(self.points(chosen)[0])
        return valid

    def points(self, chosen: Array) -> tuple[Array, Array]:
        """Give longitudes and latitudes; NaN where there is no point."""
        if self._lon is None or self._lat is None:
            self._lon = np.asarray(self._batch.column("lon"), np.float64)
            self._lat = np.asarray(self._batch.column("lat"), np.float64)
        at = self._where[chosen]
        return self._lon[at], self._lat[at]

    def texts(self, name: str, chosen: Array) -> pa.Array | None:
        """Give a property's texts, null where it has none; None if no context has one."""
        column = name if name in {"place", "vid"} else f"string:{name}"
        if column not in self._batch.schema.names:
            return None
        found = self._batch.column(column).take(pa.array(self._where[chosen]))
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def has(self, attribute: str, chosen: Array) -> Array:
        """Say which candidates have an attribute, of whatever kind."""
        found = np.zeros(len(chosen), bool)
        for name in self._batch.schema.names:
            if name.partition(":")[2] == attribute:
                column = self._batch.column(name).is_valid()
                found |= np.asarray(column)[self._where[chosen]]
        return found

    def contexts(self, chosen: Array) -> list[Context]:
        """Convert candidates for the reference evaluator, each context once."""
        needed, which = np.unique(self._where[chosen], return_inverse=True)
        made = from_arrow(self._batch.take(pa.array(needed)))
        return [made[number] for number in which.tolist()]


def _runs(ordered: Array) -> tuple[Array, Array]:
    """Return where each run of equal numbers starts, and its length."""
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return starts, np.diff(np.append(starts, len(ordered)))


def test_of(part: Normal) -> tuple[Test, bool]:
    """Give the test of a condition, and whether it decides in bulk or context by context."""
    if isinstance(part, Residual):
        match part.expression:
            case Spatial() as spatial:
                return _shape_test(Region(spatial), part.wanted), True
            case Near() as near:
                return _circle_test(near, part.wanted), True
            case _:
                pass
    text = text_test(part)
    if text is not None:
        return _text_test(*text), True
    if isinstance(part, Presence) and part.property not in FIXED_PROPERTIES:
        return _presence_test(part), True
    return lambda candidates, chosen: np.array(
        [holds(part, context) for context in candidates.contexts(chosen)], bool
    ), False


def text_test(part: Normal) -> tuple[str, Decide] | None:
    """Give the property whose text alone decides a condition, and how; None if there is none."""
    if isinstance(part, Residual):
        match part.expression:
            case Like(Property(name), pattern):
                return name, _wanting(part.wanted, _like(pattern))
            case Like(Folded(_, Property(name))) as folded:
                return name, _wanting(part.wanted, _folded(folded))
            case _:
                pass
    return None


def _wanting(wanted: bool, decide: Decide) -> Decide:
    return lambda texts: decide(texts) == wanted


def _shape_test(region: Region, wanted: bool) -> Test:
    def test(candidates: Candidates, chosen: Array) -> Array:
        held = candidates.has_point(chosen)
        lon, lat = candidates.points(chosen[held])
        held[held] = region.holds(lon, lat) == wanted
        return held

    return test


def _circle_test(near: Near, wanted: bool) -> Test:
    alone = np.array([circles.parameters(near)])

    def test(candidates: Candidates, chosen: Array) -> Array:
        held = candidates.has_point(chosen)
        lon, lat = candidates.points(chosen[held])
        found = np.empty(len(lon), np.int8)
        circles.locate(alone, np.zeros(len(lon), np.int64), lon, lat, found)
        for place in np.flatnonzero(found == circles.DOUBTFUL).tolist():
            found[place] = _is_near(near, float(lon[place]), float(lat[place]))
        held[held] = (found == circles.IN) == wanted
        return held

    return test


def _is_near(near: Near, longitude: float, latitude: float) -> bool:
    centre = (near.longitude, near.latitude)
    return distance_metres((longitude, latitude), centre) <= near.metres


def _like(pattern: str) -> Decide:
    """Match texts by Arrow, in time linear in the text as well."""
    atomic = like(pattern)
    # RE2 has no atomic groups and needs none; \z is its end of the text
    plain = rf"(?s)\A(?:{atomic.pattern.replace('(?>', '(?:')})\z"

    def decide(texts: pa.Array) -> Array:
        try:
            return np.asarray(pc.match_substring_regex(texts, plain))
        except pa.ArrowInvalid:  # larger than RE2 takes
            return np.array([bool(atomic.fullmatch(text)) for text in texts.to_pylist()], bool)

    return decide


def _folded(expression: Like) -> Decide:
    def decide(texts: pa.Array) -> Array:
        inner = [Context("v", attributes={"text": text}) for text in texts.to_pylist()]
        assert isinstance(expression.operand, Folded)
        asked = Like(Folded(expression.operand.name, Property("text")), expression.pattern)
        return np.array([evaluate(asked, one) for one in inner], bool)

    return decide


def _text_test(name: str, decide: Decide) -> Test:
    def test(candidates: Candidates, chosen: Array) -> Array:
        texts = candidates.texts(name, chosen)
        if texts is None:
            return np.zeros(len(chosen), bool)
        coded = texts.dictionary_encode()
        # the entry beyond the last is that of texts that are missing: unknown is never wanted
        answers = np.append(decide(coded.dictionary), False)
        places = coded.indices
        if texts.null_count:
            places = places.fill_null(len(coded.dictionary))
        held: Array = answers[np.asarray(places)]
        return held

    return test


def _presence_test(part: Presence) -> Test:
    def test(candidates: Candidates, chosen: Array) -> Array:
        held: Array = candidates.has(part.property, chosen) == part.present
        return held

    return test
