"""Sightings in Parquet, read and checked by columns: no row of a good file is looked at alone.

Arrow keeps texts as dictionaries, so what a text may be is asked once per distinct text. Rows that
are not plainly sightings, usually few, go through `check_row`, which says what is wrong with them.
Runs in Spark's Python workers and in the driver (decisions 0371, 0480).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.identity.agent_core import NEVER
from roamcast.identity.sightings import ATTRIBUTES_LENGTH_MAX, PERSON_LENGTH_MAX, SOURCES
from roamcast.model.contexts import DEPTH_MAX, PATH_LENGTH_MAX
from roamcast.model.time import EARLIEST, LATEST
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.check_row import (
    NOT_UTF8,
    Given,
    checked_row,
    degrees,
    instant,
    offset_us,
    wrong_person,
    wrong_place,
)
from roamcast.pipeline.ingest.files import DAMAGE, Reading, number_of, parquet_footer
from roamcast.pipeline.ingest.parquet import TEXTS, flat, shape_in, spelled

CHUNK_ROWS = 262_144
"""Rows that are checked together, however many a row group has."""

Array = npt.NDArray[Any]
Stored = Mapping[str, pa.Array]
"""A file's columns, by the fields that they hold."""

_TEXTS = ("person", "source", "time", "place", "attributes")
# What is plainly right; about any other text `check_row` is asked.
_PERSON = r"^[ -Z\\^-z|}~][ -~]*$"
_PLACE = rf"^[ -.0-Z\\^-z|}}~][ -.0-~]*(/[ -.0-~]+){{0,{DEPTH_MAX - 1}}}$"
_ZONED = r"(Z|[+-]\d\d:\d\d)$"
_STAMP = (
    r"^[1-9]\d{3}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)"
    r"|(0[13578]|1[02])-31)[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
    r"(Z|[+-](0\d|1[0-7]):[0-5]\d)$"
)


_FILE = rows.TAKEN.get_field_index("file")


