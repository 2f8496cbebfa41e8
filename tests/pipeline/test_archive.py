"""What goes into the archive comes out again, once, whatever the order of commits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from roamcast.errors import ContextError, InputError, LimitError, MissingError, RoamcastError
from roamcast.model.context_arrow import STAMP, schema
from roamcast.model.filters import Filter
from roamcast.model.time import LATEST
from roamcast.pipeline.archive import care as archive_care
from roamcast.pipeline.archive import layout as archive_layout
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.density import to_join
from roamcast.pipeline.archive.files import BOUNDS, GROUP_ROWS, group_bounds, read_file
from roamcast.pipeline.archive.layout import ArchiveSettings, context_name, placed, stored_name
from roamcast.pipeline.archive.retention import erase, retain
from roamcast.pipeline.archive.storage import GoneError
from roamcast.pipeline.archive.table import ATTEMPTS_MAX, Archive, RefusedError
from roamcast.pipeline.lookup.run import Lookup
from tests.strategies_pipeline import BEGIN, DAY, contexts

COARSE = ArchiveSettings(0, grid_s=0)
"""Few cells, so few files: these tests are about commits."""


def files(archive: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Archive.open(archive).files().to_pylist()
    return found


def everything(archive: Path) -> pa.Table:
    opened = Archive.open(archive)
    parts = [read_file(opened.storage, path) for path in opened.files()["path"].to_pylist()]
    return pa.concat_tables(parts, promote_options="default").sort_by("vid")


def same(left: pa.Table, right: pa.Table) -> bool:
    names = sorted(set(left.schema.names) | set(right.schema.names))
    filled = [
        t.select([n for n in names if n in t.schema.names]).sort_by("vid").combine_chunks()
        for t in (left, right)
    ]
    return all(
        filled[0].column(n).to_pylist() == filled[1].column(n).to_pylist()
        if n in filled[0].schema.names and n in filled[1].schema.names
        else True
        for n in names
    )


def one(vid: str, t_r: int = BEGIN, t_d: int | None = None, **columns: object) -> pa.Table:
    names = [n.replace("__", ":") for n in columns if "__" in n]
    row = {"vid": vid, "t_r": t_r, "t_d": t_d}
    row |= {n.replace("__", ":"): v for n, v in columns.items()}
    target = schema(names)
    arrays = [
        pa.array([row.get(f.name)], pa.int64()).cast(STAMP)
        if f.type == STAMP
        else pa.array([row.get(f.name)], f.type)
        for f in target
    ]
    return pa.table(arrays, schema=target)


def test_contexts_come_out_as_they_went_in(tmp_path: Path) -> None:
    table = contexts(1, 1_500)
    done = append(table, tmp_path / "a")
    assert (done.rows, done.committed) == (1_500, True)
    found = everything(tmp_path / "a")
    assert found.schema.names.count("integer:age") == 1
    assert same(found, table)


def test_a_batch_lands_once_however_often_it_is_repeated(tmp_path: Path) -> None:
    table = contexts(1, 50)
    first = append(table, tmp_path / "a", transaction=("app", 7))
    again = append(table, tmp_path / "a", transaction=("app", 7))
    older = append(table, tmp_path / "a", transaction=("app", 6))
    other = append(table, tmp_path / "a", transaction=("other", 1))
    assert [d.committed for d in (first, again, older, other)] == [True, False, False, True]
    assert everything(tmp_path / "a").num_rows == 100
    assert len(Archive.open(tmp_path / "a").storage.files()) == first.files + other.files


def test_two_writers_of_one_batch_cannot_both_land(tmp_path: Path) -> None:
    append(contexts(1, 20), tmp_path / "a")
    slow = Archive.open(tmp_path / "a")
    append(contexts(2, 20), tmp_path / "a", transaction=("app", 1))
    assert slow.last_batch("app") is None  # it has not seen the other's commit
    assert slow.append([], ("app", 1)) is False


def test_two_appends_from_one_snapshot_both_land(tmp_path: Path) -> None:
    append(contexts(1, 20), tmp_path / "a")
    handles = [Archive.open(tmp_path / "a") for _ in range(2)]
    for number, handle in enumerate(handles):
        assert handle.append([], (f"app{number}", 1))
    fresh = Archive.open(tmp_path / "a")
    assert [fresh.last_batch("app0"), fresh.last_batch("app1")] == [1, 1]


def test_of_two_rewrites_from_one_snapshot_only_one_lands(tmp_path: Path) -> None:
    append(contexts(1, 20), tmp_path / "a")
    first, second = (Archive.open(tmp_path / "a") for _ in range(2))
    old = first.files().to_pylist()[:1]
    first.replace(old, [], 0, changed=True)
    with pytest.raises(CommitFailedError):
        second.replace(old, [], 0, changed=True)


def test_a_new_attribute_becomes_a_column(tmp_path: Path) -> None:
    append(one("a", integer__age=3), tmp_path / "a")
    append(one("b", string__age="old", float__b=2.5), tmp_path / "a")
    assert Archive.open(tmp_path / "a").columns() == ["integer:age", "float:b", "string:age"]
    rows = {row["vid"]: row for row in everything(tmp_path / "a").to_pylist()}
    assert (rows["a"]["integer:age"], rows["b"]["string:age"]) == (3, "old")


@pytest.mark.parametrize("name", ["age", "Age", "größe", "a b,c;{}()=", "100%", "x:y", "a.b-c_d"])
def test_any_attribute_name_can_be_stored(name: str, tmp_path: Path) -> None:
    column = f"string:{name}"
    assert context_name(stored_name(column)) == column
    assert stored_name(column).partition(":")[2].replace("%", "").isascii()
    table = pa.table([*one("v").columns, pa.array(["x"])], schema=schema([column]))
    append(table, tmp_path / "a")
    assert everything(tmp_path / "a")[column].to_pylist() == ["x"]


def test_names_that_differ_in_case_stay_apart() -> None:
    assert stored_name("string:Age").lower() != stored_name("string:age").lower()


def test_columns_beyond_the_limit_are_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roamcast.pipeline.archive.table.COLUMNS_MAX", 2)
    append(one("a", integer__a=1, integer__b=1), tmp_path / "a")
    with pytest.raises(LimitError, match="at most 2"):
        append(one("b", integer__c=1), tmp_path / "a")
    assert everything(tmp_path / "a")["vid"].to_pylist() == ["a"]
    assert len(Archive.open(tmp_path / "a").storage.files()) == 1


def test_each_duration_class_has_its_own_periods() -> None:
    day = 20_000 * DAY  # 2024-10-04, a Friday
    hour = DAY // 24
    spans = [0, 12 * hour, 12 * hour + 1, 8 * DAY, 8 * DAY + 1, 400 * DAY]
    table = pa.concat_tables(
        [*(one(f"v{i}", day + hour, day + hour + d) for i, d in enumerate(spans)), one("o", day)]
    )
    found = placed(table.combine_chunks().to_batches()[0], ArchiveSettings(grid_s=0))
    assert found.column("span").to_pylist() == [
        "hours", "hours", "days", "days", "months", "months", "open",
    ]  # fmt: skip
    assert found.column("day").to_pylist() == [
        "2024-10-04", "2024-10-04", "2024-09-30", "2024-09-30", "2024-10-01", "2024-10-01",
        "2024-10-01",
    ]  # fmt: skip
    assert set(found.column("cell").to_pylist()) == {"none"}


def test_cells_are_those_of_h3() -> None:
    import h3

    table = contexts(5, 500)
    table = pa.concat_tables([table, table.slice(100, 50)])  # H3 is asked once about a point
    found = placed(table.combine_chunks().to_batches()[0], ArchiveSettings(5, grid_s=0))
    fine = 5 + archive_layout.FINER
    for row in found.to_pylist():
        if row["lon"] is None:
            assert row["cell"] == "none"
        else:
            child = h3.latlng_to_cell(row["lat"], row["lon"], fine)
            assert row["cell"] == h3.cell_to_parent(child, 5)
            assert row["fine"] == h3.str_to_int(child)


def test_row_groups_are_bounded_by_what_they_hold() -> None:
    table = contexts(6, 2 * GROUP_ROWS + 10)
    bounds = dict(zip(BOUNDS, group_bounds(table), strict=True))
    assert all(len(column) == 3 for column in bounds.values())
    for group in range(3):
        part = table.slice(group * GROUP_ROWS, GROUP_ROWS)
        lon = part["lon"].drop_null().to_numpy()
        t_r = part["t_r"].cast(pa.int64()).to_numpy()
        assert (bounds["west"][group], bounds["east"][group]) == (lon.min(), lon.max())
        assert bounds["t_r_low"][group] < t_r.min()
        assert t_r.max() < bounds["t_r_high"][group] < t_r.max() + 2
        assert bounds["t_d_high"][group] >= 2.0**63  # some still last


def test_statistics_hold_the_last_moment_there_is(tmp_path: Path) -> None:
    append(one("v", LATEST, LATEST, place="ü" * 40), tmp_path / "a")
    (file,) = Archive.open(tmp_path / "a").files().to_pylist()
    assert file["min.place"] == "ü" * 32
    assert file["max.place"] > "ü" * 40


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (one("v").drop_columns(["t_r"]), "needs a column 't_r'"),
        (one("v").set_column(4, "t_r", pa.array([1])), "column 't_r' is int64"),
        (one("v").append_column("age", pa.array([1])), "not an attribute column"),
        (one("v").append_column("integer:age", pa.array(["x"])), "is string, not int64"),
        (one("v", BEGIN, BEGIN - 1), "t_d before its t_r"),
        (one("v", lon=181.0, lat=0.0), "no WGS84"),
        (one("v", lon=float("nan"), lat=0.0), "no WGS84"),
        (one("v", lon=1.0), "longitude without a latitude"),
        (one("v").set_column(0, "vid", pa.array([None], pa.string())), "without vid"),
    ],
)
def test_what_is_no_context_is_refused_and_the_archive_stays(
    table: pa.Table, problem: str, tmp_path: Path
) -> None:
    append(one("before"), tmp_path / "a")
    version = Archive.open(tmp_path / "a").version
    with pytest.raises(ContextError, match=problem):
        append(table, tmp_path / "a")
    after = Archive.open(tmp_path / "a")
    assert after.version == version
    assert len(after.storage.files()) == 1


def test_the_resolution_of_an_archive_stays(tmp_path: Path) -> None:
    append(one("v"), tmp_path / "a", settings=ArchiveSettings(6, grid_s=0))
    assert Archive.open(tmp_path / "a").settings.resolution == 6
    with pytest.raises(InputError, match="resolution 6"):
        append(one("w"), tmp_path / "a", settings=ArchiveSettings(5, grid_s=0))
    with pytest.raises(LimitError, match="0 to 13"):
        append(one("w"), tmp_path / "b", settings=ArchiveSettings(14, grid_s=0))


def test_a_folder_without_an_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no archive at"):
        Archive.open(tmp_path / "nothing")


def test_another_delta_table_is_no_archive(tmp_path: Path) -> None:
    from deltalake import Schema

    DeltaTable.create(str(tmp_path / "t"), Schema.from_arrow(pa.schema([("x", pa.int64())])))
    with pytest.raises(InputError, match="not an archive"):
        Archive.open(tmp_path / "t")


@pytest.mark.slow
def test_compaction_keeps_every_context_and_sorts(tmp_path: Path) -> None:
    parts = [contexts(seed, 300) for seed in range(3)]
    renamed = [
        part.set_column(0, "vid", pa.array([f"{n}-{vid}" for vid in part["vid"].to_pylist()]))
        for n, part in enumerate(parts)
    ]
    for part in renamed:
        append(part, tmp_path / "a")
    before = len(Archive.open(tmp_path / "a").files())
    done = compact(tmp_path / "a")
    after = Archive.open(tmp_path / "a")
    assert done.rows_dropped == 0
    assert len(after.files()) < before
    partitions = after.files().select([f"partition.{n}" for n in ("span", "day", "cell")])
    assert len(partitions.group_by(partitions.schema.names).aggregate([])) == len(after.files())
    assert same(everything(tmp_path / "a"), pa.concat_tables(renamed))
    assert compact(tmp_path / "a").files_replaced == 0


def test_vacuum_deletes_only_what_is_replaced_and_old(tmp_path: Path) -> None:
    for seed in range(2):
        append(contexts(seed, 200), tmp_path / "a")
    compact(tmp_path / "a")
    opened = Archive.open(tmp_path / "a")
    kept = set(opened.files()["path"].to_pylist())
    assert vacuum(tmp_path / "a", hours=1) == []
    listed = vacuum(tmp_path / "a", hours=0, dry_run=True)
    assert set(listed) == set(opened.storage.files()) - kept
    vacuum(tmp_path / "a", hours=0)
    assert set(opened.storage.files()) == kept


def test_settings_travel_in_the_table_itself(tmp_path: Path) -> None:
    append(one("v"), tmp_path / "a", settings=ArchiveSettings(3, grid_s=0))
    log = (tmp_path / "a" / "_delta_log" / "00000000000000000000.json").read_text()
    told = [json.loads(line) for line in log.splitlines()]
    (meta,) = [line["metaData"] for line in told if "metaData" in line]
    assert json.loads(meta["description"]) == {"roamcast": {"resolution": 3, "grid_s": 0}}


def test_an_empty_append_is_a_commit_of_its_batch_only(tmp_path: Path) -> None:
    done = append(schema([]).empty_table(), tmp_path / "a", transaction=("app", 1))
    assert (done.rows, done.files, done.committed) == (0, 0, True)
    assert Archive.open(tmp_path / "a").last_batch("app") == 1
    assert np.asarray(Archive.open(tmp_path / "a").files()["num_records"]).sum() == 0


def fail_after_commit(
    monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> list[str]:
    """Let the first commit land and then fail, in itself or in the look at the new snapshot."""
    commit, refresh, told = DeltaTable.create_write_transaction, Archive.refresh, list[str]()

    def commit_then_fail(table: DeltaTable, *given: Any, **named: Any) -> None:
        commit(table, *given, **named)
        told.append("commit")
        if where == "commit" and len(told) == 1:
            raise error

    def fail_to_refresh(archive: Archive) -> None:
        if where == "refresh" and told == ["commit"]:
            told.append("refresh")
            raise error
        refresh(archive)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_then_fail)
    monkeypatch.setattr(Archive, "refresh", fail_to_refresh)
    return told


def answered(archive: Path) -> list[str]:
    return Lookup(archive).ask({"m": Filter.parse("1 = 1")})["m"]


def in_two_commits(archive: Path) -> pa.Table:
    table = contexts(7, 60, days=1)
    for start in (0, 30):
        append(table.slice(start, 30), archive, settings=COARSE)
    return table


WHERE_AND_WHY = [
    ("commit", OSError(28, "No space left on device")),
    ("commit", DeltaError("the checkpoint failed")),
    ("commit", CommitFailedError("an answer was lost: it looks like somebody else's")),
    ("refresh", OSError("the store does not answer")),
    ("refresh", InputError("the archive cannot be read")),
]


@pytest.mark.parametrize(("where", "error"), WHERE_AND_WHY)
@pytest.mark.parametrize("transaction", [None, ("app", 1)])
def test_an_append_that_fails_after_its_commit_has_landed(
    where: str,
    error: Exception,
    transaction: tuple[str, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = contexts(7, 60, days=1)
    append(table.slice(0, 30), tmp_path / "a", settings=COARSE)
    told = fail_after_commit(monkeypatch, where, error)
    done = append(table.slice(30), tmp_path / "a", transaction=transaction)
    assert told[-1] == where
    assert (done.rows, done.committed) == (30, True)
    assert done.version == Archive.open(tmp_path / "a").version
    if transaction is not None:
        assert not append(table.slice(30), tmp_path / "a", transaction=transaction).committed
    assert same(everything(tmp_path / "a"), table)
    assert answered(tmp_path / "a") == sorted(table["vid"].to_pylist())


@pytest.mark.parametrize(("where", "error"), WHERE_AND_WHY)
def test_a_compaction_that_fails_after_its_commit_has_landed(
    where: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = in_two_commits(tmp_path / "a")
    told = fail_after_commit(monkeypatch, where, error)
    assert compact(tmp_path / "a").files_replaced > 0
    assert told == ["commit", "refresh"][: 1 + (where == "refresh")]
    assert compact(tmp_path / "a").files_replaced == 0
    assert same(everything(tmp_path / "a"), table)


@pytest.mark.parametrize("where", ["commit", "refresh"])
def test_who_interrupts_after_a_commit_deletes_nothing_of_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = in_two_commits(tmp_path / "a")
    with monkeypatch.context() as patch:
        fail_after_commit(patch, where, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            compact(tmp_path / "a")
    assert same(everything(tmp_path / "a"), table)
    vids = pa.array([f"w{i}" for i in range(5)])
    more = table.slice(0, 5).set_column(0, table.schema.field("vid"), vids)
    with monkeypatch.context() as patch:
        fail_after_commit(patch, where, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            append(more, tmp_path / "a", transaction=("app", 1))
    assert not append(more, tmp_path / "a", transaction=("app", 1)).committed
    assert same(everything(tmp_path / "a"), pa.concat_tables([table, more]))


def test_a_checkpoint_that_cannot_be_written_undoes_no_commit(tmp_path: Path) -> None:
    table = contexts(7, 60, days=1)
    append(table.slice(0, 30), tmp_path / "a", settings=COARSE)
    opened = Archive.open(tmp_path / "a")
    opened.table.alter.set_table_properties({"delta.checkpointInterval": "1"})
    number = Archive.open(tmp_path / "a").version + 1
    taken = tmp_path / "a" / "_delta_log" / f"{number:020}.checkpoint.parquet"
    (taken / "a folder that stands in the way").mkdir(parents=True)
    assert append(table.slice(30), tmp_path / "a").committed
    assert Archive.open(tmp_path / "a").version == number
    assert same(everything(tmp_path / "a"), table)


def test_a_commit_that_did_not_land_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = in_two_commits(tmp_path / "a")
    before = Archive.open(tmp_path / "a")
    lying = before.storage.files()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refuse)
    for job in (lambda: append(table, tmp_path / "a"), lambda: compact(tmp_path / "a")):
        with pytest.raises(RoamcastError, match=r"cannot commit .* No space left on device"):
            job()
        assert before.storage.files() == lying
    assert Archive.open(tmp_path / "a").version == before.version
    assert same(everything(tmp_path / "a"), table)


def test_when_nobody_can_say_what_is_committed_all_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = contexts(7, 60, days=1)
    append(table.slice(0, 30), tmp_path / "a", settings=COARSE)

    def unreadable(uri: str) -> DeltaTable:
        raise OSError(f"{uri} does not answer")

    commit = DeltaTable.create_write_transaction

    def commit_then_fail(opened: DeltaTable, *given: Any, **named: Any) -> None:
        commit(opened, *given, **named)
        monkeypatch.setattr("roamcast.pipeline.archive.table.DeltaTable", unreadable)
        raise OSError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", commit_then_fail)
        with pytest.raises(RoamcastError, match=r"nobody can say .* connection was lost") as told:
            append(table.slice(30), tmp_path / "a")
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    assert same(everything(tmp_path / "a"), table)


@pytest.mark.parametrize("job", ["compact", "retain", "erase", "lookup"])
def test_a_committed_file_that_is_missing_is_told_in_one_line(job: str, tmp_path: Path) -> None:
    in_two_commits(tmp_path / "a")
    small = to_join(files(tmp_path / "a"))
    path = next(f["path"] for group in small for f in group if f["min.t_d"] is not None)
    (tmp_path / "a" / path).unlink()
    jobs: dict[str, Callable[[], object]] = {
        "compact": lambda: compact(tmp_path / "a"),
        "retain": lambda: retain(tmp_path / "a", drop_before=BEGIN + 400 * DAY),
        "erase": lambda: erase(tmp_path / "a", ["nobody"]),
        "lookup": lambda: answered(tmp_path / "a"),
    }
    with pytest.raises(MissingError, match=r"is missing in the archive .* put it back") as told:
        jobs[job]()
    assert path in str(told.value)
    assert "\n" not in str(told.value)


def test_a_job_whose_files_were_replaced_and_deleted_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = in_two_commits(tmp_path / "a")
    gone = table["vid"][3].as_py()
    original = archive_care._rewritten

    def erase_before(*given: Any) -> Any:
        monkeypatch.setattr(archive_care, "_rewritten", original)
        assert erase(tmp_path / "a", [gone]).rows_erased == 1
        return original(*given)

    monkeypatch.setattr(archive_care, "_rewritten", erase_before)
    assert compact(tmp_path / "a").files_replaced > 0
    assert answered(tmp_path / "a") == sorted(set(table["vid"].to_pylist()) - {gone})


def test_a_job_looks_again_only_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_two_commits(tmp_path / "a")
    tried = []

    def gone(*_: Any) -> Any:
        tried.append(1)
        raise GoneError("a file is no longer in the archive")

    monkeypatch.setattr(archive_care, "_rewritten", gone)
    with pytest.raises(RefusedError, match="try again"):
        compact(tmp_path / "a")
    assert len(tried) == ATTEMPTS_MAX
    monkeypatch.setattr(Lookup, "_read", gone)
    with pytest.raises(GoneError, match=r"kept replacing files, ask again"):
        answered(tmp_path / "a")
