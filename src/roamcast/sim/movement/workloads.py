"""Which movement did AMS measure? Its "normal" and its "meeting" workload, and its objects.

The normal workload is given by what comes out: 80 % probability of the office, 12 % of the people
mobile, 600 moves a minute among 1,000. Destinations are drawn independently, so the expected steps
and metres of one decision are sums over the building, and the mean pause and the travel rate that
give those outcomes follow exactly; nothing is tuned by trial. The paper's fourth number, a sighting
every 8.9 s, contradicts them (12 % of 1,000 sighted every 8.9 s are 809 moves a minute): the
interval that follows from 12 % and 600 is `Rates.sighting_s`.
"""

import random
from collections.abc import Sequence

import msgspec
import numpy as np

from roamcast.errors import PlaceError
from roamcast.model.buildings import FloorPlan, building, campus
from roamcast.model.contexts import Attribute
from roamcast.model.places import Places
from roamcast.sim.movement.draws import Floats
from roamcast.sim.movement.modes import Gather, Mode, Office, Pool
from roamcast.sim.movement.simmob import Activity, SimMob

AMS_PEOPLE = 1_000
AMS_STAY = 0.8
AMS_MOBILE = 0.12
AMS_MOVES_PER_MINUTE = 600.0
MINUTE_US = 60_000_000

PLAN = FloorPlan(room_width_m=6.0)
"""Corridor cells of 12 m: with 12 s from sighting to sighting people stroll at under 1 m/s."""

FLOORS = 20
"""With 45 offices each: some of the 1,000 people share one. Nothing in the paper says how many
copies of the floor plan it used; this many give its share of encounters."""

BRISK_M_S = 1.4
"""The travel rate of the meeting workload, ours: at the stroll that 12 % and 600 moves imply, the
far ends of a storey and the wait for the lift are more than three minutes away."""

ROOM_WEIGHTS = {"office": 1.0, "meeting": 8.0, "kitchen": 8.0}
"""How a venture divides over a storey: a kitchen draws as many as eight colleagues' offices."""


class Rates(msgspec.Struct, frozen=True):
    """What a workload needs beside its places: how fast people walk and how long they rest."""

    speed_m_s: float
    pause_us: float
    sighting_s: float


class Workload(msgspec.Struct, frozen=True):
    """A building with people in it; `moves` starts one run."""

    places: Places
    offices: tuple[int, ...]
    mode: Mode
    rates: Rates

    def moves(
        self,
        generator: random.Random,
        activities: Sequence[Activity] = (),
        end_us: int | None = None,
    ) -> SimMob:
        """Start everybody in their office."""
        return SimMob(
            self.places,
            self.offices,
            self.mode,
            generator,
            speed_m_s=self.rates.speed_m_s,
            pause_us=self.rates.pause_us,
            activities=activities,
            end_us=end_us,
        )


