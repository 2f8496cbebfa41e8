"""Random contexts and filters from small pools, so that matches happen, and any context at all.

One generator on `random.Random` serves both the tests that need many pairs quickly and hypothesis,
which passes a Random of its own and shrinks what it drew. `any_context` draws from all that is
allowed, up to the model's own limits. `tests/test_strategies.py` holds every strategy to them.
"""

import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from roamcast.model import time
from roamcast.model.contexts import (
    ATTRIBUTES_MAX,
    DEPTH_MAX,
    NAME_LENGTH_MAX,
    PATH_LENGTH_MAX,
    RESERVED,
    VID_LENGTH_MAX,
    Attribute,
    Context,
)
from roamcast.model.kinds import INTEGER_MAX

HOUR = 3_600 * time.MICROSECONDS
NINE = time.parse_instant("2026-11-15T09:00:00Z")
INSTANTS = [
    NINE - 24 * HOUR,
    NINE - HOUR,
    NINE - 1,
    NINE,
    NINE + 1,
    NINE + HOUR,
    NINE + 15 * HOUR - 1,
    NINE + 15 * HOUR,
    NINE + 40 * HOUR,
]
DAYS = ["2026-11-14", "2026-11-15", "2026-11-16"]
PLACES = [
    "campus",
    "campus/b3",
    "campus/b35",
    "campus/b35/2",
    "campus/b35/2/2104",
    "campus/b35-annex",
    "straße/ñ'1",
]
NUMBERS = [-1, 0, 1, 2, 2.5, 3, 10, 2**53, -0.0, 1e300]
TEXTS = ["", "a", "ab", "abc", "AB", "b", "é", "e", "it's", "a%b", "a_b", "a\\b", "日本", "\n"]
STAMPS = ["2026-11-15T09:00:00Z", "2026-11-15T10:00:00+01:00", "2026-11-15", "2026-11-15T24:00:00Z"]
COORDINATES = [-180.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 90.0]
COMPARATORS = ["=", "<>", "<", "<=", ">", ">="]
SPATIAL = [
    "INTERSECTS",
    "EQUALS",
    "DISJOINT",
    "TOUCHES",
    "WITHIN",
    "OVERLAPS",
    "CROSSES",
    "CONTAINS",
]
TEMPORAL = [
    *("after", "before", "contains", "disjoint", "during", "equals", "finishedBy", "finishes"),
    *("intersects", "meets", "metBy", "overlappedBy", "overlaps", "startedBy", "starts"),
]
PREDICATES = [
    *("before", "after", "starts_only", "ends_only", "start_by", "end_by"),
    *("overlaps", "excludes", "equals", "during", "contains"),
]
NAMES = {"age": NUMBERS, "speed": NUMBERS, "name": TEXTS, "kind": TEXTS, "busy": [True, False]}
MIXED = "mixed"
"""An attribute of any kind."""

ODD = ["_odd", "größe", "in", "a b", 'q"q', "point", "x.y:z"]
"""Attributes whose names need care in a text; their values are numbers."""

THIN_BOXES = ["BBOX(0.5,0,0.5,1)", "BBOX(0,1,2,1)", "BBOX(1,1,1,1)"]
SHAPES = [
    *THIN_BOXES,
    "BBOX(0,0,1,1)",
    "BBOX(0.25,0,2,0.5)",
    "BBOX(1.5,-1,-0.5,1)",
    "BBOX(180,0,-180,1)",
    "BBOX(180,0,-0.5,1)",
    "POINT(0.5 0.5)",
    "POINT (1 1)",
    "MULTIPOINT(0 0,1 1)",
    "MULTIPOINT((0.5 0.5),(2 2))",
    "LINESTRING(0 0,1 1,2 0)",
    "LINESTRING(0 0, 0 2)",
    "MULTILINESTRING((0 0,1 1),(2 2,2 0))",
    "POLYGON((0 0,1 0,1 1,0 1,0 0))",
    "POLYGON((0 0,2 0,0 2,0 0))",
    "POLYGON((-1 -1,3 -1,3 3,-1 3,-1 -1),(0 0,1 0,1 1,0 1,0 0))",
    "MULTIPOLYGON(((0 0,1 0,1 1,0 0)),((1.5 1.5,3 1.5,3 3,1.5 1.5)))",
    "GEOMETRYCOLLECTION(POINT(2 2),LINESTRING(0 0,1 1))",
]

Make = Callable[[random.Random], str]


def stamp(instant: int) -> str:
    return time.format_instant(instant)


def quoted(text: str) -> str:
    return "'" + re.sub(r"\\+(?='|\Z)", r"\g<0>\g<0>", text).replace("'", "''") + "'"


def name_text(name: str) -> str:
    return name if name.isascii() and name.isalpha() and name not in ODD else f'"{_double(name)}"'


def _double(name: str) -> str:
    return name.replace('"', '""')


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(value).replace("e+", "e")


# --- contexts


