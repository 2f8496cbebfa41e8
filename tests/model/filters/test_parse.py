"""Bad filters: one line that names the position, at every limit and never a crash."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import FilterError, InputError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.parse import DEPTH_MAX, PATTERN_LENGTH_MAX
from roamcast.model.filters.scan import LENGTH_MAX, PARENTHESES_DEPTH_MAX, TERMS_MAX
from roamcast.model.filters.shapes import VERTICES_MAX
from roamcast.model.kinds import quoted


def refused(source: Any, kind: type[InputError] = FilterError) -> InputError:
    with pytest.raises(kind) as caught:
        Filter.parse(source).text  # noqa: B018
    line = str(caught.value)
    assert "\n" not in line
    assert "\r" not in line
    assert len(line) < 400
    return caught.value


REFUSED = [
    # text, position, what the line says
    ("", 1, "empty"),
    ("   \n", 1, "empty"),
    ("a =", 4, "not CQL2"),
    ("a = 1 AND", 10, "not CQL2"),
    ("a = 1 b = 2", 7, "b stands where"),
    ("a == 1", 4, "not CQL2"),
    ("a = 1)", 6, "a ) without its ("),
    ("(a = 1", 1, "a ( is never closed"),
    ("a = ('x", 6, "the quote ' is never closed"),
    ('"a = 1', 1, 'the quote " is never closed'),
    ("a = 1\nAND b = ", 15, "not CQL2"),
    ("a = 'ü' AND b = = 1", 17, "not CQL2"),
    ("a = 1 AND ((((b = ))))", 19, "not CQL2"),
    ("a\0 = 1", 2, "U+0000"),
    ("a = '\ud800'", 6, "Unicode"),
    ("[1]", 1, "not CQL2"),
    ("{}", 1, "not CQL2"),
    ("a = 9007199254740993", 5, "not exact"),
    ("a = 1 AND b = 9007199254740993", 15, "not exact"),
    ("a = 1e400", 3, "too large"),
    ("a = -1e400", 3, "too large"),
    ("a = " + "9" * 400, 5, "too large"),
    ("a = NULL", 3, "IS NULL"),
    ("a = (1, 2)", 3, "a list is allowed only after IN"),
    ("a = POINT(0 0)", 3, "a shape is allowed only in a spatial predicate"),
    ("'x'", 1, "a value"),
    ("1 + 1", 3, "+ is not supported"),
    ("(1, 2)", 1, "a value"),
    ("a = 1 AND foo(b)", 11, "foo is not supported"),
    ("a = 1 AND b = bar(c, 2)", 15, "bar is not supported as a value"),
    ("A_CONTAINS(tags, ('x', 'y'))", 1, "a_contains is not supported"),
    ("a = 1 OR a_overlaps(tags, ('x'))", 10, "a_overlaps is not supported"),
    ("a = (b = 1)", 8, "= is not supported as a value"),
    ("a = 1 AND geometry = 2", 20, "geometry is allowed only in spatial predicates"),
    ("time = 1", 6, "time is not a value"),
    ("t_r > 1", 5, "t_r is not a value"),
    ("a LIKE b", 3, "LIKE needs a pattern"),
    ("a LIKE 1", 3, "LIKE needs a pattern"),
    ("1 IS NULL", 3, "IS NULL needs a property"),
    ("time IS NULL", 6, "time is not a value"),
    ("a + 1 IS NULL", 7, "IS NULL needs a property"),
    ("casei() = 'x'", 1, "casei takes 1 argument"),
    ("casei(a, b) = 'x'", 1, "casei takes 1 argument"),
    ("within(place)", 1, "within takes 2 arguments"),
    ("within(place, 'a', 'b')", 1, "within takes 2 arguments"),
    ("within(room, 'a')", 1, "within is written: within(place, "),
    ("within(place, a)", 1, "within is written"),
    ("within(place, 'a//b')", 1, "is not a place"),
    ("within(place, '')", 1, "is not a place"),
    ("near(geometry, POINT(0 0))", 1, "near takes 3 arguments"),
    ("near(geometry, BBOX(0,0,1,1), 5)", 1, "near is written"),
    ("near(place, POINT(0 0), 5)", 1, "near is written"),
    ("near(geometry, POINT(0 0), -5)", 1, "metres, 0 or more"),
    ("near(geometry, POINT(0 0), 1e400)", 1, "metres, 0 or more"),
    ("near(geometry, POINT(0 0), true)", 1, "metres, 0 or more"),
    ("near(geometry, POINT(0 91), 5)", 1, "not a longitude and latitude"),
    ("near(geometry, POINT(0 0 0), 5)", 1, "near is written"),
    ("S_INTERSECTS(geometry)", 1, "s_intersects takes 2 arguments"),
    ("S_INTERSECTS(geometry, geometry)", 1, "compares geometry with one shape"),
    ("S_INTERSECTS(road, POINT(0 0))", 1, "compares geometry with one shape"),
    ("S_INTERSECTS(geometry, 'x')", 1, "a shape on the other"),
    ("S_INTERSECTS(geometry, BBOX(0,0,1))", 1, "BBOX takes four numbers"),
    ("S_INTERSECTS(geometry, BBOX(0,0,0,1,1,1))", 1, "BBOX takes four numbers"),
    ("S_INTERSECTS(geometry, BBOX('a',0,1,1))", 1, "BBOX takes four numbers"),
    ("S_INTERSECTS(geometry, BBOX(0,1e400,1,1))", 1, "BBOX takes four numbers"),
    ("S_INTERSECTS(geometry, BBOX(0,1,1,0))", 1, "south above its north"),
    ("S_INTERSECTS(geometry, BBOX(200,0,100,1))", 1, "west beyond its east"),
    ("S_INTERSECTS(geometry, POINT Z (1 2 3))", 1, "shapes are flat"),
    ("S_INTERSECTS(geometry, POINT(1 2 3))", 1, "shapes are flat"),
    ("S_INTERSECTS(geometry, POLYGON((0 0,1 1,1 0,0 1,0 0)))", 1, "not valid: Self-intersection"),
    ("S_INTERSECTS(geometry, POLYGON((0 0,1 1)))", 1, ""),
    ("S_INTERSECTS(geometry, LINESTRING(0 0))", 1, ""),
    ("S_INTERSECTS(geometry, POINT EMPTY)", 30, ""),
    ("S_INTERSECTS(geometry, POLYGON((((0 0)))))", 37, ""),
    ("T_AFTER(time)", 1, "t_after takes 2 arguments"),
    ("T_AFTER(time, 5)", 1, "5.0 is not a time"),
    ("T_AFTER(time, 'yesterday')", 1, "'yesterday' is not an RFC 3339 timestamp"),
    ("T_AFTER(time, TIMESTAMP('2026-13-01T00:00:00Z'))", 1, "does not exist"),
    ("T_AFTER(time, TIMESTAMP('2026-01-01'))", 1, "not an RFC 3339 timestamp"),
    ("T_AFTER(time, TIMESTAMP('2026-01-01T24:00:00Z'))", 1, "does not exist"),
    ("T_AFTER(time, TIMESTAMP('2026-06-30T23:59:60Z'))", 1, "does not exist"),
    ("T_AFTER(time, TIMESTAMP(5))", 1, "TIMESTAMP takes a text in quotes"),
    ("a = TIMESTAMP('2026-01-01T00:00:00.1234567Z')", 3, "not an RFC 3339 timestamp"),
    ("a = DATE('2026-02-30')", 3, "does not exist"),
    ("a = DATE(b)", 3, "DATE takes a text in quotes"),
    ("a = DATE('2026-01-01T00:00:00Z')", 3, "not a date"),
    ("T_AFTER(time, INTERVAL('2026-01-02','2026-01-01'))", 1, "ends before it starts"),
    ("T_AFTER(time, INTERVAL('2026-01-02'))", 1, "INTERVAL takes two ends"),
    ("T_AFTER(time, INTERVAL(1, 2))", 1, "an INTERVAL goes from a time to a time"),
    ("T_AFTER(time, INTERVAL(a, 2))", 1, "an INTERVAL goes from a time to a time"),
    ("T_AFTER(a, INTERVAL(b, INTERVAL(c, d)))", 1, "an INTERVAL goes from a time to a time"),
    ("T_AFTER(a, INTERVAL(DATE('2026-01-02'),'2026-01-01'))", 1, "ends before it starts"),
    ("a = INTERVAL(b, c)", 3, "is allowed only in a temporal predicate"),
    ("during(time)", 1, "during takes 2 arguments"),
    ("during(seen, DATE('2026-01-01'))", 1, "during is written: during(time, "),
    ("during(time, seen)", 1, "takes an INTERVAL, a TIMESTAMP or a DATE"),
    ("during(time, DATE('2026-01-01'), 5)", 1, "during takes 2 arguments"),
    ("equals(time, DATE('2026-01-01'), -5)", 1, "tolerance"),
    ("equals(time, DATE('2026-01-01'), '5')", 1, "tolerance"),
    ("equals(time, DATE('2026-01-01'), true)", 1, "tolerance"),
    ("equals(time, DATE('2026-01-01'), 1e400)", 1, "tolerance"),
    ("equals(time, DATE('2026-01-01'), 1, 2)", 1, "equals takes 2 to 3 arguments"),
]


@pytest.mark.parametrize(("text", "position", "says"), REFUSED)
def test_a_refusal_names_the_position_and_the_construct(
    text: str, position: int, says: str
) -> None:
    error = refused(text)
    assert says in str(error), str(error)
    assert error.position == position, str(error)
    assert str(error).startswith(f"position {position}: ")


def op(name: str, *args: Any) -> dict[str, Any]:
    return {"op": name, "args": list(args)}


A = {"property": "a"}
TIME = {"property": "time"}
GEOMETRY = {"property": "geometry"}
REFUSED_JSON: list[tuple[Any, str]] = [
    (None, "a filter is CQL2 text, or a CQL2 JSON object"),
    (5, "a filter is CQL2 text, or a CQL2 JSON object"),
    ([], "a filter is CQL2 text, or a CQL2 JSON object"),
    ({}, "not CQL2 JSON"),
    ({"op": "="}, ""),
    ({"op": "=", "args": 5}, ""),
    ({"op": 5, "args": []}, "not CQL2 JSON"),
    (op("=", A), "= takes 2 arguments"),
    (op("=", A, 1, 2), "= takes 2 arguments"),
    (op("=", A, None), "IS NULL"),
    (op("=", A, [1]), "a list is allowed only after IN"),
    (op("=", A, {"property": ""}), "a property needs a name"),
    (op("=", A, {"property": 5}), "not CQL2 JSON"),
    (op("=", A, 2**53 + 1), "not exact"),
    (op("=", A, 2**70 + 1), "not exact"),
    (op("=", A, 10**400), "too large"),
    (op("=", A, float("inf")), ""),
    (op("=", A, float("nan")), ""),
    (op("=", A, "\ud800"), "Unicode"),
    (op("=", A, object()), "not CQL2 JSON"),
    (op("and", True), "and takes 2 to"),
    (op("not", True, True), "not takes 1 argument"),
    (op("not"), "not takes 1 argument"),
    (op("in", A, []), "IN needs a list"),
    (op("in", A, 5), ""),
    (op("between", A, 1), "between takes 3 arguments"),
    (op("like", A, 5), "LIKE needs a pattern"),
    (op("isNull", 5), "IS NULL needs a property"),
    (op("foo", A), "foo is not supported"),
    (op("=", A, op("foo", A)), "foo is not supported as a value"),
    (op("=", A, op("+", A)), "+ takes 2 arguments"),
    (op("=", A, op("casei")), "casei takes 1 argument"),
    (op("a_equals", A, [1]), "a_equals is not supported"),
    (op("within", {"property": "place"}), "within takes 2 arguments"),
    (op("near", GEOMETRY, {"type": "Point", "coordinates": []}, 5), ""),
    (op("near", GEOMETRY, {"type": "Point", "coordinates": ["x", 0]}, 5), ""),
    (op("s_within", GEOMETRY, {"type": "Circle"}), ""),
    (op("s_within", GEOMETRY, {"type": "Polygon", "coordinates": 5}), ""),
    (op("s_within", GEOMETRY, {"type": "Polygon", "coordinates": [[[0, 0]]]}), ""),
    (op("s_within", GEOMETRY, {"type": "Point", "coordinates": [0, 0, 5]}), "flat"),
    (op("s_within", GEOMETRY, {"bbox": [0, 1, 2]}), "BBOX takes four numbers"),
    (op("t_after", TIME, {"timestamp": 5}), ""),
    (op("t_after", TIME, {"date": []}), ""),
    (op("t_after", TIME, {"interval": 5}), ""),
    (op("t_after", TIME, {"interval": ["2026-01-01"]}), "INTERVAL takes two ends"),
    (op("t_after", TIME, {"interval": [{"date": "x"}, ".."]}), ""),
    (op("equals", TIME, {"date": "2026-01-01"}, "x"), "tolerance"),
]


@pytest.mark.parametrize(("source", "says"), REFUSED_JSON, ids=range(len(REFUSED_JSON)))
def test_bad_json_is_refused_in_one_line(source: Any, says: str) -> None:
    assert says in str(refused(source))


def test_json_means_what_its_text_means() -> None:
    pairs = [
        (op("=", A, 1), "a = 1"),
        (op("and", op(">", A, 1), op("<", A, 3)), "a > 1 AND a < 3"),
        (op("not", op("in", A, ["x", "y"])), "a NOT IN ('x', 'y')"),
        (op("between", A, 1, 2), "a BETWEEN 1 AND 2"),
        (op("isNull", A), "a IS NULL"),
        (op("like", op("casei", A), "x%"), "casei(a) LIKE 'x%'"),
        (op("within", {"property": "place"}, "x/y"), "within(place, 'x/y')"),
        (
            op("s_intersects", GEOMETRY, {"bbox": [0, 0, 1, 1]}),
            "S_INTERSECTS(geometry, BBOX(0,0,1,1))",
        ),
        (
            op("during", TIME, {"interval": ["2026-01-01", ".."]}),
            "during(time, INTERVAL('2026-01-01','..'))",
        ),
        (
            op("=", A, {"timestamp": "2026-01-01T00:00:00Z"}),
            "a = TIMESTAMP('2026-01-01T00:00:00Z')",
        ),
        (True, "true"),
    ]
    for tree, text in pairs:
        assert Filter.parse(tree) == Filter.parse(text)


def test_a_timestamp_without_a_zone_is_utc_as_cql2_reads_it() -> None:
    said = Filter.parse("a = TIMESTAMP('2026-01-01T00:00:00')")
    assert said == Filter.parse("a = TIMESTAMP('2026-01-01T00:00:00Z')")
    assert said == Filter.parse("a = TIMESTAMP('2026-01-01T01:00:00+01:00')")


# --- limits, at and just beyond


@pytest.mark.limit("filter.length")
def test_length_at_the_limit() -> None:
    text = "a = '" + "x" * (LENGTH_MAX - 6) + "'"
    assert len(text) == LENGTH_MAX
    assert Filter.parse(text).text == text
    assert refused(text + " ", LimitError).position == LENGTH_MAX + 1
    assert "65536 characters" in str(
        refused({"op": "=", "args": [A, "x" * LENGTH_MAX]}, LimitError)
    )


@pytest.mark.limit("filter.parentheses")
def test_parentheses_at_the_limit() -> None:
    depth = PARENTHESES_DEPTH_MAX - 1  # the comparison inside is one more
    assert Filter.parse("(" * depth + "a = 1" + ")" * depth) == Filter.parse("a = 1")
    text = "(" * (depth + 1) + "a = 1" + ")" * (depth + 1)
    assert refused(text, LimitError).position == depth + 4
    assert "nested deeper than 128" in str(refused("(" * 200 + "a" + ")" * 200, LimitError))


@pytest.mark.limit("filter.depth")
def test_nested_operators_at_the_limit() -> None:
    # the comparison is the last of them
    assert Filter.parse("NOT " * (DEPTH_MAX - 1) + "a = 1").matches is not None
    assert "nested deeper than 48" in str(refused("NOT " * DEPTH_MAX + "a = 1", LimitError))
    sums = ["1" + " + 1" * count + " = a" for count in (DEPTH_MAX - 1, DEPTH_MAX)]
    assert Filter.parse(sums[0]).text
    assert "nested deeper than 48" in str(refused(sums[1], LimitError))
    trees = []
    for count in (DEPTH_MAX, DEPTH_MAX + 1):
        tree: Any = True
        for _ in range(count):
            tree = op("not", tree)
        trees.append(tree)
    assert Filter.parse(trees[0]).text == "true"
    assert "nested deeper than 48" in str(refused(trees[1], LimitError))
    for _ in range(5_000):
        tree = [tree]
    assert "nested deeper than 48" in str(refused(op("not", tree), LimitError))


@pytest.mark.limit("filter.terms")
def test_terms_at_the_limit() -> None:
    for join, count in ((" AND ", TERMS_MAX), (" OR ", TERMS_MAX)):
        assert Filter.parse(join.join(["a"] * (count // 2))).text == "a = true"
        assert Filter.parse(join.join(["a = 1"] * count)).text == "a = 1"
        assert "more than 4096 terms" in str(
            refused(join.join(["a = 1"] * (count + 1)), LimitError)
        )
    listed = [f"a IN ({','.join(map(str, range(count)))})" for count in (TERMS_MAX, TERMS_MAX + 1)]
    assert Filter.parse(listed[0]).text
    assert "more than 4096 terms" in str(refused(listed[1], LimitError))


@pytest.mark.limit("filter.vertices")
def test_vertices_at_the_limit() -> None:
    def line(count: int) -> str:
        points = ",".join(f"{i % 2} {i % 9}" for i in range(count))
        return f"S_INTERSECTS(geometry, LINESTRING({points}))"

    assert Filter.parse(line(VERTICES_MAX)).text
    assert "10000 vertices" in str(refused(line(VERTICES_MAX + 1), LimitError))


@pytest.mark.limit("filter.pattern")
def test_patterns_at_the_limit() -> None:
    assert Filter.parse(f"a LIKE '{'x' * PATTERN_LENGTH_MAX}'").text
    assert "1024 characters" in str(refused(f"a LIKE '{'x' * 1_025}'", LimitError))


def test_whole_numbers_are_exact_or_refused() -> None:
    assert Filter.parse("a = 9007199254740992").text == "a = 9007199254740992.0"
    assert Filter.parse("a = 9007199254740994") == Filter.parse("a = 9007199254740994.0")
    assert Filter.parse(f"a = {2**63}").text
    assert Filter.parse(f"a = {10**22}").text == "a = 1e+22"
    refused(f"a = {10**23}")
    refused(f"a IN (1, {2**63 + 1})")


# --- texts that crash or stall cql2: run apart, so that a crash is a failure and not the end

DEEP = 60_000
HOSTILE = {
    "NOTs": "NOT " * 16_000 + "a",
    "NOTs in a shape": "POINT(" + "not " * 12_000 + "a)",
    "NOTs behind words": "a = 1" + " andnot(a = 1" * 60 + " = " + ")" * 60,
    "NOTs run together": "NOT" * 20_000,
    "signs": "a = " + "-" * DEEP + "1",
    "spaced signs": "a = " + "- " * 30_000 + "1",
    "unclosed": "(" * 60,
    "parentheses round nonsense": "(" * 120 + "a +" + ")" * 120,
    "parentheses round a word too many": "(" * 120 + "a b" + ")" * 120,
    "sums with a hole": "(1 + " * 100 + ")" * 100 + " = a",
    "conjunctions with a hole": "(a = 1 AND " * 100 + ")" * 100,
    "lists in lists": "a IN (" * 60 + "1 1" + ")" * 60,
    "lists of lists": "a IN " + "(" * 100 + "1" + ",2)" * 100,
    "good lists of lists": "a_contains(x, " + "(" * 100 + "1" + ",2)" * 100 + ")",
    "functions of groups": "f((" * 60 + "1 1" + "))" * 60,
    "groups after commas": "f(1, (" * 60 + "1 1" + "))" * 60,
    "quoted functions of groups": '"f"((' * 60 + "1 1" + "))" * 60,
    "functions": "f(" * 127 + "1 1" + ")" * 127,
    "casei": "casei(" * 127 + "a" + ")" * 127 + " = 'x'",
    "polygons": "S_INTERSECTS(geometry, POLYGON" + "(" * 60 + "0 0" + ")" * 60 + ")",
    "collections": "S_WITHIN(geometry, " + "GEOMETRYCOLLECTION(" * 60 + "POINT(0 0)" + ")" * 61,
    "intervals": "INTERVAL(" * 100 + "1" + ")" * 100,
    "boxes": "BBOX(" * 100 + "1" + ")" * 100,
    "comparisons in a row": "a" + " = a" * 16_000,
    "comparisons in a row below the limit": "a" + " = a" * 120,
    "sums in a row": "a = " + "+".join(["1"] * 30_000),
    "powers in a row": "a = " + "^".join(["1"] * 120),
    "between in between": "a BETWEEN " * 5_000 + "1 AND 2",
    "quotes": "'" * DEEP,
    "names in quotes": '"' * DEEP,
    "brackets": "[" * DEEP,
    "braces": '{"op":' * 10_000,
    "spaces": " " * DEEP + "a = ",
    "one long word": "a" * DEEP + " = ",
    "one long number": "a = " + "1" * DEEP,
    "one long fraction": "a = 0." + "1" * DEEP,
    "commas": "," * DEEP,
    "combining marks": "का andnot(" * 100 + "a b" + ")" * 100,
    "many groups": " AND ".join(["((((a = 1))))"] * 3_000),
    "many groups and an error": " AND ".join(["((((a = 1))))"] * 3_000) + " AND ((((a b))))",
    "wide and deep": "(" * 3 + " AND ".join(["a = 1"] * 4_000) + " b" + ")" * 3,
    "wildcards": "a LIKE '" + "%a" * 30_000 + "'",
}
CHILD = """
import sys, json
from roamcast.errors import InputError
from roamcast.model.filters import Filter
for line in sys.stdin:
    name, text = json.loads(line)
    print("begin", name, flush=True)
    try:
        Filter.parse(text).text
        print("end accepted", flush=True)
    except InputError as error:
        assert "\\n" not in str(error) and error.position is not None, (name, str(error))
        print("end", error, flush=True)
