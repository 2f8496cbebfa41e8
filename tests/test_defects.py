"""The list of planted defects names each of them, and the test that finds it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "defects.md"
FILES = sorted(
    file
    for file in (ROOT / "tests").rglob("test_*.py")
    if "from tests.planting import" in file.read_text()
)
ROW = re.compile(r"^\| (.+) \| `(tests/\S+\.py)::(\w+)` \|$", re.MULTILINE)
SURVIVORS = 20


def planted(file: Path) -> set[tuple[str, str]]:
    """(defect, test) of a file: the names that a test is given, or the test's own name."""
    tree = ast.parse(file.read_text())
    names: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            names[ast.unparse(target)] = [str(key) for key in keys]
    found = set()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        marks = [one for one in node.decorator_list if isinstance(one, ast.Call)]
        given = [one.args[1] for one in marks if len(one.args) > 1]
        parts = [one.generators[0].iter if isinstance(one, ast.ListComp) else one for one in given]
        tables = [name for name in map(ast.unparse, parts) if name in names]
        for table in tables:
            found |= {(name, node.name) for name in names[table]}
        own = re.fullmatch(r"test_(.+?)_(?:is|are)_(?:found|told)", node.name)
        if own and not tables:
            found.add((own[1].replace("_", " "), node.name))
    return found


def listed() -> set[tuple[str, str, str]]:
    return {(defect, file, test) for defect, file, test in ROW.findall(PAGE.read_text())}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_planted_defect_is_listed_with_the_test_that_finds_it(file: Path) -> None:
    path = str(file.relative_to(ROOT))
    there = {(defect, test) for defect, where, test in listed() if where == path}
    assert planted(file) - there == set()


@pytest.mark.parametrize("file", sorted({file for _, file, _ in listed()}))
def test_every_listed_defect_is_planted(file: str) -> None:
    there = {(defect, test) for defect, where, test in listed() if where == file}
    assert there - planted(ROOT / file) == set()


def test_the_survivors_of_the_audit_and_as_many_others_are_listed() -> None:
    audit, _, others = PAGE.read_text().partition("## Others")
    assert len(ROW.findall(audit)) >= SURVIVORS
    assert len(ROW.findall(others)) >= SURVIVORS
