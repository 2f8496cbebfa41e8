"""Examples are run: those of docs/client.md and of examples/, against a real service."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_service import RunningService

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("examples")
    with RunningService(folder, data=folder / "roamcast-data") as one:
        yield one


def run(program: list[str], running: RunningService) -> list[str]:
    """Run a program in the folder the service was started in, so that it finds its address."""
    done = subprocess.run(
        [sys.executable, *program],
        cwd=running.data.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_pages_programs_print_what_the_page_says(number: int, running: RunningService) -> None:
    said = re.findall(r"^# (.+)$", PROGRAMS[number], re.MULTILINE)
    assert run(["-c", PROGRAMS[number]], running) == said


def test_ada_is_seen_in_the_kitchen(running: RunningService) -> None:
    assert run([str(ROOT / "examples" / "presence.py")], running) == [
        "current ",
        "appeared {'type': 'person', 'name': 'Ada'}",
        "changed {'type': 'person', 'name': 'Ada', 'mood': 'hungry'}",
        "left {'type': 'person', 'name': 'Ada', 'mood': 'hungry'}",
    ]


def test_the_nearest_printer_is_found(running: RunningService) -> None:
    lines = run([str(ROOT / "examples" / "nearest_printer.py")], running)
    assert lines == [
        "50 m to the printer south",
        "325 m to the printer north",
        "3 printers on the map",
    ]
    assert sorted(running.vids("type = 'printer'")) == [
        "printer-gate",
        "printer-north",
        "printer-south",
    ]
