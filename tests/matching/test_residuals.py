"""Circles, shapes and LIKE in bulk answer as the reference evaluator does, at every border."""

import math
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.matching import FilterSet, circles, regions
from roamcast.matching.regions import Region
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.earth import distance_metres
from roamcast.model.filters import Filter
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.syntax import Near, Spatial

HOLED = "POLYGON((0 0,4 0,4 4,0 4,0 0),(1 1,3 1,2 3,1 1))"
SHAPES = [
    HOLED,
    "POLYGON((0 0,3 0,3 1,1 1,1 3,0 3,0 0))",
    "MULTIPOLYGON(((178 -1,180 -1,180 1,178 1,178 -1)),((-180 -1,-178 -1,-178 1,-180 1,-180 -1)))",
    "POLYGON((-180 80,180 80,180 90,-180 90,-180 80))",
    "BBOX(0,0,2,2)",
    "BBOX(179,-1,-179,1)",
    "LINESTRING(0 0,3 1)",
    "POINT(1 1)",
    "MULTIPOINT((1 1),(2 2))",
    "GEOMETRYCOLLECTION(POINT(4 4),LINESTRING(0 0,4 4))",
]
RELATIONS = ["INTERSECTS", "DISJOINT", "WITHIN", "CONTAINS", "TOUCHES", "EQUALS", "CROSSES"]
EDGES = [-180.0, -179.5, -178.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 178.0, 180.0]
HEIGHTS = [-90.0, -1.0, 0.0, 1 / 3, 0.5, 1.0, 2.0, 3.0, 4.0, 80.0, 90.0]
PATTERNS = [
    "%",
    "_",
    "a%b",
    "%a_",
    r"%\%%",
    r"a\\%",
    "%b%a%",
    "ab",
    "",
    "%ß",
    "%\n%",
    "_%_",
    "%(?>%",
]
TEXTS = ["", "a", "ab", "aab", "a%b", "a\\", "a\nb", "ß", "aß", "ba", "bab", "(?>", "é", "e\u0301"]

points = st.tuples(st.sampled_from(EDGES), st.sampled_from(HEIGHTS)) | st.tuples(
    st.floats(-180, 180), st.floats(-90, 90)
)
circle = st.builds(
    "near(geometry, POINT({} {}), {})".format,
    st.sampled_from([-180, -179.5, 0, 1.5, 180]),
    st.sampled_from([-90, -1, 0, 0.5, 89.9, 90]),
    st.sampled_from([0, 1e-6, 55659.75, 111_195, 1e6, 10_007_557, 20_015_114, 20_015_115, 1e9]),
)
shape = st.builds(
    "S_{}(geometry, {})".format, st.sampled_from(RELATIONS), st.sampled_from(SHAPES)
) | st.builds("S_{}({}, geometry)".format, st.sampled_from(RELATIONS), st.sampled_from(SHAPES))
text = st.builds(
    "{} LIKE '{}'".format, st.sampled_from(["w", "place", "vid"]), st.sampled_from(PATTERNS)
) | st.builds(
    "{}(w) LIKE '{}'".format, st.sampled_from(["casei", "accenti"]), st.sampled_from(PATTERNS[:5])
)
leaf = circle | shape | text | st.just("w = 'ab'") | st.just("n + 1 > 2")
filters = (leaf | leaf.map("NOT ({})".format)) | st.lists(leaf, min_size=2, max_size=3).map(
    " AND ".join
)
contexts = st.builds(
    Context,
    st.sampled_from(["v", "ab"]),
    st.none() | st.sampled_from(["a", "ab", "aab"]),
    st.none() | points,
    st.dictionaries(st.sampled_from(["w", "n"]), st.sampled_from([*TEXTS, 1, 2.5]), max_size=2),
)


@settings(max_examples=50)
@given(st.lists(filters, min_size=1, max_size=8), st.lists(contexts, min_size=1, max_size=12))
def test_a_batch_is_answered_as_the_reference_answers_each_context(
    texts: list[str], some: list[Context]
) -> None:
    asked = {str(number): Filter.parse(text) for number, text in enumerate(texts)}
    held = FilterSet()
    held.add_many(asked.items())
    pairs = held.match_batch(to_arrow(some))
    found = set(zip(pairs.rows.tolist(), pairs.ids.tolist(), strict=True))
    assert found == {
        (row, name)
        for row, context in enumerate(some)
        for name, one in asked.items()
        if one.matches(context)
    }
    for row, context in enumerate(some):
        assert {(row, name) for name in held.match(context)} == {
            (at, name) for at, name in found if at == row
        }


