"""How are contexts written into an answer? As GeoJSON, with the links that lead on."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from litestar import Response

from roamcast.model.contexts import Context, encode

GEOJSON: Final = "application/geo+json"
_encode = msgspec.json.Encoder().encode


def link(href: str, rel: str, kind: str = "application/json", title: str = "") -> dict[str, str]:
    """Give a link as OGC wants it."""
    made = {"href": href, "rel": rel, "type": kind}
    return {**made, "title": title} if title else made


def as_json(value: Any, kind: str = "application/json") -> Response[bytes]:
    """Answer with JSON."""
    return Response(_encode(value), media_type=kind)


def collection(
    features: Iterable[bytes],
    *,
    links: Sequence[dict[str, str]] = (),
    **more: Any,
) -> Response[bytes]:
    """Answer with a FeatureCollection of features that are encoded already."""
    listed = list(features)
    head = _encode({"type": "FeatureCollection", "numberReturned": len(listed), **more})
    if links:
        head = linked(head, links)
    body = head[:-1] + b',"features":[' + b",".join(listed) + b"]}"
    return Response(body, media_type=GEOJSON)


def linked(encoded: bytes, links: Sequence[dict[str, str]]) -> bytes:
    """Add links to an object that is encoded already."""
    return encoded[:-1] + b',"links":' + _encode(list(links)) + b"}"


def feature(context: Context, **more: Any) -> bytes:
    """Encode a context; `more` goes into its properties."""
    if not more:
        return encode(context)
    loose = msgspec.json.decode(encode(context))
    loose["properties"].update(more)
    return _encode(loose)
