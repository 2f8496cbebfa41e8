"""Contexts: what is known of one person or thing over one interval.

A context's place is a path, `segment/segment/…`. A segment is non-empty printable text without `/`.
`path_within` defines the filter language's `within(place, 'a/b')`; every other containment test,
such as the pre-order intervals of `places`, must agree with it (decision 0030).

Inside a broker and between brokers a context is MessagePack, towards people a GeoJSON Feature. The
structs of Features, one per direction, are the decoder, the limits and the JSON Schema at once:
HTTP bodies, messages of a session and the OpenAPI document all read them, so no limit is written
down twice. They are stricter than `from_feature`, which reads our own files: an attribute's name
must also serve as a query parameter, and its number must survive a JavaScript reader.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from roamcast.errors import ContextError, InputError, LimitError, PlaceError
from roamcast.model import json_text, kinds, time
from roamcast.model.kinds import TEXT_LENGTH_MAX, check_text
from roamcast.model.time import EPOCH, MICROSECOND

Attribute = kinds.Attribute

RESERVED = frozenset({"geometry", "place", "time", "vid", "t_r", "t_d"})
"""Names with a meaning of their own in filters; attributes may not use them."""

VID_LENGTH_MAX = 256
DEPTH_MAX = 32
PATH_LENGTH_MAX = 1024
NAME_LENGTH_MAX = 128
ATTRIBUTES_MAX = 256
NAMES_REMEMBERED = 1_024
PLACES_REMEMBERED = 8_192
"""Cache sizes for names and places already validated: they recur with every change of a context."""

ENCODED_BYTES = 4 << 20
"""Bytes of contexts whose JSON is remembered; a publisher is answered when watchers are."""

ENCODED_LEAST, ENCODED_WEIGHT = 256, 6
"""Bytes of a context, its JSON and their entry: so many, and for each byte of the JSON."""

FEATURE_TEXT_LENGTH_MAX: Final = PATH_LENGTH_MAX
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


PSEUDONYM_LETTERS_MIN: Final = 22
"""What 128 random bits take in base64url."""

PSEUDONYM: Final = re.compile(
    r"[A-Za-z0-9_-]{" + str(PSEUDONYM_LETTERS_MIN) + r",}(@.*)?", re.DOTALL
)


def is_pseudonym(vid: str) -> bool:
    """Whether a vid is a trusted node's, or random with 128 bits at least, as the SDK draws them.

    All others, `bus-12` or `ada:phone`, are names that stay: their times link nothing new (0220).
    """
    return PSEUDONYM.fullmatch(vid) is not None


SEALING_KEY: Final = "sealing_key"
"""The attribute of an archived context that has the public key of its vid, in base64url (0221)."""


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


def segments(path: str) -> tuple[str, ...]:
    """Split a path into segments.

    Sorted by this key, paths are in pre-order. Sorted as text they are not, since `-` < `/`.
    """
    return tuple(path.split("/"))


def path_within(path: str, region: str) -> bool:
    """Return whether `path` is `region` or lies anywhere below it."""
    return path == region or path.startswith(region + "/")


def parent_path(path: str) -> str | None:
    """Return the path one level up, or None for a root."""
    parent, slash, _ = path.rpartition("/")
    return parent if slash else None


def check_path(path: object) -> str:
    """Return the path, or raise if it is invalid."""
    if not isinstance(path, str):
        raise PlaceError(f"a place's path is text, not {type(path).__name__}")
    if len(path) > PATH_LENGTH_MAX:
        shown = path[:40]
        raise LimitError(f"path {shown!r}… is longer than the limit of {PATH_LENGTH_MAX}")
    parts = segments(path)
    if not all(parts):
        raise PlaceError(f"path {path!r} has an empty segment")
    if not path.isprintable():  # contexts carry these paths, and their texts are printable
        raise PlaceError(f"path {path!r} has a control or other unprintable character")
    if len(parts) > DEPTH_MAX:
        raise LimitError(f"path {path[:40]!r}… is deeper than the limit of {DEPTH_MAX} segments")
    return path


def check(context: Context) -> Context:
    """Return the context if it is valid; every way in calls this once."""
    vid = context.vid
    if len(vid) > VID_LENGTH_MAX or not vid.isascii():  # most are short and plain
        check_text("vid", vid, VID_LENGTH_MAX)
    if not vid:
        raise ContextError("a context needs a vid (the Feature's id)")
    if context.place is not None:
        check_place(context.place)
    if context.point is not None:
        check_point(context.point)
    if not time.EARLIEST <= context.t_r <= time.LATEST:
        raise ContextError("t_r lies outside the years 1 to 9999")
    if context.t_d is not None and not context.t_r <= context.t_d <= time.LATEST:
        raise ContextError("t_d lies before t_r, or after the year 9999")
    if len(context.attributes) > ATTRIBUTES_MAX:
        raise LimitError(f"a context has at most {ATTRIBUTES_MAX} attributes")
    _check_attributes(context.attributes)
    return context


def _check_attributes(attributes: dict[str, Attribute]) -> None:
    if not _names_checked.issuperset(attributes):
        _check_names(attributes)
    for name, value in attributes.items():
        # the common cases, a short ASCII text and a boolean, without a call
        if type(value) is str:
            if len(value) <= TEXT_LENGTH_MAX and value.isascii() and "\0" not in value:
                continue
        elif type(value) is bool:
            continue
        kind = kinds.kind_of(value)
        if kind is None:
            raise ContextError(f"attribute {name!r} is none of {', '.join(kinds.KINDS)}")
        kind.check(f"attribute {name!r}", value)


@lru_cache(PLACES_REMEMBERED)
def check_place(path: str) -> str:
    """Return the path if it is one, or say what is wrong with the context."""
    if len(path) > PATH_LENGTH_MAX or not path.isascii():
        check_text("place", path, PATH_LENGTH_MAX)
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
    t_d = None if context.t_d is None else time.format_instant(context.t_d)
    return _feature(context, time.format_instant(context.t_r), t_d)


def _feature(context: Context, t_r: Any, t_d: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {
        name: value if type(value) in _JSON_TYPES else _tagged(value)
        for name, value in context.attributes.items()
    }
    if context.place is not None:
        properties["place"] = context.place
    properties["t_r"] = t_r
    properties["t_d"] = t_d
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
    """Encode one line of CONTEXTS.jsonl, or a Feature for people.

    The latest contexts are remembered by identity: the answer to a publisher and the event for all
    who watch are the same bytes, encoded once.
    """
    known = _encoded.get(id(context))
    if known is not None and known[0] is context:
        return known[1]
    # The encoder writes a datetime as `format_instant` does, in a tenth of the time.
    t_r = EPOCH + context.t_r * MICROSECOND
    t_d = None if context.t_d is None else EPOCH + context.t_d * MICROSECOND
    encoded = msgspec.json.encode(_feature(context, t_r, t_d))
    if _encoded.bytes > ENCODED_BYTES:
        _encoded.clear()
        _encoded.bytes = 0
    _encoded[id(context)] = context, encoded
    _encoded.bytes += ENCODED_LEAST + ENCODED_WEIGHT * len(encoded)
    return encoded


class _Encoded(dict[int, tuple[Context, bytes]]):
    bytes = 0


_encoded = _Encoded()


Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339 with a zone; finer than microseconds is refused."""

