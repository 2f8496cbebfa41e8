"""Places: reading, refusing, containment, points and walks, each against a plain oracle."""

import contextlib
import itertools
import math
from typing import Any

import msgspec
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError, PlaceError
from roamcast.model.contexts import DEPTH_MAX, PATH_LENGTH_MAX, check_path, path_within
from roamcast.model.earth import distance_metres
from roamcast.model.places import Place, PlaceLimits, Places
from roamcast.model.places_geojson import from_geojson, read_places, to_geojson, write_places
from tests.strategies_places import documents, path, square


def feature(path: object, geometry: object = None, kind: object = "room", **more: Any) -> Any:
    return {
        "type": "Feature",
        "geometry": geometry,
        "properties": {"path": path, "kind": kind, **more},
    }


def collection(*features: Any) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": list(features)}


# Reading and writing


@given(documents())
def test_geojson_comes_out_as_it_went_in(document: dict[str, Any]) -> None:
    places = from_geojson(document)
    assert to_geojson(places) == document
    assert read_places(write_places(places)) == places


def test_two_hierarchies_are_equal_if_all_that_they_hold_is() -> None:
    one = [Place("a", "room")]
    assert Places(one, members={"name": "hq"}) == Places(one, members={"name": "hq"})
    assert Places(one, members={"name": "hq"}) != Places(one)
    assert Places(one) != Places([Place("a", "office")])
    assert Places(one) != one


def test_altitudes_and_multipolygons_survive_and_answer() -> None:
    two = {
        "type": "MultiPolygon",
        "coordinates": [
            [[[0, 0, 7], [1, 0, 7], [1, 1, 7], [0, 0, 7]]],
            [[[5, 5], [6, 5], [6, 6], [5, 5]]],
        ],
    }
    places = from_geojson(collection(feature("a", two)))
    assert to_geojson(places)["features"][0]["geometry"] == two
    assert places.deepest((5.9, 5.5)) == "a"
    assert places.deepest((3.0, 3.0)) is None


