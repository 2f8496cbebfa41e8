"""Routes of information items (CBM): typed triples under two keys, on the map without a place.

An item belongs to its source, the token's name: another source's item with the same keys is another
item. Newcomers find the current ones, subscribers hear every change, through any broker.
"""

from typing import Annotated, Any

import msgspec
from litestar import Response
from litestar.params import Parameter
from msgspec import Meta

from roamcast.errors import MessageError
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import GEOJSON
from roamcast.live.http.writing import LIFETIME_S_MIN, Lifetime, as_feature, microseconds
from roamcast.model.contexts import FeatureOutput
from roamcast.model.items import SUBKEYS_MAX, Triple, item_of, item_vid, read_triple, to_context

Key = Annotated[str, Parameter(min_length=1, max_length=256)]

JsonTriple = Annotated[
    tuple[str, str, Any], Meta(description="[type, name, value], such as [float, price, 104.5]")
]


class ItemBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an item says, and what its keys are called."""

    subkeys: Annotated[tuple[JsonTriple, ...], Meta(max_length=SUBKEYS_MAX)] = ()
    major_name: Annotated[str, Meta(min_length=1, max_length=256)] = "major"
    minor_name: Annotated[str, Meta(min_length=1, max_length=256)] = "minor"


_DECODE = msgspec.json.Decoder(ItemBody).decode


@route("PUT", "/items/{major:str}/{minor:str}", scope="publish", tag="publish", body=ItemBody,
       answer=FeatureOutput, kind=GEOJSON, answers={200: "changed", 201: "published"},
       summary="Publish an information item, or change it")  # fmt: skip
async def put_item(
    request: Asked, major: Key, minor: Key, lifetime: Lifetime = LIFETIME_S_MIN
) -> Response[bytes]:
    """Publish typed triples under two keys; answered when they would survive a crash."""
    service = service_of(request)
    try:
        body = _DECODE(await request.body() or b"{}")
    except msgspec.DecodeError as error:
        raise MessageError(f"not an item: {error}") from None
    keys = Triple("string", body.major_name, major), Triple("string", body.minor_name, minor)
    item = item_of(*keys, tuple(map(read_triple, body.subkeys)))
    subject = request.auth.subject
    context = to_context(item, item_vid(subject, major, minor), service.clock())
    request.auth.check_within(context)
    lifetime_us = microseconds(request, lifetime)
    fresh = await service.publish(subject, context, lifetime_us=lifetime_us)
    return as_feature(context, 201 if fresh else 200)


@route("DELETE", "/items/{major:str}/{minor:str}", scope="publish", tag="publish",
       summary="Take an information item back")  # fmt: skip
async def delete_item(request: Asked, major: Key, minor: Key) -> None:
    """Unpublish an item of one's own; answered when that would survive a crash."""
    subject = request.auth.subject
    await service_of(request).unpublish(subject, item_vid(subject, major, minor))
