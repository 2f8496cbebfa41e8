"""Attributes and values that queryables tell of are bounded."""

from roamcast.live.http.queryables import (
    ATTRIBUTES_MAX,
    TEXT_LENGTH_MAX,
    VALUES_MAX,
    attribute_schemas,
)
from roamcast.model.contexts import Context


def test_at_most_so_many_attributes_the_most_frequent_first() -> None:
    names = [f"a{number:03}" for number in range(ATTRIBUTES_MAX + 1)]
    found = attribute_schemas(
        [Context("v", "hq", None, {name: 1}) for name in names]
        + [Context("w", "hq", None, {names[-1]: 2})]
    )
    assert len(found) == ATTRIBUTES_MAX
    assert next(iter(found)) == names[-1]
    assert names[-2] not in found


def test_at_most_so_many_values_and_none_that_is_long() -> None:
    texts = [f"t{number:02}" for number in range(VALUES_MAX + 1)]
    long = ["x" * TEXT_LENGTH_MAX, "y" * (TEXT_LENGTH_MAX + 1)]
    many = attribute_schemas([Context("v", "hq", None, {"a": text}) for text in texts])
    assert many["a"] == {"type": "string", "examples": texts[:VALUES_MAX]}
    few = attribute_schemas([Context("v", "hq", None, {"a": text}) for text in long])
    assert few["a"]["examples"] == long[:1]