WRONG = [
    (b"{", "not JSON"),
    (b"\xff", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "FeatureCollection"),
    (b'{"type": "FeatureCollection"}', "list of features"),
    (collection(7), "feature 0: not a GeoJSON Feature"),
    (collection({"type": "Feature", "properties": None}), "feature 0: has no properties"),
    (collection(feature(7)), "feature 0: needs a property 'path'"),
    (collection(feature("a", kind=7)), r"feature 0 \('a'\) needs a property 'kind'"),
    (collection(feature("a", kind="")), r"feature 0 \('a'\) has an empty kind"),
    (collection(feature("a//b")), "feature 0: path 'a//b' has an empty segment"),
    (collection(feature("")), "empty segment"),
    (collection(feature("a\x07")), "control or other unprintable character"),
    (collection(feature("a"), feature("a")), r"feature 1 \('a'\) is a path given before"),
    (collection(feature("a"), feature("a/b/c")), r"feature 1 .* add a feature for 'a/b'"),
    (collection(feature("a", neighbours=["b"])), r"feature 0 \('a'\) has an unknown neighbour 'b'"),
    (collection(feature("a", neighbours=["a"])), "names a neighbour twice, or itself"),
    (collection(feature("a", neighbours="b")), "list of paths"),
    (collection(feature("a", neighbours=[1])), "list of paths"),
    (collection(feature("a", neighbours=["b"], walking_m=[]), feature("b")), "one walking_m"),
    (collection(feature("a", neighbours=["b"], walking_m=["x"]), feature("b")), "list of metres"),
    (collection(feature("a", neighbours=["b"], walking_m=[0]), feature("b")), "walking_m"),
    (
        collection(
            feature("a", neighbours=["b"], walking_m=[2]),
            feature("b", neighbours=["a"], walking_m=[3]),
        ),
        "disagree",
    ),
    (collection(feature("a", {"type": "Point", "coordinates": [0, 0]})), "Polygon"),
    (collection(feature("a", {"type": "Polygon", "coordinates": []})), "without rings"),
    (collection(feature("a", {"type": "Polygon"})), "without rings"),
    (collection(feature("a", {"type": "Polygon", "coordinates": [[[0, 0]]]})), "not closed"),
    (collection(feature("a", {"type": "MultiPolygon", "coordinates": []})), "without coord"),
    (collection(feature("a", {"type": "MultiPolygon", "coordinates": [[]]})), "without rings"),
    (collection(feature("a", square(179, 0, 5))), "WGS84"),
    (
        collection(
            feature(
                "a",
                {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]]},
            )
        ),
        r"feature 0 \('a'\) has an invalid polygon: Self-intersection",
    ),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_what_is_wrong_is_named_with_its_feature(text: Any, problem: str) -> None:
    raw = text if isinstance(text, bytes) else msgspec.json.encode(text)
    with pytest.raises(PlaceError, match=problem):
        read_places(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(st.data())
def test_any_change_to_a_document_is_read_or_refused_never_a_crash(data: st.DataObject) -> None:
    document = data.draw(documents())
    target = data.draw(st.sampled_from(document["features"]))
    where = data.draw(st.sampled_from([target, target["properties"], target["geometry"] or target]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(json_values)
    with contextlib.suppress(InputError):
        assert len(from_geojson(document)) == len(document["features"])


# Limits, each at the limit and one beyond


def test_depth_and_length_of_a_path_stop_at_their_limits() -> None:
    deepest = "/".join("a" * DEPTH_MAX)
    assert check_path(deepest) == deepest
    with pytest.raises(LimitError, match="deeper"):
        check_path(deepest + "/a")
    longest = "a" * PATH_LENGTH_MAX
    assert check_path(longest) == longest
    with pytest.raises(LimitError, match="longer"):
        check_path(longest + "a")
    with pytest.raises(LimitError, match="feature 0: path"):
        Places([Place(longest + "a", "room")])


def test_counts_of_places_neighbours_vertices_and_bytes_stop_at_their_limits() -> None:
    limits = PlaceLimits(count_max=3, neighbours_max=2, vertices_max=5, bytes_max=10_000)
    most = collection(feature("a", square(0, 0, 1), neighbours=["b", "c"]), *map(feature, "bc"))
    assert len(from_geojson(most, limits=limits)) == 3
    with pytest.raises(LimitError, match="limit of 3 places"):
        from_geojson(collection(*map(feature, "abcd")), limits=limits)
    with pytest.raises(LimitError, match="limit of 3 places"):
        Places([Place(name, "room") for name in "abcd"], limits=limits)
    with pytest.raises(LimitError, match=r"'a'.*neighbours than the limit of 2"):
        Places([Place("a", "room", None, tuple("bcd"))], limits=limits)
    six = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [2, 1], [1, 1], [0, 1], [0, 0]]]}
    with pytest.raises(LimitError, match=r"'a'.*vertices than the limit of 5"):
        from_geojson(collection(feature("a", six)), limits=limits)
    text = msgspec.json.encode(most)
    assert len(read_places(text.ljust(10_000), limits=limits)) == 3
    with pytest.raises(LimitError, match="10000 bytes"):
        read_places(text.ljust(10_001), limits=limits)


# Containment


@given(documents(drawn=False))
def test_the_intervals_mean_what_the_paths_say(document: dict[str, Any]) -> None:
    places = from_geojson(document)
    for one, region in itertools.product(places.paths, repeat=2):
        assert places.within(one, region) == path_within(one, region)
    for one in places.paths:
        above = places.ancestors(one)
        assert set(above) == {p for p in places.paths if path_within(one, p)} - {one}
        assert list(above) == sorted(above, key=len, reverse=True)
        below = {
            p for p in places.paths if path_within(p, one) and p.count("/") == one.count("/") + 1
        }
        assert set(places.children(one)) == below
        assert places.parent(one) == (above[0] if above else None)
    assert set(places.roots()) == {p for p in places.paths if "/" not in p}


@given(path, path)
def test_within_is_prefix_by_whole_segments(one: str, region: str) -> None:
    parts, wanted = one.split("/"), region.split("/")
    assert path_within(one, region) == (parts[: len(wanted)] == wanted)


@given(st.randoms(use_true_random=False), documents())
def test_numbers_do_not_depend_on_the_order_in_the_file(shuffler: Any, document: Any) -> None:
    places = from_geojson(document)
    features = list(document["features"])
    shuffler.shuffle(features)
    assert from_geojson({**document, "features": features}).paths == places.paths


def test_an_unknown_place_is_an_error_that_names_it() -> None:
    with pytest.raises(PlaceError, match="there is no place 'x'"):
        Places([]).number("x")


