"""Service areas: what a node serves by place, by polygon, and where neither can tell."""

import pytest

from roamcast.errors import InputError, LimitError
from roamcast.model.service_areas import (
    POLYGONS_MAX,
    VERTICES_MAX,
    box_of,
    check_area,
    check_areas,
    is_polygon,
    serves,
)

SQUARE = "POLYGON ((11 48, 12 48, 12 49, 11 49, 11 48))"
RING = "POLYGON ((0 0, 9 0, 9 9, 0 9, 0 0), (3 3, 6 3, 6 6, 3 6, 3 3))"
BOTH = ("campus/b1", SQUARE)


@pytest.mark.parametrize(
    ("place", "point", "expected"),
    [
        ("campus/b1/2", None, True),
        ("campus/b2", None, False),
        ("campus/b2", (11.5, 48.5), True),
        ("campus/b1", (0.0, 0.0), True),
        ("campus/b2", (0.0, 0.0), False),
        (None, (11.5, 48.5), True),
        (None, (11.0, 48.0), True),
        (None, (10.9, 48.0), False),
        (None, None, True),
    ],
)
def test_what_some_area_holds_is_served(
    place: str | None, point: tuple[float, float] | None, expected: bool
) -> None:
    assert serves(BOTH, place, point) is expected


def test_nothing_tells_against_what_no_area_can_judge() -> None:
    assert serves((SQUARE,), "anywhere", None)
    assert serves(("campus",), None, (0.0, 0.0))
    assert serves((), "anywhere", (0.0, 0.0))


def test_a_hole_is_outside() -> None:
    assert serves((RING,), None, (1.0, 1.0))
    assert not serves((RING,), None, (4.5, 4.5))
    assert box_of(RING) == (0.0, 0.0, 9.0, 9.0)


def test_a_path_is_no_polygon() -> None:
    assert not is_polygon("POLYGON/b1")
    assert check_area("campus/b1") == "campus/b1"
    assert check_area(SQUARE) == SQUARE


@pytest.mark.parametrize(
    ("area", "why"),
    [
        ("polygon ((11 48, 12 48, 12 49, 11 48))", "begins with POLYGON"),
        ("POLYGON ((11 48, 12", "not a polygon in WKT"),
        ("POLYGON ((0 0, 1 1, 0 1, 1 0, 0 0))", "not valid"),
        ("POLYGON ((0 0, 190 0, 190 9, 0 0))", "degrees"),
        ("POLYGON Z ((0 0 1, 1 0 1, 1 1 1, 0 0 1))", "longitude and latitude"),
        ("campus//b1", "empty segment"),
    ],
)
def test_what_is_no_area_is_refused_with_the_reason(area: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        check_area(area)


def test_corners_and_polygons_are_bounded() -> None:
    def comb(corners: int) -> str:
        above = [f"{0.1 * n} {n % 2}" for n in range(corners - 3)]
        return f"POLYGON (({', '.join([*above, f'{0.1 * corners} -1', '0 -1', above[0]])}))"

    check_area(comb(VERTICES_MAX))
    with pytest.raises(LimitError, match="corners"):
        check_area(comb(VERTICES_MAX + 1))
    check_areas([SQUARE] * POLYGONS_MAX)
    with pytest.raises(LimitError, match="polygons"):
        check_areas([SQUARE] * (POLYGONS_MAX + 1))
