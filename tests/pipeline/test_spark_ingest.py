"""Ingest on real Spark: real traces, a killed driver, all formats, and all bad input."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import InputError
from roamcast.identity.agent_settings import AgentSettings
from roamcast.identity.sightings import decode
from roamcast.model.buildings import building
from roamcast.model.contexts import Context
from roamcast.model.places import Places
from roamcast.model.places_geojson import write_places
from roamcast.pipeline.archive.care import Workers
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.retention import erase
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.dead_letters import counted, dead_letters
from roamcast.pipeline.ingest.files import Reading
from roamcast.pipeline.ingest.forgetting import forget_departed
from roamcast.pipeline.ingest.run import IngestSettings, SightingBatch, ingest_once
from roamcast.pipeline.ingest.state import BusyError, IngestState, opened, private_folder
from roamcast.pipeline.ingest.trusted import forget_person, people_behind, vids_of_person
from roamcast.pipeline.ingest.watch import ingest_watch, wait

pytestmark = pytest.mark.spark

GEOLIFE = Path(__file__).parents[3] / "shared" / "data" / "geolife_sample.txt.gz"
GEOLIFE_READING = Reading(
    format="csv",
    columns={"person": "uid", "time": "datetime", "lon": "lng", "lat": "lat"},
    constants={"source": "gps"},
    zone="+00:00",
)
NOW = 1_800_000_000_000_000  # 2027-01-15
YEARS_S = 10 * 365 * 86_400.0


def clock() -> int:
    return NOW


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


def open_state(tmp_path: Path, name: str = "archive") -> Any:
    archive = tmp_path / name
    return opened(private_folder(archive), archive, "trusted.example.org", os.urandom)


def once(spark: Any, tmp_path: Path, *paths: Path, **chosen: Any) -> SightingBatch:
    finish = chosen.pop("finish", True)
    with open_state(tmp_path) as state:
        return ingest_once(spark, state, paths, IngestSettings(**chosen), clock, finish=finish)


def table_of(archive: Path) -> pa.Table:
    opened_archive = Archive.open(archive)
    paths = sorted(opened_archive.files()["path"].to_pylist())
    parts = [read_file(opened_archive.storage, path) for path in paths]
    return pa.concat_tables(parts, promote_options="default")


def people_and_contexts(state: IngestState) -> list[tuple[Any, ...]]:
    """Everything in the archive, with the person in the place of the vid, in order."""
    table = table_of(Path(state.archive))
    assert len(set(table["vid"].to_pylist())) == table.num_rows, "every context has its own vid"
    table = table.set_column(0, "vid", people_behind(state, table["vid"].combine_chunks()))
    assert table["vid"].null_count == 0
    names = sorted(table.schema.names)
    rows = table.select(names).to_pylist()
    return sorted(tuple((name, repr(row[name])) for name in names) for row in rows)


def line(person: str = "ann", at: str = "2026-01-01T00:00:00Z", **more: Any) -> str:
    row = {"person": person, "source": "badge", "time": at, "place": "a/1"} | more
    return json.dumps({name: value for name, value in row.items() if value is not None})


def traces() -> tuple[str, list[str]]:
    """Read the header of the real traces and their rows."""
    with gzip.open(GEOLIFE, "rt") as file:
        header = next(file)
        rows = file.readlines()
    assert len(rows) == 217_653
    return header, rows


def time_present(rows: list[str], heartbeat_s: float) -> int:
    """Add up seconds between points that are close enough, in plain Python."""
    seen: dict[str, list[float]] = {}
    for row in rows:
        _, _, moment, person = row.strip().split(",")
        stamp = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        seen.setdefault(person, []).append(stamp.timestamp())
    total = 0.0
    for times in seen.values():
        times.sort()
        gaps = (b - a for a, b in pairwise(times))
        total += sum(gap for gap in gaps if gap <= heartbeat_s)
    return round(total)


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.skipif(not GEOLIFE.exists(), reason="the GeoLife sample is not on this machine")
def test_real_traces_once_equal_the_same_rows_streamed_through_a_killed_driver(
    spark: Any, tmp_path: Path, folder: Path, share: int
) -> None:
    """An eighth of the traces, or all: in one file, and as 50 files of shuffled rows."""
    settings = IngestSettings(reading=GEOLIFE_READING, late_s=YEARS_S)
    header, rows = traces()
    rows = rows[: len(rows) // share]
    whole, parts = tmp_path / "whole.csv", folder
    whole.write_text(header + "".join(rows))
    shuffled = random.Random(5).sample(rows, len(rows))
    for number in range(50):
        text = header + "".join(shuffled[number::50])
        (parts / f"part-{number:02d}.csv").write_text(text)
    present_s = time_present(rows, AgentSettings().heartbeat_s)
    with open_state(tmp_path, "batch") as state:
        batch = ingest_once(spark, state, [whole], settings, clock)
        in_one_go = people_and_contexts(state)
        assert counted(state) == {}
    assert batch.counts["sightings"] == len(rows)
    assert batch.counts["contexts"] == len(in_one_go) > 1_000 // share
    assert batch.counts["malformed"] == batch.counts["late"] == 0
    table = table_of(tmp_path / "batch")
    lasted = [
        d - r
        for r, d in zip(
            table["t_r"].cast(pa.int64()).to_pylist(),
            table["t_d"].cast(pa.int64()).to_pylist(),
            strict=True,
        )
    ]
    assert sum(lasted) == present_s * 1_000_000

    kill_after_a_batch(parts, tmp_path / "stream")
    with open_state(tmp_path, "stream") as state:
        assert 1 <= state.last.number < 3, "the driver died in the middle"
        with ingest_watch(
            spark, state, parts, settings, clock, files_a_batch=17, until_idle=True
        ) as query:
            wait(query)
        ingest_once(spark, state, [parts], settings, clock)  # nothing new: only closes
        assert people_and_contexts(state) == in_one_go
        assert counted(state) == {}


def kill_after_a_batch(parts: Path, archive: Path) -> None:
    """Watch from another process, and kill it in the middle of its second batch."""
    command = [
        *(str(Path(sys.executable).with_name("roamcast")), "pipeline", "ingest", str(parts)),
        *("--archive", str(archive), "--grid-s", "0"),
        *("--watch", "--files-a-batch", "17", "--json"),
        *("--format", "csv", "--column", "person=uid", "--column", "time=datetime"),
        *("--column", "lon=lng", "--constant", "source=gps", "--zone", "+00:00"),
        *("--late-s", str(YEARS_S), "--spark", "local[2]"),
        *("--trusted-node", "trusted.example.org"),
    ]
    # In a group of its own: Spark's Java process must die with its driver, as on a lost machine.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "ROAMCAST_SPARK_MEMORY": "1g"},
    )
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["batch"] == 1
        time.sleep(1)  # into the second batch, wherever it is by then
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


BAD_LINES = [
    "{",
    "[1]",
    "nonsense",
    line() + line(),
    line(person=None),
    line(person=""),
    line(person="x" * 257),
    line(person={"a": 1}),
    line(source="smell"),
    line(source=None),
    line(at="yesterday"),
    line(at="2026-01-01T00:00:00"),
    line(at="2026-02-30T00:00:00Z"),
    line(place="a//b"),
    line(place="/".join("a" * 33)),
    line(place=None),
    line(place=None, lon=1.0),
    line(place=None, lon="x", lat=1.0),
    line(place=None, lon=500.0, lat=1.0),
    line(attributes=5),
    line(attributes={"x": [1]}),
    line(attributes={"vid": "me"}),
]


def test_every_malformed_line_is_a_dead_letter_with_reason_file_and_nothing_is_lost(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    for text in BAD_LINES:
        with pytest.raises(InputError):
            decode(text)
    future = line(at="2099-01-01T00:00:00Z")
    deepest = line(place="/".join("a" * 32))
    good = ["", line(), line(), deepest]
    (folder / "a b é.jsonl").write_text("\n".join([*BAD_LINES, future, *good]) + "\n")
    batch = once(spark, tmp_path, folder)
    assert batch.counts["malformed"] == len(BAD_LINES) + 1
    assert batch.counts["sightings"] == len(BAD_LINES) + 4
    assert (batch.counts["repeated"], batch.counts["contexts"]) == (1, 1)
    with open_state(tmp_path) as state:
        letters = dead_letters(state).to_pylist()
        assert len(letters) == sum(counted(state).values()) == len(BAD_LINES) + 1
    assert {letter["file"] for letter in letters} == {str(folder / "a b é.jsonl")}
    assert "time lies in the future" in {letter["reason"] for letter in letters}
    assert all(letter["reason"] for letter in letters)
    texts = {letter["raw"] for letter in letters if letter["raw"]}
    assert texts <= {*BAD_LINES, future}
    assert len(texts) >= len(BAD_LINES) - 2, "two are found out later, and keep their fields"


def test_json_csv_and_parquet_say_the_same(spark: Any, tmp_path: Path, folder: Path) -> None:
    at = "2026-01-01T00:0{}:00Z"
    (folder / "1.jsonl").write_text(line(at=at.format(0), attributes={"role": "guest"}) + "\n")
    (folder / "2.csv").write_text(
        "time,person,source,place,attributes\n"
        + at.format(1) + ',ann,badge,a/1,"{""role"":""guest""}"\n'
    )  # fmt: skip
    when = datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    pq.write_table(
        pa.table(
            {
                "person": ["ann"],
                "source": ["badge"],
                "time": pa.array([when], pa.timestamp("us", "UTC")),
                "place": ["a/1"],
                "attributes": [{"role": "guest"}],
            }
        ),
        folder / "3.parquet",
    )
    batch = once(spark, tmp_path, folder)
    assert batch.counts["malformed"] == 0
    (row,) = table_of(tmp_path / "archive").to_pylist()
    assert (row["place"], row["string:role"]) == ("a/1", "guest")
    assert (row["t_d"] - row["t_r"]).total_seconds() == 120
    again = once(spark, tmp_path, folder)
    assert again.counts["sightings"] == 0, "files that were ingested are not ingested again"


def test_points_become_places_and_days_in_two_batches_one_context(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    places = Places(building("b35", 1))
    room = places.of_kind("office")[0]
    lon, lat = places.centre(room) or (0.0, 0.0)
    (tmp_path / "places.geojson").write_bytes(write_places(places))
    chosen = {"places": str(tmp_path / "places.geojson")}
    at = "2026-01-01T00:0{}:00Z"
    (folder / "1.jsonl").write_text(line(at=at.format(0), place=None, lon=lon, lat=lat))
    first = once(spark, tmp_path, folder, finish=False, **chosen)
    assert (first.counts["contexts"], first.counts["pending"]) == (0, 1)
    (folder / "2.jsonl").write_text(line(at=at.format(3), place=room))
    once(spark, tmp_path, folder, **chosen)
    (row,) = table_of(tmp_path / "archive").to_pylist()
    assert row["place"] == places.deepest((lon, lat))
    assert (row["lon"], row["lat"]) == (lon, lat)
    assert (row["t_d"] - row["t_r"]).total_seconds() == 180


def test_a_person_can_be_found_erased_and_forgotten(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    lines = [
        line(person=person, at=f"2026-01-0{day}T00:00:00Z")
        for person in ("ann", "bob")
        for day in (1, 2, 3)
    ]
    (folder / "1.jsonl").write_text("\n".join(lines))
    once(spark, tmp_path, folder)
    with open_state(tmp_path) as state:
        vids = vids_of_person(state, "ann")
        assert len(vids) == 3
        erase(tmp_path / "archive", vids)
        forget_person(state, "ann")
        left = table_of(tmp_path / "archive")["vid"].to_pylist()
        assert len(left) == 3
        assert not set(left) & set(vids)
        assert people_behind(state, pa.array(vids, pa.string())).null_count == 3
        with pytest.raises(InputError, match="no such person"):
            vids_of_person(state, "ann")
    text = b"".join(p.read_bytes() for p in (tmp_path / "archive").rglob("*") if p.is_file())
    assert b"bob" not in text, "the archive never holds a person's id"


class Gone:
    """A trusted node from which some vids' people were erased."""

    def __init__(self, vids: list[str]) -> None:
        self.vids = set(vids)

    def erase(self, person: str) -> int:
        raise AssertionError(person)

    def departed(self, vids: Iterable[str]) -> list[str]:
        return sorted(self.vids & set(vids))


