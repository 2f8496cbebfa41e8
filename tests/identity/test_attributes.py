"""Attributes of several sources become one text."""

import pytest

from roamcast.identity.attributes import NOTHING, merged, to_text

AGE, GUEST, CHILD = to_text({"age": 5}), to_text({"role": "guest"}), to_text({"age": 6})


@pytest.mark.parametrize(
    ("texts", "reliability", "expected"),
    [
        ([], [], NOTHING),
        ([None, NOTHING], [1, 2], NOTHING),
        ([AGE], [1], AGE),
        ([None, AGE, NOTHING], [3, 1, 2], AGE),
        ([AGE, GUEST], [1, 2], to_text({"age": 5, "role": "guest"})),
        ([AGE, CHILD], [1, 2], CHILD),
        ([AGE, CHILD], [2, 1], AGE),
        ([AGE, CHILD], [1, 1], AGE),
        ([AGE, None, CHILD], [1, 3, 2], CHILD),
    ],
)
def test_of_a_name_the_most_reliable_source_wins_and_of_equal_ones_the_first(
    texts: list[str | None], reliability: list[int], expected: str
) -> None:
    assert merged(texts, reliability) == expected
