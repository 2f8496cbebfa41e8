"""One canonical form: it means what was said, and what we know to be equal reads the same."""

import pickle
from itertools import pairwise

import pytest
from hypothesis import example, given, settings

from roamcast.model.contexts import Context
from roamcast.model.filters import CONJUNCTIONS_MAX, Filter
from roamcast.model.filters.atoms import All, Any
from roamcast.model.filters.holds import holds
from tests.strategies import contexts, filter_texts


@pytest.mark.slow
@settings(max_examples=1_000)
@given(filter_texts(depth=3), contexts())
@example("age IS NULL OR age > 1 OR NOT (age > 1)", Context("v", attributes={"age": 1}))
@example("place = 'a//b' OR place LIKE 'a//b/%'", Context("v", "a"))
@example("S_TOUCHES(geometry, BBOX(1,1,1,1))", Context("v", None, (1.0, 1.0)))
@example("T_DURING(time, INTERVAL(DATE('2026-11-15'), DATE('2026-11-16')))", Context("v"))
def test_the_normal_form_and_its_text_mean_what_was_said(text: str, context: Context) -> None:
    said = Filter.parse(text)
    expected = said.matches(context)
    assert holds(said.normal, context) is expected
    again = Filter.parse(said.text)
    assert again.matches(context) is expected
    assert again.text == said.text
    assert again.normal == said.normal


@settings(max_examples=400)
@given(filter_texts(depth=2), filter_texts(depth=2))
def test_equal_text_is_equal_digest_and_hash(one: str, other: str) -> None:
    a, b = Filter.parse(one), Filter.parse(other)
    assert (a.text == b.text) == (a == b) == (a.digest == b.digest)
    if a == b:
        assert hash(a) == hash(b)
    assert a == Filter.parse(one)
    assert hash(a) == hash(Filter.parse(one))


@settings(max_examples=400)
@given(filter_texts(depth=2), filter_texts(depth=2), filter_texts(depth=1))
def test_order_repetition_and_double_negation_do_not_matter(a: str, b: str, c: str) -> None:
    one = Filter.parse(f"({a}) AND ({b}) AND ({c})")
    assert one == Filter.parse(f"({c}) AND (({b}) AND ({a}))")
    assert one == Filter.parse(f"({c}) AND ({b}) AND ({a}) AND ({b})")
    assert one == Filter.parse(f"NOT (NOT ({a}) OR NOT ({b}) OR NOT ({c}))")
    some = Filter.parse(f"({a}) OR ({b}) OR ({c})")
    assert some == Filter.parse(f"({c}) OR (({b}) OR ({a}) OR ({c}))")
    assert some == Filter.parse(f"NOT (NOT ({a}) AND NOT (({b}) OR ({c})))")


@settings(max_examples=500)
@given(filter_texts(depth=3), contexts())
def test_one_of_the_conjunctions_holds_where_the_filter_does(text: str, context: Context) -> None:
    said = Filter.parse(text)
    parts = said.conjunctions()
    if parts is None:
        assert isinstance(said.normal, All | Any)
        return
    assert len(parts) <= CONJUNCTIONS_MAX
    assert len(set(parts)) == len(parts)
    found = any(all(holds(atom, context) for atom in part) for part in parts)
    assert found is said.matches(context)


def test_conjunctions_are_bounded() -> None:
    both = " AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(6))
    assert len(Filter.parse(both).conjunctions() or []) == 64
    assert Filter.parse(f"{both} AND (c = 1 OR d = 1)").conjunctions() is None
    some = [" OR ".join(f"a{i} = 1" for i in range(count)) for count in (64, 65)]
    assert len(Filter.parse(some[0]).conjunctions() or []) == 64
    assert Filter.parse(some[1]).conjunctions() is None
    assert Filter.parse("a = 1 OR b = 1").conjunctions(limit=1) is None
    assert Filter.parse("false").conjunctions(limit=0) == []
    assert Filter.parse("true").conjunctions(limit=1) == [()]


