"""Bodies of the API: the structs that answers are made of, and how they are encoded.

`openapi.py` takes every schema from these structs, and from those in `model/features.py`,
`identity/rules.py` and `channels/sessions/messages.py`: the document cannot drift from the code.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from litestar import Response
from msgspec import Meta, UnsetType

from roamcast.model.contexts import VID_LENGTH_MAX, Context, to_feature
from roamcast.model.features import FeatureOutput, Instant, Place, members_schema

JSON: Final = "application/json"
GEOJSON: Final = "application/geo+json"
SCHEMA_JSON: Final = "application/schema+json"
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
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
    features: list[FeatureOutput]


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
) -> Response[bytes]:
    """Answer with a FeatureCollection of features that are encoded already."""
    raw = [msgspec.Raw(feature) for feature in features]
    made = FeatureCollection(
        number_returned=len(raw),
        number_matched=number_matched,
        time_stamp=time_stamp,
        links=links,
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
