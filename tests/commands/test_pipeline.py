"""What a person types: load, lookup, compact, vacuum, retain, erase."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.errors import InputError, MissingError
from roamcast.model.context_arrow import from_arrow
from roamcast.pipeline.spark import progress
from tests.strategies_pipeline import contexts, expected, lines, messages

COUNT = 60


def run(*arguments: object, stdin: str | None = None) -> str:
    found = CliRunner().invoke(
        build(), ["pipeline", *map(str, arguments)], catch_exceptions=False, input=stdin
    )
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table, asked = contexts(51, COUNT, days=2), messages(52, 22)
    (tmp_path / "contexts.jsonl").write_bytes(lines(from_arrow(table)))
    records = [{"id": name, "filter": one.source} for name, one in asked.items()]
    (tmp_path / "messages.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    loaded = run(
        "load", tmp_path / "contexts.jsonl", "--archive", tmp_path / "a", "--resolution", 1,
        "--batch", "nightly:1", "--json",
    )  # fmt: skip
    assert json.loads(loaded)["rows"] == COUNT
    return tmp_path


def answers(folder: Path, *more: object) -> list[dict[str, object]]:
    out = run("lookup", folder / "messages.jsonl", "--archive", folder / "a", *more)
    return [json.loads(line) for line in out.splitlines()]


def test_what_was_loaded_is_looked_up_as_by_the_reference(folder: Path) -> None:
    want = expected(contexts(51, COUNT, days=2), messages(52, 22))
    assert answers(folder) == [{"id": name, "vids": vids} for name, vids in want.items()]
    divided = answers(folder, "--by-node")
    assert sum(len(line["vids"]) for line in divided) == sum(map(len, want.values()))
    assert {line["node"] for line in divided} <= {f"node{n}.example" for n in range(3)}


def test_a_batch_loads_once(folder: Path) -> None:
    again = run(
        "load", folder / "contexts.jsonl", "--archive", folder / "a", "--batch", "nightly:1"
    )
    assert again == "this batch was loaded before\n"


def test_upkeep_changes_no_answer(folder: Path) -> None:
    before = answers(folder)
    run("load", folder / "contexts.jsonl", "--archive", folder / "a")
    done = json.loads(run("compact", "--archive", folder / "a", "--json"))
    assert done["files_replaced"] > done["files_written"] > 0
    listed = json.loads(
        run("vacuum", "--archive", folder / "a", "--hours", 0, "--dry-run", "--json")
    )
    assert len(listed["files"]) == done["files_replaced"]
    assert "deleted" in run("vacuum", "--archive", folder / "a", "--hours", 0)
    assert answers(folder) == before


def test_erased_vids_are_gone(folder: Path) -> None:
    gone = contexts(51, COUNT, days=2)["vid"].to_pylist()[:30]
    done = json.loads(run("erase", "-", "--archive", folder / "a", "--json", stdin="\n".join(gone)))
    assert (done["rows_erased"], done["files_left"]) == (30, 0)
    assert not {vid for line in answers(folder) for vid in line["vids"]} & set(gone)


def test_old_contexts_are_dropped(folder: Path) -> None:
    run("retain", "--archive", folder / "a", "--drop-days", 0, "--now", "2100-01-01T00:00:00Z")
    lasting = {c.vid for c in from_arrow(contexts(51, COUNT, days=2)) if c.t_d is None}
    assert {vid for line in answers(folder) for vid in line["vids"]} <= lasting


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["retain"], "give --reduce-days"),
        (["load", "contexts.jsonl", "--batch", "nightly"], "not NAME:NUMBER"),
        (["lookup", "messages.jsonl", "--on", "mars"], "--on is auto, driver or spark"),
        (["lookup", "messages.jsonl", "--watch"], "--watch needs --out"),
    ],
)
def test_a_wrong_call_is_told(arguments: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        run(*arguments, "--archive", tmp_path / "a")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for command in ("load", "lookup", "erase"):
        with pytest.raises(MissingError, match=r"nothing\.jsonl"):
            run(command, tmp_path / "nothing.jsonl", "--archive", tmp_path / "a")


@pytest.mark.parametrize("quiet", [False, True])
def test_retain_and_erase_show_how_far_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    seen: list[tuple[str, float]] = []

    @contextmanager
    def displayed(what: str) -> Iterator[Any]:
        yield lambda share, **_: seen.append((what, share))

    def shown(what: str, *, json: bool, quiet: bool) -> progress.Bar:
        return progress.Bar(what, show=not json and not quiet)

    monkeypatch.setattr(progress, "_displayed", displayed)
    monkeypatch.setattr("roamcast.commands.pipeline.bar", shown)
    more = ["--archive", folder / "a", *(["--quiet"] if quiet else [])]
    run("retain", "--drop-days", 1, "--now", "2030-01-01T00:00:00Z", *more)
    run("erase", "-", *more, stdin="nobody\n")
    if quiet:
        assert seen == []
        return
    assert {what for what, share in seen if share == 0.0} == {"retain", "erase"}
    assert [share for what, share in seen if what == "erase"].count(1.0) == 1
    assert ("retain", 1.0) in seen
