"""Who moves about in `serve --demo`? AMS's office people, in real time, through the SDK.

The campus has three buildings, a hall and a lab. Every twelve minutes a third of the people meet in
the hall, arrive within two minutes, and go back to work five minutes later. Every three minutes a
few visit the lab, and the hall's temperature is measured all the time. Everybody has a vid that is
renewed, and nobody can link two of them.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roamcast.model import buildings
from roamcast.model.places import Place, Places, Point
from roamcast.sim.movement.simmob import Activity
from roamcast.sim.movement.workloads import MINUTE_US, BuildingWorkload, brisk, meeting, normal

if TYPE_CHECKING:
    from roamcast.commands._demo_people import NamelessPerson

BUILDINGS = 3
FLOORS = 4
PLAN = buildings.FloorPlan(cells=5, room_width_m=6.0, room_depth_m=9.0, meeting_rooms=1)
GAP_M = 20.0
HALL = "campus/hall"
LAB = "campus/lab"
BOXES_M = {HALL: ("hall", (6.0, -4.0, 43.0, 25.0)), LAB: ("lab", (46.0, -4.0, 58.0, 25.0))}
"""Kinds and boxes, in metres from the corner of the fourth building that the grid has room for."""

WATCHERS_MAX = 300
NAME = "visitor-{:04}"
PRINTERS = 12
SEED = 7
ACCURACY_M = 2.0
MEETINGS = 120
MEETING_EVERY_US = 12 * MINUTE_US
MEETING_FIRST_US = MINUTE_US // 2
MEETING_LASTS_US = 5 * MINUTE_US
ON_THE_WAY_US = 2 * MINUTE_US
VISITS_EVERY_US = 3 * MINUTE_US
VISIT_LASTS_US = MINUTE_US
VISITORS = 4
"""How many visit the lab at a time."""

NAMELESS_GUESTS = 40
"""People of the meetings who come without a name: enough that a cast's sender is told how many."""

NAMELESS_OTHERS = 20
"""Of those who visit the lab; all others are published by one program, as things are."""

SENSOR = "hall-sensor"
MEASURED_EVERY_S = 4.0
"""While a meeting sits still, its watchers hear of the hall's temperature."""

VID_LASTS_S = 20 * 60.0
"""How long somebody is on the map under one vid."""


class RenewedVids:
    """Publishes people under vids that say nothing, and takes a new one now and then."""

    def __init__(self, me: Any) -> None:
        self._me = me
        self._used: dict[str, tuple[str, float]] = {}

    async def publish(self, name: str, **known: Any) -> None:
        """Publish a person by the vid of the hour, a thing by its name."""
        if known.get("type") != "person":
            await self._me.publish(name, **known)
            return
        now = asyncio.get_running_loop().time()
        vid, until = self._used.get(name, ("", 0.0))
        if now >= until:
            if vid:
                await self._me.withdraw(vid)
            # drawn apart, so that not everybody's vid changes at the same time
            vid, until = secrets.token_hex(9), now + VID_LASTS_S * (0.5 + random.random())  # noqa: S311
            self._used[name] = vid, until
        await self._me.publish(vid, **known)


def campus(
    people: int, data: Path | None = None
) -> tuple[Places, Callable[[str, str], Awaitable[None]]]:
    """Make the campus: its places, and what publishes its people at a service.

    With the service's data folder, some of them come without a name.
    """
    places = campus_places()

    async def move(url: str, token: str) -> None:
        from roamcast.client import connect
        from roamcast.commands._demo_people import NamelessPerson
        from roamcast.commands._demo_watchers import watch_hall

        nameless = {}
        if data is not None:
            nameless = {
                person: NamelessPerson(lambda _: url, NAME.format(person), data, url)
                for person in without_names(people)
            }
        async with connect(url, token, device="campus") as me:
            moving = move_about(RenewedVids(me), people, places, nameless)
            if data is None:
                await moving
            else:
                await asyncio.gather(moving, watch_hall(url, data, min(people, WATCHERS_MAX)))

    return places, move


async def move_about(
    me: Any,
    people: int,
    places: Places | None = None,
    nameless: "Mapping[int, NamelessPerson] | None" = None,
) -> None:
    """Publish the campus's people through a session, or what has its `publish`."""
    places = places or campus_places()
    workload = brisk(normal(people, places=places, moves_per_minute=2.0 * people))
    await asyncio.gather(_publish(me, workload, people, nameless or {}), _measure(me, places))


def campus_places() -> Places:
    """Make the places: a hall and a lab where the grid of buildings has room for one more."""
    ground = buildings.Ground()
    standing = buildings.campus("campus", BUILDINGS, FLOORS, PLAN, ground, GAP_M)
    length = PLAN.cells * PLAN.rooms_per_side * PLAN.room_width_m
    depth = 2 * PLAN.room_depth_m + PLAN.corridor_width_m
    column, row = 1, 1
    x = column * (length + 2 * PLAN.room_width_m + GAP_M)
    y = row * (depth + GAP_M)
    more = []
    for path, (kind, (west, south, east, north)) in BOXES_M.items():
        corners = [(west, south), (east, south), (east, north), (west, north), (west, south)]
        ring = [list(ground.point(x + dx, y + dy)) for dx, dy in corners]
        shape = {"type": "Polygon", "coordinates": [ring]}
        more.append(Place(path, kind, shape, ("campus/yard",), (30.0,)))
    return Places([*standing.as_given, *more])


