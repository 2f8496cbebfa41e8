"""Alerts of the Common Alerting Protocol 1.2 (OASIS, 2010) as casts.

An alert travels as it is: its XML is the payload, so that what comes out is what went in. Read here
is what a cast needs of it: where, until when, how urgent, which earlier one it follows, and a text
in a reader's language. Document types and entities are refused: no alert needs them.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Final, Literal
from xml.etree import ElementTree

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.model.casts import PAYLOAD_BYTES_MAX
from roamcast.model.time import parse_instant

MEDIA_TYPE: Final = "application/cap+xml"
_NAMESPACE: Final = "{urn:oasis:names:tc:emergency:cap:1.2}"
_CORNERS: Final = 32
_EARTH_KM: Final = 6_371.0
POINTS_MAX: Final = 200
"""Corners of one polygon that we take."""

AREAS_MAX: Final = 16
POINT_KM: Final = 0.1
"""Radius of a circle that is a point."""

Step = Literal["Alert", "Update", "Cancel", "Ack", "Error"]


class AlertText(msgspec.Struct, frozen=True):
    """One `info` of an alert: what is said in one language."""

    language: str
    event: str
    urgency: str
    severity: str
    headline: str
    description: str
    instruction: str


class Alert(msgspec.Struct, frozen=True):
    """What a cast needs of an alert."""

    identifier: str
    sender: str
    sent_us: int
    status: str
    step: Step
    references: tuple[str, ...]
    """Identities of earlier alerts."""
    texts: tuple[AlertText, ...]
    expires_us: int | None
    filter: str
    """CQL2 of all its polygons and circles; empty where it has none."""

    @property
    def cast_id(self) -> str:
        """The id of its cast, the same for everybody who sends it."""
        return identity_of(self.sender, self.identifier)

    @property
    def priority(self) -> str:
        """The priority of its cast, by its most severe text."""
        severe = {text.severity for text in self.texts}
        at_once = any(text.urgency == "Immediate" for text in self.texts)
        if "Extreme" in severe and at_once:
            return "emergency"
        if severe & {"Extreme", "Severe"}:
            return "warning"
        return "notice" if "Moderate" in severe else "routine"

    def text_in(self, language: str) -> str:
        """Give the text in a language, or in the first one there is."""
        if not self.texts:
            return f"{self.step} {self.identifier}"
        wanted = language.lower()
        ranked = sorted(self.texts, key=lambda one: not _speaks(one.language, wanted))
        chosen = ranked[0]
        parts = (chosen.headline or chosen.event, chosen.description, chosen.instruction)
        return "\n".join(part for part in parts if part)


def identity_of(sender: str, identifier: str) -> str:
    """Name an alert's cast."""
    return "cap-" + hashlib.sha256(f"{sender}\n{identifier}".encode()).hexdigest()[:32]


def read_alert(data: bytes) -> Alert:
    """Read an alert; InputError says what is wrong with it."""
    if len(data) > PAYLOAD_BYTES_MAX:
        raise LimitError(f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes")
    if re.search(rb"<!\s*(DOCTYPE|ENTITY)", data, re.IGNORECASE):
        raise InputError("an alert has no document type and no entities")
    try:
        root = ElementTree.fromstring(data)  # noqa: S314 - entities are refused above
    except ElementTree.ParseError as error:
        raise InputError(f"not an alert: {error}") from None
    if root.tag != _NAMESPACE + "alert":
        raise InputError("not an alert of the Common Alerting Protocol 1.2")
    status, step = _needed(root, "status"), _needed(root, "msgType")
    if status == "Draft":
        raise InputError("a draft is not sent: set its status")
    if step not in ("Alert", "Update", "Cancel"):
        raise InputError(f"{step[:40]!r} is no message to people: Alert, Update and Cancel are")
    infos = root.findall(_NAMESPACE + "info")
    if step == "Alert" and not infos:
        raise InputError("an alert needs an info")
    expiries = [parse_instant(found) for info in infos if (found := _text(info, "expires"))]
    return Alert(
        _needed(root, "identifier"),
        _needed(root, "sender"),
        parse_instant(_needed(root, "sent")),
        status,
        step,  # type: ignore[arg-type]
        tuple(_reference(one) for one in _text(root, "references").split()),
        tuple(map(_info, infos)),
        max(expiries, default=None),
        _filter([area for info in infos for area in info.findall(_NAMESPACE + "area")]),
    )


def _info(info: ElementTree.Element) -> AlertText:
    names = ("event", "urgency", "severity", "headline", "description", "instruction")
    return AlertText(_text(info, "language") or "en-US", *(_text(info, one) for one in names))


def _reference(text: str) -> str:
    sender, _, rest = text.partition(",")
    return identity_of(sender, rest.rpartition(",")[0])


def _speaks(language: str, wanted: str) -> bool:
    return language.lower().partition("-")[0] == wanted.partition("-")[0]


def _text(within: ElementTree.Element, name: str) -> str:
    return " ".join((within.findtext(_NAMESPACE + name) or "").split())


def _needed(within: ElementTree.Element, name: str) -> str:
    found = _text(within, name)
    if not found:
        raise InputError(f"an alert needs {name}")
    return found


def _filter(areas: Sequence[ElementTree.Element]) -> str:
    shapes: dict[str, None] = {}
    for area in areas:
        for polygon in area.findall(_NAMESPACE + "polygon"):
            shapes[_polygon([_point(one) for one in (polygon.text or "").split()])] = None
        for circle in area.findall(_NAMESPACE + "circle"):
            shapes[_circle((circle.text or "").split())] = None
    if len(shapes) > AREAS_MAX:
        raise LimitError(f"an alert has at most {AREAS_MAX} polygons and circles")
    return " OR ".join(f"s_intersects(geometry, {shape})" for shape in shapes)


def _point(text: str) -> tuple[float, float]:
    try:
        latitude, longitude = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text[:40]!r} is no point: an alert writes latitude,longitude") from None
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):
        raise InputError(f"{text[:40]!r} is not on Earth")
    return longitude, latitude


def _polygon(corners: Sequence[tuple[float, float]]) -> str:
    if not 4 <= len(corners) <= POINTS_MAX or corners[0] != corners[-1]:
        raise InputError(f"a polygon has 4 to {POINTS_MAX} points, the last as the first")
    return "POLYGON((" + ", ".join(f"{x:.6f} {y:.6f}" for x, y in corners) + "))"


def _circle(parts: Sequence[str]) -> str:
    """Write a circle as a polygon around it: nobody inside is missed."""
    if len(parts) != 2:
        raise InputError("a circle has a point and a radius in km")
    (x, y), radius_km = _point(parts[0]), _number(parts[1])
    outwards = math.degrees(radius_km / _EARTH_KM) / math.cos(math.pi / _CORNERS)
    wider = outwards / max(math.cos(math.radians(y)), 0.01)
    turns = [2 * math.pi * (number % _CORNERS) / _CORNERS for number in range(_CORNERS + 1)]
    return _polygon([(x + wider * math.cos(one), y + outwards * math.sin(one)) for one in turns])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1_000:
        raise InputError("the radius of a circle is up to 1000 km")
    return max(value, POINT_KM)
