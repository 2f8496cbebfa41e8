"""Buildings: copies of one floor plan, walkable throughout, drawn where they stand."""

import pytest
import shapely

from roamcast.errors import LimitError, PlaceError
from roamcast.model.buildings import (
    BUILDINGS_MAX,
    CELLS_MAX,
    FLOORS_MAX,
    LABORATORY,
    FloorPlan,
    Ground,
    building,
    campus,
    offices,
)
from roamcast.model.earth import distance_metres
from roamcast.model.places import Places
from roamcast.model.places_geojson import from_geojson, to_geojson


@pytest.fixture
def lab() -> Places:
    return Places(building("lab", 3))


def test_every_storey_is_a_copy_of_the_plan(lab: Places) -> None:
    storeys = ["1", "2", "3"]
    rooms = [
        [(path.split("/")[-1][1:], lab[path].kind) for path in lab.children(f"lab/{storey}")]
        for storey in storeys
    ]
    assert rooms[0] == rooms[1] == rooms[2]
    assert len(offices(lab, "lab/2")) == LABORATORY.offices == 45
    assert len(offices(lab)) == 3 * LABORATORY.offices
    ways = [lab.route(f"lab/{s}/{s}001", f"lab/{s}/{s}048") for s in storeys]
    assert all(way is not None for way in ways)
    assert len({way.metres for way in ways if way is not None}) == 1


def test_all_of_it_can_be_walked_by_stairs_or_lift(lab: Places) -> None:
    walkable = [p for p in lab.paths if lab[p].kind not in {"building", "floor"}]
    lengths = lab.walks.lengths_to(lab.number("lab/1/1c00"))
    assert all(lengths[lab.number(path)] < 200 for path in walkable)
    near = lab.route("lab/1/1001", "lab/2/2001")
    far = lab.route("lab/1/1013", "lab/3/3013")
    assert near is not None
    assert far is not None
    assert "lab/1/1s1" in near.places
    assert "lab/lift" in far.places


def test_rooms_lie_inside_their_storey_and_beside_each_other(lab: Places) -> None:
    storey = lab.polygon("lab/2")
    rooms = [lab.polygon(path) for path in lab.children("lab/2")]
    hair = 1e-8  # degrees, about a millimetre: coordinates are rounded
    assert all(storey.buffer(hair).covers(room) for room in rooms)
    assert sum(room.area for room in rooms) == pytest.approx(shapely.union_all(rooms).area)
    for path in lab.children("lab/2"):
        assert lab.deepest(lab.centre(path), "lab/2") == path


def test_metres_on_the_ground_are_metres_on_earth() -> None:
    for bearing in (0.0, 37.0, 90.0, 200.0):
        ground = Ground((-122.0, 37.4), bearing)
        start, end = ground.point(0, 0), ground.point(300, 400)
        assert distance_metres(start, end) == pytest.approx(500, rel=1e-4)
    assert Ground((0, 50), 0.0).point(100, 0)[1] > 50


def test_a_campus_joins_its_buildings_and_reads_back() -> None:
    places = campus("campus", 3, 2)
    assert places.roots() == ("campus",)
    way = places.route("campus/b1/2/2001", "campus/b3/2/2001")
    assert way is not None
    assert "campus/yard" in way.places
    assert from_geojson(to_geojson(places)) == places
    outlines = [places.polygon(f"campus/b{n}") for n in (1, 2, 3)]
    assert sum(o.area for o in outlines) == pytest.approx(shapely.union_all(outlines).area)
    assert places.polygon("campus").covers(shapely.union_all(outlines))


@pytest.mark.parametrize(
    ("floors", "plan"),
    [
        (0, LABORATORY),
        (FLOORS_MAX + 1, LABORATORY),
        (1, FloorPlan(cells=CELLS_MAX + 1)),
        (1, FloorPlan(cells=0)),
        (1, FloorPlan(rooms_per_side=10)),
    ],
)
def test_sizes_beyond_the_limits_are_refused(floors: int, plan: FloorPlan) -> None:
    with pytest.raises(LimitError):
        building("lab", floors, plan)


@pytest.mark.slow
def test_sizes_at_the_limits_are_built() -> None:
    tower = Places(building("lab", FLOORS_MAX, FloorPlan(cells=1, meeting_rooms=0, kitchens=0)))
    assert len(offices(tower)) == 4 * FLOORS_MAX
    long = Places(building("lab", 1, FloorPlan(cells=CELLS_MAX)))
    assert len(offices(long)) == CELLS_MAX * 4 - 3
    with pytest.raises(LimitError):
        campus("campus", BUILDINGS_MAX + 1, 1)


def test_an_impossible_plan_is_refused() -> None:
    with pytest.raises(PlaceError, match="more meeting rooms"):
        building("lab", 1, FloorPlan(cells=1, meeting_rooms=5))
    with pytest.raises(PlaceError, match="above 0"):
        building("lab", 1, FloorPlan(room_width_m=0))