def normal(
    people: int = AMS_PEOPLE,
    *,
    floors: int = FLOORS,
    plan: FloorPlan = PLAN,
    stay: float = AMS_STAY,
    mobile: float = AMS_MOBILE,
    moves_per_minute: float | None = None,
) -> Workload:
    """Return the normal workload: everybody has an office, and ventures out on its storey.

    More than 1,000 people stand on a campus of such buildings. Without `moves_per_minute` the
    paper's 600 for 1,000 people is kept in proportion.
    """
    if people <= AMS_PEOPLE:
        places = Places(building("lab", floors, plan))
    else:
        places = campus("campus", -(-people // AMS_PEOPLE), floors, plan)
    offices = [places.number(path) for path in places.of_kind("office")]
    homes = tuple(offices[person * len(offices) // people] for person in range(people))
    mode = Office(homes, *_storeys(places, homes), stay=stay)
    moves = AMS_MOVES_PER_MINUTE * people / AMS_PEOPLE
    # Storeys are copies, so the first thousand people stand for all.
    some = homes[:AMS_PEOPLE]
    moves_of_some = (moves_per_minute or moves) * len(some) / people
    rates = rates_for(places, some, mode, mobile, moves_of_some)
    return Workload(places, homes, mode, rates)


def brisk(workload: Workload) -> Workload:
    """Return the same building and people, walking as to a meeting."""
    rates = msgspec.structs.replace(workload.rates, speed_m_s=BRISK_M_S)
    return msgspec.structs.replace(workload, rates=rates)


def meeting(
    workload: Workload,
    people: Sequence[int],
    *,
    place: str | None = None,
    time_us: int = MINUTE_US,
    within_us: int = 4 * MINUTE_US,
) -> Activity:
    """Call people to one place, to arrive within 3 to 5 minutes (AMS) and stay for good."""
    where = place if place is not None else workload.places.of_kind("meeting")[0]
    return Activity(time_us, people, Gather(workload.places.number(where)), None, within_us)


def rates_for(
    places: Places, homes: Sequence[int], mode: Mode, mobile: float, moves_per_minute: float
) -> Rates:
    """Find the travel rate and the mean pause under which so many are mobile and move so often.

    The mode must choose the same way from everywhere, as `Office` does: then, at rest, people are
    distributed as the mode's row, and a decision leads from one draw of it to the next.
    """
    if not 0 < mobile < 1 or not moves_per_minute > 0:
        raise PlaceError("a share of people is mobile, and they move")
    steps, metres = _per_decision(places, homes, mode)
    decisions_per_s = moves_per_minute / 60 / (len(homes) * steps)
    return Rates(
        speed_m_s=decisions_per_s * metres / mobile,
        pause_us=(1 - mobile) / decisions_per_s * 1e6,
        sighting_s=mobile * len(homes) / (moves_per_minute / 60),
    )


def _per_decision(places: Places, homes: Sequence[int], mode: Mode) -> tuple[float, float]:
    """Return the mean steps and metres that follow one decision, over all people."""
    tables: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
    totals = np.zeros(2)
    for person, home in enumerate(homes):
        row = mode.row(person, home)
        reached = tuple(sorted(row))
        if reached not in tables:
            tables[reached] = _steps_and_metres(places, reached)
        share = np.array([row[place] for place in reached])
        totals += [share @ table @ share for table in tables[reached]]
    steps, metres = (totals / len(homes)).tolist()
    return steps, metres


def _steps_and_metres(places: Places, among: Sequence[int]) -> tuple[Floats, Floats]:
    steps, metres = np.zeros((2, len(among), len(among)))
    for column, goal in enumerate(among):
        ways = places.walks.ways_to(goal)
        for line, start in enumerate(among):
            length = ways.metres(start, goal)
            if length is None:
                raise PlaceError(f"no way leads to {places.path(goal)!r}")
            metres[line, column] = length
            steps[line, column] = len(ways.steps(start, goal))
    return steps, metres


def _storeys(places: Places, homes: Sequence[int]) -> tuple[list[Pool], list[int]]:
    """Return a pool for each storey, and whose is which."""
    pools: list[Pool] = []
    pool_of_floor: dict[str, int] = {}
    for floor in places.of_kind("floor"):
        inside = [
            (places.number(room), ROOM_WEIGHTS[places[room].kind])
            for room in places.children(floor)
            if places[room].kind in ROOM_WEIGHTS
        ]
        pool_of_floor[floor] = len(pools)
        pools.append(Pool(tuple(n for n, _ in inside), tuple(w for _, w in inside)))
    parents = [places.parent(places.path(home)) for home in homes]
    return pools, [pool_of_floor[parent] for parent in parents if parent is not None]


NAMES = ("Ada", "Bela", "Carlo", "Dana", "Emil", "Fumi", "Greta", "Hugo", "Ines", "Jonas")


def located_context(person: int) -> dict[str, Attribute]:
    """Return a person's attributes, so that the object is of AMS's size, 400 to 500 bytes as JSON."""
    name = f"{NAMES[person % len(NAMES)]} {person:05d}"
    return {
        "kind": "person",
        "name": name,
        "group": f"group-{person % 40:02d}",
        "title": "Member of Research Staff",
        "extension": 4000 + person % 6000,
        "host": f"tab-{person:05d}.example.org",
        "callback": f"udp://tab-{person:05d}.example.org:7100/locations",
        "activity": "available; knock, or leave a note at the door of the office",
        "publish": True,
    }
