"""Simulated buildings: copies of one floor plan, as in AMS's SimMob.

"The building we simulated consists of multiple copies of the floor plan for our laboratory" (AMS).
The paper does not print that plan, so this one is ours: a corridor divided into cells (a sensor
each), offices on both sides, with meeting rooms and a kitchen among them, stairs at both ends, and
a lift in the middle. All lengths are explicit `walking_m`, so the graph does not depend on where on
Earth the building stands.
"""

import math
from collections.abc import Sequence

import msgspec

from roamcast.errors import LimitError, PlaceError
from roamcast.model.earth import RADIUS_METRES
from roamcast.model.places import Place, Places, Point

FLOORS_MAX = 999
CELLS_MAX = 400
BUILDINGS_MAX = 10_000


class FloorPlan(msgspec.Struct, frozen=True):
    """A corridor of `cells`, each with `rooms_per_side` rooms on either side.

    The first rooms of the plan are `meeting_rooms` and `kitchens`, spread evenly along the
    corridor; all others are offices. `stairs_m` is the stairs of one storey. `lift_m` is half of
    any ride, waiting included, as the distance walked in the same time.
    """

    cells: int = 12
    rooms_per_side: int = 2
    meeting_rooms: int = 2
    kitchens: int = 1
    room_width_m: float = 4.0
    room_depth_m: float = 5.0
    corridor_width_m: float = 3.0
    stairs_m: float = 14.0
    lift_m: float = 25.0

    @property
    def rooms(self) -> int:
        """Rooms of one storey, offices and others."""
        return self.cells * self.rooms_per_side * 2

    @property
    def offices(self) -> int:
        """Offices of one storey."""
        return self.rooms - self.meeting_rooms - self.kitchens


LABORATORY = FloorPlan()


class Ground(msgspec.Struct, frozen=True):
    """Where a plan lies on Earth: x along the bearing of the corridor, y to its left, in metres."""

    origin: Point = (-122.1485, 37.4025)
    bearing_deg: float = 90.0

    def point(self, x_m: float, y_m: float) -> Point:
        """Return longitude and latitude, by a tangent plane: accurate enough for a campus."""
        turn = math.radians(90.0 - self.bearing_deg)
        east = x_m * math.cos(turn) - y_m * math.sin(turn)
        north = x_m * math.sin(turn) + y_m * math.cos(turn)
        lon, lat = self.origin
        across = RADIUS_METRES * math.cos(math.radians(lat))
        return (
            round(lon + math.degrees(east / across), 9),
            round(lat + math.degrees(north / RADIUS_METRES), 9),
        )


class _Room(msgspec.Struct, frozen=True):
    name: str
    kind: str
    box_m: tuple[float, float, float, float]
    doors: tuple[str, ...]

    @property
    def middle_m(self) -> tuple[float, float]:
        x0, y0, x1, y1 = self.box_m
        return (x0 + x1) / 2, (y0 + y1) / 2


def building(
    path: str,
    floors: int,
    plan: FloorPlan = LABORATORY,
    ground: Ground = Ground(),  # noqa: B008 - frozen
    offset_m: tuple[float, float] = (0.0, 0.0),
) -> list[Place]:
    """Return the places of one building, itself first; its entrance is `path/1/1c00`."""
    _check(floors, plan)
    rooms = _rooms(plan)
    dx, dy = offset_m
    length, depth = _extent(plan)
    outline = _ring(
        ground, (dx - plan.room_width_m, dy, dx + length + plan.room_width_m, dy + depth)
    )
    lift_box = _lift_box(plan)
    lift_doors = tuple(f"{path}/{floor}/{floor}{_lift_cell(plan)}" for floor in _floors(floors))
    places = [
        Place(path, "building", outline),
        Place(
            f"{path}/lift",
            "lift",
            _ring(ground, _moved(lift_box, offset_m)),
            lift_doors,
            (plan.lift_m,) * floors,
        ),
    ]
    for floor in _floors(floors):
        places.append(Place(f"{path}/{floor}", "floor", outline))
        places += [
            _placed(path, floor, floors, room, rooms, plan, ground, offset_m) for room in rooms
        ]
    return places


