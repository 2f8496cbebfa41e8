"""covers(f, g) is never wrong when it says yes, and complete for simple conjunctions."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roamcast.matching.covering import covers
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from tests.planting import planted
from tests.strategies import contexts, filter_texts


@pytest.mark.slow
@settings(max_examples=400)
@given(filter_texts(), filter_texts(), st.lists(contexts(), min_size=5, max_size=10))
def test_what_is_covered_never_matches_alone(wide: str, narrow: str, seen: list[Context]) -> None:
    f, g = Filter.parse(wide), Filter.parse(narrow)
    both = Filter.parse(f"({narrow}) AND ({wide})")
    for outer, inner in ((f, g), (f, both), (g, both)):
        if covers(outer, inner):
            assert all(outer.matches(c) for c in seen if inner.matches(c))


PLACES = ["hq", "hq/1", "hq/1/a", "hq/2", "lab"]
# every context that such a conjunction can tell apart, values between the bounds included
WORLD = [
    Context("v", place=place, attributes={"a": a / 2, "b": b})
    for place in [None, *PLACES, "hq/1/a/x", "lab/x", "other"]
    for a in range(-1, 10)
    for b in range(-1, 6)
]


@st.composite
def conjunctions(draw: st.DrawFn) -> str:
    parts = []
    if draw(st.booleans()):
        parts.append(f"a = {draw(st.integers(0, 4))}")
    if draw(st.booleans()):
        low, high = sorted((draw(st.integers(0, 4)), draw(st.integers(0, 4))))
        parts.append(f"a BETWEEN {low} AND {high}")
    if draw(st.booleans()):
        parts.append(f"a {draw(st.sampled_from(['<', '<=', '>', '>=']))} {draw(st.integers(0, 4))}")
    if draw(st.booleans()):
        chosen = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
        parts.append(f"b IN ({', '.join(map(str, chosen))})")
    if draw(st.booleans()):
        parts.append(f"within(place, '{draw(st.sampled_from(PLACES))}')")
    return " AND ".join(parts) or "true"


@given(conjunctions(), conjunctions())
def test_covering_is_complete_for_equalities_ranges_sets_and_places(wide: str, narrow: str) -> None:
    f, g = Filter.parse(wide), Filter.parse(narrow)
    inside = [context for context in WORLD if g.matches(context)]
    assume(inside)
    assert covers(f, g) == all(f.matches(context) for context in inside)


def box_differences() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pairs of boxes, of all with corners from 0 to 2, of which covering is not told truly."""
    spans = [(low, high) for low in range(3) for high in range(low, 3)]
    boxes = [(west, south, east, north) for west, east in spans for south, north in spans]
    parsed = {box: Filter.parse(f"S_INTERSECTS(geometry, BBOX{box})") for box in boxes}
    return [
        (a, b)
        for a in boxes
        for b in boxes
        if covers(parsed[a], parsed[b])
        != (a[0] <= b[0] and a[1] <= b[1] and a[2] >= b[2] and a[3] >= b[3])
    ]


def test_covering_is_complete_for_boxes() -> None:
    assert not box_differences()


SIDES = {
    "a box covers what lies west of it": "and box.west <= area.west",
    "a box covers what lies east of it": "and area.east <= box.east",
    "a box covers what lies south of it": "and box.south <= area.south",
    "a box covers what lies north of it": "and area.north <= box.north",
}


@pytest.mark.parametrize("name", SIDES)
def test_boxes_find(name: str) -> None:
    with planted("roamcast.matching.covering:_within_box", SIDES[name], ""):
        assert box_differences()


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("true", "a = 1"),
        ("a = 1", "a = 1 AND a = 2"),
        ("a > 0", "a = 1 OR a = 2"),
        ("a = 1 OR b = 2", "b = 2 AND c = 3"),
        ("a IS NOT NULL", "a LIKE 'x%'"),
        ("geometry IS NOT NULL", "near(geometry, POINT(1 1), 5)"),
        ("a LIKE 'x%'", "a = 'xyz'"),
        ("within(place, 'hq')", "place = 'hq/1/a'"),
        (
            "S_INTERSECTS(geometry, POLYGON((0 0,4 0,4 4,0 0)))",
            "S_INTERSECTS(geometry, BBOX(2,1,3,2))",
        ),
        (
            "S_INTERSECTS(geometry, POLYGON((0 0,4 0,4 4,0 0)))",
            "S_INTERSECTS(geometry, BBOX(3,1,3,2))",
        ),
        ("S_INTERSECTS(geometry, POLYGON((0 0,4 0,4 4,0 0)))", "S_EQUALS(geometry, POINT(3 1))"),
        ("S_INTERSECTS(geometry, LINESTRING(0 0,2 2))", "S_INTERSECTS(geometry, POINT(1 1))"),
        (
            "S_INTERSECTS(geometry, POLYGON((0 0,4 0,4 4,0 0)))",
            "S_WITHIN(geometry, POLYGON((1 0.5,3 0.5,3 2,1 0.5)))",
        ),
        ("S_INTERSECTS(geometry, BBOX(0,0,2,2))", "S_EQUALS(geometry, POINT(1 1))"),
        ("S_INTERSECTS(geometry, BBOX(0,0,2,2))", "near(geometry, POINT(1 1), 1000)"),
        ("near(geometry, POINT(1 1), 1000)", "near(geometry, POINT(1 1.001), 500)"),
        (
            "overlaps(time, INTERVAL('2026-01-01','2026-02-01'))",
            "during(time, INTERVAL('2026-01-05','2026-01-06'))",
        ),
        (
            "end_by(time, INTERVAL('2026-01-01','..'))",
            "start_by(time, INTERVAL('2026-01-01','2026-01-02'))",
        ),
    ],
)
def test_examples_of_covering(wide: str, narrow: str) -> None:
    assert covers(Filter.parse(wide), Filter.parse(narrow))


def test_too_many_alternatives_are_not_covered_unless_equal() -> None:
    many = " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(7))
    f = Filter.parse(many)
    assert f.conjunctions() is None
    assert covers(f, Filter.parse(many))
    assert not covers(f, Filter.parse(many + " AND c = 1"))
