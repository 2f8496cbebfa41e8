"""The private folder: one archive's, forgetful of people, small after months, whole after a crash.

Batches run without Spark here: rows go through the same packets, scan, files and commits.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import InputError, LimitError, MissingError, RoamcastError
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest import few, rows
from roamcast.pipeline.ingest import job as ingest_job
from roamcast.pipeline.ingest import run as ingest
from roamcast.pipeline.ingest import state as ingest_done
from roamcast.pipeline.ingest.dead_letters import dead_letters, replayed
from roamcast.pipeline.ingest.files import Reading, SightingFile, listed
from roamcast.pipeline.ingest.pack import packed
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.state import BatchMark, IngestState, SightingBatch, opened
from roamcast.pipeline.ingest.stretches import ReadStretches, stretches, tasks_of
from roamcast.pipeline.ingest.trusted import (
    forget_person,
    people_behind,
    register_of,
    vids_of_person,
)
from roamcast.pipeline.ingest.watch import _Work
from roamcast.pipeline.ingest.write import COLUMNS, ScanAndWrite, WriteTask
from tests.pipeline.test_archive import everything

NOW = 1_800_000_000_000_000  # 2027-01-15


def _parts(
    _: Any,
    state: IngestState,
    files: Sequence[SightingFile],
    reading: Reading,
    latest: int,
    unreadable: Sequence[Any],
) -> list[pa.Table]:
    """Read in this process what Spark's tasks read."""
    assert not unreadable
    told = tasks_of(stretches(files, reading, state.layers))
    names = ("task", "path", "first", "count", "kind", "layer")
    rows_of = [dict(zip(names, one, strict=True)) for one in told]
    return list(ReadStretches(reading, latest)([pa.RecordBatch.from_pylist(rows_of)]))


def _write(parts: Sequence[pa.Table], task: WriteTask, _: int) -> ingest_job.Written:
    told = ScanAndWrite(task)([packed(part, 1) for part in parts if part.num_rows])
    return ingest_job.taken(pa.Table.from_batches(list(told)))


