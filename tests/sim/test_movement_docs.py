"""The examples of docs/places.md and docs/mobility.md run as printed."""

import re
from pathlib import Path
from typing import Any

import pytest

from roamcast.errors import PlaceError
from roamcast.model.places_geojson import read_places

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", ["places.md", "mobility.md"])
def test_the_python_of_a_page_runs_from_top_to_bottom(page: str) -> None:
    names: dict[str, Any] = {}
    found = blocks(page, "python")
    assert len(found) >= 2
    for block in found:
        exec(compile(block, page, "exec"), names)


def test_the_places_that_are_shown_can_be_read() -> None:
    (shown,) = blocks("places.md", "json")
    places = read_places(shown)
    route = places.route("lab/101", "lab/hall")
    assert route is not None
    assert route.metres == 6.5
    spoilt = shown.replace('["lab/101"]', '["lab/102"]')
    with pytest.raises(PlaceError, match=r"feature 1 \('lab/hall'\) has an unknown neighbour"):
        read_places(spoilt)
