"""Errors and hints say in words of the language what was probably meant, and where."""

import pytest

from roamcast.errors import FilterError
from roamcast.model.filters import Filter

MEANT = [
    # text, position, what the line says
    ("type == 'printer'", 7, "equality is written ="),
    ("a => 1", 4, "at least is written >="),
    ("a = 1 && b = 2", 10, "write AND"),
    ("a = 1 || b = 2", 10, "write OR"),
    ("!a", 2, "write NOT"),
    ("name ~ 'x'", 6, "write LIKE"),
    ("a = 1;", 6, "without ;"),
    ("type = “printer”", 9, "straight single quotes"),
    ("vid = x@y", 9, "single quotes"),
    ("type = 'it's'", 12, "written twice, such as 'it''s'"),
    ("type printer", 6, "a comparison is written type = 'printer'"),
    ("name ILIKE 'a%'", 6, "casei(name) LIKE"),
    ("a = 1 ADN b = 2", 7, "did you mean AND?"),
    ("a = 1 AND witin(place, 'a')", 11, "witin is not supported; did you mean within?"),
    ("s_intersect(geometry, POINT(0 0))", 1, "did you mean s_intersects?"),
    ("st_dwithin(geometry, POINT(0 0), 5)", 1, "use near("),
    ("casey(a) = 'x'", 1, "did you mean casei?"),
    ("lower(a) = 'x'", 1, "use casei"),
    ("a LIKE printer", 3, "in quotes, such as 'printer'"),
    ("a IS 1", 6, "IS takes NULL or NOT NULL"),
    ("a IS NOT 'x'", 3, "IS takes NULL or NOT NULL"),
    ("a BETWEEN 1", 12, "a BETWEEN 1 AND 2"),
    ("a = 1 AND", 10, "a value or a property is expected here"),
    ("[1]", 1, "a filter such as type = 'printer'"),
]


@pytest.mark.parametrize(("text", "position", "says"), MEANT)
def test_an_error_says_what_was_probably_meant(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter.parse(text)
    assert says in str(caught.value), str(caught.value)
    assert caught.value.position == position
    assert "Identifier" not in str(caught.value)  # a rule of the parser's grammar
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("type = printer", 8),
        ('type = "printer"', 8),
        ("within(place, 'printer') AND NOT type <> printer", 42),
        ("type IN ('scanner', printer)", 21),
    ],
)
def test_an_attribute_where_a_text_was_meant_gets_a_hint_at_quotes(
    text: str, position: int
) -> None:
    hint = Filter.parse(text).hint
    assert hint.startswith(f"position {position}: printer is read as the name of an attribute")
    assert "write 'printer' in single quotes" in hint


def test_what_is_meant_as_written_gets_no_hint() -> None:
    for text in ("type = 'printer'", "a > 5 AND b", "casei(a) = casei(b)", "a = b + 1"):
        assert Filter.parse(text).hint == ""
    compared = {"op": "=", "args": [{"property": "a"}, {"property": "b"}]}
    assert Filter.parse(compared).hint == ""  # JSON tells names from texts