SAME = [
    # ranges of one attribute are merged
    ("a > 1 AND a > 2", "a > 2"),
    ("a >= 1 AND a <= 2", "a BETWEEN 1 AND 2"),
    ("a >= 1 AND a <= 1", "a = 1"),
    ("a = 1 OR a = 2 OR a = 1", "a IN (2, 1)"),
    ("a < 3 OR a BETWEEN 2 AND 5", "a <= 5"),
    ("a <> 1", "NOT a = 1"),
    ("a <> 1", "a < 1 OR a > 1"),
    ("NOT a BETWEEN 1 AND 2", "a < 1 OR 2 < a"),
    ("a NOT IN (1, 2)", "a <> 1 AND a <> 2"),
    ("5 > a", "a < 5"),
    ("a = 1.0", "a = 1"),
    ("a = -0.0", "a = 0"),
    ("a = 1e2", "a = 100"),
    ("b = 'x' AND b IN ('x', 'y')", "b = 'x'"),
    ("b LIKE 'x'", "b = 'x'"),
    ("b LIKE 'x%' AND b LIKE 'xy%'", "b LIKE 'xy%'"),
    ("b NOT LIKE 'x'", "b <> 'x'"),
    ("busy", "busy = true"),
    ("NOT busy", "busy = false"),
    ("busy <> true", "busy = false"),
    # times
    ("s = TIMESTAMP('2026-01-01T01:00:00+01:00')", "s = TIMESTAMP('2026-01-01T00:00:00Z')"),
    ("s = DATE('2026-01-01')", "NOT (s < DATE('2026-01-01') OR s > DATE('2026-01-01'))"),
    ("T_BEFORE(s, DATE('2026-01-01'))", "s < DATE('2026-01-01')"),
    (
        "overlaps(time, INTERVAL('2026-01-01','2026-01-02'))",
        "T_INTERSECTS(time, INTERVAL('2026-01-01T00:00:00Z','2026-01-02T00:00:00Z'))",
    ),
    (
        "during(time, INTERVAL('2026-01-01','2026-01-02'))",
        "during(time, INTERVAL(DATE('2026-01-01'), TIMESTAMP('2026-01-02T00:00:00Z')))",
    ),
    ("NOT excludes(time, DATE('2026-01-01'))", "overlaps(time, DATE('2026-01-01'))"),
    ("overlaps(time, INTERVAL('..','..'))", "true"),
    ("after(time, INTERVAL('2026-01-01','..'))", "false"),
    # places and shapes
    ("within(place, 'a') AND within(place, 'a/b')", "within(place, 'a/b')"),
    ("within(place, 'a') OR within(place, 'a/b')", "within(place, 'a')"),
    ("within(place, 'a')", "place = 'a' OR place LIKE 'a/%'"),
    ("S_INTERSECTS(geometry, BBOX(0,0,2,2))", "NOT S_DISJOINT(BBOX(0,0,2,2), geometry)"),
    (
        "S_INTERSECTS(geometry, POLYGON((0 0,2 0,2 2,0 2,0 0)))",
        "S_INTERSECTS(geometry, BBOX(0,0,2,2))",
    ),
    (
        "S_INTERSECTS(geometry, BBOX(0,0,2,2)) AND S_INTERSECTS(geometry, BBOX(1,1,3,3))",
        "S_INTERSECTS(geometry, BBOX(1,1,2,2))",
    ),
    (
        "S_INTERSECTS(geometry, BBOX(0,0,2,2)) OR S_INTERSECTS(geometry, BBOX(1,1,2,2))",
        "S_INTERSECTS(geometry, BBOX(0,0,2,2))",
    ),
    ("S_INTERSECTS(geometry, BBOX(1,1,1,1))", "S_INTERSECTS(geometry, POINT(1 1))"),
    ("S_INTERSECTS(geometry, BBOX(0,1,2,1))", "S_INTERSECTS(geometry, LINESTRING(2 1,0 1))"),
    (
        "S_INTERSECTS(geometry, BBOX(0,0,1,1)) AND S_INTERSECTS(geometry, BBOX(1,1,2,2))",
        "S_INTERSECTS(geometry, BBOX(1,1,1,1))",
    ),
    (
        "S_INTERSECTS(geometry, POLYGON((0 0,2 0,2 2,0 0)))",
        "S_INTERSECTS(POLYGON((2 2,0 0,2 0,2 2)), geometry)",
    ),
    # contradictions
    ("a > 2 AND a < 1", "false"),
    ("a = 1 AND a = 'x'", "false"),
    ("a = 1 AND a IS NULL", "false"),
    ("a IS NULL AND a IS NOT NULL", "false"),
    ("within(place, 'a') AND within(place, 'b')", "false"),
    ("place = 3", "false"),
    ("vid IS NULL", "false"),
    ("S_INTERSECTS(geometry, BBOX(0,0,1,1)) AND geometry IS NULL", "false"),
    ("S_INTERSECTS(geometry, BBOX(0,0,1,1)) AND S_INTERSECTS(geometry, BBOX(2,2,3,3))", "false"),
    (
        "during(time, INTERVAL('2026-01-01','2026-01-02')) AND after(time, DATE('2026-02-01'))",
        "false",
    ),
    ("1 = 2", "false"),
    ("a = 1 AND false", "false"),
    ("1 = 'x'", "false"),
    ("NOT (1 = 'x')", "false"),
    # tautologies
    ("a IS NULL OR a IS NOT NULL", "true"),
    ("vid IS NOT NULL", "true"),
    ("a = 1 OR true", "true"),
    ("1 < 2", "true"),
    ("NOT false", "true"),
    # absorption
    ("a = 1 OR (a = 1 AND b = 2)", "a = 1"),
    ("a = 1 AND (a = 1 OR b = 2)", "a = 1"),
    ("a = 1 AND a IS NOT NULL", "a = 1"),
    ("a = 1 OR a IS NOT NULL", "a IS NOT NULL"),
    ("(a = 1 OR b = 1) AND (b = 1 OR a = 1)", "a = 1 OR b = 1"),
    # NOT goes inside
    ("NOT (a = 1 AND b > 2)", "a <> 1 OR b <= 2"),
    ("NOT (a = 1 OR NOT (b > 2))", "a <> 1 AND b > 2"),
    ("NOT a IS NULL", "a IS NOT NULL"),
    # spelling
    ("t_during(time,interval('2026-01-01','..'))", "T_DURING(time, INTERVAL('2026-01-01', '..'))"),
    ('"a" = 1', "a=1"),
    ("casei(b) = casei('X')", "CASEI(b) = 'x'"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_meanings_have_one_text(one: str, other: str) -> None:
    assert Filter.parse(one).text == Filter.parse(other).text
    assert Filter.parse(one) == Filter.parse(other)


def test_different_meanings_have_different_texts() -> None:
    texts = sorted({Filter.parse(other).text for _, other in SAME})
    assert all(Filter.parse(a) != Filter.parse(b) for a, b in pairwise(texts))
    assert Filter.parse("a = 1") != Filter.parse("a = '1'")
    assert Filter.parse("a = 'true'") != Filter.parse("a = true")
    assert Filter.parse("near(geometry, POINT(0 0), 1)") != Filter.parse(
        "near(geometry, POINT(0 0), 2)"
    )


def test_unknown_is_no_tautology() -> None:
    # a > 1 or not: true of every number, unknown of what is missing or no number
    either = Filter.parse("a > 1 OR NOT (a > 1)")
    assert either.text != "true"
    assert either.matches(Context("v", attributes={"a": 1}))
    assert not either.matches(Context("v"))
    assert not either.matches(Context("v", attributes={"a": "x"}))


def test_a_filter_survives_pickling_however_it_was_given() -> None:
    for source in ("a = 1", {"op": "=", "args": [{"property": "a"}, 1]}, True):
        said = Filter.parse(source)
        again = pickle.loads(pickle.dumps(said))
        assert again == said
        assert again.expression == said.expression


def test_a_long_disjunction_is_no_quadratic_work() -> None:
    many = Filter.parse(" OR ".join(f"(a{i} = 1 AND b{i} = 2)" for i in range(1_300)))
    assert len(many.normal.parts) == 1_300  # type: ignore[union-attr]
