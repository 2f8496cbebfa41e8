"""Compiled code goes when any module of its folder changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from roamcast.model.kernels import STAMP, forget_stale

pytestmark = pytest.mark.process

INNER = "from numba import njit\n\n@njit(cache=True)\ndef inner(x):\n    return x + {}\n"
OUTER = (
    "from roamcast.model.kernels import forget_stale\nforget_stale(__file__)\n"
    "from numba import njit\nfrom inner import inner\n\n"
    "@njit(cache=True)\ndef outer(x):\n    return inner(x)\n\nprint(outer(1))\n"
)


def run(folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "outer.py"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_changed_module_is_seen_by_those_compiled_with_it(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(INNER.format(1))
    (tmp_path / "outer.py").write_text(OUTER)
    assert run(tmp_path) == "2"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "__pycache__").glob("outer*.nbi")}
    assert kept
    assert run(tmp_path) == "2"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "nothing was compiled again"
    (tmp_path / "inner.py").write_text(INNER.format(5))
    assert run(tmp_path) == "6"


def test_a_folder_without_anything_compiled_only_gets_its_stamp(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("")
    forget_stale(str(tmp_path / "module.py"))
    assert [path.name for path in (tmp_path / "__pycache__").iterdir()] == [STAMP]


def test_a_folder_that_is_not_there_is_left_alone(tmp_path: Path) -> None:
    forget_stale(str(tmp_path / "gone" / "module.py"))
    assert not (tmp_path / "gone").exists()