"""


@pytest.mark.process
def test_no_text_crashes_or_stalls_the_parser() -> None:
    lines = "".join(json.dumps(pair) + "\n" for pair in HOSTILE.items())
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-1_000:]
    assert done.stdout.count("\nend ") == len(HOSTILE)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"'it\'s'", "it's"),
        (r"'the dogs\' tails'", "the dogs' tails"),
        (r"'dogs\''", "dogs'"),
        (r"'a\\'", "a\\"),
        (r"'a\\\'b'", "a\\'b"),
        (r"'a\\''b'", "a\\'b"),
        (r"'a\b\\c'", r"a\b\\c"),
        (r"'\\\\'", r"\\"),
    ],
)
def test_a_backslash_escapes_a_quote_and_before_one_itself(written: str, text: str) -> None:
    asked = Filter.parse(f"a = {written} AND b = .5")
    assert asked.matches(Context("v", attributes={"a": text, "b": 0.5}))
    assert Filter.parse(asked.text) == asked


@given(st.text(st.sampled_from("a'\\% "), max_size=8))
def test_every_text_can_be_written(text: str) -> None:
    asked = Filter.parse(f"a = {quoted(text)} AND b = 'c'")
    assert asked.matches(Context("v", attributes={"a": text, "b": "c"}))
    assert Filter.parse(asked.text) == asked


def test_an_error_after_what_is_rewritten_still_names_its_position() -> None:
    position = refused("a = 'it''s' AND b = 5. AND AND c").position
    assert position == 32
    assert refused(r"a = 'it\'s' AND b = .5 AND AND c").position == position


def test_a_quote_that_a_backslash_keeps_open_is_explained() -> None:
    with pytest.raises(FilterError, match=r"^position 5: .*never closed \(\\' stands for a quote"):
        Filter.parse(r"a = 'x\'")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a = 2 ^ 3 ^ 2", "a = 2 ^ (3 ^ 2)"),
        ("a = b ^ c ^ d ^ e", "a = b ^ (c ^ (d ^ e))"),
        ("a = b - c ^ d ^ 2 * 3", "a = b - ((c ^ (d ^ 2)) * 3)"),
        ("a = ((b ^ c)) ^ d ^ e", "a = (b ^ c) ^ (d ^ e)"),
        ("a IN (2, b ^ c ^ d)", "a IN (2, b ^ (c ^ d))"),
        ("a = b ^ (c ^ d ^ e) ^ f", "a = b ^ ((c ^ (d ^ e)) ^ f)"),
    ],
)
def test_powers_group_from_the_right(text: str, same: str) -> None:
    asked = Filter.parse(text)
    assert asked == Filter.parse(same)
    assert Filter.parse(asked.text) == asked
    assert Filter.parse("a = (b ^ c) ^ d") != Filter.parse("a = b ^ c ^ d")
