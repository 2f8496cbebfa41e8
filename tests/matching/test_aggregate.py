"""A summary admits every filter that a member matches: nothing is ever missed (TCC II-A)."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.matching import aggregate
from roamcast.matching.aggregate import EMPTY, PROPERTIES_MAX, Summary, combine, summarise
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from tests.strategies import contexts, filter_texts

groups = st.lists(contexts(), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=400)
@given(groups, filter_texts())
def test_a_summary_admits_whatever_a_member_matches(members: list[Context], text: str) -> None:
    wanted = Filter.parse(text)
    if any(wanted.matches(member) for member in members):
        assert summarise(members).admits(wanted)


@given(st.lists(groups, min_size=2, max_size=4), filter_texts())
def test_summaries_of_summaries_miss_nothing_either(parts: list[list[Context]], text: str) -> None:
    wanted = Filter.parse(text)
    total = functools.reduce(combine, map(summarise, parts))
    assert total.count == sum(map(len, parts))
    if any(wanted.matches(member) for part in parts for member in part):
        assert total.admits(wanted)


def test_a_summary_excludes_what_no_member_can_match() -> None:
    seen = summarise(
        [
            Context("v1", place="hq/1", point=(9.0, 48.0), attributes={"age": 20}, t_r=5, t_d=9),
            Context("v2", place="hq/2", point=(9.2, 48.2), attributes={"age": 40}, t_r=7),
        ]
    )
    for text in (
        "age = 30",
        "age = 'old'",
        "name = 'x'",
        "within(place, 'lab')",
        "S_INTERSECTS(geometry, BBOX(10,48,11,49))",
        "near(geometry, POINT(20 20), 1000)",
        "age IS NULL",
        "before(time, INTERVAL('1970-01-01T00:00:00.000004Z','..'))",
    ):
        assert not seen.admits(Filter.parse(text)), text
    assert seen.admits(Filter.parse("age BETWEEN 15 AND 25 AND within(place, 'hq')"))


def test_nobody_matches_nothing() -> None:
    assert not EMPTY.admits(Filter.parse("true"))


def test_values_become_a_range_beyond_the_limit() -> None:
    members = [Context(f"v{i}", attributes={"n": i}) for i in range(0, 200, 2)]
    few = summarise(members[: aggregate.INTERVALS_MAX])
    many = summarise(members)
    assert not few.admits(Filter.parse("n = 3"))
    assert many.admits(Filter.parse("n = 3")), "a false positive, as the limit allows"
    assert not many.admits(Filter.parse("n = 400"))
    assert len(many.values["n", "number"]) <= aggregate.INTERVALS_MAX


def test_too_many_properties_are_bounded_and_still_miss_nothing() -> None:
    members = [Context(f"v{i}", attributes={f"a{i:04}": i}) for i in range(PROPERTIES_MAX + 50)]
    total: Summary = summarise(members)
    assert len(total.values) <= PROPERTIES_MAX
    assert not total.held
    for i in (0, PROPERTIES_MAX, PROPERTIES_MAX + 49):
        assert total.admits(Filter.parse(f"a{i:04} = {i}"))
        assert total.admits(Filter.parse(f"a{i:04} IS NOT NULL"))
    late = combine(total, summarise([Context("w", attributes={"zz": 1})]))
    later = combine(late, summarise([Context("w", attributes={"a0299": -1})]))
    assert later.admits(Filter.parse("a0299 = 299"))
