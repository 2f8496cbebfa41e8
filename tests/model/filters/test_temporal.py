"""Temporal predicates against formulas written again, here, from the papers."""

# ruff: noqa: ARG005 - every formula takes the same four moments

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.model import time
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.holds import holds
from tests import strategies as pool

Formula = Callable[[float, float, float, float], bool]
FOREVER = float("inf")

# TCC figure 4 with its errata; r, d is the lifetime [t_r, t_d], a, b the interval.
LIVED: dict[str, Formula] = {
    "before": lambda r, d, a, b: d < a,
    "after": lambda r, d, a, b: b < r,
    "starts_only": lambda r, d, a, b: a <= r <= b <= d,
    "ends_only": lambda r, d, a, b: r <= a <= d <= b,
    "start_by": lambda r, d, a, b: a <= r <= b,
    "end_by": lambda r, d, a, b: a <= d <= b,
    "overlaps": lambda r, d, a, b: r <= b and a <= d,
    "excludes": lambda r, d, a, b: d < a or b < r,
    "equals": lambda r, d, a, b: r == a and d == b,
    "during": lambda r, d, a, b: a <= r and d <= b,
    "contains": lambda r, d, a, b: r <= a and b <= d,
}
# Allen's relations as CQL2 (OGC 21-065r2) defines them on [s, e] and [a, b].
RELATED: dict[str, Formula] = {
    "after": lambda s, e, a, b: s > b,
    "before": lambda s, e, a, b: e < a,
    "contains": lambda s, e, a, b: s < a and e > b,
    "disjoint": lambda s, e, a, b: e < a or s > b,
    "during": lambda s, e, a, b: s > a and e < b,
    "equals": lambda s, e, a, b: s == a and e == b,
    "finishedBy": lambda s, e, a, b: s < a and e == b,
    "finishes": lambda s, e, a, b: s > a and e == b,
    "intersects": lambda s, e, a, b: not (e < a or s > b),
    "meets": lambda s, e, a, b: e == a,
    "metBy": lambda s, e, a, b: s == b,
    "overlappedBy": lambda s, e, a, b: a < s < b < e,
    "overlaps": lambda s, e, a, b: s < a < e < b,
    "startedBy": lambda s, e, a, b: s == a and e > b,
    "starts": lambda s, e, a, b: s == a and e < b,
}
Case = tuple[int, int | None, str, float, float]


def case(draw: random.Random) -> Case:
    """A lifetime and a stretch of time: t_r, t_d, the text, a, b."""
    t_r = draw.choice(pool.INSTANTS)
    t_d = draw.choice([None, *[moment for moment in pool.INSTANTS if moment >= t_r]])
    low, high = sorted(draw.choices(pool.INSTANTS, k=2))
    form = draw.randint(0, 6)
    if form == 0:
        return t_r, t_d, f"TIMESTAMP('{pool.stamp(low)}')", low, low
    if form == 1:
        start = time.parse_day("2026-11-15")
        return t_r, t_d, "DATE('2026-11-15')", start, start + 24 * pool.HOUR - 1
    ends = [pool.stamp(low), pool.stamp(high)]
    a, b = float(low), float(high)
    if form == 2:
        ends[0], a = "..", -FOREVER
    if form in (2, 3) and draw.random() < 0.7:
        ends[1], b = "..", FOREVER
    return t_r, t_d, "INTERVAL('{}','{}')".format(*ends), a, b


cases = st.randoms(use_true_random=False).map(case)


def agrees(text: str, context: Context, expected: bool) -> None:
    for asked, answer in ((text, expected), (f"NOT {text}", not expected)):
        parsed = Filter.parse(asked)
        assert parsed.matches(context) is answer, (asked, context)
        assert holds(parsed.normal, context) is answer, (asked, context)
        assert Filter.parse(parsed.text).matches(context) is answer, (asked, parsed.text)


@pytest.mark.parametrize("name", LIVED)
@settings(max_examples=300)
@given(case=cases)
def test_each_of_the_papers_predicates_is_its_formula(name: str, case: Case) -> None:
    t_r, t_d, stretch, a, b = case
    expected = LIVED[name](t_r, FOREVER if t_d is None else t_d, a, b)
    agrees(f"{name}(time, {stretch})", Context("v", t_r=t_r, t_d=t_d), expected)


@pytest.mark.parametrize("name", RELATED)
@settings(max_examples=300)
@given(case=cases)
def test_each_of_the_standards_relations_is_its_formula(name: str, case: Case) -> None:
    t_r, t_d, stretch, a, b = case
    d = FOREVER if t_d is None else t_d
    context = Context("v", t_r=t_r, t_d=t_d)
    agrees(f"T_{name}(time, {stretch})", context, RELATED[name](t_r, d, a, b))
    agrees(f"T_{name}({stretch}, time)", context, RELATED[name](a, b, t_r, d))


@settings(max_examples=300)
@given(
    cases,
    st.sampled_from([0, 0.000001, 1, 3600, 7200.5, 1e11]),
    st.integers(-2, 2),
    st.integers(-2, 2),
)
def test_equals_has_a_tolerance_in_seconds_that_it_includes(
    case: Case, seconds: float, early: int, late: int
) -> None:
    _, _, _, low, high = case
    a = pool.INSTANTS[1] if low == -FOREVER else int(low)
    b = pool.INSTANTS[7] if high == FOREVER else int(high)
    z = round(seconds * 1_000_000)
    t_r = max(time.EARLIEST, a - z + early)
    t_d = min(time.LATEST, max(t_r, b + z + late))
    expected = abs(t_r - a) <= z and abs(t_d - b) <= z
    stretch = f"INTERVAL('{pool.stamp(a)}','{pool.stamp(max(a, b))}')"
    b = max(a, b)
    expected = abs(t_r - a) <= z and abs(t_d - b) <= z
    agrees(f"equals(time, {stretch}, {seconds:f})", Context("v", t_r=t_r, t_d=t_d), expected)


def test_a_context_that_lasts_ends_after_every_moment() -> None:
    lasting = Context("v", t_r=pool.NINE, t_d=None)
    year = "INTERVAL('0001-01-01T00:00:00Z','9999-12-31T23:59:59.999999Z')"
    assert not Filter.parse(f"during(time, {year})").matches(lasting)
    assert not Filter.parse(f"end_by(time, {year})").matches(lasting)
    assert Filter.parse("during(time, INTERVAL('2026-01-01','..'))").matches(lasting)
    assert Filter.parse("contains(time, INTERVAL('2027-01-01','..'))").matches(lasting)
    assert Filter.parse("T_EQUALS(time, INTERVAL('2026-11-15T09:00:00Z','..'))").matches(lasting)


def test_names_are_read_in_any_case() -> None:
    at_nine = "TIMESTAMP('2026-11-15T09:00:00Z')"
    context = Context("v", t_r=pool.NINE, t_d=pool.NINE)
    for name in ("t_equals", "T_EQUALS", "EQUALS", "Equals", "t_Equals"):
        assert Filter.parse(f"{name}(time, {at_nine})").matches(context)
