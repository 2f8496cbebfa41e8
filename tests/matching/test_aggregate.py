"""A summary admits every filter that a member matches: nothing is ever missed (TCC II-A)."""

import functools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.matching import aggregate
from roamcast.matching.aggregate import (
    BUDGET,
    BUDGET_MIN,
    EMPTY,
    Summary,
    combine,
    pack,
    summarise,
    unpack,
)
from roamcast.matching.aggregate_parts import INTERVALS_MAX
from roamcast.matching.aggregate_wire import PARTS_MAX, PROPERTIES_MAX
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.lasting import decide
from tests.strategies import INSTANTS, any_context, contexts, filter_texts, lifetime, predicate

BUDGETS = (BUDGET_MIN, 200, 350, 600, 1_024, 4_096, BUDGET)
groups = st.lists(contexts(), min_size=1, max_size=8)
budgets = st.sampled_from(BUDGETS)
temporal_texts = filter_texts([predicate, predicate, lifetime])


def ended(context: Context, end: int) -> Context:
    return msgspec.structs.replace(context, t_d=end)


def futures(context: Context) -> list[Context]:
    """A context as it is, and if it is open, as it will be once it has ended."""
    if context.t_d is not None:
        return [context]
    return [context, *(ended(context, end) for end in INSTANTS if end >= context.t_r)]


@pytest.mark.slow
@settings(max_examples=150)
@given(groups, filter_texts() | temporal_texts, budgets)
def test_a_summary_admits_whatever_a_member_matches(
    members: list[Context], text: str, budget: int
) -> None:
    wanted = Filter.parse(text)
    summary = summarise(members, budget=budget)
    assert len(pack(summary)) <= budget
    if any(wanted.matches(later) for member in members for later in futures(member)):
        assert summary.admits(wanted)


@pytest.mark.slow
@settings(max_examples=60)
@given(contexts().filter(lambda c: c.t_d is None), temporal_texts, st.sampled_from(INSTANTS))
def test_what_a_later_deregistration_decides_is_admitted(
    member: Context, text: str, now: int
) -> None:
    wanted = Filter.parse(text)
    if decide(wanted, member, max(now, member.t_r)).answer is not False:
        assert summarise([member], budget=350).admits(wanted)


@pytest.mark.parametrize("name", ["before", "during", "end_by", "ends_only", "excludes", "equals"])
def test_an_open_end_admits_predicates_that_only_an_end_can_satisfy(name: str) -> None:
    open_one = Context("v", t_r=5_000_000)
    wanted = Filter.parse(
        f"{name}(time, INTERVAL('1970-01-01T00:00:05Z', '1970-01-01T00:00:20Z'))"
        if name not in ("before", "excludes")
        else f"{name}(time, INTERVAL('1970-01-01T00:00:09Z', '..'))"
    )
    assert any(wanted.matches(ended(open_one, s * 1_000_000)) for s in range(5, 21))
    assert summarise([open_one]).admits(wanted)


@settings(max_examples=25)
@given(st.lists(contexts(), min_size=1, max_size=30), filter_texts())
def test_a_smaller_budget_only_admits_more(members: list[Context], text: str) -> None:
    wanted = Filter.parse(text)
    answers = [summarise(members, budget=budget).admits(wanted) for budget in BUDGETS]
    assert answers == sorted(answers, reverse=True)


@settings(max_examples=40)
@given(st.lists(groups, min_size=2, max_size=4), filter_texts(), budgets)
def test_summaries_of_summaries_miss_nothing_either(
    parts: list[list[Context]], text: str, budget: int
) -> None:
    wanted = Filter.parse(text)
    made = [summarise(part, budget=budget) for part in parts]
    total = functools.reduce(functools.partial(combine, budget=budget), made)
    assert total.count == sum(map(len, parts))
    assert len(pack(total)) <= budget
    if any(wanted.matches(member) for part in parts for member in part):
        assert total.admits(wanted)
    assert any(part.admits(wanted) for part in made) <= total.admits(wanted)


@settings(max_examples=40)
@given(groups, groups, filter_texts(), budgets)
def test_what_covers_another_admits_all_that_it_does(
    some: list[Context], more: list[Context], text: str, budget: int
) -> None:
    wanted = Filter.parse(text)
    narrow, wide = summarise(some), summarise([*some, *more], budget=budget)
    assert combine(narrow, wide, budget=budget).admits(wanted) >= narrow.admits(wanted)
    if wide.covers(narrow):
        assert wide.admits(wanted) >= narrow.admits(wanted)
    assert narrow.covers(narrow)
    assert all(narrow.holds(member) for member in some)