def test_vids_are_read_and_files_deleted_by_workers_if_asked(
    spark: Any, command: Callable[..., str], tmp_path: Path, folder: Path
) -> None:
    lines = [
        line(person=person, at=f"2026-01-0{day}T00:00:00Z")
        for person in ("ann", "bob")
        for day in (1, 2, 3)
    ]
    (folder / "1.jsonl").write_text("\n".join(lines))
    once(spark, tmp_path, folder)
    archive = tmp_path / "archive"
    words = ("pipeline", "vids", "ann", "--archive", archive)
    vids = command(*words, "--on", "spark").splitlines()
    assert vids == command(*words, "--on", "driver").splitlines()
    assert len(vids) == 3
    report = forget_departed(archive, Gone(vids), spark=Workers(spark, 0))
    assert (report.private_rows, report.archive.rows_erased) == (1, 3)
    there = next(archive.rglob("*.parquet"))
    orphan = there.with_name("nobody-names-it.parquet")
    orphan.write_bytes(there.read_bytes())
    about = ("pipeline", "vacuum", "--archive", archive, "--hours", "0", "--json")
    listed = msgspec.json.decode(command(*about, "--dry-run"))["files"]
    assert str(orphan.relative_to(archive)) in listed
    assert msgspec.json.decode(command(*about, "--on", "spark"))["files"] == listed
    assert not orphan.exists()
    assert len(table_of(archive)) == 3


