"""Every recipe of docs/cookbook.md finds what the page says."""

import re
from pathlib import Path

import pytest

from roamcast.matching import FilterSet
from roamcast.model.contexts import decode
from roamcast.model.filters import Filter

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cookbook.md").read_text("utf-8")
RECIPES = re.findall(
    r"^## \d+\. (.+?)\n\n```cql2\n(.+?)\n```\n\nFinds (.+?)\. ", PAGE, re.DOTALL | re.MULTILINE
)
CONTEXTS = [
    decode(line) for line in (ROOT / "examples" / "cookbook.jsonl").read_text("utf-8").splitlines()
]


def test_there_are_twenty() -> None:
    assert len(RECIPES) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 20


@pytest.mark.parametrize(("question", "text", "found"), RECIPES, ids=[one[0] for one in RECIPES])
def test_it_finds_what_the_page_says(question: str, text: str, found: str) -> None:
    wanted = Filter.parse(text)
    shown = re.findall(r"`([^`]+)`", found)
    assert shown == [context.vid for context in CONTEXTS if wanted.matches(context)], question
    standing = FilterSet()
    standing.add("recipe", wanted)
    assert shown == [context.vid for context in CONTEXTS if standing.match(context)]