@pytest.fixture(autouse=True, params=["as on Spark", "few rows", "thin layers"])
def without_spark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Run batches in the parts of a job on Spark; as few rows; and with a layer for each batch."""
    if request.param != "as on Spark":
        monkeypatch.setattr(few, "STATE_ROWS", few.STATE_ROWS if request.param == "few rows" else 0)
        return
    monkeypatch.setattr(few, "HERE_ROWS", -1)
    monkeypatch.setattr(ingest_job, "parts", _parts)
    monkeypatch.setattr(ingest_job, "packets_of", lambda parts, _: parts)
    monkeypatch.setattr(ingest_job, "write", _write)


def state_of(tmp_path: Path, archive: str = "archive", private: str = "private") -> Any:
    return opened(tmp_path / private, tmp_path / archive, "trusted.example.org", os.urandom)


def seen(person: str, minute: int, place: str = "a/1") -> str:
    at = f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"
    return json.dumps({"person": person, "source": "badge", "time": at, "place": place})


def write(tmp_path: Path, name: str, *lines: str) -> Path:
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "in" / name
    path.write_text("\n".join(lines))
    return path


def run(state: IngestState, *paths: Path, finish: bool = True, **chosen: Any) -> SightingBatch:
    settings = IngestSettings(**chosen)
    no_spark: Any = None
    return ingest_once(no_spark, state, paths, settings, lambda: NOW, finish=finish)


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def kept(private: Path) -> set[int]:
    return {int(path.name) for path in (private / "batches").iterdir()}


def behind(state: IngestState) -> list[str]:
    vids = everything(Path(state.archive))["vid"].combine_chunks()
    return sorted(people_behind(state, vids).to_pylist(), key=str)


# one folder, one archive


def test_a_second_archive_is_refused_and_the_first_ones_people_are_still_known(
    tmp_path: Path,
) -> None:
    first = write(tmp_path, "1.jsonl", seen("ann", 0), seen("bob", 0))
    with state_of(tmp_path, "one") as state:
        run(state, first)
        vids = vids_of_person(state, "ann")
    Archive.make(tmp_path / "two")
    before = bytes_below(tmp_path / "private")
    for other in ("two", "three"):
        with pytest.raises(RoamcastError, match="give --private another folder") as told:
            state_of(tmp_path, other).__enter__()
        assert "\n" not in str(told.value)
    assert bytes_below(tmp_path / "private") == before
    assert not (tmp_path / "three").exists()
    with state_of(tmp_path, "one") as state:
        assert len(vids) == 1
        assert vids_of_person(state, "ann") == vids
        assert behind(state) == ["ann", "bob"]


def test_an_archive_that_is_gone_or_made_anew_is_refused_also_under_an_open_folder(
    tmp_path: Path,
) -> None:
    first, second = (write(tmp_path, f"{n}.jsonl", seen("ann", n)) for n in (1, 2))
    with state_of(tmp_path) as state:
        run(state, first)
        (tmp_path / "archive").rename(tmp_path / "elsewhere")
        with pytest.raises(MissingError, match="is gone"):
            run(state, second)
        assert not (tmp_path / "archive").exists()
    with pytest.raises(MissingError, match="is gone"):
        state_of(tmp_path).__enter__()
    Archive.make(tmp_path / "archive")
    with pytest.raises(InputError, match="another archive"):
        state_of(tmp_path).__enter__()
    with state_of(tmp_path, "elsewhere") as state:  # the same archive under another path
        run(state, second)
        assert behind(state) == ["ann", "ann"]


def test_an_older_archive_that_was_put_back_is_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{n}.jsonl", seen("ann", n)) for n in (1, 2)]
    with state_of(tmp_path) as state:
        run(state, paths[0])
        shutil.copytree(tmp_path / "archive", tmp_path / "backup")
        run(state, paths[1])
    with pytest.raises(InputError, match="at batch 1 and this folder is further"):
        state_of(tmp_path, "backup").__enter__()


def test_a_folder_from_before_is_bound_at_its_next_ingest(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{n}.jsonl", seen("ann", n)) for n in (1, 2)]
    with state_of(tmp_path) as state:
        run(state, paths[0])
    bond = tmp_path / "private" / "ingest.json"
    said = json.loads(bond.read_text())
    bond.write_text(json.dumps({"application": said["application"]}))
    Archive.make(tmp_path / "other")
    with pytest.raises(InputError, match="another archive"):
        state_of(tmp_path, "other").__enter__()
    with state_of(tmp_path) as state:
        run(state, paths[1])
        assert behind(state) == ["ann", "ann"]
    assert json.loads(bond.read_text()) == said


def test_a_folder_without_batches_may_go_to_another_archive(tmp_path: Path) -> None:
    path = write(tmp_path, "1.jsonl", seen("ann", 1))
    with state_of(tmp_path, "one") as state:
        state.target(None)
    with state_of(tmp_path, "two") as state:
        run(state, path)
        assert behind(state) == ["ann"]


# the archive's settings


def test_an_ingest_chooses_the_cells_of_a_new_archive(tmp_path: Path) -> None:
    path = write(tmp_path, "1.jsonl", seen("ann", 1))
    with state_of(tmp_path) as state:
        assert not (tmp_path / "archive").exists(), "opening makes no archive"
        run(state, path, archive=ArchiveSettings(6, grid_s=0))
        assert Archive.open(tmp_path / "archive").settings == ArchiveSettings(6, grid_s=0)
        more = write(tmp_path, "2.jsonl", seen("ann", 2))
        run(state, more)
        run(state, write(tmp_path, "3.jsonl", seen("ann", 3)), archive=ArchiveSettings(6, grid_s=0))
        with pytest.raises(InputError, match="cannot have cells of resolution 5"):
            run(state, path, archive=ArchiveSettings(5, grid_s=0))
    with pytest.raises(InputError, match="cannot have cells of resolution 5"):
        ingest.check_archive(tmp_path / "archive", ArchiveSettings(5, grid_s=0))
    with pytest.raises(LimitError, match="from 0 to 13"):
        ingest.check_archive(tmp_path / "new", ArchiveSettings(14, grid_s=0))
    assert not (tmp_path / "new").exists()


# forgetting

NAME = 'ann "é" o\'neil'
TEXTS = [
    json.dumps({"person": NAME})[:-1],
    json.dumps({"person": NAME}, ensure_ascii=False)[:-1],
    json.dumps({"person": NAME}).replace("\\u00e9", "\\u00E9")[:-1],
    f'"{NAME.replace(chr(34), chr(34) * 2)}",badge,a/1',
    f"{NAME},badge,a/1",
    f"{{{NAME}",
]


def letters_left(tmp_path: Path, person: str, texts: Sequence[str]) -> list[str]:
    """Ingest texts that are no sightings beside a person's own; forget; give what is left."""
    path = write(tmp_path, "1.jsonl", seen(person, 1), seen("bob", 1), *texts)
    with state_of(tmp_path) as state:
        run(state, path)
        assert forget_person(state, person) >= 1
        left: list[str] = dead_letters(state)["raw"].to_pylist()
        with pytest.raises(InputError, match="no such person"):
            vids_of_person(state, person)
    return sorted(left)


