"""Where a context lies in the archive: duration class, day, cell, and order within a file.

A row's t_d says nothing about its t_r unless durations are bounded. So each class of durations has
its own partitions: short contexts by day, longer ones by week, the rest by month, and those that
still last apart. A file's range of t_d is then never much wider than its range of t_r, and
statistics exclude files well without a limit on how long a context may last (decision 0041).
"""

import json
from collections.abc import Collection
from datetime import date, timedelta
from itertools import repeat
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import ContextError, InputError, LimitError
from roamcast.identity.blurring import rounded
from roamcast.identity.live_blur import GRID_S, GRID_S_MAX
from roamcast.model import context_arrow
from roamcast.model.contexts import ATTRIBUTES_MAX
from roamcast.model.time import EARLIEST, LATEST, MICROSECONDS

PARTITIONS = ["span", "day", "cell"]
ORDER = [*PARTITIONS, "fine", "spot", "t_r"]
"""How rows are sorted; `fine` and `spot` exist only while sorting."""

PLACING = pa.schema(
    [
        ("span", pa.string()),
        ("day", pa.string()),
        ("cell", pa.string()),
        ("fine", pa.int64()),
        ("spot", pa.string()),
    ]
)
HOUR = 3_600 * MICROSECONDS
DAY = 24 * HOUR
SPANS = [("hours", 12 * HOUR), ("days", 8 * DAY)]
LONGEST, LASTING = "months", "open"
NOWHERE = "none"
"""The cell of contexts without a point."""

FINER = 2
"""Rows of a partition are sorted by cells so many resolutions finer: 49 in each."""

COLUMNS_MAX = 4 * ATTRIBUTES_MAX
"""Attribute columns of one archive: as many as four contexts without a common attribute."""

Array = npt.NDArray[Any]
Names = TypeVar("Names", bound=Collection[str])


class ArchiveSettings(msgspec.Struct, frozen=True):
    """Settings fixed when an archive is created, stored in the table's description."""

    resolution: int = 4
    grid_s: int = GRID_S
    """The step that intervals are rounded outwards to, in seconds; 0 stores them exactly."""

    def encode(self) -> str:
        """Write the settings as the table's description."""
        return json.dumps({"roamcast": msgspec.structs.asdict(self)})

    @property
    def summary(self) -> str:
        """The settings in words, for errors."""
        grid = f"a grid of {self.grid_s} s" if self.grid_s else "exact times"
        return f"cells of resolution {self.resolution} and {grid}"

    @classmethod
    def decode(cls, description: str | None) -> "ArchiveSettings":
        """Read them from a table's description."""
        try:
            stored = json.loads(description or "")["roamcast"]
            return msgspec.convert({"grid_s": 0, **stored}, cls)  # older archives have exact times
        except (ValueError, KeyError, TypeError, msgspec.ValidationError):
            raise InputError("this Delta table is not an archive of contexts") from None


def check_settings(settings: ArchiveSettings) -> ArchiveSettings:
    """Return the settings if H3 has cells of this resolution, and finer ones to sort by."""
    if not 0 <= settings.grid_s <= GRID_S_MAX:
        raise LimitError(f"the grid of times has a step of 0 to {GRID_S_MAX} s")
    if not 0 <= settings.resolution <= 15 - FINER:
        raise LimitError(f"the resolution of H3 cells is from 0 to {15 - FINER}")
    return settings


def stored_name(column: str) -> str:
    """Name an attribute's column in the table.

    Tables compare names without their case and forbid some characters: whatever is not a small
    letter, a digit or one of `_.-` is written as %xx.
    """
    kind, colon, name = column.partition(":")
    if not colon:
        return column
    return f"{kind}:{''.join(map(_escaped, name))}"


def _escaped(character: str) -> str:
    if character.isascii() and (character.islower() or character.isdigit() or character in "_.-"):
        return character
    return "".join(f"%{byte:02x}" for byte in character.encode())


