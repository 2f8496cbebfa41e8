"""The set algebra of values against membership, value by value."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.model.filters import values as sets
from roamcast.model.filters.values import Interval, Intervals, Kind, Scalar

POOLS: dict[Kind, list[Scalar]] = {
    "number": [-2, -1, -0.5, 0, 0.5, 1, 2, 2.5, 3],
    "string": ["", "a", "a/", "a/b", "a0", "ab", "b", "é", "\U0010ffff", "\ud7ff", "\ue000"],
    "boolean": [0, 1],
    "instant": [-2, -1, 0, 1, 2, 3, 4],
}
BETWEEN: dict[Kind, list[Scalar]] = {
    "number": [-3, -1.5, -0.75, -0.25, 0.25, 0.75, 1.5, 2.25, 2.75, 4],
    "string": ["0", "a-", "a.", "a/a", "a/b/", "aa", "abc", "c", "é!", "\U0010ffff\U0010ffff"],
    "boolean": [],
    "instant": [-3, 5],
}
PROBES = {kind: [*POOLS[kind], *BETWEEN[kind]] for kind in POOLS}
kinds = st.sampled_from(list(POOLS))


@st.composite
def intervals_of(draw: st.DrawFn, kind: Kind) -> Intervals:
    ends = st.none() | st.sampled_from(POOLS[kind])
    drawn = draw(st.lists(st.tuples(ends, ends, st.booleans(), st.booleans()), max_size=4))
    # an unbounded side counts as included: that is how Interval is written
    made = [Interval(a, b, a is None or c, b is None or d) for a, b, c, d in drawn]
    return sets.normalise(made, kind)


def members(intervals: Intervals, kind: Kind) -> list[bool]:
    return [sets.contains(intervals, value) for value in PROBES[kind]]


@settings(max_examples=500)
@given(st.data(), kinds)
def test_union_and_intersection_and_complement_are_membership(
    data: st.DataObject, kind: Kind
) -> None:
    left, right = data.draw(intervals_of(kind)), data.draw(intervals_of(kind))
    a, b = members(left, kind), members(right, kind)
    either = sets.union(left, right, kind=kind)
    both = sets.intersect(left, right, kind)
    assert members(either, kind) == [x or y for x, y in zip(a, b, strict=True)]
    assert members(both, kind) == [x and y for x, y in zip(a, b, strict=True)]
    assert members(sets.complement(left, kind), kind) == [not x for x in a]
    for made in (either, both, sets.complement(left, kind)):
        assert made == sets.normalise(made, kind)


@settings(max_examples=500)
@given(st.data(), kinds)
def test_subset_is_union_that_adds_nothing(data: st.DataObject, kind: Kind) -> None:
    inner, outer = data.draw(intervals_of(kind)), data.draw(intervals_of(kind))
    assert sets.subset(inner, outer) == (sets.union(inner, outer, kind=kind) == outer)


@settings(max_examples=500)
@given(st.data(), kinds)
def test_one_set_is_written_in_one_way(data: st.DataObject, kind: Kind) -> None:
    one = data.draw(intervals_of(kind))
    twice = sets.complement(sets.complement(one, kind), kind)
    if kind == "boolean":  # its ends are 0 and 1: unbounded says no more
        one = sets.intersect(one, (Interval(0, 1),), kind)
    assert twice == one
    assert sets.union(one, sets.complement(one, kind), kind=kind) in (
        sets.FULL,
        (Interval(0, 1),),
    )


@given(st.text("ab/\U0010ffff\ud7ff", max_size=3), st.text("ab/c\U0010ffff\ue000", max_size=4))
def test_prefixed_is_startswith(prefix: str, text: str) -> None:
    assert sets.contains(sets.prefixed(prefix), text) == text.startswith(prefix)
    assert sets.contains(sets.prefixed(prefix), prefix + text)


@pytest.mark.parametrize(
    ("path", "region"),
    [*product(["a", "a/b", "a-b", "a/bc", "a0", "b", "a/b/c"], ["a", "a/b", "b"])],
)
def test_inside_place_is_the_place_and_what_lies_below_it(path: str, region: str) -> None:
    inside = path == region or path.startswith(region + "/")
    assert sets.contains(sets.inside_place(region), path) == inside


def test_numbers_compare_exactly_beyond_float64() -> None:
    upto = sets.below(2.0**53, closed=True)
    assert sets.contains(upto, 2**53)
    assert not sets.contains(upto, 2**53 + 1)


@pytest.mark.parametrize("low", [1, 1.5])
def test_between_the_wrong_way_round_is_empty(low: float) -> None:
    assert sets.between(low, 1) == (sets.point(1) if low == 1 else sets.EMPTY)