def _corrupt(folder: Path) -> None:
    (folder / "x.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")


def _missing(folder: Path) -> None:
    (folder / "x.csv").write_text("person,source,place\nann,badge,a\n")


def _wrong_type(folder: Path) -> None:
    table = pa.table({"person": ["a"], "source": ["gps"], "time": [1.5], "place": ["a"]})
    pq.write_table(table, folder / "x.parquet")


def _nothing(folder: Path) -> None:
    (folder / ".hidden.jsonl").write_text("x")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_corrupt, "not a readable Parquet file"),
        (_missing, "'time' is missing"),
        (_wrong_type, "'time' cannot be of type double"),
        (_nothing, "no sightings there"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error_and_nothing_changes(
    spark: Any, tmp_path: Path, folder: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=problem):
        once(spark, tmp_path, folder)
    with open_state(tmp_path) as state:
        assert state.last.number == 0
    assert not (tmp_path / "archive").exists()


def test_in_a_watch_a_file_that_cannot_be_read_is_a_dead_letter_and_the_rest_goes_on(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    _corrupt(folder)
    (folder / "y.jsonl").write_text(line() + "\n")
    with (
        open_state(tmp_path) as state,
        ingest_watch(spark, state, folder, IngestSettings(), clock, until_idle=True) as query,
    ):
        wait(query)
        (letter,) = dead_letters(state).to_pylist()
        assert letter["file"] == str(folder / "x.parquet")
        assert "not a readable Parquet file" in letter["reason"]
        assert state.last.counts["sightings"] == 2


def test_a_second_ingest_at_once_is_refused_and_the_first_lands(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    (folder / "1.jsonl").write_text(line())
    with open_state(tmp_path) as state:
        with pytest.raises(BusyError, match="another ingest holds"), open_state(tmp_path):
            pass
        ingest_once(spark, state, [folder], IngestSettings(), clock)
    assert table_of(tmp_path / "archive").num_rows == 1


def test_two_ingests_of_two_nodes_that_commit_at_once_both_land(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a private folder of its own; both have written everything before one commits."""
    from roamcast.pipeline.ingest import run as ingest

    meeting = threading.Barrier(2, timeout=600)
    real = ingest.archive.commit

    def commit(*given: Any) -> Any:
        meeting.wait()
        return real(*given)

    monkeypatch.setattr(ingest.archive, "commit", commit)

    def run(node: str) -> int:
        path = tmp_path / f"{node}.jsonl"
        path.write_text("\n".join(line(f"{node}{n}", attributes={node: n}) for n in range(9)))
        private = tmp_path / f"{node}.private"
        with opened(private, tmp_path / "a", f"{node}.example.org", os.urandom) as state:
            return ingest_once(spark, state, [path], IngestSettings(), clock).number

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, ("one", "two"))) == [1, 1]
    nodes = sorted(vid.partition("@")[2] for vid in table_of(tmp_path / "a")["vid"].to_pylist())
    assert nodes == 9 * ["one.example.org"] + 9 * ["two.example.org"]


def test_a_number_is_the_person_of_its_digits_in_every_format(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    at = "2026-01-01T00:0{}:00Z"
    (folder / "1.jsonl").write_text(
        line(person=5, at=at.format(0)) + "\n" + line(person="5", at=at.format(1))  # type: ignore[arg-type]
    )
    (folder / "2.csv").write_text(f"person,source,time,place\n5,badge,{at.format(2)},a/1\n")
    table = pa.table({"person": [5], "source": ["badge"], "time": [at.format(3)], "place": ["a/1"]})
    pq.write_table(table, folder / "3.parquet")
    batch = once(spark, tmp_path, folder)
    assert (batch.counts["people"], batch.counts["contexts"]) == (1, 1)
    with open_state(tmp_path) as state:
        assert len(vids_of_person(state, "5")) == 1


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_sightings_of_one_person_are_one_context(
    spark: Any, tmp_path: Path, folder: Path, count: int
) -> None:
    times = pa.array(range(0, count * 1_000_000, 1_000_000), pa.int64())
    table = pa.table(
        {
            "person": pa.array(["ann"]).take(pa.array([0] * count)),
            "source": pa.array(["badge"]).take(pa.array([0] * count)),
            "time": times.cast(pa.timestamp("us", "UTC")),
            "place": pa.array(["a/1"]).take(pa.array([0] * count)),
        }
    )
    pq.write_table(table, folder / "1.parquet")
    batch = once(spark, tmp_path, folder)
    assert (batch.counts["sightings"], batch.counts["contexts"]) == (count, 1)


def test_contexts_are_valid_for_the_rest_of_the_house(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    from roamcast.model.context_arrow import from_arrow

    said = {"age": 5, "weight": 5.5, "in": True, "at": {"timestamp": "2026-01-01T00:00:00Z"}}
    (folder / "1.jsonl").write_text(line(attributes=said))
    once(spark, tmp_path, folder)
    (context,) = from_arrow(table_of(tmp_path / "archive"))
    assert isinstance(context, Context)
    assert context.attributes == {
        "age": 5,
        "weight": 5.5,
        "in": True,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    assert context.vid.endswith("@trusted.example.org")
