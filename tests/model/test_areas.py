"""A filter's area holds every context that can satisfy it, and meets every area that holds one."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.model.areas import (
    EVERYWHERE,
    PATCHES_MAX,
    PIECES_MAX,
    Area,
    Patch,
    area_of,
    check,
)
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from tests.strategies import (
    INSTANTS,
    PLACES,
    contexts,
    filter_texts,
    near,
    predicate,
    spatial,
    texts,
    within,
)

spans = st.sampled_from([(None, None), (INSTANTS[3], None), (None, INSTANTS[5])])
patches = st.builds(
    Patch,
    st.sampled_from([None, (), ((0.0, 0.0, 1.0, 1.0),), ((-180.0, -90.0, 0.0, 90.0),)]),
    st.sampled_from([None, (), *((place,) for place in PLACES)]),
    spans,
    spans,
)


@settings(max_examples=150)
@given(contexts(), filter_texts([within, texts, near, spatial, predicate]), patches)
def test_whoever_satisfies_a_filter_lies_in_its_area(
    context: Context, text: str, patch: Patch
) -> None:
    wanted = Filter.parse(text)
    area = area_of(wanted)
    ends = [None, *(end for end in INSTANTS if end >= context.t_r)] if context.t_d is None else []
    for end in ends or [context.t_d]:
        later = msgspec.structs.replace(context, t_d=end)
        if wanted.matches(later):
            assert area.holds(context)
            here = Area((patch,))
            assert area.meets(here) or not here.holds(later)
            assert here.meets(area) or not here.holds(later)


@pytest.mark.parametrize(
    ("text", "met", "missed"),
    [
        ("within(place, 'campus/b35')", "campus", "campus/b3"),
        ("within(place, 'campus/b35')", "campus/b35/2", "campus/b350"),
        ("place LIKE 'campus/b35/%'", "campus/b35/1", "campus/b36"),
        ("place IN ('a/1', 'b/2') AND n = 1", "b/2", "c"),
    ],
)
def test_places_are_taken_from_the_filter(text: str, met: str, missed: str) -> None:
    area = area_of(Filter.parse(text))
    assert area.meets(Area((Patch(places=(met,)),)))
    assert not area.meets(Area((Patch(places=(missed,)),)))


def test_boxes_and_times_are_taken_from_the_filter() -> None:
    text = "near(geometry, POINT(9 48), 1000) AND overlaps(time, DATE('2026-11-15'))"
    area = area_of(Filter.parse(text))
    day = 86_400_000_000
    begin = 1_794_700_800_000_000
    assert area.meets(Area((Patch(((8.0, 47.0, 9.0, 48.0),), None, (begin, None)),)))
    assert not area.meets(Area((Patch(((10.0, 47.0, 11.0, 48.0),)),)))
    assert not area.meets(Area((Patch(begins=(begin + day, None)),)))
    assert area_of(Filter.parse("n = 1")) == EVERYWHERE
    assert not area_of(Filter.parse("false")).meets(EVERYWHERE)


def test_too_many_alternatives_lie_everywhere() -> None:
    some = " OR ".join(f"(place = 'p{n}' AND n = {n})" for n in range(PATCHES_MAX + 1))
    assert area_of(Filter.parse(some)) == EVERYWHERE
    listed = ", ".join(f"'p{n}'" for n in range(PIECES_MAX + 1))
    assert area_of(Filter.parse(f"place IN ({listed})")) == EVERYWHERE


@pytest.mark.parametrize(
    "patch",
    [
        Patch(((1.0, 0.0, 0.0, 1.0),)),
        Patch(((0.0, 0.0, 1.0, float("nan")),)),
        Patch(places=("a//b",)),
        Patch(begins=(2, 1)),
    ],
)
def test_invalid_areas_are_refused(patch: Patch) -> None:
    with pytest.raises(InputError):
        check(Area((patch,)))


def test_areas_are_bounded() -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    check(Area((Patch((box,) * PIECES_MAX),) * PATCHES_MAX))
    with pytest.raises(LimitError):
        check(Area((Patch(),) * (PATCHES_MAX + 1)))
    with pytest.raises(LimitError):
        check(Area((Patch((box,) * (PIECES_MAX + 1)),)))