def campus(
    path: str,
    buildings: int,
    floors: int,
    plan: FloorPlan = LABORATORY,
    ground: Ground = Ground(),  # noqa: B008 - frozen
    gap_m: float = 40.0,
) -> Places:
    """Return a campus: buildings in a square, each entrance joined to one yard."""
    if not 1 <= buildings <= BUILDINGS_MAX:
        raise LimitError(f"a campus has 1 to {BUILDINGS_MAX} buildings, not {buildings}")
    length, depth = _extent(plan)
    pitch = length + 2 * plan.room_width_m + gap_m, depth + gap_m
    columns = math.ceil(math.sqrt(buildings))
    rows = math.ceil(buildings / columns)
    whole = (-gap_m, -gap_m, columns * pitch[0], rows * pitch[1])
    outline = _ring(ground, whole)
    entrances: list[str] = []
    walks: list[float] = []
    standing: list[Place] = []
    middle = (whole[0] + whole[2]) / 2, (whole[1] + whole[3]) / 2
    for index in range(buildings):
        name = f"{path}/b{index + 1}"
        offset = (index % columns) * pitch[0] + plan.room_width_m, (index // columns) * pitch[1]
        standing += building(name, floors, plan, ground, offset)
        entrances.append(f"{name}/1/1c00")
        walks.append(_metres(middle, offset))
    yard = Place(f"{path}/yard", "yard", outline, tuple(entrances), tuple(walks))
    return Places([Place(path, "campus", outline), yard, *standing])


def offices(places: Places, inside: str | None = None) -> tuple[str, ...]:
    """Return the offices, in pre-order."""
    return places.of_kind("office", inside)


def _check(floors: int, plan: FloorPlan) -> None:
    if not 1 <= floors <= FLOORS_MAX:
        raise LimitError(f"a building has 1 to {FLOORS_MAX} floors, not {floors}")
    if not 1 <= plan.cells <= CELLS_MAX or not 1 <= plan.rooms_per_side <= 9:
        raise LimitError(f"a floor has 1 to {CELLS_MAX} cells with 1 to 9 rooms on either side")
    if min(plan.meeting_rooms, plan.kitchens, plan.offices) < 0:
        raise PlaceError("a floor cannot have more meeting rooms and kitchens than rooms")
    lengths = (plan.room_width_m, plan.room_depth_m, plan.corridor_width_m)
    if min(*lengths, plan.stairs_m, plan.lift_m) <= 0:
        raise PlaceError("every length of a floor plan is above 0")


def _floors(floors: int) -> range:
    return range(1, floors + 1)


def _extent(plan: FloorPlan) -> tuple[float, float]:
    length = plan.cells * plan.rooms_per_side * plan.room_width_m
    return length, 2 * plan.room_depth_m + plan.corridor_width_m


def _rooms(plan: FloorPlan) -> list[_Room]:
    """Draw one storey in metres; names without the storey's number."""
    length, _ = _extent(plan)
    cell = plan.rooms_per_side * plan.room_width_m
    low, high = plan.room_depth_m, plan.room_depth_m + plan.corridor_width_m
    drawn = []
    for index in range(plan.cells):
        doors = (f"c{index + 1:02d}",) if index + 1 < plan.cells else ()
        drawn.append(
            _Room(f"c{index:02d}", "corridor", (index * cell, low, (index + 1) * cell, high), doors)
        )
    kinds = _kinds(plan)
    per_row = plan.cells * plan.rooms_per_side
    for index in range(plan.rooms):
        x = (index % per_row) * plan.room_width_m
        y = 0.0 if index < per_row else high
        box = (x, y, x + plan.room_width_m, y + plan.room_depth_m)
        door = f"c{(index % per_row) // plan.rooms_per_side:02d}"
        drawn.append(_Room(f"{index + 1:03d}", kinds[index], box, (door,)))
    west = (-plan.room_width_m, low, 0.0, high)
    east = (length, low, length + plan.room_width_m, high)
    drawn.append(_Room("s1", "stairs", west, ("c00",)))
    drawn.append(_Room("s2", "stairs", east, (f"c{plan.cells - 1:02d}",)))
    return drawn


def _kinds(plan: FloorPlan) -> list[str]:
    kinds = ["office"] * plan.rooms
    special = ["meeting"] * plan.meeting_rooms + ["kitchen"] * plan.kitchens
    for index, kind in enumerate(special):
        kinds[(2 * index + 1) * plan.rooms // (2 * len(special))] = kind
    return kinds


def _lift_cell(plan: FloorPlan) -> str:
    return f"c{plan.cells // 2:02d}"


def _lift_box(plan: FloorPlan) -> tuple[float, float, float, float]:
    # The shaft stands in the corridor's cell. It is higher in the hierarchy than the cell, so
    # `deepest` never returns it: a point alone cannot tell who is in the lift.
    x = (plan.cells // 2) * plan.rooms_per_side * plan.room_width_m
    y = plan.room_depth_m
    return (x, y, x + 1.5, y + 1.5)


def _placed(
    path: str,
    floor: int,
    floors: int,
    room: _Room,
    rooms: Sequence[_Room],
    plan: FloorPlan,
    ground: Ground,
    offset_m: tuple[float, float],
) -> Place:
    """Put one room of the plan onto one storey."""
    named = {other.name: other for other in rooms if other.name in room.doors}
    neighbours = [f"{path}/{floor}/{floor}{door}" for door in room.doors]
    walks = [_metres(room.middle_m, named[door].middle_m) for door in room.doors]
    if room.kind == "stairs" and floor < floors:
        neighbours.append(f"{path}/{floor + 1}/{floor + 1}{room.name}")
        walks.append(plan.stairs_m)
    return Place(
        f"{path}/{floor}/{floor}{room.name}",
        room.kind,
        _ring(ground, _moved(room.box_m, offset_m)),
        tuple(neighbours),
        tuple(walks),
    )


def _metres(start: tuple[float, float], end: tuple[float, float]) -> float:
    return max(1.0, round(math.dist(start, end), 2))


def _moved(
    box: tuple[float, float, float, float], offset_m: tuple[float, float]
) -> tuple[float, float, float, float]:
    dx, dy = offset_m
    return (box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy)


def _ring(ground: Ground, box: tuple[float, float, float, float]) -> dict[str, object]:
    x0, y0, x1, y1 = box
    corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)]
    return {"type": "Polygon", "coordinates": [[list(ground.point(*at)) for at in corners]]}