def _guests(people: int) -> range:
    """Name those who meet in the hall: every third one."""
    return range(1, people, 3)


def _others(people: int) -> list[int]:
    """Name those who do not."""
    guests = _guests(people)
    return [person for person in range(people) if person not in guests]


def without_names(people: int) -> list[int]:
    """Name the people who come without a name."""
    return [*_guests(people)[:NAMELESS_GUESTS], *_others(people)[:NAMELESS_OTHERS]]


def _meetings(workload: BuildingWorkload, people: int) -> list[Activity]:
    """Call every third person to the hall, and let them go again."""
    guests = _guests(people)
    found: list[Activity] = []
    for number in range(MEETINGS):
        begin = MEETING_FIRST_US + number * MEETING_EVERY_US
        found.append(meeting(workload, guests, place=HALL, time_us=begin, within_us=ON_THE_WAY_US))
        end = begin + ON_THE_WAY_US + MEETING_LASTS_US
        pause_us = workload.rates.pause_us
        found.append(Activity(end, guests, workload.mode, pause_us, ON_THE_WAY_US))
    others = _others(people)
    for number in range(MEETINGS * MEETING_EVERY_US // VISITS_EVERY_US if others else 0):
        first = number * VISITORS
        chosen = [others[(first + more) % len(others)] for more in range(VISITORS)]
        begin = MINUTE_US + number * VISITS_EVERY_US
        found.append(meeting(workload, chosen, place=LAB, time_us=begin, within_us=MINUTE_US))
        end = begin + MINUTE_US + VISIT_LASTS_US
        found.append(Activity(end, chosen, workload.mode, workload.rates.pause_us, MINUTE_US))
    return sorted(found, key=lambda one: one.time_us)


async def _publish(
    me: Any,
    workload: BuildingWorkload,
    people: int,
    nameless: "Mapping[int, NamelessPerson]",
) -> None:
    """Publish everybody at their desk, then every move when it happens."""
    places = workload.places
    rooms = places.of_kind("kitchen") + places.of_kind("meeting")
    for number in range(PRINTERS):
        room = rooms[number % len(rooms)]
        await me.publish(
            f"printer-{number:02}", place=room, point=places.centre(room), type="printer",
            colour=number % 3 == 0,
        )  # fmt: skip

    async def show(person: int, place: str) -> None:
        name = NAME.format(person)
        point, known = _known(places, name, place, person)
        if person in nameless:
            nameless[person].show(place, point, known)
        else:
            await me.publish(name, place=place, point=point, **known)

    homes = [places.path(number) for number in workload.offices]
    await asyncio.gather(*(show(person, home) for person, home in enumerate(homes)))
    loop = asyncio.get_running_loop()
    start = loop.time()
    drawn = random.Random(SEED)  # noqa: S311 - a demonstration
    due: dict[int, str] = {}
    for move in workload.moves(drawn, _meetings(workload, people)):
        wait_s = move.time_us / 1_000_000 - (loop.time() - start)
        if wait_s > 0:
            # what is due goes together: on a busy machine the people stay on time all the same
            await asyncio.gather(*(show(person, place) for person, place in due.items()))
            due.clear()
            await asyncio.sleep(max(0.0, move.time_us / 1_000_000 - (loop.time() - start)))
        if move.place is not None:
            due[move.person] = move.place


async def _measure(me: Any, places: Places) -> None:
    """Publish the hall's temperature, over and over."""
    polygon = places.polygon(HALL)
    assert polygon is not None
    west, _, _, north = polygon.bounds
    degrees, drawn = 21.0, random.Random(SEED)  # noqa: S311 - a demonstration
    while True:
        degrees = min(26.0, max(18.0, round(degrees + drawn.uniform(-0.3, 0.3), 1)))
        point = (west + 3e-5, north - 3e-5)
        await me.publish(SENSOR, place=HALL, point=point, type="sensor", degrees=degrees)
        await asyncio.sleep(MEASURED_EVERY_S)


def _known(
    places: Places, name: str, place: str, person: int
) -> tuple[Point | None, dict[str, Any]]:
    """Say what is known of a person: every other one has a phone, the rest only a badge."""
    known: dict[str, Any] = {"type": "person", "group": f"group-{person % 8}"}
    if person % 2 or place == "campus/yard":  # the yard's polygon has buildings in it
        return None, known
    return _spot(places, place, name), {**known, "accuracy_m": ACCURACY_M}


def _spot(places: Places, place: str, name: str) -> Point | None:
    """Choose where in a room a person stands, the same spot whenever they come back."""
    polygon = places.polygon(place)
    if polygon is None:
        return None
    drawn = random.Random(f"{name} in {place}")  # noqa: S311 - a demonstration
    west, south, east, north = polygon.bounds
    return (
        west + (0.08 + 0.84 * drawn.random()) * (east - west),
        south + (0.08 + 0.84 * drawn.random()) * (north - south),
    )
