"""AMS's workloads: the "normal" day, the "meeting", and contexts of the paper's size.

The paper defines the normal workload by its outcome: 80 % probability of the office, 12 % of people
mobile, 600 moves per minute among 1,000. Destinations are drawn independently, so the expected
steps and metres per decision are sums over the building, and the mean pause and travel rate that
give this outcome follow exactly, without tuning. The paper's fourth number, a sighting every 8.9 s,
contradicts the others (12 % of 1,000 sighted every 8.9 s are 809 moves per minute); the interval
that follows from 12 % and 600 is `WalkingRates.sighting_s`.
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
from roamcast.sim.movement.modes import DestinationPool, Gather, MovementMode, Office
from roamcast.sim.movement.simmob import Activity, SimMob

AMS_PEOPLE = 1_000
AMS_STAY = 0.8
AMS_MOBILE = 0.12
AMS_MOVES_PER_MINUTE = 600.0
MINUTE_US = 60_000_000

PLAN = FloorPlan(room_width_m=6.0)
"""Corridor cells of 12 m: with 12 s between sightings, people stroll at less than 1 m/s."""

FLOORS = 20
"""With 45 offices each, so some of the 1,000 people share one. The paper does not say how many
copies of the floor plan it used; this number gives its share of encounters."""

BRISK_M_S = 1.4
"""Our travel rate for the meeting workload: at the pace that 12 % and 600 moves imply, the ends of
a storey plus the wait for the lift are more than three minutes away."""

ROOM_WEIGHTS = {"office": 1.0, "meeting": 8.0, "kitchen": 8.0}
"""Weights of destinations on a storey: a kitchen attracts as many as eight offices."""


class WalkingRates(msgspec.Struct, frozen=True):
    """How fast people walk and how long they rest."""

    speed_m_s: float
    pause_us: float
    sighting_s: float


class BuildingWorkload(msgspec.Struct, frozen=True):
    """A building with people in it; `moves` starts one run."""

    places: Places
    offices: tuple[int, ...]
    mode: MovementMode
    rates: WalkingRates

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
    places: Places | None = None,
) -> BuildingWorkload:
    """Return the normal workload: everybody has an office, and goes out on its storey.

    More than 1,000 people get a campus of such buildings. Without `moves_per_minute`, the paper's
    600 for 1,000 people is scaled in proportion. `places` stand in for the building.
    """
    if places is not None:
        pass
    elif people <= AMS_PEOPLE:
        places = Places(building("lab", floors, plan))
    else:
        places = campus("campus", -(-people // AMS_PEOPLE), floors, plan)
    offices = [places.number(path) for path in places.of_kind("office")]
    homes = tuple(offices[person * len(offices) // people] for person in range(people))
    mode = Office(homes, *_storeys(places, homes), stay=stay)
    moves = AMS_MOVES_PER_MINUTE * people / AMS_PEOPLE
    # Storeys are copies, so the first 1,000 people represent all.
    some = homes[:AMS_PEOPLE]
    moves_of_some = (moves_per_minute or moves) * len(some) / people
    rates = rates_for(places, some, mode, mobile, moves_of_some)
    return BuildingWorkload(places, homes, mode, rates)


def brisk(workload: BuildingWorkload) -> BuildingWorkload:
    """Return the same building and people, walking as to a meeting."""
    rates = msgspec.structs.replace(workload.rates, speed_m_s=BRISK_M_S)
    return msgspec.structs.replace(workload, rates=rates)


def meeting(
    workload: BuildingWorkload,
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
    places: Places, homes: Sequence[int], mode: MovementMode, mobile: float, moves_per_minute: float
) -> WalkingRates:
    """Return the travel rate and mean pause that give this mobile share and move rate.

    The mode's row must not depend on the place, as in `Office`. Then people at rest are distributed
    as that row, and a decision leads from one draw of it to the next.
    """
    if not 0 < mobile < 1 or not moves_per_minute > 0:
        raise PlaceError("a share of people is mobile, and they move")
    steps, metres = _per_decision(places, homes, mode)
    decisions_per_s = moves_per_minute / 60 / (len(homes) * steps)
    return WalkingRates(
        speed_m_s=decisions_per_s * metres / mobile,
        pause_us=(1 - mobile) / decisions_per_s * 1e6,
        sighting_s=mobile * len(homes) / (moves_per_minute / 60),
    )


def _per_decision(places: Places, homes: Sequence[int], mode: MovementMode) -> tuple[float, float]:
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
                raise PlaceError(f"there is no walk to {places.path(goal)!r}")
            metres[line, column] = length
            steps[line, column] = len(ways.steps(start, goal))
    return steps, metres


def _storeys(places: Places, homes: Sequence[int]) -> tuple[list[DestinationPool], list[int]]:
    """Return a pool for each storey, and each person's pool."""
    pools: list[DestinationPool] = []
    pool_of_floor: dict[str, int] = {}
    for floor in places.of_kind("floor"):
        inside = [
            (places.number(room), ROOM_WEIGHTS[places[room].kind])
            for room in places.children(floor)
            if places[room].kind in ROOM_WEIGHTS
        ]
        pool_of_floor[floor] = len(pools)
        pools.append(DestinationPool(tuple(n for n, _ in inside), tuple(w for _, w in inside)))
    parents = [places.parent(places.path(home)) for home in homes]
    return pools, [pool_of_floor[parent] for parent in parents if parent is not None]


NAMES = ("Ada", "Bela", "Carlo", "Dana", "Emil", "Fumi", "Greta", "Hugo", "Ines", "Jonas")


def located_context(person: int) -> dict[str, Attribute]:
    """Return a person's attributes; the context has AMS's size, 400 to 500 bytes as JSON."""
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
