"""The page for users says what is so: its examples run and its limits are the code's."""

import re
from pathlib import Path

import pytest

from roamcast.model.filters import CONJUNCTIONS_MAX, Filter, parse, scan, shapes
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.holds import holds
from tests.model.filters.test_cql2_examples import NURSE

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
EXAMPLES = [
    line
    for block in re.findall(r"```cql2\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_runs(text: str) -> None:
    said = Filter.parse(text)
    assert holds(said.normal, NURSE) is (evaluate(said.expression, NURSE) is True)
    assert Filter.parse(said.text) == said


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) > 35


@pytest.mark.parametrize(
    "limit",
    [
        scan.LENGTH_MAX,
        scan.PARENTHESES_DEPTH_MAX,
        scan.TERMS_MAX,
        parse.DEPTH_MAX,
        parse.PATTERN_LENGTH_MAX,
        shapes.VERTICES_MAX,
        CONJUNCTIONS_MAX,
    ],
)
def test_every_limit_is_on_the_page(limit: int) -> None:
    table = PAGE.split("## Limits")[1].split("##")[0]
    assert re.search(rf"\b{limit:,}\b", table)