def test_letters_that_hold_the_person_in_any_spelling_are_forgotten(tmp_path: Path) -> None:
    others = ["{", '{"person": "annabel"', '"joann",badge,a/1']
    assert letters_left(tmp_path, NAME, [*TEXTS, *others]) == sorted(others)


def test_a_number_is_forgotten_where_it_is_a_value_of_its_own(tmp_path: Path) -> None:
    own = ['{"person":5,', '{"person": "5"', "5,badge,a/1", "badge;5", "[1,5,7"]
    others = ['{"person":55', '{"t":"2026-5-5T05:5:00"', "1.5,badge", "5.25,x", "x,15,51"]
    assert letters_left(tmp_path, "5", [*own, *others]) == sorted(others)


def text_of(folder: Path) -> str:
    """Give everything that a folder holds as text, what is compressed unpacked."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".parquet" and path.name[0] != ".":
            found.append(str(pq.read_table(path, partitioning=None).to_pylist()))
        elif path.suffix == ".arrow":
            found.append(str(pa.ipc.open_file(str(path)).read_all().to_pylist()))
        if path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
    return "\n".join(found)


def with_everything_of(tmp_path: Path, person: str) -> None:
    """Leave a person in all places: register, open, waiting, letters, old and unfinished rows."""
    private = tmp_path / "private"
    with state_of(tmp_path) as state:
        minutes = [seen(who, minute) for who in (person, "bob") for minute in (0, 10)]
        lines = [*minutes, f"no sighting of {person}"]
        run(state, write(tmp_path, "1.jsonl", *lines), finish=False)
        old = private / "batches" / "00000001" / "rows"
        shutil.copytree(old, tmp_path / "old")
        minutes = [seen(who, minute) for who in (person, "bob") for minute in (20, 40)]
        batch = run(state, write(tmp_path, "2.jsonl", *minutes), finish=False, late_s=0)
        assert all(batch.counts[kind] for kind in ("open", "pending"))
    # as after kill -9 between the archive's commit and the cleaning up
    shutil.copytree(tmp_path / "old", old, dirs_exist_ok=True)
    unfinished = private / "batches" / "00000003" / "rows"
    shutil.copytree(tmp_path / "old", unfinished)
    hidden = private / "batches" / "00000002" / "rows" / "kind=person" / ".half.parquet"
    hidden.write_text(f"half a file of {person}")
    letters = private / "dead_letters"
    shutil.copytree(letters / "batch=00000001", letters / "batch=00000003")
    assert text_of(private).count(person) >= 7


def test_nothing_of_a_person_is_left_in_the_private_folder(tmp_path: Path) -> None:
    with_everything_of(tmp_path, "zoe")
    with state_of(tmp_path) as state:
        vids = vids_of_person(state, "zoe")
        assert vids
        assert forget_person(state, "zoe") > 3
        assert people_behind(state, pa.array(vids)).null_count == len(vids)
        assert forget_person(state, "zoe") == 0
    text = text_of(tmp_path / "private")
    assert "zoe" not in text
    assert "bob" in text
    with state_of(tmp_path) as state:
        run(state, write(tmp_path, "3.jsonl", seen("bob", 60)))
        assert set(behind(state)) <= {"bob", None}


class Killed(BaseException):
    """The process was killed: from here on nothing of it has any effect."""


class Killer:
    """Lets so many steps happen, then none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[Any, str]]) -> None:
        self.left = 1 << 40
        monkeypatch.setattr(os, "fsync", lambda _: None)  # a killed process loses no bytes
        for owner, name in steps:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            if self.left <= 0:
                raise Killed
            self.left -= 1
            return real(*given, **named)

        return step

    def killed(self, after: int, work: Callable[[], Any]) -> bool:
        """Run something that dies after so many steps; say whether it did."""
        self.left = after
        try:
            work()
        except Killed:
            return True
        finally:
            self.left = 1 << 40
        return False


