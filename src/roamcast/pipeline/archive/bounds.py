"""Pruning: which files, or row groups of a file, can hold a match. One rule for both.

`Bounds` holds what is known of the rows of many parts as arrays, one entry per part, and decides
for many needs at once. It only rules out: whatever is unknown leaves a part in. Lookups use it with
the table's log (`FileBounds`) and with a file's footer (`GroupBounds`), retention with the log.

NaN never reaches the rule. A bound that is unknown becomes infinite where it is read, and "no row
has a point" is a flag of its own: with NaN for both, the log and the footer once had to read the
same value in opposite ways.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from roamcast.model.kinds import Comparison, Scalar, holding
from roamcast.model.time import FOREVER
from roamcast.pipeline.archive.files import BOUNDS, GROUPS_KEY, MILLISECOND
from roamcast.pipeline.archive.layout import Array, stored_name

if TYPE_CHECKING:
    from roamcast.pipeline.lookup.plan import Needs

FIRST = -FOREVER - 1
"""Before every moment."""

Hull = tuple[Scalar | None, Scalar | None]
"""The lowest and the highest value of a set; None: no bound."""

RULES_MAX = 4_096
"""Distinct needs of a place or an attribute whose parts are remembered."""

MASKS_BYTES_MAX = 1 << 26
"""Masks of parts, one for each rule, that are held together."""

Range = tuple[Array, Array]
"""The lowest and the highest value in each part."""


class AskedColumns(msgspec.Struct, frozen=True):
    """A required attribute: its name, the kind of comparison, and the range it must lie in."""

    name: str
    kind: Comparison
    low: Scalar | None
    high: Scalar | None


Rule = AskedColumns | tuple[Hull, ...]
"""What excludes a part: an attribute that must be there, or places between these ends."""


class Bounds:
    """Statistics of some parts, files or row groups.

    starts, ends: ranges of t_r and t_d in µs; a t_d of null counts as FOREVER.
    box: west, east, south, north. pointless: parts in which no row has a point.
    """

    def __init__(self, starts: Range, ends: Range, box: Sequence[Array], pointless: Array) -> None:
        self.parts = len(pointless)
        self.starts, self.ends = starts, ends
        west, east, south, north = box
        self.longitudes, self.latitudes = _known(west, east), _known(south, north)
        self.pointless = pointless
        self._lacking: dict[tuple[str, Comparison], Array] = {}
        self._numbers: dict[str, Range] = {}
        self._texts: tuple[Any, Any, Array] | None = None
        self._places: dict[tuple[Hull, ...], Array] = {}
        self._attributes: dict[AskedColumns, Array] = {}

    def possible(self, needs: "Needs", chosen: Array) -> Array:
        """Say for each chosen need and each part whether some row may satisfy it."""
        which = np.repeat(np.arange(len(chosen)), self.parts)
        parts = np.tile(np.arange(self.parts), len(chosen))
        found: Array = self._passing(needs, chosen[which], parts)
        return found.reshape(len(chosen), self.parts)

    def pairs(self, needs: "Needs") -> tuple[Array, Array]:
        """Give the pairs of a need and a part that may satisfy it, in no order.

        A tree over times and longitudes names the pairs to look at: the work grows with them, not
        with needs times parts.
        """
        parts = _boxes(self.starts, (
            np.where(self.pointless, -np.inf, self.longitudes[0]),
            np.where(self.pointless, np.inf, self.longitudes[1]),
        ))  # fmt: skip
        asked = _boxes(tuple(needs.times[:, :2].T), tuple(needs.boxes[:, :2].T))
        empty = (needs.times[:, 0] > needs.times[:, 1]) | (needs.boxes[:, 0] > needs.boxes[:, 1])
        chosen = np.flatnonzero(~empty)
        which, found = shapely.STRtree(parts).query(asked[chosen])
        which = chosen[which]
        passing = self._passing(needs, which, found)
        return which[passing], found[passing]

    def _passing(self, needs: "Needs", which: Array, parts: Array) -> Array:
        """Say for pairs of a need and a part whether some row of the part may satisfy the need."""
        low_r, high_r, low_d, high_d = needs.times[which].T
        found = _overlap(low_r, high_r, _at(self.starts, parts))
        found &= _overlap(low_d, high_d, _at(self.ends, parts))
        west, east, south, north = needs.boxes[which].T
        meets = _overlap(west, east, _at(self.longitudes, parts))
        meets &= _overlap(south, north, _at(self.latitudes, parts))
        found &= (meets & ~self.pointless[parts]) | ~needs.boxed[which]
        for column in needs.ruled.T:
            self._apply(needs.rules, column[which], parts, found)
        return found

    def _apply(self, rules: "Sequence[Rule]", ruled: Array, parts: Array, found: Array) -> None:
        """Take out the pairs whose rule (-1: none) does not leave their part."""
        used = np.unique(ruled[ruled >= 0])  # few: equal rules of many needs are one
        together = max(1, MASKS_BYTES_MAX // max(1, self.parts))
        for start in range(0, len(used), together):
            some = used[start : start + together]
            left = np.ones((len(some) + 1, self.parts), bool)
            for row, rule in enumerate(some.tolist()):
                left[row] = self._leaves(rules[rule])
            rows = np.full(len(rules) + 1, len(some))  # any other rule, and none, finds the last
            rows[some] = np.arange(len(some))
            found &= left[rows[ruled], parts]

    def _leaves(self, rule: Rule) -> Array:
        """Say which parts a rule leaves."""
        return self._has(rule) if isinstance(rule, AskedColumns) else self._in_places(rule)

    def ended_before(self, moment: int) -> Array:
        """Say which parts may hold a context that ended before a moment."""
        found: Array = self.ends[0] < moment
        return found

    def _in_places(self, hulls: tuple[Hull, ...]) -> Array:
        """Say which parts may hold a place between some pair of ends."""
        if hulls not in self._places:
            if len(self._places) >= RULES_MAX:
                self._places.clear()
            self._places[hulls] = self._between(hulls)
        return self._places[hulls]

    def _between(self, hulls: tuple[Hull, ...]) -> Array:
        if self._texts is None:
            self._texts = self.places()
        low, high, nowhere = self._texts
        found = np.zeros(self.parts, bool)
        for first, last in hulls:
            inside = np.ones(self.parts, bool)
            if first is not None:
                inside &= _unless_false(pc.greater_equal(high, first))
            if last is not None:
                inside &= _unless_false(pc.less_equal(low, last))
            found |= inside
        return found & ~nowhere

    def _has(self, asked: AskedColumns) -> Array:
        """Say which parts may hold the attribute and, if it is a number, one within its ends."""
        if asked not in self._attributes:
            if len(self._attributes) >= RULES_MAX:
                self._attributes.clear()
            self._attributes[asked] = self._holding(asked)
        return self._attributes[asked]

    def _holding(self, asked: AskedColumns) -> Array:
        key = (asked.name, asked.kind)
        if key not in self._lacking:
            self._lacking[key] = self.lacks(*key)
        found: Array = ~self._lacking[key]
        if asked.kind == "number":
            if asked.name not in self._numbers:
                self._numbers[asked.name] = _known(*self.numbers(asked.name))
            low = -np.inf if asked.low is None else np.nextafter(_float(asked.low), -np.inf)
            high = np.inf if asked.high is None else np.nextafter(_float(asked.high), np.inf)
            found &= _overlap(low, high, self._numbers[asked.name])
        return found

    def places(self) -> tuple[Any, Any, Array]:
        """Give each part's first and last place as Arrow (null: unknown), and which have none."""
        raise NotImplementedError

    def lacks(self, name: str, kind: Comparison) -> Array:
        """Say which parts hold no value of an attribute that can be compared in this way."""
        raise NotImplementedError

    def numbers(self, name: str) -> Range:
        """Give the range of an attribute's numbers in each part, NaN where it is unknown."""
        raise NotImplementedError


