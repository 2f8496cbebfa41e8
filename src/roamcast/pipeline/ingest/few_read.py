"""Few sightings, read and checked in this process: what `read` and `check` do with Spark.

A batch of a few rows is done long before Java has started. The reasons are those of `check`, in its
order; a test holds the two equal on rows of all kinds. What Spark's own parsers define (CSV, and
columns of Parquet that are objects, INT96 or halves of a double) is left to them.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.identity import sightings as limits
from roamcast.identity.sightings import SOURCES
from roamcast.model.contexts import DEPTH_MAX, PATH_LENGTH_MAX
from roamcast.model.time import EARLIEST, LATEST, MICROSECONDS
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.check import NOT_UTF8, RAW_LENGTH_MAX
from roamcast.pipeline.ingest.files import (
    DAMAGE,
    FIELDS,
    Reading,
    SightingFile,
    format_of,
    opened_bytes,
)
from roamcast.pipeline.ingest.parquet import Shape, parquet_shape

Fields = Mapping[str, str | None]
Row = dict[str, Any]

_DAY_US = 86_400 * MICROSECONDS
_FIRST_DAY = date(1970, 1, 1).toordinal()
_LEAP_YEAR = 4
"""Stands for year 0, which Python's calendar does not have: it is 1,461 days later."""

_TEXT = re.compile(rb"[^ \t\n\x0b\f\r]")
_TWO_OBJECTS = re.compile(r"\}[ \t\n\x0b\f\r]*\{")
_ZONED = re.compile(r"(?:Z|[+-][0-9]{2}:[0-9]{2})\Z")
_STAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]{1,6})0*)?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?|"
    r"(?:nan|inf|infinity))",
    re.IGNORECASE | re.ASCII,
)
_KINDS = {"string", "tinyint", "smallint", "int", "bigint", "decimal(20,0)", "double"}
_UNITS = {"ms", "us", "ns"}


def readable_here(file: SightingFile, reading: Reading) -> bool:
    """Say whether a file's rows mean the same here as they do to Spark."""
    kind = format_of(file.path, reading)
    if kind != "parquet":
        return kind == "json"
    shape = parquet_shape(file.path, reading)
    return all(one.kind in _KINDS and (one.unit or "us") in _UNITS for one in shape)


def read_here(files: Sequence[SightingFile], reading: Reading, latest: int) -> pa.Table:
    """Give all rows of the files in the columns of `rows.TAKEN`, checked, without their ranks."""
    found = [
        _checked(fields, stamp, broken, raw, reading, latest) | {"file": number_of(file.path)}
        for file in files
        for fields, stamp, broken, raw in _given(file, reading)
    ]
    return pa.Table.from_pylist(found, schema=rows.TAKEN)


def number_of(path: str) -> int:
    """Number a file for the rows that come from it."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


Given = tuple[Fields, int | None, str | None, str]
"""A row's texts, its moment where the file has no text for it, what is broken, and all of it."""


def _given(file: SightingFile, reading: Reading) -> Iterator[Given]:
    if format_of(file.path, reading) == "parquet":
        return _stored(file.path, parquet_shape(file.path, reading), reading)
    return _lines(file.path, reading)


def _lines(path: str, reading: Reading) -> Iterator[Given]:
    try:
        with opened_bytes(path) as source:
            data = source.read()
    except DAMAGE as error:
        raise InputError(f"the file is cut or damaged: {error}", source=path) from None
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in data.split(b"\n"):
        if not _TEXT.search(line):
            continue
        text = line.decode(errors="replace")
        try:
            line.decode()
            broken = None
        except UnicodeDecodeError:
            broken = NOT_UTF8
        if broken is None and len(text) > limits.LINE_LENGTH_MAX:
            broken = "the line is too long"
        fields = _decoded(text)
        if fields is None:
            broken, fields = broken or "not JSON", {}
        yield {field: fields.get(reading.column(field)) for field in FIELDS}, None, broken, text


def _decoded(text: str) -> dict[str, str | None] | None:
    """Give the values of a JSON object as texts; numbers and objects are texts of JSON."""
    if not text.rstrip(" \t\r").endswith("}") or _TWO_OBJECTS.search(text):
        return None
    try:
        said = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {name: _plain(bytes(value)) for name, value in said.items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _plain(value: bytes) -> str | None:
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    if value[:1] in b"{[" and len(value) > limits.ATTRIBUTES_LENGTH_MAX:
        value = msgspec.json.encode(msgspec.json.decode(value))  # escapes and spaces do not count
    return None if value == b"null" else value.decode()


def _stored(path: str, shape: Shape, reading: Reading) -> Iterator[Given]:
    try:
        table = pq.read_table(path, columns=[one.name for one in shape], partitioning=None)
    except DAMAGE as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"the file is cut or damaged: {reason}", source=path) from None
    columns = {one.field: _values(table[one.name], one.unit) for one in shape}
    moments = {one.field: one for one in shape if one.unit is not None}
    for number in range(table.num_rows):
        said = {field: column[number] for field, column in columns.items()}
        valid = not any(isinstance(value, bytes) for value in said.values())
        texts = {field: _text(value) for field, value in said.items()}
        stamp = None
        if "time" in moments and said["time"] is not None:
            stamp = _moment(said["time"], moments["time"].unit, moments["time"].zoned, reading.zone)
        raw = ",".join(text for text in texts.values() if text is not None)
        fields = {field: None if field in moments else text for field, text in texts.items()}
        yield fields, stamp, None if valid else NOT_UTF8, raw


