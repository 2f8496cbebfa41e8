"""What is wrong with one row of sightings: whatever could stop a later stage is found here.

For the rows that are not plainly sightings (`columns`): this module alone says what a row means.
The texts are those of `identity.sightings`. Only the inside of `attributes` is checked later, once
per distinct text (`ingest.scan`).
"""

import math
import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from roamcast.identity import sightings as limits
from roamcast.identity.sightings import SOURCES
from roamcast.model.contexts import DEPTH_MAX, PATH_LENGTH_MAX
from roamcast.model.time import EARLIEST, MICROSECONDS
from roamcast.pipeline.ingest.files import FIELDS, Reading
from roamcast.pipeline.ingest.rows import RANK_DEAD, RANK_SIGHTING

RAW_LENGTH_MAX = 4_096
"""How much of a malformed row is kept with its reason."""

NOT_UTF8 = "not UTF-8"

Fields = Mapping[str, str | None]
Row = dict[str, Any]
Given = tuple[Fields, int | None, str | None, str]
"""A row's texts, its moment where the file has no text for it, what is broken, and all of it."""

_DAY_US = 86_400 * MICROSECONDS
_FIRST_DAY = date(1970, 1, 1).toordinal()
_LEAP_YEAR = 4
"""Stands for year 0, which Python's calendar does not have: it is 1,461 days later."""

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


def checked_row(given: Given, reading: Reading, latest: int) -> Row:
    """Convert a row to its types, as `rows.TAKEN` has them; one that is none gets a reason."""
    fields, stamp, broken, raw = given
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
        "rank": RANK_SIGHTING if reason is None else RANK_DEAD,
        "fresh": True,
    }


def _reason(
    texts: Fields,
    source: int | None,
    time: int | None,
    lon: float | None,
    lat: float | None,
    latest: int,
) -> str | None:
    """Say what is wrong with a row, in the order of `identity.sightings`."""
    return (
        wrong_person(texts["person"])
        or (f"source is not one of {', '.join(SOURCES)}" if source is None else None)
        or _wrong_time(time, latest)
        or _wrong_where(texts, lon, lat)
        or _wrong_attributes(texts["attributes"])
    )


def wrong_person(person: str | None) -> str | None:
    """Say what is wrong with a person's id."""
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


def wrong_place(place: str) -> str | None:
    """Say what is wrong with a place."""
    if len(place) > PATH_LENGTH_MAX:
        return "place is too long"
    parts = place.split("/")
    if place[:1] in {"{", "["} or not all(parts) or len(parts) > DEPTH_MAX:
        return "place is not a path"
    return None if place.isprintable() else "place is not a path"


def _wrong_where(texts: Fields, lon: float | None, lat: float | None) -> str | None:
    place = texts["place"]
    if place is not None and (wrong := wrong_place(place)):
        return wrong
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


def degrees(text: str | None) -> float | None:
    """Read a number as SQL casts a text to one; none if it is none."""
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
    offset = 0 if sign is None else offset_us(sign, east, more)
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


def offset_us(sign: str, hours: str, minutes: str) -> int:
    """Give how far a zone lies east of Greenwich, in µs."""
    east = (int(hours) * 60 + int(minutes)) * 60 * MICROSECONDS
    return -east if sign == "-" else east
