"""here('floor'): rewritten for the places that one may come to, narrowed on arrival."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import FilterError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.here import PLACES_MAX, by_kind, depends_on_place, rewritten

KINDS = ["campus", "building", "floor", "room"]
LEVEL = by_kind(lambda place: KINDS[place.count("/")] if place.count("/") < 4 else None)
PLACES = st.builds("c/b{}/{}/r{}".format, st.integers(1, 2), st.integers(1, 3), st.integers(1, 3))
TEXTS = st.sampled_from(
    [
        "within(place, here('floor'))",
        "NOT within(place, here('floor'))",
        "within(place, here('building')) AND colour = 'red'",
        "NOT (within(place, here('room')) OR colour = 'red')",
        "within(place, here('floor')) AND NOT within(place, here('room'))",
        "colour = 'here(''floor'')'",
        "colour = 'red'",
    ]
)


@given(TEXTS, st.lists(PLACES, min_size=1, max_size=5), PLACES, st.sampled_from(["red", "blue"]))
def test_it_is_never_narrower_than_what_is_asked_on_arrival(
    text: str, entries: list[str], place: str, colour: str
) -> None:
    ahead = rewritten(text, entries, LEVEL)
    context = Context("v", place=place, attributes={"colour": colour})
    for entry in entries:
        if rewritten(text, (entry,), LEVEL).matches(context):
            assert ahead.matches(context)


def test_it_means_the_place_of_that_kind() -> None:
    made = rewritten("within(place, here('floor'))", ("c/b1/2/r3",), LEVEL)
    assert made == Filter.parse("within(place, 'c/b1/2')")


def test_a_text_that_only_looks_like_it_stays() -> None:
    assert not depends_on_place("colour = 'here(''floor'')'")
    assert depends_on_place("within(place, HERE( 'floor' ))")


def test_a_place_without_such_a_parent_is_refused_by_name() -> None:
    with pytest.raises(FilterError, match="lies in no 'floor'"):
        rewritten("within(place, here('floor'))", ("c/b1",), LEVEL)
    with pytest.raises(FilterError, match="not known"):
        rewritten("within(place, here('floor'))", ("",), LEVEL)


def test_too_many_places_want_everything() -> None:
    places = [f"c/b1/{floor}/r1" for floor in range(PLACES_MAX + 1)]
    assert rewritten("within(place, here('floor'))", places, LEVEL) == Filter.parse("true")
