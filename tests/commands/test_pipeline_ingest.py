"""`roamcast pipeline ingest` and its sisters: wrong calls are one line, before Spark starts."""

from pathlib import Path

import pytest

from roamcast.cli import build
from roamcast.errors import InputError, MissingError, RoamcastError


def call(*words: str | Path) -> None:
    build()([str(word) for word in words], standalone_mode=False)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("{in}/missing",), "no such file"),
        (("{in}",), "no sightings there"),
        (("{in}/a.txt",), "say --format"),
        (("{in}/a.txt", "--format", "xml"), "no format"),
        (("{in}/a.txt", "--column", "person"), "not FIELD=VALUE"),
        (("{in}/a.txt", "--column", "name=uid"), "no field of a sighting"),
        (("{in}/a.txt", "--zone", "UTC"), "no zone"),
        (("{in}/a.txt", "--heartbeat-s", "0"), "heartbeat_s"),
        (("{in}/a.txt", "--late-s", "-1"), "late_s"),
        (("{in}/a.txt", "--places", "{in}/none.geojson"), "cannot read places"),
        (("{in}/a.txt", "--watch"), "--watch takes one folder"),
    ],
)
def test_a_wrong_call_is_one_clear_line(
    words: tuple[str, ...], problem: str, tmp_path: Path, archive: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("x")
    with pytest.raises(InputError, match=problem):
        call(
            *("pipeline", "ingest"),
            *(word.replace("{in}", str(folder)) for word in words),
            *("--archive", archive),
        )


def test_a_private_folder_that_others_may_look_into_is_refused(
    tmp_path: Path, archive: Path
) -> None:
    (tmp_path / "archive.private").mkdir(mode=0o755)
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(InputError, match="chmod 700"):
        call("pipeline", "ingest", tmp_path / "a.jsonl", "--archive", archive)


def test_an_archive_in_an_object_store_needs_a_private_folder_here(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(InputError, match="--private"):
        call("pipeline", "ingest", tmp_path / "a.jsonl", "--archive", "s3://bucket/archive")


@pytest.mark.parametrize("words", [("dead-letters",), ("vids", "ann")])
def test_without_a_trusted_node_there_is_nothing_to_ask(
    words: tuple[str, ...], archive: Path
) -> None:
    with pytest.raises(MissingError, match="ingest"):
        call("pipeline", *words, "--archive", archive)
    assert issubclass(MissingError, RoamcastError)