class FileBounds(Bounds):
    """Statistics of a snapshot's files, from the table's log (`Archive.files`)."""

    def __init__(self, files: pa.Table) -> None:
        self._files = files
        self.rows = _integers(files["num_records"], 0)
        starts = (self._moments("min.t_r", FIRST), self._moments("max.t_r", FOREVER))
        ends = (self._moments("min.t_d", FIRST), self._moments("max.t_d", FOREVER))
        # A t_d of null lasts for ever, and Delta leaves it out of the statistics.
        lasting = _integers(self._column("null_count.t_d"), 1)
        ends[1][lasting > 0] = FOREVER
        ends[0][self._empty("t_d")] = FOREVER
        box = [self._floats(name) for name in ("min.lon", "max.lon", "min.lat", "max.lat")]
        super().__init__(starts, ends, box, self._empty("lon") | self._empty("lat"))

    def places(self) -> tuple[Any, Any, Array]:
        """Read the range of places from the log."""
        low, high = (self._column(f"{end}.place", pa.string()) for end in ("min", "max"))
        return low, high, self._empty("place")

    def lacks(self, name: str, kind: Comparison) -> Array:
        """Compare the number of nulls with the number of rows."""
        columns = [self._empty(stored_name(f"{one}:{name}")) for one in holding(kind)]
        found: Array = np.logical_and.reduce(columns)
        return found

    def numbers(self, name: str) -> Range:
        """Join the ranges of the kinds that hold numbers."""
        low = high = np.full(len(self.rows), np.nan)
        for kind in holding("number"):
            column = stored_name(f"{kind}:{name}")
            low = np.fmin(low, self._floats(f"min.{column}"))
            high = np.fmax(high, self._floats(f"max.{column}"))
        # the log's JSON may have rounded integers beyond 2⁵³
        return np.nextafter(low, -np.inf), np.nextafter(high, np.inf)

    def _empty(self, column: str) -> Array:
        """Say which files are known to have no value in a column."""
        found: Array = _integers(self._column(f"null_count.{column}"), -1) == self.rows
        return found

    def _moments(self, name: str, missing: int) -> Array:
        moments = _integers(self._column(name), missing)
        if name.startswith("max."):  # Delta keeps whole milliseconds, rounded down
            moments = np.where(moments > FOREVER - MILLISECOND, moments, moments + MILLISECOND)
        return moments

    def _floats(self, name: str) -> Array:
        column = self._column(name)
        if column.null_count == len(column):
            return np.full(len(column), np.nan)
        return np.asarray(column.cast(pa.float64(), safe=False))

    def _column(self, name: str, kind: Any = pa.int64()) -> Any:  # noqa: B008 - it is a constant
        if name in self._files.schema.names:
            return self._files[name]
        return pa.chunked_array([pa.nulls(len(self._files), kind)])