FILE_STEPS = [
    (os, "unlink"),
    (Path, "write_bytes"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "mkdir"),
    (Path, "unlink"),
    (shutil, "rmtree"),
    (pq, "write_table"),
]


def test_who_was_interrupted_while_forgetting_says_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_everything_of(tmp_path, "zoe")
    shutil.copytree(tmp_path / "private", tmp_path / "whole")
    killer = Killer(monkeypatch, FILE_STEPS)

    def forget() -> None:
        with state_of(tmp_path) as state:
            assert vids_of_person(state, "zoe") is not None
            forget_person(state, "zoe")

    for steps in range(200):
        if not killer.killed(steps, forget):
            assert steps > 5
            return
        with state_of(tmp_path) as state:
            known = "zoe" in register_of(state)["person"].to_pylist()
        if known:
            forget()
        assert "zoe" not in text_of(tmp_path / "private"), f"killed after {steps} steps"
        shutil.rmtree(tmp_path / "private")
        shutil.copytree(tmp_path / "whole", tmp_path / "private")
    raise AssertionError("it never ended")


# crashes


STEPS = [
    *FILE_STEPS,
    (Archive, "make"),
    (Archive, "_commit"),
    (Archive, "add_columns"),
    (Storage, "create"),
    (Storage, "discard"),
    (BatchMark, "fold"),
]


def result(state: IngestState) -> tuple[Any, ...]:
    """Give all that a sequence of batches has come to, people in the place of vids."""
    table = everything(Path(state.archive))
    people = people_behind(state, table["vid"].combine_chunks()).to_pylist()
    times = [table[name].cast(pa.int64()).to_pylist() for name in ("t_r", "t_d")]
    letters = dead_letters(state)
    told = sorted(zip(letters["raw"].to_pylist(), letters["file"].to_pylist(), strict=True))
    return sorted(zip(people, table["place"].to_pylist(), *times, strict=True)), told


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1])
def test_a_batch_that_is_killed_after_any_step_happens_once_and_loses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    paths = [
        write(tmp_path, "1.jsonl", *(seen("ann", m, f"a/{m}") for m in (0, 20)), "x ann"),
        write(tmp_path, "2.jsonl", *(seen(w, m) for w in ("ann", "bob") for m in (40, 60)), "x"),
    ]

    def work(batches: int) -> None:
        with state_of(tmp_path) as state:
            for number in range(batches):
                run(state, *paths[: number + 1], finish=number == 1, late_s=0)

    (tmp_path / "whole").mkdir()
    work(before)
    for name in ("archive", "private"):
        if (tmp_path / name).exists():
            shutil.copytree(tmp_path / name, tmp_path / "whole" / name)
    work(2)
    with state_of(tmp_path) as state:
        want = result(state)
    assert [len(part) for part in want] == [6, 2]
    killer = Killer(monkeypatch, STEPS)
    for steps in range(1_000):
        for name in ("archive", "private"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path, dirs_exist_ok=True)
        if not killer.killed(steps, lambda: work(before + 1)):
            assert steps > 15
            return
        work(2)
        with state_of(tmp_path) as state:
            assert result(state) == want, f"killed after {steps} steps"
            assert state.last.number == 2
        committed = Archive.open(tmp_path / "archive").files()["path"].to_pylist()
        assert sorted(committed) == Storage(tmp_path / "archive").files()
        assert kept(tmp_path / "private") == {2, *state.last.layers}
    raise AssertionError("it never ended")


