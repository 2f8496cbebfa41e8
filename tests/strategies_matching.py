"""Filters and contexts that are likely to meet: few names, few values, every kind of predicate."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

NUMBERS = [-1e300, -3, -0.0, 0, 0.5, 1, 2, 3, 7, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**62]
WORDS = ["", "a", "ab", "abc", "b", "ß", "z"]
TEXTS = [*WORDS, "2026-11-15T09:00:00Z", "2026-11-15"]
"""What contexts hold: a text may stand for an instant."""
PLACES = ["campus", "campus/b35", "campus/b35/2", "campus/b35x", "campus/b36"]
DAYS = [datetime(2026, 11, day, 9, tzinfo=UTC) for day in (14, 15, 16)]
NAMES = ["n", "m", "w", "v", "k", "t", "x"]
POLYGON = "POLYGON((0 0,2 0,2 1,1 1,1 2,0 2,0 0))"

_names = st.sampled_from(NAMES)
_numbers = st.sampled_from(NUMBERS)
_comparators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_words = st.sampled_from(TEXTS).map(quoted)
_moments = st.sampled_from(DAYS).map(lambda d: f"TIMESTAMP('{d:%Y-%m-%dT%H:%M:%SZ}')")
_constants = st.one_of(_numbers.map(repr), _words, _moments, st.sampled_from(["true", "false"]))

leaves = st.one_of(
    st.builds("{} {} {}".format, _names, _comparators, _constants),
    st.builds("{} = {}".format, _names, st.one_of(_numbers.map(repr), _words)),
    st.builds("{} BETWEEN {} AND {}".format, _names, _numbers, _numbers),
    st.builds("{} IN ({}, {})".format, _names, _numbers, _numbers),
    st.builds("{} IN ({}, {})".format, _names, _words, _words),
    st.builds("{} LIKE {}".format, _names, st.sampled_from(["'a%'", "'%b'", "'ab_'", "'%'"])),
    st.builds("{} IS NULL".format, st.sampled_from([*NAMES, "geometry", "place"])),
    st.builds("within(place, {})".format, st.sampled_from(PLACES).map(quoted)),
    st.builds("place = {}".format, st.sampled_from(PLACES).map(quoted)),
    st.builds("vid {} {}".format, _comparators, st.sampled_from(["'v0'", "'v1'"])),
    st.builds("{}(time, {})".format, st.sampled_from(["before", "after", "during"]), _moments)
    | st.builds("t_after(time, {})".format, _moments),
    st.builds(
        "S_INTERSECTS(geometry, BBOX({},0,{},2))".format, st.integers(0, 1), st.integers(1, 2)
    ),
    st.just(f"S_INTERSECTS(geometry, {POLYGON})"),
    st.just("n + 1 > m"),
    st.sampled_from(["true", "false"]),
)


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(lambda p: "(" + " AND ".join(p) + ")"),
        st.lists(inner, min_size=2, max_size=3).map(lambda p: "(" + " OR ".join(p) + ")"),
        inner.map("NOT ({})".format),
    )


def _parsed(text: str) -> Filter | None:
    from roamcast.errors import FilterError

    try:
        return Filter.parse(text)
    except FilterError:
        return None


filters: st.SearchStrategy[Any] = (
    st.recursive(leaves, _joined, max_leaves=6).map(_parsed).filter(lambda made: made is not None)
)

_values = st.one_of(
    _numbers, st.sampled_from(TEXTS), st.booleans(), st.sampled_from(DAYS), st.integers(-1, 8)
)
_points = st.tuples(
    st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0]), st.sampled_from([0.0, 0.5, 1.0, 2.0])
)
_starts = st.sampled_from(DAYS).map(lambda d: int(d.timestamp()) * 1_000_000)


@st.composite
def contexts(draw: st.DrawFn) -> Context:
    t_r = draw(_starts)
    lasts = draw(st.none() | st.sampled_from([0, 3_600_000_000, 86_400_000_000]))
    return Context(
        draw(st.sampled_from(["v0", "v1", "v2"])),
        draw(st.none() | st.sampled_from(PLACES)),
        draw(st.none() | _points),
        draw(st.dictionaries(_names, _values, max_size=len(NAMES))),
        t_r,
        None if lasts is None else t_r + lasts,
    )
