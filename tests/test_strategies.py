"""Strategies draw what the model allows, up to its limits and never beyond; the same every time."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from roamcast.identity.sightings import Sighting
from roamcast.identity.sightings import check as check_sighting
from roamcast.model.contexts import DEPTH_MAX, Context, check, check_path, check_place, segments
from roamcast.model.filters import Filter
from roamcast.model.places_geojson import from_geojson
from tests import strategies, strategies_matching, strategies_places
from tests.strategies_sightings import sightings


@settings(max_examples=300)
@given(st.one_of(strategies.any_context(), strategies.contexts(), strategies_matching.contexts()))
def test_drawn_contexts_are_valid(context: Context) -> None:
    assert check(context) is context


@given(strategies.filter_texts() | strategies.filter_texts(strategies.OURS, depth=3))
def test_drawn_filters_are_valid(text: str) -> None:
    assert Filter.parse(text)


@given(sightings())
def test_drawn_sightings_are_valid(sighting: Sighting) -> None:
    assert check_sighting(sighting) is sighting


@given(strategies.any_place, strategies_places.path)
def test_drawn_places_are_valid(any_path: str, path: str) -> None:
    assert check_place(any_path) == any_path
    assert check_path(path) == path


@given(strategies_places.documents())
def test_drawn_hierarchies_are_valid(document: dict[str, Any]) -> None:
    assert len(from_geojson(document)) == len(document["features"])


@pytest.mark.slow
def test_the_deepest_place_can_be_drawn() -> None:
    quiet = settings(max_examples=2_000, phases=[Phase.generate], database=None)
    deep = find(strategies.any_place, lambda path: len(segments(path)) == DEPTH_MAX, settings=quiet)
    assert check_path(deep) == deep


@pytest.mark.skipif(
    settings.get_current_profile_name() == "explore", reason="`make explore` draws other examples"
)
def test_examples_depend_on_nothing_but_the_test(tmp_path: Path) -> None:
    """Neither on an earlier run, nor on the modules that other tests have imported."""

    def drawn() -> list[int]:
        found: list[int] = []

        @settings(max_examples=200)
        @given(st.integers(0, 10**12))
        def collect(number: int) -> None:
            found.append(number)

        collect()
        return found

    first = drawn()
    file = tmp_path / "odd_constants.py"
    file.write_text("ODD = [" + ", ".join(map(str, range(10_001, 11_001))) + "]\n")
    sys.modules["odd_constants"] = module = ModuleType("odd_constants")
    module.__file__ = str(file)
    try:
        assert drawn() == first
    finally:
        del sys.modules["odd_constants"]


def test_one_hash_seed_orders_the_sets_of_every_run() -> None:
    assert os.environ["PYTHONHASHSEED"].isdigit()
