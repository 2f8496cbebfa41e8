"""Casts from a program: preview, send, follow, cancel, update; asked under the sender's name."""

from base64 import b64decode, b64encode
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from roamcast.client.asking import Where
from roamcast.errors import InputError, UnreachableError
from roamcast.model.alerts import MEDIA_TYPE, read_alert
from roamcast.model.filters import Filter
from roamcast.model.time import format_instant
from roamcast.transport.http import HttpClient

Answer = TypeVar("Answer")


class CastProgress(msgspec.Struct, frozen=True):
    """What its sender may know of a cast: counts of pseudonyms, with noise."""

    id: str
    tense: str
    state: str
    expires: str
    nodes_asked: int
    nodes_answered: int
    found: int
    delivered: int
    waiting: int
    unreachable: int
    refused: int


class PlaceAbout(msgspec.Struct, frozen=True):
    """About how many pseudonyms are at a place."""

    place: str
    about: int


class About(msgspec.Struct, frozen=True):
    """About how many; 0: too few to be told, perhaps nobody."""

    about: int
    places: list[PlaceAbout]


class CastPreview(msgspec.Struct, frozen=True):
    """About how many a cast would reach."""

    tense: str
    past: About
    present: About
    future: int | None
    future_places: list[PlaceAbout] = []


class CastConsent(msgspec.Struct, frozen=True):
    """A cast that waits for a second person's consent."""

    id: str
    sender: str
    filter: str
    tense: str
    kind: str
    priority: str
    about: int
    media_type: str
    payload: str
    asked: str
    until: str
    own: bool

    @property
    def text(self) -> str:
        """What it says."""
        return b64decode(self.payload).decode("utf-8", "replace")


class CastConsents(msgspec.Struct, frozen=True):
    """All that wait."""

    consents: list[CastConsent]


class CastReason(msgspec.Struct, frozen=True):
    """Why a cast reached whom it did."""

    id: str
    filter: str
    lines: list[str]


class Casting:
    """The sender's side of casts."""

    def __init__(self, named: HttpClient) -> None:
        self._asked = named

    async def cast(
        self,
        where: Where,
        text: str,
        *,
        kind: str = "text",
        priority: str = "routine",
        expires: str | None = None,
        lifetime_s: float | None = None,
        cast_id: str = "",
    ) -> CastProgress:
        """Send a text to everybody who satisfies a filter; it is on the service's disk then.

        A repeat with the same `cast_id` sends nothing again.
        """
        body = _body(where, text, kind, priority, expires, lifetime_s, cast_id)
        return _read(await self._asked.ask("POST", "/casts", body=body), CastProgress)

    async def send_alert(
        self,
        data: bytes,
        where: Where = "",
        *,
        kind: str = "alert",
        expires: str | None = None,
        lifetime_s: float | None = None,
    ) -> CastProgress | str:
        """Send an alert of the Common Alerting Protocol, as XML; to `where`, or to its own area.

        It expires when it says, unless `expires` or `lifetime_s` says something else: in a drill an
        old one is sent again.

        An Update or a Cancel goes to exactly those whom the alert that it references has reached,
        and stops copies that still wait; then the update's id is given.
        """
        alert = read_alert(data)
        content = {
            "payload": b64encode(data).decode(),
            "media_type": MEDIA_TYPE,
            "kind": kind,
            "id": alert.cast_id,
        }
        if alert.step != "Alert":
            if not alert.references:
                raise InputError(f"an alert that is an {alert.step} references another")
            path = _path(alert.references[-1]) + "/updates"
            answer = await self._asked.ask("POST", path, body=content)
            return str(answer["id"])
        text = where.source if isinstance(where, Filter) else where or alert.filter
        if not text:
            raise InputError("the alert has neither a polygon nor a circle: say where it goes")
        body: dict[str, Any] = {
            **content,
            "filter": Filter.parse(text).source,
            "priority": alert.priority,
        }
        if expires is not None or lifetime_s is not None:
            body |= {"expires": expires, "lifetime_s": lifetime_s}
        elif alert.expires_us is not None:
            body["expires"] = format_instant(alert.expires_us)
        return _read(await self._asked.ask("POST", "/casts", body=body), CastProgress)

    async def preview(self, where: Where, text: str = "?") -> CastPreview:
        """Say about how many a cast would reach; nothing is sent."""
        body = _body(where, text, "text", "routine", None, None, "")
        answer = await self._asked.ask("POST", "/casts", {"preview": "true"}, body=body)
        return _read(answer, CastPreview)

    async def progress(self, cast: str) -> CastProgress:
        """Say what became of a cast."""
        return _read(await self._asked.ask("GET", _path(cast)), CastProgress)

    async def why(self, cast: str) -> CastReason:
        """Say which node, filter, rule or limit decided."""
        return _read(await self._asked.ask("GET", _path(cast) + "/why"), CastReason)

    async def consents(self) -> list[CastConsent]:
        """Give the casts that wait for consent: one's own, and those one may consent to."""
        answer = _read(await self._asked.ask("GET", "/consents"), CastConsents)
        return answer.consents

    async def consent(self, cast: str) -> CastProgress:
        """Consent to somebody else's cast: it is sent."""
        path = f"/consents/{quote(cast, safe='')}"
        return _read(await self._asked.ask("POST", path), CastProgress)

    async def refuse(self, cast: str) -> None:
        """Refuse a cast that waits for consent, or take one's own back."""
        await self._asked.ask("DELETE", f"/consents/{quote(cast, safe='')}")

    async def cancel(self, cast: str) -> None:
        """Stop a cast; what was delivered stays."""
        await self._asked.ask("DELETE", _path(cast))

    async def update(self, cast: str, text: str, *, kind: str = "text", cast_id: str = "") -> str:
        """Stop a cast and write to exactly those whom it has reached; give the update's id."""
        body = {"text": text, "kind": kind, "id": cast_id or None}
        answer = await self._asked.ask("POST", _path(cast) + "/updates", body=body)
        return str(answer["id"])


def _body(
    where: Where,
    text: str,
    kind: str,
    priority: str,
    expires: str | None,
    lifetime_s: float | None,
    cast_id: str,
) -> dict[str, Any]:
    """Parse the filter here: an error then names the position without a request."""
    wanted = where if isinstance(where, Filter) else Filter.parse(where)
    known = {"filter": wanted.source, "text": text, "kind": kind, "priority": priority}
    more = {"expires": expires, "lifetime_s": lifetime_s, "id": cast_id or None}
    return {**known, **{name: value for name, value in more.items() if value is not None}}


def _path(cast: str) -> str:
    return f"/casts/{quote(cast, safe='')}"


def _read(answer: Any, kind: type[Answer]) -> Answer:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise UnreachableError(
            f"the service does not answer as a Roamcast service does: {error}"
        ) from None
