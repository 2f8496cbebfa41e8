"""Places and shapes: `within` against paths, `near` against another formula, S_* by shapely."""

import math
import random

import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.model.contexts import Context, path_within
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Box, Residual
from roamcast.model.filters.holds import holds
from tests import strategies as pool

RADIUS_METRES = 6_371_008.8
longitudes = st.floats(-180, 180)
latitudes = st.floats(-90, 90)


def chord_metres(a: tuple[float, float], b: tuple[float, float]) -> float:
    """The great-circle distance by the angle between two vectors from the Earth's centre."""

    def vector(point: tuple[float, float]) -> tuple[float, float, float]:
        lon, lat = map(math.radians, point)
        return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)

    half_chord = math.dist(vector(a), vector(b)) / 2
    return RADIUS_METRES * 2 * math.asin(min(1.0, half_chord))


@settings(max_examples=500)
@given(longitudes, latitudes, longitudes, latitudes, st.sampled_from([0.999, 1.001]))
def test_near_is_the_great_circle_distance(
    lon: float, lat: float, lon_b: float, lat_b: float, factor: float
) -> None:
    distance = chord_metres((lon, lat), (lon_b, lat_b))
    metres = distance * factor
    asked = {
        "op": "near",
        "args": [
            {"property": "geometry"},
            {"type": "Point", "coordinates": [lon, lat]},
            metres,
        ],
    }
    near, context = Filter.parse(asked), Context("v", point=(lon_b, lat_b))
    # haversine and chord differ by rounding near zero and near the antipode
    if 0.01 < distance < 20_000_000:
        expected = factor > 1
        assert near.matches(context) is expected
        assert Filter.parse({"op": "not", "args": [asked]}).matches(context) is not expected
    inside = near.matches(context)
    assert holds(near.normal, context) is inside
    assert isinstance(near.normal, Residual)
    envelope = near.normal.envelope
    assert envelope is not None
    if inside:
        assert holds(envelope, context)


@pytest.mark.parametrize(
    ("text", "point", "expected"),
    [
        ("near(geometry, POINT(179.9 0), 30000)", (-179.9, 0.0), True),
        ("near(geometry, POINT(0 89.9), 30000)", (180.0, 89.9), True),
        ("near(geometry, POINT(0 0), 0)", (0.0, 0.0), True),
        ("near(geometry, POINT(0 0), 111000)", (1.0, 0.0), False),
        ("near(geometry, POINT(0 0), 111400)", (1.0, 0.0), True),
        ("near(geometry, POINT(0 0), 2.1e7)", (180.0, 0.0), True),
        ("NOT near(geometry, POINT(0 0), 111000)", (1.0, 0.0), True),
        ("NOT near(geometry, POINT(0 0), 111000)", None, False),
        ("near(geometry, POINT(0 0), 111000)", None, False),
    ],
)
def test_near_across_the_antimeridian_and_at_the_poles(
    text: str, point: tuple[float, float] | None, expected: bool
) -> None:
    near, context = Filter.parse(text), Context("v", point=point)
    assert near.matches(context) is expected
    assert holds(near.normal, context) is expected


@pytest.mark.parametrize("region", pool.PLACES)
@pytest.mark.parametrize("place", [None, *pool.PLACES, "campus/b35/2-annex", "camp"])
def test_within_is_the_place_and_all_below_it(region: str, place: str | None) -> None:
    text = f"within(place, {pool.quoted(region)})"
    context = Context("v", place=place)
    expected = place is not None and path_within(place, region)
    for form in (text, Filter.parse(text).text):
        assert Filter.parse(form).matches(context) is expected
        assert Filter.parse(f"NOT {form}").matches(context) is (place is not None and not expected)


@pytest.mark.parametrize("op", pool.SPATIAL)
def test_every_spatial_relation_is_shapelys(op: str) -> None:
    draw = random.Random(op)
    grid = [(x, y) for x in pool.COORDINATES for y in pool.COORDINATES if abs(y) <= 90]
    for text in pool.SHAPES:
        if text.startswith("BBOX"):
            numbers = [float(part) for part in text[5:-1].split(",")]
            if numbers[0] > numbers[2]:
                continue
            west, south, east, north = numbers
            corners = [(x, y) for x in (west, east) for y in (south, north)]
            shape = shapely.convex_hull(shapely.MultiPoint(corners))  # perhaps a line or a point
        else:
            shape = shapely.from_wkt(text)
        for point in draw.sample(grid, 20):
            for first in (True, False):
                pair = ["geometry", text] if first else [text, "geometry"]
                asked = Filter.parse(f"S_{op}({', '.join(pair)})")
                here = shapely.Point(point)
                left, right = (here, shape) if first else (shape, here)
                expected = bool(getattr(left, op.lower())(right))
                context = Context("v", point=point)
                assert asked.matches(context) is expected
                assert holds(asked.normal, context) is expected
                refused = Filter.parse(f"NOT {asked.source}")
                assert refused.matches(context) is not expected
                assert holds(refused.normal, context) is not expected


