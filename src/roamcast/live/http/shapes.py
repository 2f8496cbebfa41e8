"""Bodies of the API: the structs that answers are made of, and how they are encoded.

`openapi.py` takes every schema from these structs, and from those in `model/contexts.py`,
`identity/rules.py` and `channels/sessions/messages.py`: the document cannot drift from the code.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from litestar import Response
from msgspec import Meta, UnsetType

from roamcast.model.contexts import (
    LOCATED,
    VID_LENGTH_MAX,
    AttributeName,
    AttributeValue,
    Context,
    FeatureInput,
    FeatureOutput,
    InputMembers,
    Instant,
    Latitude,
    Longitude,
    Place,
    members_schema,
    to_feature,
)

JSON: Final = "application/json"
GEOJSON: Final = "application/geo+json"
SCHEMA_JSON: Final = "application/schema+json"
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
Hint = Annotated[
    str | UnsetType, Meta(description="what the filter probably means instead, with its position")
]
VID_PATTERN: Final = "[A-Za-z0-9_~@:+-][A-Za-z0-9_.~@:+-]{0,255}"
"""Vids that a path can carry without being taken for another path; sessions may use any text."""

_encode = msgspec.json.Encoder().encode


class Link(msgspec.Struct, frozen=True):
    """A link as OGC API – Common defines it."""

    href: str
    rel: str
    type: str = JSON


class Landing(msgspec.Struct, frozen=True):
    """The landing page of the API."""

    title: str
    description: str
    links: list[Link]


class Conformance(msgspec.Struct, frozen=True, rename="camel"):
    """The OGC conformance classes of this service."""

    conforms_to: tuple[str, ...]


class SpatialExtent(msgspec.Struct, frozen=True):
    """The box that holds the collection: the earth."""

    bbox: tuple[tuple[float, float, float, float], ...] = ((-180.0, -90.0, 180.0, 90.0),)
    crs: str = CRS84


class TemporalExtent(msgspec.Struct, frozen=True):
    """The time that the collection covers: open at both ends."""

    interval: tuple[tuple[None, None], ...] = ((None, None),)


class Extent(msgspec.Struct, frozen=True):
    """Where and when the collection's contexts can be."""

    spatial: SpatialExtent = SpatialExtent()
    temporal: TemporalExtent = TemporalExtent()


