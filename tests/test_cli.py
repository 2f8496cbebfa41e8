"""The command line: one line for an error, help when nothing is asked, quiet when cut off."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from roamcast import __version__
from roamcast.cli import PANELS, build

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
ROAMCAST = Path(sys.executable).with_name("roamcast")


def build_command() -> object:
    return typer.main.get_command(build())


def roamcast(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROAMCAST, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_version() -> None:
    assert roamcast("--version").stdout == f"roamcast {__version__}\n"


def test_help_lists_every_command_in_a_group() -> None:
    commands = build_command().commands  # type: ignore[attr-defined]
    panels = {name: command.rich_help_panel for name, command in commands.items()}
    assert set(panels.values()) == set(PANELS)
    shown = roamcast("--help").stdout
    places = [shown.index(f"\n{panel}:\n") for panel in PANELS]
    assert places == sorted(places)
    for name in commands:
        assert f"\n  {name}" in shown


@pytest.mark.parametrize("words", [[], ["figure"], ["bench"]])
def test_nothing_asked_is_answered_with_help(words: list[str]) -> None:
    done = roamcast(*words)
    assert done.returncode == 0
    assert "Usage: roamcast" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["match"],
        ["match", "a"],
        ["match", "a", "b", "--nonsense"],
        ["match", "/does/not/exist", "/nor/this"],
        ["figure", "run", "nope"],
        ["bench", "run", "nope"],
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(words: list[str]) -> None:
    done = roamcast(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("roamcast: ")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    filters = tmp_path / "filters.jsonl"
    filters.write_text("".join(f'{{"id":"f{i}","filter":"true"}}\n' for i in range(5000)))
    lines = (ROOT / "examples" / "contexts.jsonl").read_text() * 10
    (tmp_path / "contexts.jsonl").write_text(lines)
    done = subprocess.run(
        f"{ROAMCAST} match {filters} {tmp_path / 'contexts.jsonl'} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_the_example_runs_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "deep" / "day.png"
    done = roamcast("example", "--json", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    assert '"held":true' in done.stdout
    assert picture.stat().st_size > 10_000
