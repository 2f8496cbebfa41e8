"""Phones: OwnTracks in HTTP mode and Traccar Client publish where they are.

A phone shows a token: OwnTracks as the password of HTTP Basic, Traccar Client as its device
identifier. It is on the map under a vid that changes every hour at a moment of its own: one of the
trusted node in this service, so that casts reach its owner, else one of the service's making.
Neither the user's name nor the battery's level is on the map, for both would link one vid to the
next. Phones queue while they are offline. A fix that comes late, or after a newer one, is a
sighting for the pipeline and never on the live map.
"""

import asyncio
import contextlib
import hashlib
import hmac
import math
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from litestar import Response

from roamcast import files
from roamcast.errors import (
    AuthError,
    ContextError,
    ForbiddenError,
    NotFoundError,
    RateError,
    StoreError,
)
from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import Grant
from roamcast.live.http.routes import Asked, basic_of, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.live.service.answering import answered
from roamcast.live.service.service import Service
from roamcast.model import contexts, time
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.places import Places, Point

T = TypeVar("T")

SECOND_US: Final = 1_000_000
LATE_US: Final = 120 * SECOND_US
"""An older fix says where somebody was."""

VID_LASTS_US: Final = 3_600 * SECOND_US
STAYS_US: Final = 45 * 60 * SECOND_US
"""How long a phone stays on the map after its last fix; OwnTracks reports every 30 minutes."""

FRIENDS_MAX: Final = 50
DEVICES_REMEMBERED: Final = 100_000
SIGHTINGS_MAX: Final = 100_000
"""Late fixes that wait for the pipeline; beyond, phones keep theirs."""

KEY_FILE: Final = "phones.key"
SIGHTINGS_FOLDER: Final = "sightings"
PEOPLE: Final = Filter.parse("type = 'person'")


class Fix(msgspec.Struct, frozen=True):
    """Where a phone was at a moment, whichever app says so."""

    point: Point
    at_us: int
    accuracy_m: float | None = None
    regions: tuple[str, ...] = ()


class Friend(msgspec.Struct, frozen=True, tag_field="_type", tag="location", omit_defaults=True):
    """Somebody whom the phone's owner may see, as OwnTracks reads it."""

    lat: float
    lon: float
    tst: int
    tid: str
    topic: str
    acc: float | None = None


class OwnTracks(msgspec.Struct, frozen=True):
    """The members that count of OwnTracks' messages."""

    kind: str = msgspec.field(name="_type", default="")
    lat: float | None = None
    lon: float | None = None
    tst: float | None = None
    acc: float | None = None
    inregions: list[str] = []
    topic: str = ""


class TraccarCoordinates(msgspec.Struct, frozen=True):
    """Where Traccar Client's JSON has the position."""

    latitude: float
    longitude: float
    accuracy: float | None = None


class TraccarLocation(msgspec.Struct, frozen=True):
    """One location of Traccar Client's JSON."""

    timestamp: str | float
    coords: TraccarCoordinates


class Traccar(msgspec.Struct, frozen=True):
    """What Traccar Client posts as JSON."""

    location: TraccarLocation
    device_id: str = ""