def test_what_a_commit_names_is_on_disk_before_it_and_the_commit_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, archive = tmp_path / "private", tmp_path / "archive"
    synced: set[str] = set()
    real_sync, real_commit = os.fsync, Archive._commit

    def sync(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real_sync(handle)

    def needed(folder: Path) -> set[str]:
        found = {str(path) for path in (folder.parent, folder, *folder.rglob("*"))}
        return {path for path in found if not path.endswith(("/lock", "done.sqlite"))}

    def commit(self: Archive, *given: Any) -> None:
        mine = needed(private / "batches") | needed(private / "dead_letters")
        mine |= {str(private / name) for name in ("keys.json", "ingest.json")}
        assert {p for p in mine if "/contexts" not in p and "/00000001/" not in p} <= beside(synced)
        assert {p for p in needed(archive) if "_delta_log" not in p} <= synced
        real_commit(self, *given)

    def fold(self: BatchMark, batches: Any) -> None:
        logged = {p for p in needed(archive) if p.endswith(".json")}
        assert logged
        assert {*logged, str(archive / "_delta_log"), str(archive), str(tmp_path)} <= synced
        real_fold(self, batches)

    real_fold = BatchMark.fold
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Archive, "_commit", commit)
    monkeypatch.setattr(BatchMark, "fold", fold)
    with state_of(tmp_path) as state:
        for number in (1, 2):
            run(state, write(tmp_path, f"{number}.jsonl", seen("ann", number), "x"))
        assert state.last.number == 2


def beside(synced: set[str]) -> set[str]:
    """Count a file that was synced under the name from which it was renamed."""
    renamed = {path.replace("/.", "/").removesuffix(".new") for path in synced}
    return synced | renamed


def test_a_batch_that_landed_with_an_error_is_not_overwritten_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path, f"{n}.jsonl", seen("ann", n)) for n in (1, 2)]
    real = ingest.settle_commits

    def fail(target: Archive, since: int) -> None:
        raise OSError(5, "Input/output error")

    with state_of(tmp_path) as state:
        monkeypatch.setattr(ingest, "settle_commits", fail)
        with pytest.raises(RoamcastError, match="batch 1 is in the archive, but perhaps not"):
            run(state, paths[0])
        monkeypatch.setattr(ingest, "settle_commits", real)
        for _ in range(2):
            with pytest.raises(RoamcastError, match="start the ingest again"):
                run(state, *paths)
    with state_of(tmp_path) as state:
        run(state, *paths)
        assert behind(state) == ["ann", "ann"]


def test_a_copy_of_the_folder_whose_batch_the_other_committed_is_refused_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path, f"{n}.jsonl", seen(who, n)) for n, who in enumerate(("ann", "bob"))]
    with state_of(tmp_path) as state:
        run(state, paths[0])
    shutil.copytree(tmp_path / "private", tmp_path / "copy")

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(ingest, "write_contexts", real)
        with state_of(tmp_path) as state:
            run(state, paths[1])
        return real(*given)

    real = ingest.write_contexts
    monkeypatch.setattr(ingest, "write_contexts", meanwhile)
    with (
        state_of(tmp_path, private="copy") as state,
        pytest.raises(RoamcastError, match="committed by somebody else"),
    ):
        run(state, paths[1])
    with pytest.raises(InputError, match="is this its private folder"):
        state_of(tmp_path, private="copy").__enter__()
    with state_of(tmp_path) as state:
        assert behind(state) == ["ann", "bob"]


