"""Standard queries: the same values in the same template give the same canonical filter."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.templates import STANDARD, Template


def test_every_standard_template_fills_and_says_what_it_is() -> None:
    values = {"place": "hq/2", "vid": "x@tn", "type": "printer", "group": "legal"}
    for template in STANDARD.values():
        filled = template.fill({name: values[name] for name in template.parameters})
        assert filled.text
        assert template.says


def test_two_people_who_ask_the_same_ask_the_same_filter() -> None:
    mine = STANDARD["kind-in"].fill({"type": "printer", "place": "hq/2"})
    yours = Filter.parse("within(place, 'hq/2') AND type = 'printer'")
    assert mine == yours
    assert mine.digest == yours.digest


@given(st.text(min_size=1))
def test_a_value_is_quoted_and_never_read_as_a_filter(value: str) -> None:
    try:
        filled = STANDARD["kind"].fill({"type": value})
    except InputError:
        return  # a NUL, or a lone surrogate
    assert filled.matches(Context("v", attributes={"type": value}))
    assert not filled.matches(Context("v", attributes={"type": value + "x"}))


def test_holes_take_every_kind_of_value() -> None:
    template = Template("all", "a = {a} AND b = {b} AND c = {c}", "numbers, truth, moments")
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    filled = template.fill({"a": 1.5, "b": True, "c": moment})
    assert filled.matches(Context("v", attributes={"a": 1.5, "b": True, "c": moment}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "lacks place"),
        ({"place": "hq", "floor": 2}, "has no floor"),
        ({"place": "hq//2"}, "not a place"),
    ],
)
def test_a_hole_left_or_invented_is_named(values: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        STANDARD["in"].fill(values)