class Phones:
    """Who is behind which vid now, and what came last from each device."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._data = Path(service.settings.server.data)
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._secret = self._key()
        self._waiting = sum(1 for _ in (self._data / SIGHTINGS_FOLDER).glob("*.jsonl"))

    def _key(self) -> bytes:
        """Read the key that vids are made with, or make it: a restart changes nobody's vid."""
        path = self._data / KEY_FILE
        try:
            if not path.exists():
                files.write_whole(path, secrets.token_bytes(32), mode=files.OWNER_ONLY)
            return path.read_bytes()
        except OSError as error:
            raise StoreError(f"the phones' key can not be kept: {error.strerror}") from None

    def vids(self, subject: str, device: str, now: int) -> tuple[str, str]:
        """Give a device's vid now and the one before; nobody without the key can link them."""
        who = f"{len(subject)} {subject} {device}"
        offset = int.from_bytes(self._mac(f"offset {who}")[:6], "big") % VID_LASTS_US
        number = (now + offset) // VID_LASTS_US
        current, before = (self._mac(f"vid {n} {who}")[:12].hex() for n in (number, number - 1))
        return current, before

    def _mac(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)

    async def take(self, grant: Grant, device: str, fix: Fix) -> None:
        """Put a fix on the map, or where the pipeline finds it if it is late."""
        service, subject = self._service, grant.subject
        now = service.clock()
        if fix.at_us > now + int(service.settings.limits.clock_skew_s_max * SECOND_US):
            raise ContextError("the fix is from the future: set the phone's clock")
        last = self._last.get((subject, device), 0)
        if fix.at_us < max(last, now - LATE_US):
            await self._keep(subject, fix)
            return
        self._last[subject, device] = fix.at_us
        self._last.move_to_end((subject, device))
        if len(self._last) > DEVICES_REMEMBERED:
            self._last.popitem(last=False)
        vid, before = await self._named(subject, device, now)
        # A vid of the trusted node is its own publisher, whoever's phone it is.
        owner, former = (subject, subject) if service.held_keys is None else (vid, before)
        context = contexts.check(
            Context(vid, place_of(fix, service.places), fix.point, attributes_of(fix), t_r=now)
        )
        grant.check_within(context)
        await self._ruled(subject, vid)
        await service.publish(owner, context, lifetime_us=STAYS_US)
        with contextlib.suppress(NotFoundError):  # most often the vid has not changed
            await service.unpublish(former, before)

    async def _ruled(self, subject: str, vid: str) -> None:
        """Give a vid that has just been drawn its owner's rules, before it is on the map."""
        service = self._service
        if service.held_keys is None:
            return
        if service.broker.rules_for(vid, vid, any_owner=False) is not None:
            return
        rules = await service.held_keys.rules_of(subject)
        if rules is not None:
            await service.set_rules(vid, vid, rules)

    async def _named(self, subject: str, device: str, now: int) -> tuple[str, str]:
        """Give a device's vid now and the one before: of the trusted node, where there is one."""
        current, before = self.vids(subject, device, now)
        held = self._service.held_keys
        if held is None:
            return current, before
        vid = await held.vid_for(subject, current, now)
        return vid, await held.used_for(subject, before) or before

    async def _keep(self, subject: str, fix: Fix) -> None:
        """Write a late fix down as a sighting; the pipeline gives it a vid of its own."""
        if self._waiting >= SIGHTINGS_MAX:
            raise StoreError(f"{SIGHTINGS_MAX} sightings wait for the pipeline: send it later")
        self._waiting += 1
        sighting: dict[str, Any] = {
            "person": subject,
            "source": "gps",
            "time": time.format_instant(fix.at_us),
            "lon": fix.point[0],
            "lat": fix.point[1],
            "attributes": attributes_of(fix),
        }
        folder = self._data / SIGHTINGS_FOLDER
        name = f"{fix.at_us}-{secrets.token_hex(6)}.jsonl"
        line = msgspec.json.encode(sighting) + b"\n"

        def write() -> None:
            folder.mkdir(mode=files.OWNER_ONLY_FOLDER, exist_ok=True)
            files.write_whole(folder / name, line, mode=files.OWNER_ONLY)

        try:
            await asyncio.to_thread(write)
        except OSError as error:
            self._waiting -= 1
            raise StoreError(f"the sighting can not be written: {error.strerror}") from None

    async def friends(self, grant: Grant, device: str, to: Point) -> list[Friend]:
        """Give the nearest people with a point that this subject may see, but for itself."""
        if not {"read", "admin"} & set(grant.scopes):
            return []
        service = self._service
        now = service.clock()
        own = await self._named(grant.subject, device, now)
        viewer = Viewer(grant.subject, grant.groups)
        people = grant.bound(PEOPLE)
        try:
            service.charge(viewer, people)
        except RateError:
            return []  # the fix is taken; friends come with a later one
        asked = service.broker.nearest(viewer, to, people, FRIENDS_MAX + len(own), now)
        found = await answered(asked)
        others = [near.context for near in found if near.context.vid not in own]
        return [_friend(other) for other in others[:FRIENDS_MAX]]


def attributes_of(fix: Fix) -> dict[str, contexts.Attribute]:
    """Give what of a fix is on the map beside its point."""
    known: dict[str, contexts.Attribute] = {"type": "person"}
    if fix.accuracy_m is not None:
        known["accuracy_m"] = fix.accuracy_m
    return known


def place_of(fix: Fix, places: Places | None) -> str | None:
    """Find the place of a fix: a region of the phone's that is one, or the building around it.

    A point says nothing of the storey, so a place on one counts only if the phone names it.
    """
    if places is None:
        return None
    for region in fix.regions:
        if region in places:
            return region
    found = places.deepest(fix.point)
    for above in () if found is None else (found, *places.ancestors(found)):
        if places[above].kind == "floor":
            return places.parent(above)
    return found