@given(points, points, st.sampled_from([0.0, 1.0, 1 - 1e-15, 1 + 1e-15, 1 - 1e-9, 1 + 1e-9]))
def test_a_point_at_the_border_of_a_circle_is_decided_by_the_reference(
    centre: tuple[float, float], point: tuple[float, float], share: float
) -> None:
    metres = distance_metres(centre, point) * share
    near = Near(*centre, metres)
    found = np.empty(1, np.int8)
    circles.locate(
        np.array([circles.parameters(near)]), np.zeros(1, np.int64), np.array([point[0]]),
        np.array([point[1]]), found,
    )  # fmt: skip
    if found[0] != circles.DOUBTFUL:
        assert bool(found[0]) is evaluate(near, Context("v", None, point))


def test_half_the_earth_and_more_are_circles_too() -> None:
    asked = {str(metres): Filter.parse(f"near(geometry, POINT(0 0), {metres})") for metres in
             (10_007_557, 20_015_000, 20_015_115, 1e12)}  # fmt: skip
    held = FilterSet()
    held.add_many(asked.items())
    some = [Context("v", None, point) for point in ((180.0, 0.0), (-180.0, 0.0), (0.0, 90.0))]
    found = held.match_batch(to_arrow(some))
    told = set(zip(found.rows.tolist(), found.ids.tolist(), strict=True))
    assert told == {
        (row, name) for row, one in enumerate(some) for name in asked if asked[name].matches(one)
    }
    assert len(told) > 6


@pytest.mark.parametrize("op", ["s_intersects", "s_within"])
@pytest.mark.parametrize("wkt", [*SHAPES[:2], SHAPES[3]])
def test_a_raster_answers_as_geos_does_on_edges_and_in_holes(wkt: str, op: str) -> None:
    shape: Any = shapely.normalize(shapely.from_wkt(wkt))
    rng = np.random.default_rng(5)
    west, south, east, north = shape.bounds
    count = 4_000
    lon = rng.uniform(west - 1, east + 1, count)
    lat = rng.uniform(south - 1, north + 1, count)
    # corners, edges, and the borders of the raster's own cells
    steps = np.linspace(west, east, 129), np.linspace(south, north, 129)
    lon[:1_000] = rng.choice(steps[0], 1_000)
    lat[500:1_500] = rng.choice(steps[1], 1_000)
    on = shape.boundary.interpolate(rng.uniform(0, 1, 500), normalized=True)
    lon[-500:], lat[-500:] = shapely.get_x(on), shapely.get_y(on)
    region = Region(Spatial(op, shapely.to_wkb(shape), True))
    want = (
        region.holds(lon[:2_000], lat[:2_000]).tolist()
        + region.holds(lon[2_000:], lat[2_000:]).tolist()
    )
    assert region._raster is None
    region._asked = regions.ASKED_MIN
    assert region.holds(lon, lat).tolist() == want
    assert region._raster is not None


def test_a_raster_of_a_shape_as_small_as_rounding_is_still_exact() -> None:
    unit = math.ulp(179.0)
    shape = shapely.Polygon([(179, 0), (179 + 3 * unit, 0), (179 + 3 * unit, 1), (179, 1)])
    region = Region(Spatial("s_within", shapely.to_wkb(shape), True))
    lon = 179 + unit * np.repeat(np.arange(-2, 6), 3)
    lat = np.tile([0.0, 0.5, 1.0], 8)
    want = region.holds(lon, lat).tolist()
    region._asked = regions.ASKED_MIN
    assert region.holds(lon, lat).tolist() == want


def test_the_first_circle_among_many_rows_finds_room() -> None:
    index = FilterSet()
    for number in range(64):
        index.add(f"f{number}", Filter.parse(f"w LIKE '%{number}-%'"))
    index.add("circle", Filter.parse("near(geometry, POINT(1 1), 5000)"))
    context = Context("v", None, (1.0, 1.0), {"w": "7-"})
    assert index.match_batch(to_arrow([context])).ids.tolist() == ["f7", "circle"]
