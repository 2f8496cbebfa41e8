"""GeoJSON Features as programs send and receive them: one struct per direction.

The structs are the decoder, the limits and the JSON Schema at once: HTTP bodies, messages of a
session and the OpenAPI document all read them, so no limit is written down twice. They are stricter
than `contexts.from_feature`, which reads our own files: an attribute's name must also serve as a
query parameter, and its number must survive a JavaScript reader.
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from roamcast.errors import ContextError, InputError
from roamcast.model import json_text, time
from roamcast.model.contexts import (
    ATTRIBUTES_MAX,
    PLACE_LENGTH_MAX,
    RESERVED,
    VID_LENGTH_MAX,
    Attribute,
    Context,
    check,
)

TEXT_LENGTH_MAX: Final = PLACE_LENGTH_MAX
"""Characters of an attribute's text; as many as a place, which stands in the same dictionary."""

NUMBER_MAX: Final = 2**53
"""Beyond it, JavaScript and most JSON readers lose the last digit."""

NAME_PATTERN: Final = r"[^\W\d][\w.-]{0,127}"
"""Attribute names are query parameters, too: `?type=printer`."""

VID_PATTERN: Final = r"[^\x00-\x1f\x7f-\x9f\U0010ffff]*"
"""Vids are keys of the store, which reserves the last code point as the end of a range."""

PROPERTIES_MAX: Final = ATTRIBUTES_MAX
MEMBERS: Final = ("place", "t_r", "t_d")
"""The properties that are members of a context, not attributes."""

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339 with a zone; finer than microseconds is refused."""

Place = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=PLACE_LENGTH_MAX,
        description="a path of at most 32 segments of printable characters",
        extra_json_schema={"format": "place", "examples": ["campus/b35/2"]},
    ),
]


class Timestamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attribute that is a moment; a bare string stays text."""

    timestamp: Instant


AttributeName = Annotated[
    str,
    Meta(
        pattern=f"^{NAME_PATTERN}$",
        extra_json_schema={"not": {"enum": sorted(RESERVED.difference(MEMBERS))}},
    ),
]
AttributeValue = (
    Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
    | Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
    | Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
    | bool
    | Timestamp
    | None
)


class Point(msgspec.Struct, frozen=True):
    """Longitude and latitude in degrees, WGS84; a height is an attribute."""

    type: Literal["Point"]
    coordinates: tuple[
        Annotated[float, Meta(ge=-180, le=180)], Annotated[float, Meta(ge=-90, le=90)]
    ]


class InputMembers(msgspec.Struct, frozen=True):
    """The members of a context among the properties that a program sends."""

    place: Place | None = None
    t_r: (
        Annotated[
            Instant, Meta(description="when the context began; now if missing; not in the future")
        ]
        | None
    ) = None
    t_d: Annotated[None, Meta(description="always null: a context on the map still lasts")] = None


class OutputMembers(msgspec.Struct, frozen=True):
    """The members of a context among the properties that a program receives."""

    t_r: Instant
    t_d: Instant | None
    place: str | None = None


