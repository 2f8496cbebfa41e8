"""Old contexts lose what is no longer needed; erased ones cannot be found anywhere."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from roamcast.errors import InputError, LimitError
from roamcast.model.filters import Filter
from roamcast.pipeline.archive import care as archive_care
from roamcast.pipeline.archive import retention
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.retention import RETAINED, erase, retain
from roamcast.pipeline.archive.storage import Storage, travelling
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.run import Lookup
from tests.strategies_pipeline import BEGIN, DAY, contexts

EVERYONE = {"m": Filter.parse("1 = 1")}


def rows(archive: Path) -> dict[str, dict[str, object]]:
    opened = Archive.open(archive)
    parts = [read_file(opened.storage, path) for path in opened.files()["path"].to_pylist()]
    table = pa.concat_tables(parts, promote_options="default")
    return {row["vid"]: row for row in table.to_pylist()}


def ended_before(table: pa.Table, moment: int) -> set[str]:
    mask = pc.fill_null(pc.less(table["t_d"].cast(pa.int64()), moment), False)
    return set(table.filter(mask)["vid"].to_pylist())


def test_retention_reduces_then_drops_and_nothing_else(tmp_path: Path) -> None:
    table = contexts(1, 500)
    append(table, tmp_path / "a")
    reduce_before, drop_before = BEGIN + 80 * DAY, BEGIN + 30 * DAY
    retain(tmp_path / "a", reduce_before=reduce_before, drop_before=drop_before)
    found = rows(tmp_path / "a")
    before = {row["vid"]: row for row in table.to_pylist()}
    dropped, reduced = ended_before(table, drop_before), ended_before(table, reduce_before)
    assert dropped < reduced < set(before)
    assert set(found) == set(before) - dropped
    for vid, row in found.items():
        for name, value in row.items():
            kept = name in RETAINED or vid not in reduced
            assert value == (before[vid][name] if kept else None)


@pytest.mark.slow
def test_retention_again_changes_nothing(tmp_path: Path) -> None:
    append(contexts(1, 200), tmp_path / "a")
    ages = {"reduce_before": BEGIN + 80 * DAY, "drop_before": BEGIN + 30 * DAY}
    assert retain(tmp_path / "a", **ages).files_replaced > 0
    version = Archive.open(tmp_path / "a").version
    assert retain(tmp_path / "a", **ages).files_replaced == 0
    assert Archive.open(tmp_path / "a").version == version


def test_dropping_comes_after_reducing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reduced before they are dropped"):
        retain(tmp_path / "a", reduce_before=1, drop_before=2)


@pytest.mark.slow
def test_erased_vids_are_in_no_answer_and_in_no_file(tmp_path: Path) -> None:
    table = contexts(1, 300)
    append(table, tmp_path / "a")
    append(contexts(2, 100), tmp_path / "a")  # the same vids again, in other files
    compact(tmp_path / "a")  # and a third time in files that are replaced but not yet deleted
    gone = table["vid"].to_pylist()[10:300:17]
    done = erase(tmp_path / "a", gone)
    again = sum(1 for vid in gone if int(vid[1:8]) < 100)
    assert (done.vids, done.rows_erased, done.files_left) == (len(gone), len(gone) + again, 0)
    assert done.files_deleted > done.files_replaced
    left = Lookup(tmp_path / "a").ask(EVERYONE)["m"]
    assert left == sorted(set(table["vid"].to_pylist()) - set(gone))
    for path in (tmp_path / "a").rglob("*"):
        raw = path.read_bytes() if path.is_file() else b""
        assert not any(vid.encode() in raw for vid in gone), path


def test_erasing_nobody_changes_nothing(tmp_path: Path) -> None:
    append(contexts(1, 50), tmp_path / "a")
    version = Archive.open(tmp_path / "a").version
    done = erase(tmp_path / "a", ["nobody@nowhere"])
    assert (done.rows_erased, done.files_replaced, done.files_left) == (0, 0, 0)
    assert Archive.open(tmp_path / "a").version == version


@pytest.mark.slow
def test_a_compaction_that_read_an_erased_vid_cannot_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = contexts(1, 200)
    append(table, tmp_path / "a")
    append(contexts(2, 200).set_column(0, "vid", pa.array([f"w{i}" for i in range(200)])),
           tmp_path / "a")  # fmt: skip
    gone = table["vid"].to_pylist()[7]
    original, calls = archive_care._rewritten, []

    def read_then_wait(*arguments: object) -> object:
        written = original(*arguments)
        calls.append(1)
        if len(calls) == 1:  # erase between compaction's reading and its commit
            monkeypatch.setattr(archive_care, "_rewritten", original)
            assert erase(tmp_path / "a", [gone]).rows_erased == 1
        return written

    monkeypatch.setattr(archive_care, "_rewritten", read_then_wait)
    compact(tmp_path / "a")
    assert gone not in Lookup(tmp_path / "a").ask(EVERYONE)["m"]
    assert len(Lookup(tmp_path / "a").ask(EVERYONE)["m"]) == 399
    assert erase(tmp_path / "a", [gone]).files_left == 0


def test_a_file_half_written_with_the_vid_is_told_not_deleted(tmp_path: Path) -> None:
    table = contexts(1, 40)
    append(table, tmp_path / "a")
    stray = tmp_path / "a" / "span=hours" / "half.parquet"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"PAR1 half a file")
    assert erase(tmp_path / "a", [table["vid"][0].as_py()]).files_left == 1
    assert stray.exists()


def test_one_erasure_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(contexts(1, 10), tmp_path / "a")
    monkeypatch.setattr(retention, "VIDS_MAX", 2)
    erase(tmp_path / "a", ["a", "b", "b"])
    with pytest.raises(LimitError, match="at most 2 vids"):
        erase(tmp_path / "a", ["a", "b", "c"])


class NoSpark:
    """Runs tasks in this process, and weighs what would have gone to the workers."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self._numbers = range(0)
        self._work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def range(self, start: int, end: int, step: int, tasks: int) -> "NoSpark":
        assert 0 < tasks <= end
        self._numbers = range(start, end, step)
        return self

    def mapInArrow(self, work: Any, schema: str) -> "NoSpark":  # noqa: N802 - Spark's name
        packed = cloudpickle.dumps(work)
        self.bytes.append(len(packed))
        self._work = cloudpickle.loads(packed)
        assert schema
        return self

    def select(self, *names: str) -> "NoSpark":
        assert names[0] == "path"
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        numbers = pa.RecordBatch.from_pydict({"id": list(self._numbers)})
        return pa.Table.from_batches(self._work(iter([numbers])))


