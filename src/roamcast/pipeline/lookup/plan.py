"""Which files can hold a match? Needs against the statistics of the table, all at once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.model.filters.values import Kind, Scalar
from roamcast.model.kinds import holding
from roamcast.model.time import FOREVER
from roamcast.pipeline.archive.files import MILLISECOND
from roamcast.pipeline.archive.layout import Array, stored_name
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.needs import FIRST, Asked, Hull, Needs

CHUNK = 256
"""Needs compared with all files in one go: memory stays at a few megabytes."""


class Share(msgspec.Struct, frozen=True):
    """One file to read and the needs that it may satisfy."""

    path: str
    rows: int
    needs: Array


class Statistics:
    """What the table's log says of its files, as arrays; made once for a snapshot."""

    def __init__(self, archive: Archive) -> None:
        self.version = archive.version
        self._files = archive.files()
        self.paths: list[str] = self._files["path"].to_pylist()
        self.rows = _numbers(self._files["num_records"], 0)
        empty = np.full(len(self.paths), np.nan)
        self.boxes = [
            _floats(self._column(name), empty)
            for name in ("min.lon", "max.lon", "min.lat", "max.lat")
        ]
        no_point = [
            _numbers(self._column(f"null_count.{name}"), -1) == self.rows for name in ("lon", "lat")
        ]
        self.pointless = no_point[0] | no_point[1]
        self.starts = (self._times("min.t_r", FIRST), self._times("max.t_r", FOREVER))
        self.ends = (self._times("min.t_d", FIRST), self._times("max.t_d", FOREVER))
        # A t_d of null is forever, and does not count in the statistics.
        lasting = _numbers(self._column("null_count.t_d"), 1)
        self.ends[1][lasting > 0] = FOREVER
        self.ends[0][lasting == self.rows] = FOREVER
        self._places: tuple[Any, Any] | None = None
        self._lacking: dict[tuple[str, str], Array] = {}
        self._ranges: dict[str, tuple[Array, Array]] = {}

    def possible(self, needs: Needs, chosen: slice) -> Array:
        """Give for some needs and every file whether it may hold what they ask."""
        low_r, high_r, low_d, high_d = (column[:, None] for column in needs.times[chosen].T)
        found: Array = (
            (low_r <= self.starts[1])
            & (high_r >= self.starts[0])
            & (low_d <= self.ends[1])
            & (high_d >= self.ends[0])
        )
        west, east, south, north = (column[:, None] for column in needs.boxes[chosen].T)
        # Written so that missing statistics, NaN, rule nothing out.
        outside = (east < self.boxes[0]) | (west > self.boxes[1])
        outside |= (north < self.boxes[2]) | (south > self.boxes[3]) | self.pointless
        found &= ~(outside & needs.boxed[chosen][:, None])
        for row, number in enumerate(range(needs.count)[chosen]):
            if number in needs.places:
                found[row] &= self._in_places(needs.places[number])
            for asked in needs.asked.get(number, ()):
                found[row] &= self._has(asked)
        return found

    def _in_places(self, hulls: Sequence[Hull]) -> Array:
        """Tell which files have a place between some pair of ends, by their range of places."""
        if self._places is None:
            self._places = (self._column("min.place"), self._column("max.place"))
        low, high = self._places
        found = np.zeros(len(self.paths), bool)
        for first, last in hulls:
            inside = np.ones(len(self.paths), bool)
            if first is not None:
                inside &= _truth(pc.greater_equal(high, first))
            if last is not None:
                inside &= _truth(pc.less_equal(low, last))
            found |= inside
        no_place: Array = _numbers(self._column("null_count.place"), -1) == self.rows
        return found & ~no_place

    def _has(self, asked: Asked) -> Array:
        """Tell which files may have the attribute, and a number within its ends."""
        found: Array = ~self._lacks(asked.name, asked.kind)
        if asked.kind == "number":
            low, high = self._range(asked.name)
            if asked.low is not None:
                found = found & ~(high < np.nextafter(_float(asked.low), -np.inf))
            if asked.high is not None:
                found = found & ~(low > np.nextafter(_float(asked.high), np.inf))
        return found

    def _lacks(self, name: str, kind: Kind) -> Array:
        """Tell which files are known to hold no value of this kind."""
        found = self._lacking.get((name, kind))
        if found is None:
            found = np.ones(len(self.paths), bool)
            for one in holding(kind):
                nulls = self._column(f"null_count.{stored_name(f'{one}:{name}')}")
                found &= _numbers(nulls, -1) == self.rows
            self._lacking[name, kind] = found
        return found

    def _range(self, name: str) -> tuple[Array, Array]:
        """Give the lowest and highest number of an attribute in each file; NaN: not known."""
        found = self._ranges.get(name)
        if found is None:
            unknown = np.full(len(self.paths), np.nan)
            low, high = unknown, unknown
            for kind in holding("number"):
                column = stored_name(f"{kind}:{name}")
                low = np.fmin(low, _floats(self._column(f"min.{column}"), unknown))
                high = np.fmax(high, _floats(self._column(f"max.{column}"), unknown))
            found = (np.nextafter(low, -np.inf), np.nextafter(high, np.inf))
            self._ranges[name] = found
        return found

    def _times(self, name: str, missing: int) -> Array:
        moments = _numbers(self._column(name), missing)
        if name.startswith("max."):  # Delta keeps whole milliseconds, rounded down
            moments = np.where(moments > FOREVER - MILLISECOND, moments, moments + MILLISECOND)
        return moments

    def _column(self, name: str) -> Any:
        if name in self._files.schema.names:
            return self._files[name]
        return pa.chunked_array([pa.nulls(len(self.paths), pa.int64())])


def plan(statistics: Statistics, needs: Needs) -> list[Share]:
    """Give the files to read, each with the needs that it may satisfy."""
    pairs = [np.empty((2, 0), np.int64)]
    for start in range(0, needs.count, CHUNK):
        chosen = slice(start, min(start + CHUNK, needs.count))
        which, files = np.nonzero(statistics.possible(needs, chosen))
        pairs.append(np.stack([which + start, files]))
    which, files = np.concatenate(pairs, axis=1)
    order = np.argsort(files, kind="stable")
    which, files = which[order], files[order]
    distinct, starts = np.unique(files, return_index=True)
    ends = np.append(starts, len(files))[1:]
    return [
        Share(statistics.paths[file], int(statistics.rows[file]), which[start:end].astype(np.int32))
        for file, start, end in zip(distinct.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]


def _float(value: Scalar) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf  # type: ignore[operator]


def _numbers(column: Any, missing: int) -> Array:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing)).copy()


def _floats(column: Any, missing: Array) -> Array:
    if column.null_count == len(column):
        return missing
    return np.asarray(column.cast(pa.float64(), safe=False))


def _truth(column: Any) -> Array:
    """Read a comparison with statistics; where there are none, nothing is ruled out."""
    return np.asarray(pc.fill_null(column, True)).astype(bool)
