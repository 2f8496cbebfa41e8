"""Queries about the present, and contexts that outlive a session: one HTTP request each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from roamcast.errors import LimitError, UnreachableError
from roamcast.model.contexts import Context, from_feature, to_feature
from roamcast.model.filters import Filter
from roamcast.model.nearest import COUNT_MAX, Found
from roamcast.transport.http import HttpClient

Where = str | Filter
"""CQL2 text, or a parsed filter."""

Box = tuple[float, float, float, float]
"""West, south, east, north."""

ITEMS: Final = "/collections/contexts/items"
PAGE: Final = 1_000
FOUND_MAX: Final = 100_000

_FEATURE: Final = "application/geo+json"


class Asking:
    """The HTTP side of a session."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def who(
        self, where: Where = "", *, box: Box | None = None, limit: int = 10_000, at: str = ""
    ) -> list[Context]:
        """Give the contexts that satisfy a filter now, at most `limit` of them.

        at: an instant, or `start/end` with `..` for an open end: the map as it was then.
        """
        if not 1 <= limit <= FOUND_MAX:
            raise LimitError(f"`limit` is between 1 and {FOUND_MAX} contexts")
        query = {"limit": str(min(limit, PAGE)), **_filter(where)}
        if box is not None:
            query["bbox"] = ",".join(map(str, box))
        if at:
            query["datetime"] = at
        found: list[Context] = []
        while True:
            page = await self._http.ask("GET", ITEMS, query)
            features = _features(page)
            found += map(from_feature, features)
            following = _next(page)
            if following is None or not features or len(found) >= limit:
                return found[:limit]
            query = following

    async def count(self, where: Where = "") -> int:
        """Count the contexts that satisfy a filter now."""
        answer = await self._http.ask("GET", "/count", _filter(where))
        if not isinstance(answer, dict) or not isinstance(answer.get("count"), int):
            raise UnreachableError("the service does not answer as a Roamcast service does")
        return int(answer["count"])

    async def nearest(
        self, to: tuple[float, float], where: Where = "", *, count: int = 1
    ) -> list[Found]:
        """Find the nearest contexts that satisfy a filter, the nearest first."""
        if not 1 <= count <= COUNT_MAX:
            raise LimitError(f"`count` is between 1 and {COUNT_MAX}")
        query = {"to": f"{to[0]},{to[1]}", "count": str(count), **_filter(where)}
        return [
            _found(feature) for feature in _features(await self._http.ask("GET", "/nearest", query))
        ]

    async def node(self) -> str:
        """Give the name that this service has among brokers that are linked; empty: it is alone."""
        return str((await self._mapping("/me")).get("node", ""))

    async def overlay(self) -> dict[str, Any]:
        """Give the overlay as the service's node sees it; for administrators."""
        return await self._mapping("/overlay")

    async def placement(self) -> dict[str, Any]:
        """Give the state of the node's filter, and the whole placement if it plans it."""
        return await self._mapping("/placement")

    async def drain(self, to: Sequence[str] = (), rate: float = 100.0) -> dict[str, Any]:
        """Let the service's node hand everybody over; for administrators."""
        body = {"to": list(to), "rate": rate}
        return dict(await self._http.ask("POST", "/drain", body=body))

    async def drained(self) -> dict[str, Any]:
        """Say how far the drain has come."""
        return await self._mapping("/drain")

    async def undrain(self) -> dict[str, Any]:
        """Let the service's node take newcomers again."""
        return dict(await self._http.ask("DELETE", "/drain"))

    async def where(self, client: str) -> dict[str, Any]:
        """Say whether the service's node serves a client, `subject` or `subject#device`."""
        return dict(await self._http.ask("GET", "/where", {"client": client}))

    async def _mapping(self, path: str) -> dict[str, Any]:
        answer = await self._http.ask("GET", path)
        if not isinstance(answer, dict):
            raise UnreachableError("the service does not answer as a Roamcast service does")
        return answer

    async def put(self, context: Context, *, lifetime_s: float | None = None) -> None:
        """Publish a context that stays on the map when this program ends, for its lifetime."""
        query = {} if lifetime_s is None else {"lifetime": str(lifetime_s)}
        feature = to_feature(context)
        await self._http.ask("PUT", _path(context.vid), query, body=feature, kind=_FEATURE)

    async def put_all(
        self, contexts: Sequence[Context], *, lifetime_s: float | None = None
    ) -> list[str]:
        """Publish many contexts in one request; give why each was refused, "" if it was not."""
        query = {} if lifetime_s is None else {"lifetime": str(lifetime_s)}
        features = [to_feature(context) for context in contexts]
        body = {"type": "FeatureCollection", "features": features}
        answer = await self._http.ask("POST", "/contexts", query, body=body, kind=_FEATURE)
        return [one.get("detail", "") for one in answer["outcomes"]]

    async def remove(self, vid: str) -> None:
        """Take a context off the map that was `put` there."""
        await self._http.ask("DELETE", _path(vid))

    async def rules(self, vid: str, rules: Sequence[Mapping[str, Any] | msgspec.Struct]) -> None:
        """Set who may see a context of yours, and how precisely (docs/identity.md)."""
        await self._http.ask("PUT", f"{_path(vid)}/rules", body=rules)


def _filter(where: Where) -> dict[str, str]:
    """Parse the filter here: an error then names the position without a request."""
    if not where:
        return {}
    wanted = where if isinstance(where, Filter) else Filter.parse(where)
    return {"filter": wanted.source}


def _path(vid: str) -> str:
    return f"/contexts/{quote(vid, safe='')}"


def _features(page: Any) -> list[Any]:
    features = page.get("features") if isinstance(page, dict) else None
    if not isinstance(features, list):
        raise UnreachableError("the service does not answer as a Roamcast service does")
    return features


def _next(page: dict[str, Any]) -> dict[str, str] | None:
    """Give the query of the next page; not its host, for the key must go to no other."""
    for link in page.get("links", ()):
        if link.get("rel") == "next":
            return dict(parse_qsl(urlsplit(link["href"]).query))
    return None


def _found(feature: Any) -> Found:
    properties = dict(feature.get("properties") or {})
    metres = properties.pop("distance_m", 0.0)
    return Found(float(metres), from_feature({**feature, "properties": properties}))
