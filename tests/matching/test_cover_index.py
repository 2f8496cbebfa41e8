"""The covering index: the same routes as comparing all pairs, in any order of calls."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.matching import cover_index
from roamcast.matching.cover_index import CoverIndex
from roamcast.matching.covering import covers
from roamcast.matching.witness import witnesses
from roamcast.model.filters import Filter
from tests.strategies import filter_texts, some_filter

SIMPLE = [
    *("true", "n > 1", "n > 3", "n BETWEEN 2 AND 9", "n = 5", "n IN (5, 7)", "n < 8", "n >= 5"),
    *("within(place, 'a')", "within(place, 'a/b')", "place = 'a/b/c'", "place LIKE 'a/b/%'"),
    *("n > 3 AND m = 'x'", "m = 'x'", "m LIKE 'x%'", "m IS NOT NULL", "m IS NULL"),
    "S_INTERSECTS(geometry, BBOX(0,0,9,9))",
    "S_INTERSECTS(geometry, BBOX(2,2,3,3))",
    "near(geometry, POINT(2.5 2.5), 1000)",
    "near(geometry, POINT(2.5 2.5), 10)",
    "vid = 'v1'",
    "casei(m) = casei('X')",
    "during(time, INTERVAL('2026-11-15T00:00:00Z', '2026-11-16T00:00:00Z'))",
    "during(time, INTERVAL('2026-11-15T09:00:00Z', '2026-11-15T10:00:00Z'))",
    "after(time, TIMESTAMP('2026-11-15T09:00:00Z'))",
]


def check(index: CoverIndex, held: dict[str, Filter]) -> None:
    """Every filter lies below filters that cover it, up to a root."""
    roots = set(index.roots())
    for name in held:
        above = name
        while (over := index.above(above)) is not None:
            assert covers(index.filter(over), index.filter(above))
            above = over
        assert above in roots


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_adding_and_removing_leaves_everyone_covered(draw: random.Random) -> None:
    index, held = CoverIndex(), dict[str, Filter]()
    for _ in range(30):
        name = f"f{draw.randrange(24)}"
        if name in held:
            del held[name]
            index.remove(name, draw.choice([1, 3, 100]))
        else:
            texts = SIMPLE if draw.random() < 0.8 else [some_filter(draw)]
            held[name] = Filter.parse(draw.choice(texts))
            index.add(name, held[name])
        check(index, held)
        if draw.random() < 0.5:
            index.settle(draw.choice([1, 100]))
            check(index, held)
    while index.ghosts:
        index.settle(1)
    assert len(index) == len(held)
    check(index, held)


@settings(max_examples=4, deadline=None)
@given(st.permutations(SIMPLE))
def test_no_root_covers_another_where_witnesses_are_found(order: list[str]) -> None:
    index = CoverIndex()
    for number, text in enumerate(order):
        index.add(f"f{number}", Filter.parse(text))
    named = {index.filter(name).source for name in index.roots()}
    assert named == {"true"}
    number = order.index("true")
    index.remove(f"f{number}", 1_000)
    roots = [index.filter(name) for name in index.roots()]
    for one in roots:
        for two in roots:
            assert one is two or not covers(one, two), (one, two)


@settings(max_examples=40, deadline=None)
@given(filter_texts())
def test_witnesses_satisfy_their_filter(text: str) -> None:
    wanted = Filter.parse(text)
    found = witnesses(wanted, "w")
    if found is not None:
        assert all(wanted.matches(context) for context in found)


def test_witnesses_of_a_range_of_texts_lie_at_its_ends() -> None:
    found = witnesses(Filter.parse("w >= 'a' AND w <= 'c'"), "w")
    assert found is not None
    assert {context.attributes["w"] for context in found} == {"a", "c"}


@pytest.mark.parametrize("text", [text for text in SIMPLE if "casei" not in text])
def test_common_filters_have_witnesses(text: str) -> None:
    assert witnesses(Filter.parse(text), "w") is not None


def test_a_removed_root_stays_until_all_below_have_a_place() -> None:
    index = CoverIndex()
    index.add("all", Filter.parse("n >= 0"))
    for number in range(10):
        index.add(f"f{number}", Filter.parse(f"n = {number}"))
    assert list(index.roots()) == ["all"]
    moved = index.remove("all", 4)
    assert len(moved) == 4
    assert "all" in set(index.roots())
    assert index.above("f9") == "all"
    again = index.add("all", Filter.parse("n >= 0"))  # back while it still stands
    assert set(again) == {"all", *moved}
    assert list(index.roots()) == ["all"]
    index.remove("all", 1_000)
    assert len(list(index.roots())) == 10
    assert index.ghosts == 0


def test_filters_without_witnesses_are_compared_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cover_index, "PLAIN_MAX", 2)
    index = CoverIndex()
    for number in range(4):
        index.add(f"f{number}", Filter.parse(f"casei(m) = casei('{number}')"))
    assert len(index._plain) == 2
    index.add("all", Filter.parse("true"))
    assert set(index.roots()) == {"all", "f2", "f3"}
    index.remove("all", 1_000)
    assert set(index.roots()) == {"f0", "f1", "f2", "f3"}


def test_unknown_and_repeated_names_are_refused() -> None:
    index = CoverIndex()
    index.add("a", Filter.parse("true"))
    with pytest.raises(InputError, match="already"):
        index.add("a", Filter.parse("n = 1"))
    with pytest.raises(InputError, match="no filter"):
        index.remove("b", 1)