@settings(max_examples=40)
@given(st.lists(any_context(), max_size=4), budgets, st.none() | st.integers(0, 2**62))
def test_a_summary_survives_the_wire(
    members: list[Context], budget: int, watermark: int | None
) -> None:
    made = summarise(members, budget=budget, watermark=watermark)
    data = pack(made)
    assert unpack(data) == made
    assert pack(unpack(data)) == data


@settings(max_examples=40)
@given(st.binary(max_size=60), groups, st.randoms(use_true_random=False))
def test_garbage_is_refused_by_name_or_read(
    junk: bytes, members: list[Context], draw: random.Random
) -> None:
    data = bytearray(pack(summarise(members)))
    for _ in range(3):
        data[draw.randrange(len(data))] = draw.randrange(256)
    for tried in (junk, bytes(data)):
        try:
            read = unpack(tried)
        except InputError:
            continue
        for text in ("age > 3", "name = 'x'", "true", "place IS NULL", "seen > DATE('2026-11-15')"):
            read.admits(Filter.parse(text))
        combine(read, summarise(members), budget=1_024)


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
        "age = 20 AND within(place, 'hq/2')",
        "within(place, 'lab')",
        "S_INTERSECTS(geometry, BBOX(10,48,11,49))",
        "S_INTERSECTS(geometry, BBOX(9.05,48.05,9.15,48.15))",
        "near(geometry, POINT(20 20), 1000)",
        "age IS NULL",
        "before(time, INTERVAL('1970-01-01T00:00:00.000004Z','..'))",
    ):
        assert not seen.admits(Filter.parse(text)), text
    assert seen.admits(Filter.parse("age BETWEEN 15 AND 25 AND within(place, 'hq')"))


def test_a_summary_names_nobody() -> None:
    seen = summarise([Context("somebody", attributes={"age": 1})])
    assert b"somebody" not in pack(seen)
    assert seen.admits(Filter.parse("vid = 'somebody else'")), "unknown means yes"
    assert not seen.admits(Filter.parse("vid IS NULL"))


def test_nobody_matches_nothing() -> None:
    assert not EMPTY.admits(Filter.parse("true"))
    assert unpack(pack(EMPTY)) == EMPTY


def test_the_watermark_is_the_lowest_and_unknown_if_one_is() -> None:
    one, two = summarise([Context("v")], watermark=5), summarise([Context("w")], watermark=9)
    assert combine(one, two).watermark == 5
    assert combine(one, summarise([Context("x")])).watermark is None


def test_values_become_ranges_beyond_the_limit() -> None:
    members = [Context(f"v{i}", attributes={"n": i}) for i in range(0, 2_000, 2)]
    few = summarise(members[:INTERVALS_MAX])
    many = summarise(members, budget=1_024)
    assert not few.admits(Filter.parse("n = 3"))
    odd = [Filter.parse(f"n = {n}") for n in range(1, 1_999, 2)]
    assert any(many.admits(wanted) for wanted in odd), "a false positive, as the limit allows"
    assert not many.admits(Filter.parse("n = 4000"))
    assert all(len(v) <= INTERVALS_MAX for part in many.parts for v in part.values.values())


def test_rebuilt_from_fewer_members_it_shrinks() -> None:
    members = [Context(f"v{i}", place=f"hq/{i}") for i in range(20)]
    wanted = Filter.parse("within(place, 'hq/19')")
    assert summarise(members).admits(wanted)
    assert not summarise(members[:19]).admits(wanted)


def test_too_many_properties_are_bounded_and_still_miss_nothing() -> None:
    members = [Context(f"v{i}", attributes={f"a{i:04}": i}) for i in range(PROPERTIES_MAX + 50)]
    total: Summary = summarise(members, budget=1 << 20)
    assert len({key for part in total.parts for key in part.values}) <= PROPERTIES_MAX
    for i in (0, PROPERTIES_MAX, PROPERTIES_MAX + 49):
        assert total.admits(Filter.parse(f"a{i:04} = {i}"))
        assert total.admits(Filter.parse(f"a{i:04} IS NOT NULL"))
    late = combine(total, summarise([Context("w", attributes={"zz": 1})]))
    later = combine(late, summarise([Context("w", attributes={"a0299": -1})]))
    assert later.admits(Filter.parse("a0299 = 299"))


def test_the_number_of_parts_is_bounded_and_texts_are_cut() -> None:
    members = [
        Context(f"v{i}", attributes={"text": "x" * 60_000 + str(i)}) for i in range(PARTS_MAX + 1)
    ]
    made = summarise(members, budget=1 << 20)
    assert len(made.parts) <= PARTS_MAX
    assert len(pack(made)) < 64 * 1024
    assert made.admits(Filter.parse("text LIKE 'xxx%'"))
    assert not made.admits(Filter.parse("text LIKE 'y%'"))
    assert len(pack(summarise(members, budget=BUDGET_MIN))) <= aggregate.BUDGET_MIN
