"""The nearest that meets constraints (AMS 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.earth import distance_metres
from roamcast.model.filters import Filter
from roamcast.model.nearest import COUNT_MAX, nearest

ANY = Filter.parse("true")
points = st.tuples(st.floats(-180, 180), st.floats(-90, 90))


@given(st.lists(st.none() | points, max_size=30), points, st.integers(1, 5))
def test_nearest_is_the_head_of_everything_sorted(
    where: list[tuple[float, float] | None], to: tuple[float, float], count: int
) -> None:
    contexts = [Context(f"v{i % 7}-{i}", point=point) for i, point in enumerate(where)]
    found = nearest(contexts, to, ANY, count=count)
    everything = sorted((distance_metres(c.point, to), c.vid) for c in contexts if c.point)
    assert [(one.metres, one.context.vid) for one in found] == everything[:count]


def test_the_nearest_printer_is_not_the_nearest_thing() -> None:
    contexts = [
        Context("person", point=(9.1, 48.7), attributes={"type": "person"}),
        Context("far", point=(9.3, 48.7), attributes={"type": "printer"}),
        Context("near", point=(9.2, 48.7), attributes={"type": "printer"}),
        Context("nowhere", attributes={"type": "printer"}),
    ]
    printer = Filter.parse("type = 'printer'")
    assert [f.context.vid for f in nearest(contexts, (9.1, 48.7), printer)] == ["near"]
    assert nearest(contexts, (9.1, 48.7), printer, metres_max=100) == []


def test_a_degree_of_the_equator_is_111_kilometres() -> None:
    (found,) = nearest([Context("v", point=(1.0, 0.0))], (0.0, 0.0), ANY)
    assert found.metres == pytest.approx(111_195, abs=1)


def test_bounds() -> None:
    assert nearest([], (0, 0), ANY, count=COUNT_MAX) == []
    for count in (0, COUNT_MAX + 1):
        with pytest.raises(LimitError, match="1000"):
            nearest([], (0, 0), ANY, count=count)
    with pytest.raises(InputError, match="longitude"):
        nearest([], (200, 0), ANY)