def read_columns(
    path: str, reading: Reading, latest: int, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Give the rows of a file, or of some of its row groups, checked, a chunk at a time.

    latest: a time after this lies in the future (µs). What is wrong with a row is its `reason`.
    """
    footer = parquet_footer(path)
    schema = footer.schema.to_arrow_schema()
    shape = shape_in(schema, reading, path)
    texts = [name for name in shape.values() if schema.field(name).type in TEXTS]
    try:
        with pq.ParquetFile(
            path, metadata=footer, read_dictionary=texts, coerce_int96_timestamp_unit="us"
        ) as file:
            names = list(shape.values())
            for group in range(file.num_row_groups) if groups is None else groups:
                for batch in file.iter_batches(CHUNK_ROWS, [group], names, use_threads=False):
                    stored = {field: batch.column(name) for field, name in shape.items()}
                    yield in_file(path, checked_columns(stored, batch.num_rows, reading, latest))
    except DAMAGE as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"the file is cut or damaged: {reason}", source=path) from None


def in_file(path: str, table: pa.Table) -> pa.Table:
    """Say of rows in which file they stand."""
    number = pa.array(np.full(table.num_rows, number_of(path)))
    return table.set_column(_FILE, "file", number)


def checked_columns(
    stored: Stored,
    count: int,
    reading: Reading,
    latest: int,
    usual: Array | bool = True,
    given: Callable[[Array], Iterable[Given]] | None = None,
) -> pa.Table:
    """Check stored rows; give what each of them says, or what is wrong with it.

    usual: which rows the columns speak of; the others are looked at alone. given: gives rows by
    their numbers to look at alone, if the columns do not hold all of them.
    """
    stored = {field: flat(column) for field, column in stored.items()}
    stamps = None
    if "time" in stored and pa.types.is_timestamp(stored["time"].type):
        stamps = _stamps(stored["time"], reading.zone)
    said = {name: column for name, column in stored.items() if name != "time" or stamps is None}
    constants = reading.constants
    texts = {name: _Texts(said.get(name), count, constants.get(name)) for name in _TEXTS}
    person, source, time, place, attributes = texts.values()
    lon, lat = (_Degrees(said.get(name), count, constants.get(name)) for name in ("lon", "lat"))
    moments = time.each(_moments(time.distinct, reading.zone), NEVER)
    if stamps is not None:
        moments = np.where(stamps.is_valid(), stamps.fill_null(0), moments)
    sources = source.each(_sources(source.distinct), -1)
    pointed = (np.abs(lon.values) <= 180) & (np.abs(lat.values) <= 90)  # of NaN neither is true
    good = (
        person.each(_fitting(person.distinct, _PERSON, wrong_person, PERSON_LENGTH_MAX), False)
        & (sources >= 0)
        & (moments >= EARLIEST)
        & (moments <= latest)
        & place.each(_fitting(place.distinct, _PLACE, wrong_place, PATH_LENGTH_MAX), True)
        & (pointed | ~(lon.present | lat.present | (place.codes < 0)))
        & attributes.each(_short(attributes.distinct), True)
    )
    for column in texts.values():
        good &= column.sound
    good &= lon.sound & lat.sound & usual
    table = rows.taken(
        pa.table(
            {
                "person": person.array(),
                "source": pa.array(sources.astype(np.int8)),
                "time": pa.array(moments),
                "place": place.array(),
                "lon": pa.array(lon.values, mask=~pointed),
                "lat": pa.array(lat.values, mask=~pointed),
                "attributes": attributes.array(),
                "rank": pa.array(np.full(count, rows.RANK_SIGHTING, np.int8)),
                "fresh": pa.array(np.ones(count, bool)),
            }
        )
    )
    if good.all():
        return table
    dubious = np.flatnonzero(~good)
    alone = _given(stored, stamps, pa.array(dubious)) if given is None else given(dubious)
    found = [checked_row(one, reading, latest) for one in alone]
    told = pa.Table.from_pylist(found, schema=rows.TAKEN)
    return pa.concat_tables([table.filter(pa.array(good)), told])


class _Texts:
    """A column of texts: each distinct one once, and by row which of them it is, -1 for none.

    `sound`: whether a row's bytes are a text at all.
    """

    def __init__(self, column: pa.Array | None, count: int, constant: str | None) -> None:
        coded = rows.coded(pa.nulls(count, pa.string()) if column is None else column)
        self.distinct = coded.dictionary
        self.codes = coded.indices.fill_null(-1).to_numpy()
        self.sound: Array | bool = True
        try:
            self.distinct.validate(full=True)
        except pa.ArrowInvalid:
            found = [_decoded(value) for value in self.distinct.cast(pa.binary()).to_pylist()]
            self.sound = self.each(np.array([isinstance(one, str) for one in found]), True)
            self.distinct = pa.array([one if isinstance(one, str) else "" for one in found])
        if constant is not None:
            self.codes = np.where(self.codes < 0, np.int32(len(self.distinct)), self.codes)
            self.distinct = pa.concat_arrays([self.distinct, pa.array([constant], pa.string())])

    def each(self, outcomes: Array, none: Any) -> Array:
        """Give by row what was found for its text."""
        found: Array = np.append(outcomes, none).astype(outcomes.dtype)[self.codes]
        return found

    def array(self) -> pa.DictionaryArray:
        """Give the texts as Arrow has them."""
        none = self.codes < 0
        codes = pa.array(self.codes, mask=none if none.any() else None)
        return pa.DictionaryArray.from_arrays(codes, self.distinct)


class _Degrees:
    """A column of degrees, NaN for none; `present`: whether a row has something there at all."""

    def __init__(self, column: pa.Array | None, count: int, constant: str | None) -> None:
        self.sound: Array | bool = True
        if column is not None and constant is None and not rows.is_text(column):
            numbers = column.cast(pa.float64(), safe=False)
            self.present = column.is_valid().to_numpy(zero_copy_only=False)
            self.values = numbers.fill_null(np.nan).to_numpy()
            return
        texts = _Texts(column, count, constant)
        numbers = [degrees(text) for text in texts.distinct.to_pylist()]
        self.values = texts.each(np.array(numbers, dtype=np.float64), np.nan)
        self.present, self.sound = texts.codes >= 0, texts.sound


def _fitting(
    texts: pa.Array, pattern: str, wrong: Callable[[str], str | None], length_max: int
) -> Array:
    """Say which texts are right: those that the pattern takes, and others that are not wrong."""
    short = pc.less_equal(pc.binary_length(texts), length_max)
    usual = pc.and_(short, pc.match_substring_regex(texts, pattern))
    found: Array = usual.to_numpy(zero_copy_only=False).copy()
    for at in np.flatnonzero(~found).tolist():
        found[at] = wrong(texts[at].as_py()) is None
    return found


def _short(texts: pa.Array) -> Array:
    lengths: Array = pc.utf8_length(texts).to_numpy()
    return lengths <= ATTRIBUTES_LENGTH_MAX


def _sources(texts: pa.Array) -> Array:
    found: Array = pc.index_in(texts, pa.array(SOURCES)).fill_null(-1).to_numpy()
    return found


def _moments(texts: pa.Array, zone: str | None) -> Array:
    """Read moments, NEVER where there is none; those of the usual form by Arrow."""
    whole = texts
    if zone is not None:
        zoned = pc.match_substring_regex(texts, _ZONED)
        whole = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, zone, ""))
    usual = pc.match_substring_regex(whole, _STAMP)
    found = np.full(len(texts), NEVER)
    plain = whole.filter(usual).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    found[usual.to_numpy(zero_copy_only=False)] = plain.to_numpy()
    for at in np.flatnonzero(pc.invert(usual)).tolist():
        moment = instant(texts[at].as_py(), zone)
        found[at] = NEVER if moment is None else moment
    return found


def _stamps(column: pa.Array, zone: str | None) -> pa.Array:
    """Give stored moments in µs; one outside their range stays outside all valid years."""
    unit, zoned = column.type.unit, column.type.tz is not None
    if not zoned and zone is None:  # wall time says nothing without one
        return pa.nulls(len(column), pa.int64())
    none = column.is_null().to_numpy(zero_copy_only=False)
    stored = column.cast(pa.int64()).fill_null(0).to_numpy()
    if unit in _COARSER:
        most = 2 * LATEST // _COARSER[unit]
        stored = np.clip(stored, -most, most) * _COARSER[unit]
    elif unit == "ns":
        stored = stored // 1_000
    if not zoned and zone is not None:
        near = (stored >= -2 * LATEST) & (stored <= 2 * LATEST)
        stored = np.where(near, stored - offset_us(zone[0], zone[1:3], zone[4:6]), stored)
    return pa.array(stored, mask=none)


_COARSER = {"s": 1_000_000, "ms": 1_000}
"""How many µs these units have."""


def _given(stored: Stored, stamps: pa.Array | None, some: pa.Array) -> Iterator[Given]:
    """Give some rows one by one, as `check_row` takes them."""
    columns = {field: _values(column.take(some)) for field, column in stored.items()}
    moments = None if stamps is None else stamps.take(some).to_pylist()
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        texts = {field: _text(value) for field, value in zip(columns, values, strict=True)}
        valid = not any(isinstance(value, bytes) for value in values)
        raw = ",".join(text for text in texts.values() if text is not None)
        if moments is not None:
            del texts["time"]
        moment = None if moments is None else moments[number]
        yield texts, moment, None if valid else NOT_UTF8, raw


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif rows.is_text(column):
        column = column.cast(pa.string()).cast(pa.binary())
        return [None if value is None else _decoded(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return spelled(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