def test_a_folder_with_batches_gets_no_new_keys(tmp_path: Path) -> None:
    with state_of(tmp_path) as state:
        run(state, write(tmp_path, "1.jsonl", seen("ann", 0)))
    lost = (tmp_path / "private" / "keys.json").rename(tmp_path / "keys.json")
    with pytest.raises(InputError, match="bring it back"):
        state_of(tmp_path).__enter__()
    lost.rename(tmp_path / "private" / "keys.json")
    with state_of(tmp_path) as state:
        assert behind(state) == ["ann"]


# months


def small(number: int) -> SightingBatch:
    file = SightingFile(f"/in/{number}.jsonl", number, 7)
    return SightingBatch(
        number=number, files=(file,), names={1: file.path} if number % 1_000 == 1 else {}
    )


def commit_to_archive(tmp_path: Path, state: IngestState, number: int) -> None:
    state.target(None).append([], (state.application, number))


def letter_of(folder: Path, text: str) -> None:
    """Let a batch have a dead letter."""
    dead = folder / "rows" / "kind=dead"
    dead.mkdir(parents=True)
    columns = {name: pa.nulls(1, rows.GIVEN.field(name).type) for name in COLUMNS[rows.DEAD]}
    columns |= {"raw": pa.array([text]), "file": pa.array([1], pa.int64())}
    pq.write_table(pa.table(columns), dead / "1.parquet")


def prepare(state: IngestState, batch: SightingBatch) -> None:
    number, _ = state.begin()
    assert number == batch.number
    if batch.names:
        letter_of(state.batch_folder(number), f"x{number}")
    state.prepare(batch)


@pytest.mark.slow
def test_thousands_of_batches_are_one_small_file_and_every_ingested_file_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1_500
    monkeypatch.setattr(os, "fsync", lambda _: None)  # whether it is called, others ask
    with state_of(tmp_path) as state:
        state.done._database.execute("PRAGMA synchronous = OFF")
        for number in range(1, count + 1):
            prepare(state, small(number))
            state.committed(small(number))
        assert len(state.done.recent) == 1
        state.last = SightingBatch(number=0)
        monkeypatch.setattr(IngestState, "_committed_in", lambda *_: 0)
        commit_to_archive(tmp_path, state, count)
        monkeypatch.undo()
    private = tmp_path / "private"
    with state_of(tmp_path) as state:
        assert [path.name for path in (private / "batches").iterdir()] == [f"{count:08d}"]
        assert (private / "done.sqlite").stat().st_size < 100 * count
        assert state.last == small(count)
        assert len(state.done.recent) == 1
        for number in (1, 2, count // 2, count - 1, count):
            (file,) = small(number).files
            assert file in state.done
            assert msgspec.structs.replace(file, modified_ns=8) not in state.done
        assert small(count + 1).files[0] not in state.done
        letters = dead_letters(state).to_pylist()
        told = {(letter["raw"], letter["file"]) for letter in letters}
        assert told == {(f"x{n}", f"/in/{n}.jsonl") for n in range(1, count, 1_000)}


def test_a_folder_with_the_manifests_of_all_batches_is_folded_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 6
    with state_of(tmp_path) as state:
        commit_to_archive(tmp_path, state, count)
        for number in range(1, count + 1):
            state.last = SightingBatch(number=number - 1)
            prepare(state, small(number))
    shutil.copytree(tmp_path / "private", tmp_path / "whole")
    killer = Killer(monkeypatch, [*FILE_STEPS, (BatchMark, "fold"), (ingest_done, "_hash")])

    def work() -> None:
        with state_of(tmp_path):
            pass

    for steps in range(1_000):
        shutil.rmtree(tmp_path / "private")
        shutil.copytree(tmp_path / "whole", tmp_path / "private")
        died = killer.killed(steps, work)
        with state_of(tmp_path) as state:
            for number in range(1, count + 1):
                assert small(number).files[0] in state.done, f"killed after {steps} steps"
            assert small(count + 1).files[0] not in state.done
            (letter,) = dead_letters(state).to_pylist()
            assert letter["file"] == "/in/1.jsonl"
            assert [p.name for p in (state.folder / "batches").iterdir()] == [f"{count:08d}"]
        if not died:
            assert steps > count
            return
    raise AssertionError("it never ended")


def test_folding_that_the_disk_refuses_is_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path, f"{n}.jsonl", seen("ann", n)) for n in (1, 2, 3)]

    def full(self: BatchMark, batches: Any) -> None:
        raise RoamcastError("database or disk is full")

    with state_of(tmp_path) as state:
        run(state, paths[0])
        with monkeypatch.context() as patch:
            patch.setattr(BatchMark, "fold", full)
            run(state, *paths[:2])
        assert run(state, *paths[:2]).counts["sightings"] == 0
        assert run(state, *paths).counts["sightings"] == 1
    with state_of(tmp_path) as state:
        assert all(file in state.done for file in listed(paths, Reading()))
        assert kept(state.folder) == {3, *state.last.layers}


