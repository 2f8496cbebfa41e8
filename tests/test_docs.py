"""Docs are run: what they name exists, what they show works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = {"AMS": 20, "CBM": 8, "TCC": 10, "JIT": 6, "OO": 7}
PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def rows(paper: str) -> list[list[str]]:
    section = PAPERS.split(f"## {paper} — ")[1].split("\n## ")[0]
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in section.splitlines()]
    return [row for row in cells if row and row[0].isdigit()]


@pytest.mark.parametrize("paper", PARTS)
def test_every_part_of_every_paper_has_its_row(paper: str) -> None:
    assert [int(row[0]) for row in rows(paper)] == list(range(1, PARTS[paper] + 1))


@pytest.mark.parametrize("paper", PARTS)
def test_modules_tests_and_figures_of_the_papers_exist(paper: str) -> None:
    from roamcast.lab.registry import figure_names

    figures = figure_names()
    for _, _, module, test, figure in rows(paper):
        for named in re.findall(r"`([^`]+)`", module):
            assert (ROOT / "src" / "roamcast" / named).exists(), named
        for named in re.findall(r"`([^`]+)`", test):
            path = ROOT / named
            assert path.is_file() or any(path.rglob("test_*.py")), named
        for named in re.findall(r"`([^`]+)`", figure):
            assert named in figures
        assert bool(module) == bool(test), "what is built is tested"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_decisions_are_numbered_once_and_have_a_status() -> None:
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [path.name[:4] for path in found]
    assert len(numbers) == len(set(numbers))
    for path in found:
        assert "**Status:**" in path.read_text(encoding="utf-8"), path.name


@pytest.mark.process
def test_the_readme_shows_what_match_answers() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    binary = Path(sys.executable).with_name("roamcast")
    done = subprocess.run(
        [binary, "match", "examples/filters.jsonl", "examples/contexts.jsonl"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown == [done.stdout]


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
        said = re.findall(r"print\(.*\)  # (.+)", block)
        assert capsys.readouterr().out.splitlines() == said
