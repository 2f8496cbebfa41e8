"""Docs are run: what they name exists, what they show works."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from roamcast.cli import build
from tests.processes import roamcast

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


ROAMCAST: Any = typer.main.get_command(build())
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def commands_in(text: str) -> list[str]:
    """Give what a page says after `roamcast`, in its blocks and in its sentences, without texts."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^|[\s/(])roamcast ([a-z].*)", line) for line in lines]
    said = [one[1] for one in found if one] + re.findall(r"`roamcast ([a-z][^`]*)`", text)
    bare = [re.sub(r"\"[^\"]*\"|'[^']*'", "''", one) for one in said]
    return [re.split(r"[|>#&;)]| \d>", one)[0] for one in bare]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "decisions" not in p.parts], ids=lambda p: p.name
)
def test_every_command_that_a_page_names_exists_with_its_options(page: Path) -> None:
    wrong = []
    for said in commands_in(page.read_text(encoding="utf-8")):
        command = ROAMCAST
        for word in said.split():
            if not word[0].isalpha() or not hasattr(command, "commands"):
                break
            command = command.commands.get(word.strip(",.:"))
            if command is None:
                break
        if command is None:
            wrong.append(said)
            continue
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", said)
        wrong += [f"{said}: {name}" for name in options if name not in known | {"--help"}]
    assert wrong == []


def test_commands_are_found_where_pages_name_them() -> None:
    text = (
        'Ask `roamcast who --at X`.\n```\n5 * * * *  roamcast watch --where "a -- b" > seen\n```\n'
    )
    assert commands_in(text) == ["watch --where '' ", "who --at X"]


def test_decisions_are_numbered_once_and_have_a_status() -> None:
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [path.name[:4] for path in found]
    assert len(numbers) == len(set(numbers))
    for path in found:
        assert "**Status:**" in path.read_text(encoding="utf-8"), path.name


@pytest.mark.process
def test_the_readme_shows_what_match_answers() -> None:
    shown = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    binary = Path(sys.executable).with_name("roamcast")
    done = subprocess.run(
        [binary, "match", "examples/filters.jsonl", "examples/contexts.jsonl"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown == [done.stdout]


@pytest.mark.soak
@pytest.mark.process
def test_the_readmes_commands_answer_at_what_make_run_starts(tmp_path: Path) -> None:
    blocks = re.findall(r"^```\n(roamcast .*?)^```", README, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    names = [line.split()[1] for line in lines]
    assert names == ["tour", "who", "watch", "nearest", "cast", "inbox"]
    shown = dict(zip(names, ("6 of 6", "hall-sensor", "person", "printer-", "", ""), strict=True))
    demo = ("--demo", "--brokers", "3", "--people", "60", "--data", str(tmp_path / "roamcast-data"))
    with roamcast("serve", *demo, "--json") as child:
        child.answer()
        for name, line in zip(names, lines, strict=True):
            said = _typed(line, tmp_path)
            assert shown[name] in said, line
        for _ in range(60):
            said = _typed(lines[-1], tmp_path)
            if "The minutes are at ..." in said:
                break
            time.sleep(1)
    assert "The minutes are at ..." in said


def _typed(line: str, folder: Path) -> str:
    """Give what a line says that somebody types, with Enter wherever it waits."""
    done = subprocess.run(
        ["timeout", "--signal=INT", "120" if " tour" in line else "15", "bash", "-c", line],
        cwd=folder, input="\n" * 9, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
             "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 124, 130), (line, done)
    return done.stdout


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
        said = re.findall(r"print\(.*\)  # (.+)", block)
        assert capsys.readouterr().out.splitlines() == said