@pytest.mark.slow
def test_a_million_vids_do_not_travel_in_a_closure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_care, "SPARK_BYTES", 0)
    table = contexts(1, 60, days=1)
    append(table, tmp_path / "a", settings=ArchiveSettings(0, grid_s=0))
    gone = table["vid"].to_pylist()[:7]
    session: Any = NoSpark()
    done = erase(tmp_path / "a", [*gone, *(f"w{n}@node" for n in range(1_000_000))], session)
    assert (done.rows_erased, done.files_left) == (7, 0)
    assert session.bytes
    assert max(session.bytes) < 20_000
    assert not list((tmp_path / "a" / "_lookups").iterdir())
    assert Lookup(tmp_path / "a").ask(EVERYONE)["m"] == sorted(table["vid"].to_pylist()[7:])


def test_what_travelled_for_a_driver_that_was_killed_is_vacuumed_after_a_day(
    tmp_path: Path,
) -> None:
    append(contexts(1, 10, days=1), tmp_path / "a")
    with travelling(Storage(tmp_path / "a"), b"new") as new:
        old = tmp_path / "a" / "_lookups" / "old"
        old.write_bytes(b"vids of somebody who was erased")
        os.utime(old, (0, 0))
        assert vacuum(tmp_path / "a", hours=0, dry_run=True) == ["_lookups/old"]
        assert old.exists()
        assert vacuum(tmp_path / "a", hours=0) == ["_lookups/old"]
        assert not old.exists()
        assert (tmp_path / "a" / new).exists()
    assert not (tmp_path / "a" / new).exists()