def some_context(draw: random.Random, vid: str = "v") -> Context:
    t_r = draw.choice(INSTANTS)
    later = [moment for moment in INSTANTS if moment >= t_r]
    attributes: dict[str, Attribute] = {}
    for name, pool in NAMES.items():
        if draw.random() < 0.8:
            attributes[name] = draw.choice(pool)
    if draw.random() < 0.8:
        attributes[MIXED] = draw.choice(
            [*NUMBERS, *TEXTS, True, False, *STAMPS, *map(moment_of, INSTANTS)]
        )
    if draw.random() < 0.7:
        attributes["seen"] = moment_of(draw.choice(INSTANTS))
    if draw.random() < 0.7:
        attributes["since"], attributes["until"] = sorted(map(stamp, draw.choices(INSTANTS, k=2)))
    for name in ODD:
        if draw.random() < 0.2:
            attributes[name] = draw.choice([0, 1])
    return Context(
        vid,
        draw.choice([None, *PLACES]),
        draw.choice([None, *[(draw.choice(COORDINATES), draw.choice(COORDINATES[1:]))] * 4]),
        attributes,
        t_r,
        draw.choice([None, *later]),
    )


def moment_of(instant: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)


# --- predicates, each a small text


def comparison(draw: random.Random) -> str:
    name = draw.choice([*NAMES, *NAMES, MIXED, *ODD])
    value = draw.choice(NAMES.get(name, [*NUMBERS, *TEXTS, True] if name == MIXED else [0, 1]))
    if draw.random() < 0.1:
        value = draw.choice([1, "a", True])  # a type mismatch now and then
    pair = [name_text(name), literal(value)]
    if draw.random() < 0.2:
        pair.reverse()
    return f" {draw.choice(COMPARATORS)} ".join(pair)


def text_attribute(draw: random.Random) -> str:
    plain = draw.choice(["name", "kind", "place", "vid", MIXED])
    return draw.choice(["{}", "{}", "{}", "casei({})", "accenti({})", "casei(accenti({}))"]).format(
        plain
    )


def texts(draw: random.Random) -> str:
    operand = text_attribute(draw)
    pool = PLACES if operand == "place" else [*TEXTS, "v"]
    value = quoted(draw.choice(pool))
    if "(" in operand and draw.random() < 0.7:
        value = operand[: operand.rindex("(") + 1] + value + ")" * operand.count("(")
    return f"{operand} {draw.choice(COMPARATORS)} {value}"


def pairs_of_attributes(draw: random.Random) -> str:
    left, right = draw.choices([*NAMES, "seen", "since", MIXED, "place"], k=2)
    return f"{left} {draw.choice(COMPARATORS)} {right}"


def between(draw: random.Random) -> str:
    name = draw.choice(["age", "speed", "name", MIXED])
    low, high = draw.choices(TEXTS if name == "name" else NUMBERS, k=2)
    return f"{name} {draw.choice(['', 'NOT '])}BETWEEN {literal(low)} AND {literal(high)}"


def within_list(draw: random.Random) -> str:
    name = draw.choice([*NAMES, MIXED])
    pool = NAMES.get(name, [1, "a", True])
    listed = ", ".join(literal(draw.choice(pool)) for _ in range(draw.randint(1, 4)))
    return f"{name} {draw.choice(['', 'NOT '])}IN ({listed})"


def like(draw: random.Random) -> str:
    operand = text_attribute(draw)
    pattern = draw.choice(
        ["a%", "%b", "%", "", "_", "a_b", "ab", "_b%", "campus/%", "é%", "a\\%b", "a\\_%", "a\\\\b"]
    )
    return f"{operand} {draw.choice(['', 'NOT '])}LIKE {quoted(pattern)}"


def is_null(draw: random.Random) -> str:
    name = draw.choice([*NAMES, MIXED, "place", "vid", "geometry", "seen", "nothing", *ODD])
    return f"{name_text(name)} IS {draw.choice(['', 'NOT '])}NULL"


def arithmetic(draw: random.Random) -> str:
    def term(depth: int) -> str:
        if depth == 0 or draw.random() < 0.4:
            return draw.choice(["age", "speed", "speed", MIXED, "1", "2", "2.5", "-3", "0"])
        op = draw.choice(["+", "-", "*", "/", "%", "^", "div"])
        return f"({term(depth - 1)} {op} {term(depth - 1)})"

    return f"{term(2)} {draw.choice(COMPARATORS)} {term(1)}"


def boolean(draw: random.Random) -> str:
    return draw.choice(["busy", "true", "false", MIXED, "busy = true", "busy <> false"])


def spatial(draw: random.Random) -> str:
    pair = ["geometry", draw.choice(SHAPES)]
    if draw.random() < 0.2:
        pair.reverse()
    op = "INTERSECTS" if draw.random() < 0.5 else draw.choice(SPATIAL)
    return f"S_{op}({', '.join(pair)})"