def test_a_quiet_watch_ends_its_last_contexts_by_the_clock(tmp_path: Path) -> None:
    settings = IngestSettings(late_s=60)
    with state_of(tmp_path) as state:
        run(state, write(tmp_path, "1.jsonl", seen("ann", 0)), finish=False, late_s=60)
        clock = [NOW]
        told: list[SightingBatch] = []
        no_spark: Any = None
        work = _Work(no_spark, state, tmp_path, settings, lambda: clock[0], tmp_path, told.append)
        clock[0] += 360 * 1_000_000  # heartbeat and lateness, to the microsecond
        assert work.end_quiet() is None
        clock[0] += 1
        batch = work.end_quiet()
        assert told == [batch]
        assert (batch.counts["contexts"], batch.counts["open"], batch.counts["pending"]) == (
            1,
            0,
            0,
        )
        clock[0] += 10**12
        assert work.end_quiet() is None, "nothing is open any more"


def test_months_in_either_order_give_the_same_archive(tmp_path: Path) -> None:
    def lived(archive: str) -> list[Any]:
        opened_archive = Archive.open(tmp_path / archive)
        paths = opened_archive.files()["path"].to_pylist()
        found = [read_file(opened_archive.storage, path) for path in paths]
        rows = pa.concat_tables(found).select(["place", "t_r", "t_d"]).to_pylist()
        return sorted(tuple(row.values()) for row in rows)

    parts = []
    for n in range(3):
        minutes = range(100 * n, 100 * n + 60, 2)
        lines = [
            seen(who, minute, f"a/{minute % 3}") for who in ("ann", "bob") for minute in minutes
        ]
        parts.append(write(tmp_path, f"{n}.jsonl", *lines))
    for name, order in (("right", parts), ("wrong", parts[::-1])):
        with state_of(tmp_path, name, f"{name}-private") as state:
            for part in order:
                counts = run(state, part, archive=ArchiveSettings(grid_s=0)).counts
                assert counts["late"] == 0
    assert lived("right") == lived("wrong")
    assert len(lived("right")) == 6


def test_dead_letters_are_ingested_again_once(tmp_path: Path) -> None:
    with state_of(tmp_path) as state:
        run(state, write(tmp_path, "1.jsonl", seen("ann", 10), "{no sighting"))
        late = write(tmp_path, "2.jsonl", seen("ann", 9), seen("bob", 10))
        assert run(state, late).counts["late"] == 1
        with replayed(state) as found:
            kinds = sorted(path.suffix for path in found)
            assert kinds == [".jsonl", ".parquet"]
            (rows_again,) = [pq.read_table(p).to_pylist() for p in found if p.suffix == ".parquet"]
            assert [(row["person"], row["source"]) for row in rows_again] == [("ann", "badge")]
        assert dead_letters(state).num_rows == 0
        with pytest.raises(ZeroDivisionError), replayed(state):
            _ = 1 / 0
        with replayed(state) as found:
            assert found == []
