"""The analysts' notebook runs as it is printed, here, on a cluster and through Connect."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from roamcast.model.context_arrow import from_arrow
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.append import append
from tests.strategies_pipeline import contexts

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]
NOTEBOOK = Path(__file__).parents[2] / "examples" / "analysts.py"
TABLE = contexts(81, 3_000, days=3)


def test_the_notebook_answers_as_the_reference(anywhere: Any, tmp_path: Path) -> None:
    append(TABLE, tmp_path / "archive")
    known = {"spark": anywhere, "archive": str(tmp_path / "archive")}
    answers = runpy.run_path(str(NOTEBOOK), init_globals=known)["answers"]
    every = from_arrow(TABLE)

    def matching(text: str) -> int:
        wanted = Filter.parse(text)
        return sum(wanted.matches(one) for one in every)

    assert answers["total"] == len(every)
    assert answers["buses"] == matching("kind = 'bus' AND within(place, 'campus')")
    assert answers["reached"] == matching("within(place, 'campus/b1')") + matching("ill = true")
    assert answers["by_place"] == len({one.place for one in every if one.place})
    assert min(answers.values()) >= 0
    assert answers["busy"] > 0