def _friend(context: Context) -> Friend:
    assert context.point is not None
    accuracy = context.attributes.get("accuracy_m")
    return Friend(
        context.point[1],
        context.point[0],
        context.t_r // SECOND_US,
        context.vid[:2],
        f"owntracks/roamcast/{context.vid}",
        accuracy if isinstance(accuracy, int | float) else None,
    )


def fix_of(
    lat: float,
    lon: float,
    seconds: float,
    accuracy_m: float | None = None,
    regions: tuple[str, ...] = (),
) -> Fix:
    """Check a position and a moment."""
    numbers = (lat, lon, seconds, accuracy_m or 0.0)
    if not all(map(math.isfinite, numbers)) or abs(lat) > 90 or abs(lon) > 180:
        raise ContextError("a fix has lat within ±90 and lon within ±180 degrees")
    if not 0 <= seconds < 1e11:
        raise ContextError("a fix has its moment in seconds since 1970")
    wide = None if accuracy_m is None or accuracy_m < 0 else float(accuracy_m)
    return Fix((float(lon), float(lat)), int(seconds * SECOND_US), wide, regions)


def _phones(request: Asked) -> Phones:
    state = request.app.state
    found: Phones | None = state.get("phones")
    if found is None:
        found = state.phones = Phones(service_of(request))
    return found


@route("POST", "/owntracks", scope="publish", answer=list[Any], listed=False)
async def post_owntracks(request: Asked) -> Response[bytes]:
    """Take a message of OwnTracks; the answer has friends, or nothing."""
    body = await request.body()
    if not body.strip():
        return as_json([])
    said = _read(body, OwnTracks)
    if said.kind != "location":
        return as_json([])
    if said.lat is None or said.lon is None or said.tst is None:
        raise ContextError("a location has lat, lon and tst")
    headers = request.headers
    _, user, device = [*said.topic.split("/")[:3], "", "", ""][:3]
    for named in (
        user,
        headers.get("x-limit-u", ""),
        basic_of(headers.get("authorization", ""))[0],
    ):
        if named and named != request.auth.subject:
            raise ForbiddenError(
                f"this token is {request.auth.subject[:60]!r}'s: set it as the user in OwnTracks"
            )
    device = (headers.get("x-limit-d") or device)[:64]
    fix = fix_of(said.lat, said.lon, said.tst, said.acc, tuple(said.inregions[:32]))
    phones = _phones(request)
    await phones.take(request.auth, device, fix)
    return as_json(await phones.friends(request.auth, device, fix.point))


@route("GET", "/osmand", scope=None, answers={200: "taken"},
       listed=False)  # fmt: skip
async def get_osmand(request: Asked) -> None:
    """Take a fix in the OsmAnd protocol: everything in the query."""
    await _osmand(request)


@route("POST", "/osmand", scope=None, answers={200: "taken"},
       listed=False)  # fmt: skip
async def post_osmand(request: Asked) -> None:
    """Take a fix of Traccar Client: the OsmAnd protocol's query, or JSON."""
    await _osmand(request)


async def _osmand(request: Asked) -> None:
    body = await request.body()
    if body.lstrip()[:1] == b"{":
        said = _read(body, Traccar)
        device, at = said.device_id, said.location.coords
        seconds = _moment(said.location.timestamp)
        fix = fix_of(at.latitude, at.longitude, seconds, at.accuracy)
    else:
        query = dict(request.query_params.items())
        device = str(query.get("id") or query.get("deviceid") or "")
        fix = _queried(query)
    service = service_of(request)
    if not device:
        raise AuthError("a token is needed: set it as the device identifier in Traccar Client")
    grant = await service.grant_of(device)
    grant.require("publish")
    service.count_request(grant.subject)
    await _phones(request).take(grant, "traccar", fix)


def _queried(query: Mapping[str, Any]) -> Fix:
    try:
        lat, lon = query["lat"], query["lon"]
        moment, accuracy = query["timestamp"], query.get("accuracy")
        wide = None if accuracy is None else float(accuracy)
        return fix_of(float(lat), float(lon), _moment(moment), wide)
    except (KeyError, ValueError):
        raise ContextError("a fix has lat, lon and timestamp in its query") from None


def _moment(value: str | float) -> float:
    """Read a moment in seconds, milliseconds or RFC 3339."""
    try:
        seconds = float(value)
    except ValueError:
        return time.parse_instant(str(value)) / SECOND_US
    return seconds / 1_000 if seconds > 1e11 else seconds


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContextError(f"the app's message can not be read: {error}") from None
