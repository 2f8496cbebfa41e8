"""What a person types about journals: wrong calls are one line, before Spark starts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.errors import InputError
from roamcast.pipeline.spark import session


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(settings: object) -> None:
        raise AssertionError(f"Spark was started with {settings}")

    monkeypatch.setattr(session, "start", start)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("metrics", "{in}"), "no journal segments"),
        (("metrics", "{in}/none"), "give a folder"),
        (("metrics", "{in}", "--out", "{in}/a.xls"), ".parquet, .csv, .jsonl"),
        (("plan", "{in}", "--out", "{in}/plan"), "no journal segments"),
        (("load", "{in}", "--archive", "{in}/a"), "no journal segments"),
        (("load", "{in}", "--archive", "{in}/a", "--batch", "b:1"), "leave --batch out"),
        (("load", "{in}/x.jsonl", "--archive", "{in}/a", "--finish"), "--finish is for journals"),
        (("sweep", "nothing"), "package.module:function"),
        (("sweep", "map", "--parameters", "a"), "a"),
    ],
)
def test_a_wrong_call_is_one_clear_line(
    words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    said = [word.replace("{in}", str(tmp_path)) for word in words]
    with pytest.raises(Exception, match=problem) as raised:
        build()(["pipeline", *said], standalone_mode=False)
    assert type(raised.value).__module__ == InputError.__module__


def test_a_small_load_needs_no_spark_and_is_quiet_without_a_terminal(tmp_path: Path) -> None:
    feature = {
        "type": "Feature",
        "id": "v1",
        "geometry": None,
        "properties": {"place": "lab", "t_r": "2026-01-01T00:00:00Z", "t_d": None},
    }
    (tmp_path / "contexts.jsonl").write_text(json.dumps(feature) + "\n")
    words = ["pipeline", "load", str(tmp_path / "contexts.jsonl"), "--archive", str(tmp_path / "a")]
    done = CliRunner().invoke(build(), words, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout == "1 contexts in 1 files\n"
    assert done.stderr == ""
