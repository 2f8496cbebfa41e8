"""Every survivor that docs/mutants.md explains is read by the tool, and its line is still there."""

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "mutants.md").read_text()


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("mutate_tool", ROOT / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    try:
        spec.loader.exec_module(made)
        yield made
    finally:
        del sys.modules[spec.name]


def test_the_tool_reads_every_entry(tool: Any) -> None:
    listed = Counter(re.findall(r"^### (\S+)$", PAGE, flags=re.MULTILINE))
    read = Counter(file for file, _, _ in tool.harmless())
    assert listed.keys() == read.keys()
    assert PAGE.count("```diff\n") == read.total(), "a block is not closed, or stands twice"
    assert PAGE.count("```") == 2 * read.total()


def test_every_entry_is_about_lines_that_are_there(tool: Any) -> None:
    for file, before, after in tool.harmless():
        lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
        wanted = before.splitlines()
        there = any(
            lines[at : at + len(wanted)] == wanted for at in range(len(lines) - len(wanted) + 1)
        )
        assert there, f"{file} has no longer: {before}"
        assert before != after
