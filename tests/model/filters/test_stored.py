"""Filters stored in normal form: the same filter again, without parsing it (decision 0145)."""

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roamcast.errors import FilterError
from roamcast.matching import FilterSet
from roamcast.model import filters
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from tests.strategies import contexts, filter_texts


@settings(max_examples=400)
@given(filter_texts(depth=3), contexts())
@example("age > 36893488147419103232", Context("v", attributes={"age": 1}))
@example("TRUE", Context("v"))
@example("FALSE", Context("v"))
@example("t_after(time, begins) AND NOT casei(name) LIKE 'a%'", Context("v"))
@example("S_TOUCHES(geometry, POLYGON((0 0,1 0,1 1,0 0)))", Context("v", None, (0.5, 0.5)))
def test_a_stored_filter_is_the_filter(text: str, context: Context) -> None:
    wanted = Filter.parse(text)
    again = Filter.of_stored(wanted.stored)
    assert again.normal == wanted.normal
    assert (again.text, again.digest, again.stored) == (wanted.text, wanted.digest, wanted.stored)
    assert again == wanted
    assert again.matches(context) is wanted.matches(context)
    assert pickle.loads(pickle.dumps(again)) == wanted


def test_a_stored_filter_is_compiled_without_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Filter.parse("class = 'taxi' AND within(place, 'campus/b35')").stored
    monkeypatch.setattr(filters, "parse_text", pytest.fail)
    index = FilterSet()
    index.add_many([("f", Filter.of_stored(stored))])
    assert index.match(Context("v", "campus/b35/2", None, {"class": "taxi"})) == ["f"]


@given(st.binary(max_size=40))
@example(b"")
@example(b"\x92\xa3all")
@example(b"\xa2\xff\xff")
def test_other_bytes_are_refused_or_are_some_filter(data: bytes) -> None:
    try:
        Filter.of_stored(data)
    except FilterError:
        return


def test_a_normal_form_needs_a_third_of_the_bytes_of_named_fields() -> None:
    wanted = Filter.parse("a = 'x' AND b BETWEEN 1 AND 5")
    assert len(wanted.stored) < 100