def moment_text(draw: random.Random) -> str:
    if draw.random() < 0.2:
        return f"DATE('{draw.choice(DAYS)}')"
    return f"TIMESTAMP('{stamp(draw.choice(INSTANTS))}')"


def interval_text(draw: random.Random) -> str:
    if draw.random() < 0.1:
        return "INTERVAL('{}','{}')".format(*sorted(draw.choices(DAYS, k=2)))
    low, high = sorted(draw.choices(INSTANTS, k=2))
    ends = [draw.choice([stamp(low)] * 4 + [".."]), draw.choice([stamp(high)] * 4 + [".."])]
    return "INTERVAL('{}','{}')".format(*ends)


def moments(draw: random.Random) -> str:
    name = draw.choice(["seen", "since", "until", MIXED, "name"])
    return f"{name} {draw.choice(COMPARATORS)} {moment_text(draw)}"


def stretch(draw: random.Random) -> str:
    return moment_text(draw) if draw.random() < 0.3 else interval_text(draw)


def temporal(draw: random.Random) -> str:
    of_attributes = [
        *("seen", "since", "INTERVAL(since, until)", "INTERVAL(since, '..')"),
        *("INTERVAL(since, DATE('2026-11-15'))", "INTERVAL(DATE('2026-11-15'), until)"),
    ]
    pair = [draw.choice(of_attributes), stretch(draw)]
    if draw.random() < 0.2:
        pair.reverse()
    return f"T_{draw.choice(TEMPORAL)}({', '.join(pair)})"


# --- ours


def within(draw: random.Random) -> str:
    return f"within(place, {quoted(draw.choice(PLACES))})"


def near(draw: random.Random) -> str:
    centre = f"POINT({draw.choice(COORDINATES)} {draw.choice(COORDINATES[1:])})"
    return f"near(geometry, {centre}, {draw.choice(['0', '30000', '60000', '1.2e5', '2e7'])})"


def lifetime(draw: random.Random) -> str:
    pair = ["time", stretch(draw)]
    if draw.random() < 0.1:
        pair = draw.choice([["time", "time"], ["time", "INTERVAL(since, until)"], pair[::-1]])
    return f"T_{draw.choice(TEMPORAL)}({', '.join(pair)})"


def predicate(draw: random.Random) -> str:
    name = draw.choice(PREDICATES)
    tolerance = draw.choice(["", ", 0", ", 3600", ", 0.000001"]) if name == "equals" else ""
    return f"{name}(time, {stretch(draw)}{tolerance})"


STANDARD: list[Make] = [
    *(comparison, comparison, texts, pairs_of_attributes, between, within_list, like, is_null),
    *(arithmetic, boolean, spatial, moments, temporal),
]
OURS: list[Make] = [within, within, near, lifetime, predicate, predicate]


def some_filter(draw: random.Random, makes: list[Make] | None = None, depth: int = 2) -> str:
    makes = [*STANDARD, *OURS] if makes is None else makes
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(makes)(draw)
    if draw.random() < 0.25:
        return f"NOT ({some_filter(draw, makes, depth - 1)})"
    word = draw.choice([" AND ", " OR "])
    parts = [some_filter(draw, makes, depth - 1) for _ in range(draw.randint(2, 3))]
    return "(" + word.join(parts) + ")"


_randoms = st.randoms(use_true_random=False)


def contexts() -> st.SearchStrategy[Context]:
    return _randoms.map(some_context)


def filter_texts(makes: list[Make] | None = None, depth: int = 2) -> st.SearchStrategy[str]:
    return _randoms.map(lambda draw: some_filter(draw, makes, depth))


_visible = st.characters(exclude_categories=["C", "Z"], exclude_characters="/")
_encodable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
_instants = st.integers(time.EARLIEST, time.LATEST)
_segments = st.text(_visible, min_size=1, max_size=PATH_LENGTH_MAX // DEPTH_MAX - 1)
_names = st.text(_visible, min_size=1, max_size=NAME_LENGTH_MAX).filter(
    lambda name: name not in RESERVED
)
_values: st.SearchStrategy[Attribute] = (
    st.text(_encodable, max_size=20)
    | st.integers(-INTEGER_MAX - 1, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | _instants.map(time.to_datetime)
)
any_place = st.lists(_segments, min_size=1, max_size=DEPTH_MAX).map("/".join)


@st.composite
def any_context(draw: st.DrawFn, attributes_max: int = 6) -> Context:
    """A context anywhere in what is allowed."""
    assert attributes_max <= ATTRIBUTES_MAX
    t_r = draw(_instants)
    return Context(
        draw(st.text(_encodable, min_size=1, max_size=VID_LENGTH_MAX)),
        draw(st.none() | any_place),
        draw(st.none() | st.tuples(st.floats(-180, 180), st.floats(-90, 90))),
        draw(st.dictionaries(_names, _values, max_size=attributes_max)),
        t_r,
        draw(st.none() | st.integers(t_r, time.LATEST)),
    )