def context_name(column: str) -> str:
    """Give the name that a stored column has in `model.context_arrow`."""
    return unquote(column) if ":" in column else column


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema of contexts with its columns in order, or say what is wrong with it."""
    context_arrow.check_columns(schema)
    attributes = [name for name in schema.names if context_arrow.attribute_kind(name)]
    return context_arrow.schema(check_count(attributes))


def check_count(columns: Names) -> Names:
    """Return attribute columns if no archive refuses them for their number."""
    if len(columns) > COLUMNS_MAX:
        raise LimitError(f"contexts have at most {COLUMNS_MAX} attribute columns in an archive")
    return columns


def placed(batch: pa.RecordBatch, settings: ArchiveSettings) -> pa.RecordBatch:
    """Round intervals to the grid, and add the columns that say where each context lies.

    Everything that is written passes here, so no other way stores exact times. Rows that are no
    contexts are refused.
    """
    starts = batch.column("t_r")
    if starts.null_count or batch.column("vid").null_count:
        raise ContextError("a context without vid or t_r")
    begin = _numbers(starts, 0)
    end = _numbers(batch.column("t_d"), LATEST)
    lasting = np.asarray(batch.column("t_d").is_null())
    if len(begin) and (begin.min() < EARLIEST or end.max() > LATEST):
        raise ContextError("a context lies outside the years 1 to 9999")
    if (end < begin).any():
        raise ContextError("a context has its t_d before its t_r")
    begin, end = rounded(batch.column("vid"), begin, end, settings.grid_s)
    batch = _with_times(batch, begin, end, lasting)
    fine, has_point = _fine_cells(batch, settings.resolution + FINER)
    columns = [
        *_when(begin, end - begin, lasting),
        _cell_names(fine, has_point, settings.resolution),
        pa.array(fine.view(np.int64)),
        pc.if_else(pa.array(has_point), pa.scalar(None, pa.string()), batch.column("place")),
    ]
    fields = [*batch.schema, *PLACING]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema(fields))


def _with_times(batch: pa.RecordBatch, begin: Array, end: Array, lasting: Array) -> pa.RecordBatch:
    for name, values, missing in (("t_r", begin, None), ("t_d", end, lasting)):
        at = batch.schema.get_field_index(name)
        column = pa.array(values, pa.int64(), mask=missing).cast(batch.schema.field(at).type)
        batch = batch.set_column(at, batch.schema.field(at), column)
    return batch


def _numbers(column: Any, missing: int) -> Array:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing))


def _when(begin: Array, duration: Array, lasting: Array) -> list[pa.Array]:
    """Give each context's duration class and the first day of its period."""
    spans = np.full(len(begin), len(SPANS), np.int8)
    for number in range(len(SPANS) - 1, -1, -1):
        spans[duration <= SPANS[number][1]] = number
    spans[lasting] = len(SPANS) + 1
    days = begin // DAY
    weeks = days - (days + 3) % 7  # 1970-01-01 was a Thursday
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype("datetime64[D]")
    period = np.select([spans == 0, spans == 1], [days, weeks], months.astype(np.int64))
    # year 1 began on a Monday, so no week begins before it
    names = pa.array([*(name for name, _ in SPANS), LONGEST, LASTING])
    distinct, which = np.unique(period, return_inverse=True)
    texts = pa.array([_day_name(int(day)) for day in distinct], pa.string())
    return [names.take(pa.array(spans)), texts.take(pa.array(which.astype(np.int64)))]


def _day_name(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def _fine_cells(batch: pa.RecordBatch, resolution: int) -> tuple[Array, Array]:
    from h3.api.basic_int import latlng_to_cell

    lon, lat = batch.column("lon"), batch.column("lat")
    has_point = np.asarray(lon.is_valid())
    if not np.array_equal(has_point, np.asarray(lat.is_valid())):
        raise ContextError("a context has a longitude without a latitude, or the other way round")
    longitudes = lon.drop_null().to_numpy()
    latitudes = lat.drop_null().to_numpy()
    # written so that NaN is refused, too
    if not ((np.abs(longitudes) <= 180).all() and (np.abs(latitudes) <= 90).all()):
        raise ContextError("a context's point is no WGS84 longitude and latitude")
    fine = np.zeros(len(has_point), np.uint64)
    if len(longitudes):
        # a place has one point for all who were there, and H3 is asked point by point
        points = pa.py_buffer(np.column_stack([latitudes, longitudes]).tobytes())
        whole = pa.Array.from_buffers(pa.binary(16), len(longitudes), [None, points])
        distinct = whole.dictionary_encode()
        ends = np.frombuffer(distinct.dictionary.buffers()[1], np.float64).tolist()
        cells = map(latlng_to_cell, ends[::2], ends[1::2], repeat(resolution))
        found = np.fromiter(cells, np.uint64)
        fine[has_point] = found[distinct.indices.to_numpy()]
    return fine, has_point


def _cell_names(fine: Array, has_point: Array, resolution: int) -> pa.Array:
    """Name the coarse cells: H3's parents, computed on the index's bits for all rows at once."""
    unused = np.uint64((1 << (3 * (15 - resolution))) - 1)
    parents = (fine & ~np.uint64(0xF << 52)) | np.uint64(resolution << 52) | unused
    parents[~has_point] = 0
    distinct, which = np.unique(parents, return_inverse=True)
    names = pa.array([f"{int(cell):x}" if cell else NOWHERE for cell in distinct], pa.string())
    return names.take(pa.array(which.astype(np.int64)))