# Points


@given(documents(), st.integers(-8, 16), st.integers(-8, 16), st.data())
def test_a_point_lies_in_its_deepest_place_and_borders_go_to_the_first(
    document: dict[str, Any], x: int, y: int, data: st.DataObject
) -> None:
    # Half steps over whole-number squares: many points lie on borders and corners.
    places = from_geojson(document)
    inside = data.draw(st.none() | st.sampled_from(places.paths))
    point = shapely.Point(x / 2, y / 2)
    covering = [
        one
        for one in places.paths
        if places.polygon(one) is not None
        and places.polygon(one).covers(point)
        and (inside is None or path_within(one, inside))
    ]
    deepest = max((one.count("/") for one in covering), default=0)
    expected = next((one for one in covering if one.count("/") == deepest), None)
    assert places.deepest((x / 2, y / 2), inside) == expected


def test_a_point_must_be_finite() -> None:
    with pytest.raises(PlaceError, match="finite"):
        Places([]).deepest((math.nan, 0.0))


# Walks


@given(documents())
def test_routes_are_the_shortest_and_each_step_is_a_door(document: dict[str, Any]) -> None:
    places = from_geojson(document)
    graph = places.walks
    count = len(places)
    # Floyd and Warshall as the oracle.
    table = [[0.0 if a == b else math.inf for b in range(count)] for a in range(count)]
    for a, b, metres in zip(graph.starts, graph.ends, graph.metres, strict=True):
        table[a][b] = float(metres)
    doors = {
        (int(a), int(b)): float(m)
        for a, b, m in zip(graph.starts, graph.ends, graph.metres, strict=True)
    }
    for middle, a, b in itertools.product(range(count), repeat=3):
        table[a][b] = min(table[a][b], table[a][middle] + table[middle][b])
    for a, b in itertools.product(range(count), repeat=2):
        route = places.route(places.path(a), places.path(b))
        if route is None:
            assert table[a][b] == math.inf
            continue
        assert route.metres == pytest.approx(table[a][b])
        steps = [places.number(one) for one in route.places]
        assert steps[0] == a
        assert steps[-1] == b
        assert sum(doors[step] for step in itertools.pairwise(steps)) == pytest.approx(route.metres)
        assert graph.lengths_to(b)[a] == pytest.approx(route.metres)


def test_of_equally_short_ways_the_lowest_next_place_is_taken() -> None:
    ways = [
        Place("a", "room"),
        *(Place(name, "room", None, ("a", "z"), (1.0, 1.0)) for name in ("d", "b", "c")),
        Place("z", "room"),
    ]
    places = Places(ways)
    assert places.route("a", "z") is not None
    assert places.route("a", "z").places == ("a", "b", "z")  # type: ignore[union-attr]
    assert places.route("z", "a").places == ("z", "b", "a")  # type: ignore[union-attr]


def test_a_door_without_a_length_is_as_long_as_its_centres_are_apart() -> None:
    near = Place("a", "room", square(10, 50, 0.001), ("b", "c"))
    places = Places([near, Place("b", "room", square(10.002, 50, 0.001)), Place("c", "room")])
    apart = distance_metres((10.0005, 50.0005), (10.0025, 50.0005))
    assert apart == pytest.approx(142.9, abs=0.1)
    assert places.route("a", "b").metres == pytest.approx(apart)  # type: ignore[union-attr]
    assert places.route("a", "c").metres == 1.0  # type: ignore[union-attr]


def test_the_great_circle_agrees_with_known_distances() -> None:
    assert distance_metres((0, 0), (0, 90)) == pytest.approx(10_007_557, rel=1e-6)
    assert distance_metres((0, 0), (180, 0)) == pytest.approx(20_015_114, rel=1e-6)


def test_a_bent_place_has_its_centre_inside() -> None:
    bent = [[0, 0], [3, 0], [3, 3], [2, 3], [2, 1], [0, 1], [0, 0]]
    places = Places([Place("a", "room", {"type": "Polygon", "coordinates": [bent]})])
    assert places.deepest(places.centre("a") or (9, 9)) == "a"
    assert not shapely.Polygon(bent).covers(shapely.Polygon(bent).centroid)


def test_a_path_must_be_text() -> None:
    with pytest.raises(PlaceError, match="is text, not int"):
        check_path(7)