def _values(column: Any, unit: str | None) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if unit is not None:
        column = column.cast(pa.int64())
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # one text that is none: the others are
        kept = column.cast(pa.binary() if column.type == pa.string() else pa.large_binary())
        found = [_decoded_or_bytes(value) for value in kept.to_pylist()]
    return found


def _decoded_or_bytes(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _moment(stored: int, unit: str | None, zoned: bool, zone: str | None) -> int | None:
    """Give a stored moment in µs, as `parquet` does; outside their range it stays outside."""
    if not zoned and zone is None:
        return None
    if unit == "ms":
        most = 2 * LATEST // 1_000
        stored = max(-most, min(most, stored)) * 1_000
    elif unit == "ns":
        stored //= 1_000
    if zoned or not -2 * LATEST <= stored <= 2 * LATEST:
        return stored
    assert zone is not None
    return stored - _offset(zone[0], zone[1:3], zone[4:6])


def _offset(sign: str, hours: str, minutes: str) -> int:
    east = (int(hours) * 60 + int(minutes)) * 60 * MICROSECONDS
    return -east if sign == "-" else east


def _checked(
    fields: Fields, stamp: int | None, broken: str | None, raw: str, reading: Reading, latest: int
) -> Row:
    """Convert a row to its types; one that is no sighting gets a reason."""
    said = {
        field: reading.constants.get(field) if fields.get(field) is None else fields[field]
        for field in FIELDS
    }
    time = stamp if stamp is not None else instant(said["time"], reading.zone)
    lon, lat = degrees(said["lon"]), degrees(said["lat"])
    source = SOURCES.index(said["source"]) if said["source"] in SOURCES else None
    reason = broken or _reason(said, source, time, lon, lat, latest)
    return {
        "person": said["person"],
        "source": source,
        "time": time,
        "place": said["place"],
        "lon": lon,
        "lat": lat,
        "attributes": said["attributes"],
        "reason": reason,
        "raw": None if reason is None else raw[:RAW_LENGTH_MAX],
    }


def _reason(
    texts: Fields,
    source: int | None,
    time: int | None,
    lon: float | None,
    lat: float | None,
    latest: int,
) -> str | None:
    """Say what is wrong with a row, in the order of `check`."""
    return (
        _wrong_person(texts["person"])
        or (f"source is not one of {', '.join(SOURCES)}" if source is None else None)
        or _wrong_time(time, latest)
        or _wrong_where(texts, lon, lat)
        or _wrong_attributes(texts["attributes"])
    )


def _wrong_person(person: str | None) -> str | None:
    if not person:
        return "person is missing"
    if len(person) > limits.PERSON_LENGTH_MAX:
        return f"person is longer than {limits.PERSON_LENGTH_MAX} characters"
    if person[0] in "{[" or not person.isprintable():
        return "person is not printable text"
    return None


def _wrong_time(time: int | None, latest: int) -> str | None:
    if time is None:
        return "time is not an RFC 3339 timestamp with a zone"
    if time < EARLIEST:
        return "time lies outside the years 1 to 9999"
    return "time lies in the future" if time > latest else None


def _wrong_where(texts: Fields, lon: float | None, lat: float | None) -> str | None:
    place = texts["place"]
    if place is not None and len(place) > PATH_LENGTH_MAX:
        return "place is too long"
    if place is not None and not _is_path(place):
        return "place is not a path"
    if lon is None or lat is None:
        if texts["lon"] is not None or texts["lat"] is not None:
            return "lon and lat are not two numbers"
        return "a sighting needs a place, or lon and lat" if place is None else None
    if not (abs(lon) <= 180 and abs(lat) <= 90):  # NaN, too
        return "no WGS84 longitude and latitude"
    return None


def _wrong_attributes(text: str | None) -> str | None:
    if text is None or len(text) <= limits.ATTRIBUTES_LENGTH_MAX:
        return None
    return f"attributes are longer than {limits.ATTRIBUTES_LENGTH_MAX} characters"


def _is_path(place: str) -> bool:
    parts = place.split("/")
    return (
        place[:1] not in {"{", "["} and all(parts) and len(parts) <= DEPTH_MAX
    ) and place.isprintable()


def degrees(text: str | None) -> float | None:
    """Read a number as Spark casts a text to one; none if it is none."""
    stripped = "" if text is None else text.strip()
    if not _NUMBER.fullmatch(stripped):
        return None
    if stripped[-1:] in "dDfF" and stripped[-1:].isalpha() and not stripped.lower().endswith("inf"):
        stripped = stripped[:-1]
    value = float(stripped)
    return math.copysign(math.inf, value) if math.isinf(value) else value


def instant(text: str | None, zone: str | None) -> int | None:
    """Read an RFC 3339 moment in µs; one before year 1 or after 9999 is given as it is."""
    if text is None:
        return None
    text = text.replace(" ", "T").upper()
    if zone is not None and _ZONED.search(text) is None:
        text += zone
    found = _STAMP.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, east, more = found.groups()[6:]
    offset = 0 if sign is None else _offset(sign, east, more)
    if hour > 23 or minute > 59 or second > 59 or int(more or 0) > 59:
        return None
    if abs(offset) > 18 * 3_600 * MICROSECONDS:  # Java's limit
        return None
    try:
        days = date(year or _LEAP_YEAR, month, day).toordinal() - _FIRST_DAY
    except ValueError:
        return None
    if year == 0:
        days -= 1_461
    seconds = (hour * 60 + minute) * 60 + second
    micros = int((fraction or "0").ljust(6, "0"))
    return days * _DAY_US + seconds * MICROSECONDS + micros - offset
