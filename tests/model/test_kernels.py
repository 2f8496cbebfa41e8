"""Compiled code goes when any module of its folder changes; there is one way to compile."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roamcast.model import kernels
from roamcast.model.kernels import (
    FOLDERS,
    STAMP,
    count_bits,
    forget_stale,
    kernel,
    lowest_bit,
)

pytestmark = pytest.mark.process

INNER = "from roamcast.model.kernels import kernel\n\n@kernel\ndef inner(x):\n    return x + {}\n"
OUTER = (
    "from roamcast.model.kernels import kernel\nfrom inner import inner\n\n"
    "@kernel\ndef outer(x):\n    return inner(x)\n\nprint(outer(1))\n"
)


def run(folder: Path, **settings: str) -> str:
    return subprocess.run(
        [sys.executable, "outer.py"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
    ).stdout.strip()


@pytest.mark.parametrize("setting", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_changed_module_is_seen_wherever_numba_keeps_its_cache(
    tmp_path: Path, setting: str
) -> None:
    """NUMBA_CACHE_DIR, and the user's cache, which Numba takes when the source is read-only."""
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    source.mkdir()
    if setting == "XDG_CACHE_HOME":  # root may write to a read-only folder, but not into a file
        (source / "__pycache__").write_text("")
    (source / "inner.py").write_text(INNER.format(1))
    (source / "outer.py").write_text(OUTER)
    places = {setting: str(elsewhere), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(source, **places) == "2"
    kept = {path: path.stat().st_mtime_ns for path in elsewhere.rglob("outer*.nbi")}
    assert kept, "Numba cached it elsewhere"
    assert not (source / "__pycache__").is_dir()
    assert run(source, **places) == "2"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "nothing was compiled again"
    (source / "inner.py").write_text(INNER.format(5))
    assert run(source, **places) == "6"


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
    forget_stale(tmp_path, tmp_path / "__pycache__")
    assert [path.name for path in (tmp_path / "__pycache__").iterdir()] == [STAMP]


def test_a_folder_that_is_not_there_is_left_alone(tmp_path: Path) -> None:
    forget_stale(tmp_path / "gone", tmp_path / "gone" / "__pycache__")
    assert not (tmp_path / "gone").exists()


@kernel
def _bits(words: Any) -> Any:
    total = np.uint64(0)
    lowest = 0
    for word in words:
        total += count_bits(word)
        lowest += lowest_bit(word)
    return total, lowest


def test_bits_are_counted_without_turning_into_floats() -> None:
    words = np.array([0, 1, 6, 2**64 - 1], np.uint64)
    total, lowest = _bits(words)
    assert (total, lowest) == (0 + 1 + 2 + 64, 64 + 0 + 1 + 0)
    assert isinstance(total, int)


def test_a_change_beside_any_kernel_makes_all_of_them_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code of two times of compiling crashed a service that loaded both."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text("")
    monkeypatch.setattr(kernels, "FOLDERS", (str(tmp_path / "one"), str(tmp_path / "other")))
    place, compiled = tmp_path / "one" / "__pycache__", tmp_path / "one" / "__pycache__" / "f.nbi"
    for source in ("", "x = 1"):
        (tmp_path / "other" / "module.py").write_text(source)
        kernels._digest_of_all.cache_clear()
        forget_stale(tmp_path / "one", place)
        assert not compiled.exists()
        compiled.write_text("")
        forget_stale(tmp_path / "one", place)
        assert compiled.exists(), "nothing has changed"
    kernels._digest_of_all.cache_clear()


def test_every_folder_with_kernels_is_named() -> None:
    package = Path(__file__).parents[2] / "src" / "roamcast"
    using = (path for path in package.rglob("*.py") if "model.kernels import" in path.read_text())
    assert {path.parent.relative_to(package).as_posix() for path in using} == {*FOLDERS}


def test_nothing_is_compiled_any_other_way() -> None:
    package = Path(__file__).parents[2] / "src" / "roamcast"
    other = re.compile(r"^\s*(from numba\b.*\bnjit\b|import numba)|@(numba\.)?njit", re.MULTILINE)
    sources = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    assert [str(name) for name, text in sources.items() if other.search(text)] == [
        "model/kernels.py"
    ]