class GroupBounds(Bounds):
    """Statistics of a file's row groups, from its footer (`files.group_bounds`).

    columns: the file's columns by their names in `model.context_arrow`.
    """

    def __init__(self, metadata: Any, columns: Mapping[str, str]) -> None:
        self._metadata = metadata
        self._columns = columns
        groups = metadata.num_row_groups
        stored = (metadata.metadata or {}).get(GROUPS_KEY)
        if stored is not None and len(stored) == 8 * len(BOUNDS) * groups:
            table = np.frombuffer(stored).reshape(len(BOUNDS), groups)
            pointless = np.isnan(table[0])
        else:  # a file that another writer made: nothing is known
            table = np.full((len(BOUNDS), groups), np.nan)
            pointless = np.zeros(groups, bool)
        starts, ends = _known(table[4], table[5]), _known(table[6], table[7])
        super().__init__(starts, ends, list(table[:4]), pointless)

    def places(self) -> tuple[Any, Any, Array]:
        """Read the range of places from Parquet's own statistics."""
        column = self._metadata.schema.names.index("place")
        found = [
            self._metadata.row_group(group).column(column).statistics for group in range(self.parts)
        ]
        known = [each if each is not None and each.has_min_max else None for each in found]
        low = pa.array([None if each is None else each.min for each in known], pa.string())
        high = pa.array([None if each is None else each.max for each in known], pa.string())
        nowhere = [
            each is not None and each.has_null_count and each.num_values == 0 for each in found
        ]
        return low, high, np.array(nowhere, bool)

    def lacks(self, name: str, kind: Comparison) -> Array:
        """Whether the file has a column; a column without values is not written."""
        there = any(f"{one}:{name}" in self._columns for one in holding(kind))
        return np.full(self.parts, not there)

    def numbers(self, name: str) -> Range:  # noqa: ARG002 - the file's range was looked at before
        """Rule nothing out by numbers, since the log has already done so for the whole file."""
        unknown = np.full(self.parts, np.nan)
        return unknown, unknown


def _boxes(times: Any, longitudes: Any) -> Any:
    """Give boxes a little wider than these ranges: float64 rounds moments."""
    ends = [np.asarray(end, np.float64) for end in (*times, *longitudes)]
    spare = [np.nextafter(end, towards) for end, towards in zip(ends, _OUTWARDS, strict=True)]
    first, last, west, east = (np.clip(end, -1e19, 1e19) for end in spare)
    return shapely.box(first, west, last, east)


_OUTWARDS = (-np.inf, np.inf, -np.inf, np.inf)


def _at(known: Range, parts: Array) -> Range:
    return known[0][parts], known[1][parts]


def _overlap(low: Any, high: Any, known: Range) -> Array:
    found: Array = (low <= known[1]) & (high >= known[0])
    return found


def _known(low: Array, high: Array) -> Range:
    """Widen what is unknown (NaN) so that it rules nothing out."""
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _integers(column: Any, missing: int) -> Array:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing)).copy()


def _float(value: Scalar) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf  # type: ignore[operator]


def _unless_false(column: Any) -> Array:
    """Turn a comparison of texts into a mask; an unknown text (null) rules nothing out."""
    return np.asarray(pc.fill_null(column, True)).astype(bool)