Place = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=PATH_LENGTH_MAX,
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
    Annotated[str, Meta(max_length=FEATURE_TEXT_LENGTH_MAX)]
    | Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
    | Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
    | bool
    | Timestamp
    | None
)


Longitude = Annotated[float, Meta(ge=-180, le=180)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]


class Point(msgspec.Struct, frozen=True):
    """Longitude and latitude in degrees, WGS84; a height is an attribute."""

    type: Literal["Point"]
    coordinates: tuple[Longitude, Latitude]


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
LOCATED: Final = {
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


LocatedFeature = Annotated[FeatureInput, Meta(extra_json_schema=LOCATED)]
"""The schema of `FeatureInput` with what no field can say alone."""


class FeatureOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A context on the map as a GeoJSON Feature; `to_feature` writes it."""

    type: Literal["Feature"]
    id: str
    geometry: Point | None
    properties: OutputProperties


_decode = msgspec.json.Decoder(FeatureInput).decode


def decode_feature(body: bytes) -> FeatureInput:
    """Decode a request's body in one pass; an error names the attribute or the position."""
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        raise ContextError(explained(str(error), body)) from None
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


def explained(problem: str, body: bytes, wanted: str = "a GeoJSON Feature") -> str:
    """Name the attribute that msgspec's path leaves out; only refused bodies are read again."""
    what, _, where = problem.rpartition(" - at ")
    if "$.properties[...]" not in where:
        return f"not {wanted}: {problem}"
    # what stands beside the attributes may be deeper than a decoder without types can read
    for name, value in json_text.read(body, ContextError)["properties"].items():
        try:
            msgspec.convert(value, AttributeValue)
        except msgspec.ValidationError:
            return f"attribute {name[:60]!r}: {what}"
    return f"not {wanted}: {problem}"


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A context in MessagePack; msgspec has no type for text or a timestamp but Any."""

    vid: str
    place: str | None = None
    point: tuple[float, float] | None = None
    attributes: dict[str, Any] = {}
    t_r: int = 0
    t_d: int | None = None


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Packed).decode


def body_of(context: Context) -> bytes:
    """Give a context's bytes; the same for every client that may see the same of it."""
    return _pack(
        (
            context.vid,
            context.place,
            context.point,
            context.attributes,
            context.t_r,
            context.t_d,
        )
    )


def stored_context(body: bytes, t_r: int, t_d: int | None) -> Context:
    """Read bytes that `body_of` wrote of a checked context, with another interval."""
    packed = _unpack(body)
    return Context(packed.vid, packed.place, packed.point, packed.attributes, t_r, t_d)


def context_of(body: bytes) -> Context:
    """Read a context's bytes; `ContextError` if they are none."""
    try:
        packed = _unpack(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContextError(f"no context: {error}") from None
    return check(
        Context(
            packed.vid,
            packed.place,
            packed.point,
            packed.attributes,
            packed.t_r,
            packed.t_d,
        )
    )


_TAGGED = {kind.name: kind for kind in kinds.KINDS.values() if kind.text is not None}
"""Kinds that JSON does not have: a Feature carries {"timestamp": "2026-…"}."""

_JSON_TYPES = frozenset(kind.type for kind in kinds.KINDS.values() if kind.text is None)


def _tagged(value: Attribute) -> Any:
    kind = kinds.kind_of(value)
    assert kind is not None
    return {kind.name: kind.written(value)} if kind.name in _TAGGED else value


def _read_attribute(name: str, value: Any) -> Attribute:
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        tag, text = next(iter(value.items())) if len(value) == 1 else ("", None)
        if tag in _TAGGED and isinstance(text, str):
            try:
                return _TAGGED[tag].read(text)
            except InputError as error:
                raise ContextError(f"attribute {name[:60]!r}: {error}") from None
        forms = " or ".join(f'{{"{known}": "…"}}' for known in _TAGGED)
        raise ContextError(f"attribute {name!r} is an object, and not {forms}")
    raise ContextError(f"attribute {name!r} is none of {', '.join(kinds.KINDS)}")


def _read_instant(name: str, value: Any) -> int | None:
    return None if value is None else _instant(name, value)


def _instant(name: str, value: object) -> int:
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


def check_point(point: tuple[float, float]) -> tuple[float, float]:
    """Return the point if it has a longitude and a latitude; ContextError otherwise."""
    longitude, latitude = point
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):  # also catches NaN
        raise ContextError(f"{longitude}, {latitude} is not a WGS84 longitude and latitude")
    return point


_names_checked: set[str] = set()
"""Names of attributes that are valid: the same few come with every context."""


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        check_text("an attribute's name", name, NAME_LENGTH_MAX)
        if not name or not name.isprintable():
            raise ContextError("an attribute's name is empty or not printable")
        if name in RESERVED:
            raise ContextError(f"{name!r} is reserved; give the attribute another name")
        if len(_names_checked) >= NAMES_REMEMBERED:
            _names_checked.clear()
        _names_checked.add(name)
