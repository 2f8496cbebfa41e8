"""`roamcast figure run --full`: passed on to figures that have larger sizes, refused by others."""

from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.errors import InputError
from roamcast.lab import registry
from roamcast.lab.report import Report


def ran(monkeypatch: pytest.MonkeyPatch, run: Any, *words: str) -> str:
    monkeypatch.setattr(registry, "figure", lambda _: SimpleNamespace(run=run))
    done = CliRunner().invoke(build(), ["figure", "run", "x", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_figure_with_larger_sizes_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(quick: bool, progress: object, *, full: bool = False) -> Report:
        return Report("x", {"quick": quick, "full": full}, [], [])

    assert '"full":true' in ran(monkeypatch, run, "--full", "--json")
    assert '"full":false' in ran(monkeypatch, run, "--json")


def test_a_figure_without_larger_sizes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(quick: bool, progress: object) -> Report:
        return Report("x", {"quick": quick}, [], [])

    with pytest.raises(InputError, match="without --full"):
        ran(monkeypatch, run, "--full")


@pytest.mark.parametrize("name", ["tcc-7a", "tcc-7b"])
def test_the_figures_of_casts_take_it(name: str) -> None:
    assert "full" in registry.figure(name).run.__kwdefaults__
