"""Sightings: one person, noticed by one source at one moment, at a place or a point.

`{"person": "ann", "source": "badge", "time": "2026-11-15T09:00:00Z", "place": "campus/b35/2",
"attributes": {"role": "guest"}}`, or `"lon"` and `"lat"` instead of the place, or beside it. The
pipeline writes sightings that these checks reject to the dead letters, with the same message.
"""

from typing import Any

import msgspec

from roamcast.errors import ContextError, InputError, LimitError
from roamcast.model import contexts, time
from roamcast.model.contexts import Attribute, Context

SOURCES = ("badge", "wifi", "login", "gps")
"""The kinds of source. A source's number, also on disk, is its position here: append only."""

PERSON_LENGTH_MAX = 256
ATTRIBUTES_LENGTH_MAX = 65_536
LINE_LENGTH_MAX = 1_000_000


class Sighting(msgspec.Struct, frozen=True, tag=True):
    """A sighting. `attributes` is None if the source does not report any."""

    person: str
    source: str
    time: int
    place: str | None = None
    point: tuple[float, float] | None = None
    attributes: dict[str, Attribute] | None = None


def check(sighting: Sighting) -> Sighting:
    """Return the sighting, or raise if it is invalid. Every entry point calls this once."""
    check_person(sighting.person)
    if sighting.source not in SOURCES:
        raise ContextError(f"source is not one of {', '.join(SOURCES)}")
    if sighting.place is None and sighting.point is None:
        raise ContextError("a sighting needs a place, or lon and lat")
    # The rest has the limits of the context that it becomes part of.
    contexts.check(
        Context(
            "a@b",
            sighting.place,
            sighting.point,
            sighting.attributes or {},
            t_r=sighting.time,
        )
    )
    return sighting


def check_person(person: str) -> str:
    """Return the person's id, or raise if it is invalid."""
    if not person:
        raise ContextError("person is missing")
    if len(person) > PERSON_LENGTH_MAX:
        raise LimitError(f"person is longer than {PERSON_LENGTH_MAX} characters")
    if not person.isprintable() or person[0] in "{[":  # JSON read as text
        raise ContextError("person is not printable text")
    return person


def from_document(document: Any) -> Sighting:
    """Convert a sighting, already decoded from JSON."""
    if not isinstance(document, dict):
        raise ContextError("a sighting is a JSON object")
    person, source, moment = (document.get(name) for name in ("person", "source", "time"))
    if not isinstance(person, str):
        raise ContextError("person is missing" if person is None else "person is not text")
    if not isinstance(source, str) or source not in SOURCES:
        raise ContextError(f"source is not one of {', '.join(SOURCES)}")
    if not isinstance(moment, str):
        raise ContextError("time is not an RFC 3339 timestamp such as 2026-11-15T09:00:00Z")
    try:
        instant = time.parse_instant(moment)
    except InputError as error:
        raise ContextError(f"time: {error}") from None
    place = document.get("place")
    if place is not None and not isinstance(place, str):
        raise ContextError("place is not text")
    given = document.get("attributes")
    attributes = None if given is None else read_attributes(given)
    return check(Sighting(person, source, instant, place, _point(document), attributes))


def decode(line: bytes | str) -> Sighting:
    """Decode one line of JSON."""
    if len(line) > LINE_LENGTH_MAX:
        raise LimitError(f"the line is longer than {LINE_LENGTH_MAX}")
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContextError(f"not JSON: {error}") from None
    return from_document(document)


def read_attributes(given: Any) -> dict[str, Attribute]:
    """Convert a source's attributes, by the rules of a context's properties."""
    if not isinstance(given, dict):
        raise ContextError("attributes is not a JSON object")
    feature = {
        "type": "Feature",
        "id": "a@b",
        "properties": {"t_r": "1970-01-01T00:00:00Z", **_unreserved(given)},
    }
    return contexts.from_feature(feature).attributes


def decode_attributes(text: str) -> dict[str, Attribute]:
    """Decode attributes from JSON text."""
    if len(text) > ATTRIBUTES_LENGTH_MAX:
        raise LimitError(f"attributes are longer than {ATTRIBUTES_LENGTH_MAX} characters")
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContextError(f"attributes are not JSON: {error}") from None
    return read_attributes(given)


def _unreserved(given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name in contexts.RESERVED:
            raise ContextError(f"{name!r} is reserved; give the attribute another name")
    return given


def _point(document: dict[str, Any]) -> tuple[float, float] | None:
    lon, lat = document.get("lon"), document.get("lat")
    if lon is None and lat is None:
        return None
    for number in (lon, lat):
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise ContextError("lon and lat are not two numbers")
    try:
        return float(lon), float(lat)  # type: ignore[arg-type]  # checked in the loop
    except OverflowError:
        raise ContextError("lon and lat are not two numbers") from None