def members_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Give a struct's fields as `properties` of a schema that has more of them.

    A struct cannot have fields with free names, so attributes and members share one dictionary, and
    the schema of the members is merged into the dictionary's.
    """
    _, parts = msgspec.json.schema_components([kind])
    schema = parts[kind.__name__]
    fields = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in schema["properties"].items()
    }
    needed = schema.get("required")
    return {"properties": fields, **({"required": needed} if needed else {})}


InputProperties = Annotated[
    dict[AttributeName, AttributeValue],
    Meta(
        max_length=PROPERTIES_MAX,
        description="place, t_r and t_d; everything else is an attribute. A null is left out.",
        extra_json_schema=members_schema(InputMembers),
    ),
]
OutputProperties = Annotated[
    dict[str, str | int | float | bool | Timestamp | None],
    Meta(extra_json_schema=members_schema(OutputMembers)),
]
_LOCATED: Final = {
    "anyOf": [
        {"required": ["geometry"], "properties": {"geometry": {"type": "object"}}},
        {
            "required": ["properties"],
            "properties": {
                "properties": {
                    "type": "object",
                    "required": ["place"],
                    "properties": {"place": {"type": "string"}},
                }
            },
        },
    ]
}
"""A context on the map has a place or a point; the broker refuses one that has neither."""


class FeatureInput(msgspec.Struct, frozen=True):
    """A context to publish, as a GeoJSON Feature; `id` is its vid, unless the path names it."""

    type: Literal["Feature"]
    geometry: Point | None = None
    properties: InputProperties | None = None
    id: Annotated[str, Meta(min_length=1, max_length=VID_LENGTH_MAX)] | None = None


LocatedFeature = Annotated[FeatureInput, Meta(extra_json_schema=_LOCATED)]
"""The schema of `FeatureInput` with what no field can say alone."""


class FeatureOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A context on the map as a GeoJSON Feature; `contexts.to_feature` writes it."""

    type: Literal["Feature"]
    id: str
    geometry: Point | None
    properties: OutputProperties


_decode = msgspec.json.Decoder(FeatureInput).decode


def decode(body: bytes) -> FeatureInput:
    """Decode a request's body in one pass; an error names the attribute or the position."""
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        raise ContextError(_explained(str(error), body)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        json_text.read(body, ContextError)  # raises, with the position
        raise


def to_context(
    feature: FeatureInput, now: int, *, vid: str | None = None, ahead_us_max: int
) -> Context:
    """Give the context that a Feature publishes at `now`, checked.

    `t_r` is `now` where it is missing. A `t_r` more than `ahead_us_max` in the future is refused:
    the program's clock is wrong, and what has not begun is not on the map. So is a `t_d`: what has
    ended belongs into the archive.
    """
    if vid is not None and feature.id not in (None, vid):
        raise ContextError(f"the Feature's id is not {vid!r}: leave it out, or make them equal")
    name = vid if vid is not None else feature.id
    if name is None:
        raise ContextError('a Feature needs a string under "id": the vid')
    if not re.fullmatch(VID_PATTERN, name):
        raise ContextError("a vid has no control characters")
    given = feature.properties or {}
    place = given.get("place")
    if place is not None and not isinstance(place, str):
        raise ContextError("place is not a string")
    if given.get("t_d") is not None:
        raise ContextError("t_d is set: a context on the map still lasts; load past ones instead")
    t_r = now if given.get("t_r") is None else _instant("t_r", given["t_r"])
    if t_r > now + ahead_us_max:
        raise ContextError("t_r lies in the future: check this machine's clock")
    attributes: dict[str, Attribute] = {
        key: time.to_datetime(_instant(key, value.timestamp))
        if isinstance(value, Timestamp)
        else value
        for key, value in given.items()
        if value is not None and key not in MEMBERS
    }
    point = None if feature.geometry is None else feature.geometry.coordinates
    return check(Context(name, place, point, attributes, t_r, None))


def _instant(name: str, value: object) -> int:
    if not isinstance(value, str):
        raise ContextError(f"{name} is not an RFC 3339 timestamp")
    try:
        return time.parse_instant(value)
    except InputError as error:
        raise ContextError(f"{name}: {error}") from None


def _explained(problem: str, body: bytes) -> str:
    """Name the attribute that msgspec's path leaves out; only refused bodies are read again."""
    what, _, where = problem.rpartition(" - at ")
    if "$.properties[...]" not in where:
        return f"not a GeoJSON Feature: {problem}"
    for name, value in msgspec.json.decode(body)["properties"].items():
        try:
            msgspec.convert(value, AttributeValue)
        except msgspec.ValidationError:
            return f"attribute {name[:60]!r}: {what}"
    return f"not a GeoJSON Feature: {problem}"
