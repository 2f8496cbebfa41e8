"""Contexts: what is known of one person or thing over one interval; also as GeoJSON Features."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from roamcast.errors import ContextError, InputError, LimitError, PlaceError
from roamcast.model import json_text, kinds, time
from roamcast.model.kinds import TEXT_LENGTH_MAX, check_text
from roamcast.model.places_path import PATH_LENGTH_MAX, check_path

Attribute = kinds.Attribute

RESERVED = frozenset({"geometry", "place", "time", "vid", "t_r", "t_d"})
"""Names with a meaning of their own in filters; attributes may not use them."""

VID_LENGTH_MAX = 256
PLACE_LENGTH_MAX = PATH_LENGTH_MAX
NAME_LENGTH_MAX = 128
ATTRIBUTES_MAX = 256
NAMES_REMEMBERED = 1_024
PLACES_REMEMBERED = 8_192
"""Cache sizes for names and places already validated: they recur with every change of a context."""


class Context(msgspec.Struct, frozen=True):
    """One person or thing from t_r to t_d (microseconds since 1970 UTC; t_d is None while open)."""

    vid: str
    place: str | None = None
    point: tuple[float, float] | None = None
    attributes: dict[str, Attribute] = {}
    t_r: int = 0
    t_d: int | None = None

    @property
    def end(self) -> int:
        """The end as a number: FOREVER while the context is open."""
        return time.FOREVER if self.t_d is None else self.t_d


def check(context: Context) -> Context:
    """Return the context if it is valid; every way in calls this once."""
    check_text("vid", context.vid, VID_LENGTH_MAX)
    if not context.vid:
        raise ContextError("a context needs a vid (the Feature's id)")
    if context.place is not None:
        check_place(context.place)
    if context.point is not None:
        _check_point(context.point)
    if not time.EARLIEST <= context.t_r <= time.LATEST:
        raise ContextError("t_r lies outside the years 1 to 9999")
    if context.t_d is not None and not context.t_r <= context.t_d <= time.LATEST:
        raise ContextError("t_d lies before t_r, or after the year 9999")
    if len(context.attributes) > ATTRIBUTES_MAX:
        raise LimitError(f"a context has at most {ATTRIBUTES_MAX} attributes")
    for name, value in context.attributes.items():
        _check_name(name)
        if type(value) is not str or not value.isascii() or len(value) > TEXT_LENGTH_MAX:
            _check_value(name, value)
    return context


@lru_cache(PLACES_REMEMBERED)
def check_place(path: str) -> str:
    """Return the path if it is one (`places_path`), or say what is wrong with the context."""
    check_text("place", path, PLACE_LENGTH_MAX)
    try:
        return check_path(path)
    except PlaceError:
        raise ContextError(f"{path[:60]!r} is not a place such as campus/b35/2") from None


def from_feature(feature: Any) -> Context:
    """Convert a GeoJSON Feature, already decoded from JSON."""
    if not isinstance(feature, dict) or feature.get("type") != "Feature":
        raise ContextError('a context is a GeoJSON object with "type": "Feature"')
    properties = feature.get("properties")
    if not isinstance(properties, dict):
        raise ContextError('a Feature needs an object under "properties"')
    vid = feature.get("id")
    if not isinstance(vid, str):
        raise ContextError('a Feature needs a string under "id": the vid')
    place = properties.get("place")
    if place is not None and not isinstance(place, str):
        raise ContextError("place is not a string")
    attributes = {
        name: _read_attribute(name, value)
        for name, value in properties.items()
        if value is not None and name not in {"place", "t_r", "t_d"}
    }
    t_r = _read_instant("t_r", properties.get("t_r"))
    if t_r is None:
        raise ContextError("t_r is missing: when the context began, RFC 3339")
    t_d = _read_instant("t_d", properties.get("t_d"))
    return check(Context(vid, place, _read_point(feature.get("geometry")), attributes, t_r, t_d))


def to_feature(context: Context) -> dict[str, Any]:
    """Return the context as a GeoJSON Feature, ready for JSON."""
    properties: dict[str, Any] = {
        name: value if type(value) in _JSON_TYPES else _tagged(value)
        for name, value in context.attributes.items()
    }
    if context.place is not None:
        properties["place"] = context.place
    properties["t_r"] = time.format_instant(context.t_r)
    properties["t_d"] = None if context.t_d is None else time.format_instant(context.t_d)
    point = context.point
    geometry = None if point is None else {"type": "Point", "coordinates": list(point)}
    return {
        "type": "Feature",
        "id": context.vid,
        "geometry": geometry,
        "properties": properties,
    }


def decode(line: bytes | str) -> Context:
    """Decode one line of CONTEXTS.jsonl."""
    return from_feature(json_text.read(line, ContextError))


def encode(context: Context) -> bytes:
    """Encode one line of CONTEXTS.jsonl."""
    return msgspec.json.encode(to_feature(context))


_TAGGED = {kind.name: kind for kind in kinds.KINDS.values() if kind.text is not None}
"""Kinds that JSON does not have: a Feature carries {"timestamp": "2026-…"}."""

_JSON_TYPES = frozenset(kind.type for kind in kinds.KINDS.values() if kind.text is None)


def _tagged(value: Attribute) -> Any:
    kind = kinds.kind_of(value)
    assert kind is not None
    return {kind.name: kind.written(value)} if kind.name in _TAGGED else value


def _read_attribute(name: str, value: Any) -> Attribute:
    if isinstance(value, Mapping):
        tag, text = next(iter(value.items())) if len(value) == 1 else ("", None)
        if tag in _TAGGED and isinstance(text, str):
            try:
                return _TAGGED[tag].read(text)
            except InputError as error:
                raise ContextError(f"attribute {name[:60]!r}: {error}") from None
        forms = " or ".join(f'{{"{known}": "…"}}' for known in _TAGGED)
        raise ContextError(f"attribute {name!r} is an object, and not {forms}")
    if isinstance(value, str | int | float):
        return value
    raise ContextError(f"attribute {name!r} is none of {', '.join(kinds.KINDS)}")


def _read_instant(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ContextError(f"{name} is not an RFC 3339 timestamp")
    try:
        return time.parse_instant(value)
    except InputError as error:
        raise ContextError(f"{name}: {error}") from None


def _read_point(geometry: Any) -> tuple[float, float] | None:
    if geometry is None:
        return None
    shape = geometry.get("type") if isinstance(geometry, dict) else None
    if shape != "Point":
        raise ContextError("a context's geometry is a Point or null")
    coordinates = geometry.get("coordinates")
    numbers = isinstance(coordinates, list) and all(
        isinstance(part, int | float) and not isinstance(part, bool) for part in coordinates
    )
    if not numbers or len(coordinates) != 2:
        raise ContextError("a Point has two numbers, longitude and latitude (height: an attribute)")
    try:
        return (float(coordinates[0]), float(coordinates[1]))
    except OverflowError:
        raise ContextError("a coordinate is too large") from None


def _check_point(point: tuple[float, float]) -> None:
    longitude, latitude = point
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):  # also catches NaN
        raise ContextError(f"{longitude}, {latitude} is not a WGS84 longitude and latitude")


@lru_cache(NAMES_REMEMBERED)  # a few names come with every context
def _check_name(name: str) -> None:
    check_text("an attribute's name", name, NAME_LENGTH_MAX)
    if not name or not name.isprintable():
        raise ContextError("an attribute's name is empty or not printable")
    if name in RESERVED:
        raise ContextError(f"{name!r} is reserved; give the attribute another name")


def _check_value(name: str, value: Attribute) -> None:
    kind = kinds.kind_of(value)
    if kind is None:
        raise ContextError(f"attribute {name!r} is none of {', '.join(kinds.KINDS)}")
    kind.check(f"attribute {name!r}", value)
