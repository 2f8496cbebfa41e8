"""`roamcast pipeline ingest` and its sisters: wrong calls are one line, before Spark starts."""

from pathlib import Path
from secrets import token_bytes

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.cli import build
from roamcast.errors import InputError, MissingError, RoamcastError
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.state import SightingBatch, opened


def call(*words: str | int | Path) -> None:
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
        (("{in}/a.jsonl", "--archive-resolution", "14"), "from 0 to 13"),
        (("{in}/a.jsonl", "--trusted-node", "no name"), "not a domain name"),
        (("{in}", "--watch", "--spark", "sc://host"), "Spark Connect"),
        ((), "give sightings, or --replay-dead-letters"),
        (("{in}/a.jsonl", "--replay-dead-letters"), "give sightings, or --replay-dead-letters"),
        (("nats://127.0.0.1:1/s",), "ingested alone, by --watch"),
    ],
)
def test_a_wrong_call_is_one_clear_line(
    words: tuple[str, ...], problem: str, tmp_path: Path, archive: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("x")
    if "{in}" not in words:
        (folder / "a.jsonl").write_text("{}")
    with pytest.raises(InputError, match=problem):
        call(
            *("pipeline", "ingest"),
            *(word.replace("{in}", str(folder)) for word in words),
            *("--archive", archive),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing is left behind"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("{in}/a.jsonl", "--spark", "spark://127.0.0.1:1"), "no Spark at spark://127.0.0.1:1"),
        (("{in}/a.jsonl", "--spark", "sc://127.0.0.1:1"), "no Spark at sc://127.0.0.1:1"),
        (("nats://127.0.0.1:1/s", "--watch"), "does not answer"),
    ],
)
def test_a_server_that_does_not_answer_leaves_nothing_behind(
    words: tuple[str, ...], problem: str, tmp_path: Path, archive: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text("{}")
    told = [word.replace("{in}", str(folder)) for word in words]
    with pytest.raises(RoamcastError, match=problem):
        call("pipeline", "ingest", *told, "--archive", archive)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_cells_of_an_archive_that_is_there_stay_as_they_are(
    tmp_path: Path, archive: Path
) -> None:
    Archive.make(archive, ArchiveSettings(6, grid_s=0))
    (tmp_path / "a.jsonl").write_text("{}")
    words = (tmp_path / "a.jsonl", "--archive", archive, "--archive-resolution")
    with pytest.raises(InputError, match="cannot have cells of resolution 7"):
        call("pipeline", "ingest", *words, 7)
    assert not (tmp_path / "archive.private").exists()


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


def test_somebody_of_whom_there_are_only_dead_letters_is_forgotten_too(
    tmp_path: Path, archive: Path
) -> None:
    """Nobody is in the register; the folder of letters is made as a batch makes it."""
    with opened(tmp_path / "archive.private", archive, "localhost", token_bytes) as state:
        state.target(None).append([], (state.application, 1))
        state.begin()
        letters = state.batch_folder(1) / "rows" / "kind=dead"
        letters.mkdir(parents=True)
        table = {"person": pa.nulls(2, pa.string()), "raw": ['{"person": "ann', '{"person": "bob']}
        pq.write_table(pa.table(table), letters / "1.parquet")
        state.prepare(SightingBatch(number=1))
    call("pipeline", "vids", "ann", "--archive", archive, "--forget")
    (left,) = (tmp_path / "archive.private" / "dead_letters").rglob("*.parquet")
    assert pq.read_table(left, partitioning=None)["raw"].to_pylist() == ['{"person": "bob']
    with pytest.raises(InputError, match="no such person"):
        call("pipeline", "vids", "ann", "--archive", archive, "--forget")


@pytest.mark.parametrize("words", [("dead-letters",), ("vids", "ann")])
def test_without_a_trusted_node_there_is_nothing_to_ask(
    words: tuple[str, ...], archive: Path
) -> None:
    with pytest.raises(MissingError, match="ingest"):
        call("pipeline", *words, "--archive", archive)
    assert issubclass(MissingError, RoamcastError)