class Collection(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The collection of contexts."""

    id: str = "contexts"
    title: str = "Contexts"
    description: str = "People and things on the map now, as far as this token may see them"
    item_type: str = "feature"
    crs: tuple[str, ...] = (CRS84,)
    extent: Extent = Extent()
    links: list[Link]


class Collections(msgspec.Struct, frozen=True):
    """The collections of this service: one."""

    collections: list[Collection]
    links: list[Link]


class QueryableMembers(msgspec.Struct, frozen=True):
    """The properties that every filter may name; attributes come on top."""

    vid: Annotated[str, Meta(max_length=VID_LENGTH_MAX, description="the context's pseudonym")]
    place: Place
    geometry: Annotated[
        Any, Meta(extra_json_schema={"$ref": "https://geojson.org/schema/Point.json"})
    ]
    time: Annotated[str, Meta(description="the interval the context lasts")]


class Queryables(msgspec.Struct, frozen=True, kw_only=True):
    """What filters may name, as JSON Schema (OGC API – Features, part 3)."""

    id: str = msgspec.field(name="$id")
    dialect: str = msgspec.field(
        name="$schema", default="https://json-schema.org/draft/2020-12/schema"
    )
    type: str = "object"
    properties: dict[str, Any] = msgspec.field(
        default_factory=lambda: members_schema(QueryableMembers)["properties"]
    )
    additional_properties: bool = msgspec.field(name="additionalProperties", default=True)


class FeatureCollection(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Contexts in GeoJSON; `as_collection` fills in features that are encoded already."""

    type: Literal["FeatureCollection"] = "FeatureCollection"
    number_returned: int
    number_matched: int | UnsetType = msgspec.UNSET
    time_stamp: Instant
    links: list[Link] | UnsetType = msgspec.UNSET
    hint: Hint = msgspec.UNSET
    features: list[FeatureOutput]


class PointPatch(msgspec.Struct, frozen=True):
    """The parts of a Point that change; a context without one needs them all."""

    type: Literal["Point"] | UnsetType = msgspec.UNSET
    coordinates: tuple[Longitude, Latitude] | UnsetType = msgspec.UNSET


class FeaturePatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON merge patch (RFC 7396) of a Feature; an attribute that is null is removed."""

    geometry: PointPatch | UnsetType | None = msgspec.UNSET
    properties: (
        Annotated[
            dict[AttributeName, AttributeValue],
            Meta(
                description="attributes, and `place`",
                extra_json_schema=members_schema(InputMembers),
            ),
        ]
        | UnsetType
    ) = msgspec.UNSET


class NamedFeature(FeatureInput, frozen=True, kw_only=True):
    """A context to publish whose vid no path names."""

    id: Annotated[str, Meta(pattern=f"^{VID_PATTERN}$")]


class FeatureBatch(msgspec.Struct, frozen=True):
    """Features to publish together, each with its id."""

    type: Literal["FeatureCollection"]
    features: Annotated[
        list[Annotated[NamedFeature, Meta(extra_json_schema=LOCATED)]],
        Meta(min_length=1, max_length=1_000, description="no two with the same id"),
    ]


class PlaceProperties(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a place; files of places may say more."""

    path: Place
    kind: str
    neighbours: list[str] | UnsetType = msgspec.UNSET
    walking_m: list[float] | UnsetType = msgspec.UNSET


class PlaceFeature(msgspec.Struct, frozen=True, kw_only=True):
    """One place."""

    type: Literal["Feature"] = "Feature"
    geometry: dict[str, Any] | None
    properties: PlaceProperties


class PlaceCollection(msgspec.Struct, frozen=True, kw_only=True):
    """All places in GeoJSON, in the order of their file."""

    type: Literal["FeatureCollection"] = "FeatureCollection"
    features: list[PlaceFeature]


class LinkedFeature(FeatureOutput, frozen=True, kw_only=True):
    """One context with links to itself and to its collection."""

    links: list[Link]


class TemplateOutput(msgspec.Struct, frozen=True):
    """A standard query: a filter with holes, and the names of the values that fill them."""

    name: str
    filter: str
    says: str
    takes: tuple[str, ...]


class Count(msgspec.Struct, frozen=True):
    """How many contexts satisfy a filter."""

    count: int
    hint: Hint = msgspec.UNSET


class PastBegin(msgspec.Struct, frozen=True):
    """How far the past reaches."""

    begins: Annotated[Instant, Meta(description="nothing before it is kept")]


class Health(msgspec.Struct, frozen=True):
    """Whether the process lives, or takes requests."""

    status: Literal["alive", "ready"]


def as_json(value: Any, kind: str = JSON) -> Response[bytes]:
    """Answer with a value as JSON."""
    return Response(_encode(value), media_type=kind)


def as_collection(
    features: Iterable[bytes],
    *,
    time_stamp: str,
    number_matched: int | UnsetType = msgspec.UNSET,
    links: list[Link] | UnsetType = msgspec.UNSET,
    hint: str | UnsetType = msgspec.UNSET,
) -> Response[bytes]:
    """Answer with a FeatureCollection of features that are encoded already."""
    raw = [msgspec.Raw(feature) for feature in features]
    made = FeatureCollection(
        number_returned=len(raw),
        number_matched=number_matched,
        time_stamp=time_stamp,
        links=links,
        hint=hint,
        features=cast("list[FeatureOutput]", raw),
    )
    return Response(_encode(made), media_type=GEOJSON)


def linked(encoded: bytes, links: Sequence[Link]) -> bytes:
    """Add links to an object that is encoded already."""
    return encoded[:-1] + b',"links":' + _encode(list(links)) + b"}"


def feature_at(context: Context, metres: float) -> bytes:
    """Encode a context with its distance as the property `distance_m`."""
    feature = to_feature(context)
    feature["properties"]["distance_m"] = round(metres, 3)
    return _encode(feature)