@pytest.mark.parametrize(
    ("box", "inside", "outside"),
    [
        ("BBOX(180,0,-180,1)", [(180.0, 0.0), (-180.0, 1.0)], [(179.9, 0.5), (180.0, 1.1)]),
        ("BBOX(180,0,-170,1)", [(180.0, 0.5), (-175.0, 0.5)], [(179.9, 0.5)]),
        ("BBOX(170,1,-170,1)", [(175.0, 1.0), (-175.0, 1.0)], [(175.0, 1.1), (0.0, 1.0)]),
    ],
)
def test_a_half_across_the_antimeridian_may_be_a_line(
    box: str, inside: list[tuple[float, float]], outside: list[tuple[float, float]]
) -> None:
    asked = Filter.parse(f"S_INTERSECTS(geometry, {box})")
    assert Filter.parse(asked.text) == asked
    assert all(asked.matches(Context("v", point=point)) for point in inside)
    assert not any(asked.matches(Context("v", point=point)) for point in outside)


def test_a_relation_without_a_point_is_unknown() -> None:
    for op in pool.SPATIAL:
        text = f"S_{op}(geometry, BBOX(0,0,1,1))"
        assert not Filter.parse(text).matches(Context("v"))
        assert not Filter.parse(f"NOT {text}").matches(Context("v"))


def test_a_box_includes_its_border_and_becomes_numbers() -> None:
    box = Filter.parse("S_INTERSECTS(geometry, BBOX(0,0,1,1))")
    assert box.normal == Box(0, 0, 1, 1)
    assert box.matches(Context("v", point=(1.0, 0.5)))
    assert box.matches(Context("v", point=(0.0, 0.0)))
    assert not box.matches(Context("v", point=(1.0000001, 0.5)))


ACROSS = {
    # box: (inside, on its border, outside)
    "BBOX(170,-10,-170,10)": (
        [(180.0, 0.0), (-180.0, 0.0), (175.0, 0.0), (-175.0, 9.0)],
        [(170.0, 0.0), (-170.0, 0.0), (180.0, 10.0), (-180.0, 10.0), (-180.0, -10.0)],
        [(169.9, 0.0), (180.0, 10.1), (0.0, 0.0)],
    ),
    "BBOX(170,-10,-180,10)": (
        [(175.0, 0.0)],
        [(180.0, 0.0), (-180.0, 0.0), (-180.0, 10.0), (170.0, 10.0)],
        [(-179.9, 0.0)],
    ),
    "BBOX(180,-10,-170,10)": ([(-175.0, 0.0)], [(180.0, 0.0), (-180.0, 10.0)], [(179.9, 0.0)]),
    "BBOX(170,1,-170,1)": (
        [(180.0, 1.0), (-180.0, 1.0), (175.0, 1.0)],
        [(170.0, 1.0), (-170.0, 1.0)],
        [(180.0, 1.1)],
    ),
    "BBOX(180,0,-180,1)": (
        [(180.0, 0.5), (-180.0, 0.5)],
        [(180.0, 0.0), (-180.0, 0.0), (-180.0, 1.0)],
        [(179.9, 0.5)],
    ),
    "BBOX(180,1,-180,1)": ([(180.0, 1.0), (-180.0, 1.0)], [], [(180.0, 1.1)]),
}


@pytest.mark.parametrize("box", ACROSS)
def test_the_antimeridian_is_no_seam_of_a_box_across_it(box: str) -> None:
    for points, inside, touches in zip(
        ACROSS[box], (True, False, False), (False, True, False), strict=True
    ):
        for point in points:
            context = Context("v", point=point)
            alone = inside and box == "BBOX(180,1,-180,1)"  # the box is this point
            expected = {
                f"S_WITHIN(geometry, {box})": inside,
                f"S_CONTAINS({box}, geometry)": inside,
                f"S_TOUCHES({box}, geometry)": touches,
                f"S_INTERSECTS(geometry, {box})": inside or touches,
                f"S_DISJOINT({box}, geometry)": not inside and not touches,
                f"S_EQUALS(geometry, {box})": alone,
                f"S_CONTAINS(geometry, {box})": alone,
                f"S_WITHIN({box}, geometry)": alone,
                f"S_OVERLAPS({box}, geometry)": False,
                f"S_CROSSES(geometry, {box})": False,
            }
            for text, answer in expected.items():
                asked = Filter.parse(text)
                assert asked.matches(context) is answer, (text, point)
                assert holds(asked.normal, context) is answer
                assert Filter.parse(f"NOT {text}").matches(context) is not answer
                assert Filter.parse(asked.text) == asked


@pytest.mark.parametrize(
    ("centre", "point"),
    [((180, 0), (-180.0, 0.0)), ((-180, 12.5), (180.0, 12.5)), ((10, 90), (-77.0, 90.0))],
)
def test_one_point_with_two_longitudes_is_no_distance_from_itself(
    centre: tuple[float, float], point: tuple[float, float]
) -> None:
    asked = Filter.parse(f"near(geometry, POINT({centre[0]} {centre[1]}), 0)")
    assert asked.matches(Context("v", point=point))
    assert holds(asked.normal, Context("v", point=point))
