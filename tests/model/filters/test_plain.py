"""What is read at a glance is what the whole way reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.model.filters import Filter, plain
from roamcast.model.filters import text as writing
from roamcast.model.filters.normal import normalise
from roamcast.model.filters.parse import parse_text

WORDS = "and AND not within casei date true null bbox interval before during near div In isnull"
NAMES = st.sampled_from(
    [*WORDS.split(), "a", "b", "type", "place", "vid", "time", "t_r", "n1", "x_y", "pointless"]
)
VALUES = st.one_of(
    st.sampled_from(
        ["", "x", "b35/2", "2024-01-01T00:00:00Z", "a' AND b = 'c", "\\", "it''s", "é"]
    ),
    st.text(st.characters(codec="ascii"), max_size=6),
)
JOINS = st.sampled_from([" AND ", " and ", "AND ", "  AND  ", " AND", " OR ", "", " And "])
SPACES = st.sampled_from([" = ", "=", "  =  ", " <> ", " =\t"])


@given(st.lists(st.tuples(NAMES, SPACES, VALUES, JOINS), min_size=1, max_size=4))
def test_what_is_read_at_a_glance_is_what_the_whole_way_reads(terms: list[tuple[str, ...]]) -> None:
    text = "".join(f"{name}{equals}'{value}'{join}" for name, equals, value, join in terms)
    text = text.removesuffix(terms[-1][3])
    known = plain.read(text)
    if known is not None:
        expression = parse_text(text)
        assert known.expression == expression
        assert known.normal == normalise(expression)
        assert known.text == writing.of(known.normal)


@pytest.mark.parametrize(
    "text",
    [
        "a = 'x'",
        "type = 'printer' AND place = 'b35/2'",
        " vid='v' and a='' ",
        "b = 'x' AND a = 'y'",
    ],
)
def test_equations_with_texts_are_plain(text: str) -> None:
    known = plain.read(text)
    assert known is not None
    made = Filter.parse(text)
    assert (made.expression, made.normal, made.text) == (
        known.expression,
        known.normal,
        known.text,
    )
    assert made == Filter.parse(f"({text})")


@pytest.mark.parametrize(
    "text", ["", "a = 1", "a = 'x' OR b = 'y'", "a = 'x' AND a = 'y'", "a = 'it''s'", "not = 'x'"]
)
def test_everything_else_goes_the_whole_way(text: str) -> None:
    assert plain.read(text) is None


def test_lengths_at_the_bound() -> None:
    longest = f"a = '{'x' * (plain.LENGTH_MAX - 6)}'"
    assert plain.read(longest) is not None
    assert plain.read(longest + " ") is None
    assert Filter.parse(longest + " ").text == longest


def test_reserved_names_are_refused_as_ever() -> None:
    with pytest.raises(InputError, match="temporal predicate"):
        Filter.parse("time = 'x'")
