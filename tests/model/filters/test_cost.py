"""Reading a filter costs no more than its length times a logarithm: counted in calls, not timed."""

import sys
from collections.abc import Callable

import pytest

from bench import _filter_shapes as shapes
from roamcast.errors import InputError
from roamcast.model.filters import Filter, text
from roamcast.model.filters.atoms import Values
from roamcast.model.filters.price import price

GROWTH_MAX = 2.4
"""Calls of a filter twice as long: 2, and a little for sorting."""


def _calls(action: Callable[[], object]) -> int:
    """Count the calls of functions, of Python and of C, comparisons of cuts included."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def _read(source: str) -> None:
    text.remembered.clear()
    try:
        wanted = Filter.parse(source)
        assert wanted.text
        wanted.conjunctions()
    except InputError:
        pass  # what is refused has its price, too


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_twice_the_length_is_about_twice_the_calls(name: str) -> None:
    make = shapes.SHAPES[name]
    short, long = make(400), make(800)
    _read(short)  # caches of names and places
    ratio = _calls(lambda: _read(long)) / _calls(lambda: _read(short))
    assert ratio <= GROWTH_MAX * len(long) / len(short) / 2


@pytest.mark.parametrize("term", ["a{i} + 1 > b", "(a{i} = 1 AND b{i} = 1)", "a{i} IS NULL"])
def test_levels_around_a_long_part_do_not_read_it_again(term: str) -> None:
    few, many = (shapes.deep(term, 300, levels) for levels in (4, 44))
    _read(few)
    longer = _calls(lambda: _read(many)) - _calls(lambda: _read(few))
    assert longer < 40 * 400  # what a level has of its own


def test_the_sets_of_a_property_are_folded_at_once() -> None:
    wanted = Filter.parse(" AND ".join(f"a <> {number}" for number in range(1_000)))
    assert isinstance(wanted.normal, Values)
    assert len(wanted.normal.intervals) == 1_001


class Counts:
    """Statistics of an index that knows the terms of some properties."""

    def __init__(self, total: int, bounds: dict[str, int]) -> None:
        self.total, self.bounds = total, bounds

    def __len__(self) -> int:
        return self.total

    def bound(self, atom: object) -> int | None:
        return self.bounds.get(getattr(atom, "property", ""))


@pytest.mark.parametrize(
    ("source", "contexts", "unindexed"),
    [
        ("a = 1", 50, 0),
        ("a = 1 AND b = 2", 40, 0),
        ("a = 1 OR b = 2", 90, 0),
        ("a = 1 OR c = 2", 1_000, 1),
        ("a = 1 AND c = 2", 50, 1),
        ("d = 1 OR e = 2", 1_000, 0),
        ("(a = 1 OR b = 2) AND d = 3", 90, 0),
        ("true", 1_000, 0),
        ("false", 0, 0),
    ],
)
def test_a_price_follows_the_most_selective_terms(
    source: str, contexts: int, unindexed: int
) -> None:
    counts = Counts(1_000, {"a": 50, "b": 40, "d": 600, "e": 500})
    said = price(Filter.parse(source).normal, counts)
    assert (said.contexts, said.unindexed) == (contexts, unindexed)
    assert said.steps >= 2 * contexts
