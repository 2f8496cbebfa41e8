"""Coarser places and points: nobody is in a smaller crowd than was asked for, where it can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.identity.coarsening import CELLS_DEG, coarsened

PLACES = st.sampled_from(["a/1/x", "a/1/y", "a/2/x", "a/2", "b/1", "c", None])
ROWS = st.lists(st.tuples(PLACES, st.integers(0, 50), st.integers(1, 30)), max_size=40)


def there(place: str, places: list[str | None], begin: object, end: object, at: int) -> int:
    """Count by looking at everybody who is, or may be, in a place at a moment."""
    inside = [
        one is not None and (f"{one}/".startswith(f"{place}/") or f"{place}/".startswith(f"{one}/"))
        for one in places
    ]
    times = zip(np.asarray(begin), np.asarray(end), strict=True)
    lasting = [since <= at <= until for since, until in times]
    return sum(one and two for one, two in zip(inside, lasting, strict=True))


@given(ROWS, st.integers(1, 6))
def test_who_keeps_a_place_is_in_a_crowd_at_both_ends_or_in_the_widest_place(
    rows: list[tuple[str | None, int, int]], crowd_min: int
) -> None:
    places = [row[0] for row in rows]
    begin = np.array([row[1] for row in rows], np.int64)
    end = begin + np.array([row[2] for row in rows], np.int64)
    found, lon, lat = coarsened(places, None, None, begin, end, crowd_min)
    assert (lon, lat) == (None, None)
    for row, (before, after) in enumerate(zip(places, found, strict=True)):
        if before is None:
            assert after is None
            continue
        assert after is not None
        assert before == after or before.startswith(after + "/")
        if "/" in after:
            for moment in (int(begin[row]), int(end[row])):
                assert there(after, found, begin, end, moment) >= crowd_min
    again, _, _ = coarsened(found, None, None, begin, end, crowd_min)
    assert again == found


def test_a_room_that_fills_and_empties_keeps_all_but_the_first_and_the_last() -> None:
    count, crowd = 20_000, 5
    begin = np.arange(count, dtype=np.int64) * 60
    end = begin + 3_600  # sixty are there, but for the first minutes and the last
    found, _, _ = coarsened(["a/1/x"] * count, None, None, begin, end, crowd)
    assert found.count("a/1/x") == count - 2 * (crowd - 1)
    assert set(found[: crowd - 1]) == {"a"}


@pytest.mark.parametrize("wide", ["a", "a/1"])
def test_who_is_shown_wider_may_be_in_any_room_and_counts_for_each(wide: str) -> None:
    begin, end = np.zeros(3, np.int64), np.full(3, 10, np.int64)
    places = [wide, "a/1/x", "a/1/y"]
    assert coarsened(list(places), None, None, begin, end, 2)[0] == places
    alone, _, _ = coarsened(["b", "a/1/x", "c"], None, None, begin, end, 2)
    assert alone == ["b", "a", "c"]


def test_a_shortened_place_loses_its_point_and_others_keep_theirs() -> None:
    begin, end = np.zeros(4, np.int64), np.full(4, 10, np.int64)
    places = ["a/1", "a/1", "a/1", "a/2"]
    points = np.array([1.0, 2.0, 3.0, 4.0])
    found, lon, lat = coarsened(places, points, points, begin, end, 3)
    assert found == ["a/1", "a/1", "a/1", "a"]
    assert lon is not None
    assert lat is not None
    assert lon[:3].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan([lon[3], lat[3]]).all()
    assert points[3] == 4.0, "what was given is not changed"


@pytest.mark.parametrize(
    ("apart", "side"),
    [(0.0, 0.0), (0.0002, CELLS_DEG[0]), (0.015, CELLS_DEG[2]), (40.0, CELLS_DEG[4])],
)
def test_a_point_without_a_place_moves_to_the_smallest_cell_that_is_shared(
    apart: float, side: float
) -> None:
    begin, end = np.zeros(3, np.int64), np.full(3, 10, np.int64)
    lon = np.array([9.1001, 9.1001 + apart, np.nan])
    lat = np.array([48.0001, 48.0001, np.nan])
    places = [None, None, "a"]
    _, east, north = coarsened(places, lon, lat, begin, end, 2)
    assert east is not None
    assert north is not None
    if not side:
        assert east[:2].tolist() == lon[:2].tolist()
    else:
        assert east[0] == pytest.approx((np.floor(lon[0] / side) + 0.5) * side)
        assert abs(east[0] - lon[0]) <= side / 2 + 1e-9
        assert abs(north[0] - lat[0]) <= side / 2 + 1e-9
    assert np.isnan(east[2])
