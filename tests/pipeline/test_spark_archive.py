"""The same archive and the same answers when Spark's workers do the work."""

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import ContextError, InputError, LimitError, MissingError
from roamcast.matching.files import LINE_BYTES_MAX
from roamcast.model.context_arrow import from_arrow
from roamcast.model.filters import Filter
from roamcast.pipeline import load as loading
from roamcast.pipeline.archive import density
from roamcast.pipeline.archive import layout as archive_layout
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.retention import erase, retain
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.load import load, read_stretch
from roamcast.pipeline.lookup import run as looking
from roamcast.pipeline.lookup.run import Lookup
from roamcast.pipeline.lookup.stream import answer_folder
from roamcast.pipeline.lookup.tables import write_pairs
from tests.pipeline.test_archive import everything, same
from tests.strategies_pipeline import BEGIN, CONTEXTS, DAY, contexts, expected, lines, messages

pytestmark = pytest.mark.spark
COARSE = ArchiveSettings(0, grid_s=0)
"""Few cells, so few files: these tests are about commits, not about pruning."""

EVERYONE = {"m": Filter.parse("1 = 1")}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return contexts(21, 1_000, days=3)


@pytest.fixture(scope="module")
def archive(spark: Any, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive written by executors out of a DataFrame."""
    folder = tmp_path_factory.mktemp("spark") / "a"
    done = append(spark.createDataFrame(table), folder, transaction=("spark", 1))
    assert (done.rows, done.committed) == (1_000, True)
    return folder


def test_executors_write_what_the_driver_writes(
    archive: Path, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density, "DENSE_ROWS", 1)  # executors divide by day and cell in any case
    append(table, tmp_path / "b")
    assert same(everything(archive), everything(tmp_path / "b"))
    here, there = Archive.open(tmp_path / "b").files(), Archive.open(archive).files()
    chosen = [n for n in here.schema.names if n.split(".")[0] in {"min", "max", "partition"}]
    keys = [(n, "ascending") for n in chosen if n.startswith("partition")]
    assert here.select(chosen).sort_by(keys).equals(there.select(chosen).sort_by(keys))


def test_a_repeated_batch_is_not_written_again(spark: Any, archive: Path, table: pa.Table) -> None:
    done = append(spark.createDataFrame(table), archive, transaction=("spark", 1))
    assert not done.committed


def test_workers_answer_as_the_driver_and_the_reference(
    spark: Any, archive: Path, table: pa.Table
) -> None:
    asked = messages(22, 88)
    found = Lookup(archive, spark, driver_rows=0).ask(asked)
    assert found == Lookup(archive).ask(asked) == expected(table, asked)
    assert not list((archive / "_lookups").iterdir())


def test_a_lookup_needs_no_right_to_write(
    spark: Any, archive: Path, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = messages(23, 44)
    monkeypatch.setattr(Storage, "writable", False)
    monkeypatch.setattr(Storage, "create", None)
    assert Lookup(archive, spark, driver_rows=0).ask(asked) == expected(table, asked)
    monkeypatch.undo()
    count = write_pairs(lambda: spark, archive, asked, tmp_path / "pairs")
    again = write_pairs(None, archive, asked, tmp_path / "here")
    assert count == again == sum(map(len, expected(table, asked).values()))
    order = [("id", "ascending"), ("vid", "ascending")]
    there, here = (pq.read_table(tmp_path / name).sort_by(order) for name in ("pairs", "here"))
    assert there.to_pylist() == here.to_pylist()
    with pytest.raises(InputError, match="give a new folder"):
        write_pairs(None, archive, asked, tmp_path / "here")


def test_long_answers_come_as_files(
    spark: Any, archive: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "PAIRS_BY_SPARK", 0)
    asked = messages(22, 33)
    assert Lookup(archive, spark, driver_rows=0).ask(asked) == expected(table, asked)
    assert not list((archive / "_lookups").iterdir())


@pytest.mark.parametrize(("limit", "by_spark"), [(10, 1_000_000), (999, 0)])
def test_more_answers_than_allowed_are_refused_by_a_task_or_by_the_driver(
    spark: Any, archive: Path, monkeypatch: pytest.MonkeyPatch, limit: int, by_spark: int
) -> None:
    monkeypatch.setattr(looking, "PAIRS_BY_SPARK", by_spark)
    monkeypatch.setattr(looking, "ANSWERS_MAX", limit)
    with pytest.raises(LimitError, match=f"^one lookup gives at most {limit} pairs .* fewer"):
        Lookup(archive, spark, driver_rows=0).ask(EVERYONE)
    assert not list((archive / "_lookups").iterdir())


def test_more_than_spark_lets_its_driver_have_is_told_as_a_limit(spark: Any, archive: Path) -> None:
    settings = spark._jsparkSession.sparkContext().conf()  # it is read for every job anew
    settings.set("spark.driver.maxResultSize", "1")
    try:
        with pytest.raises(LimitError, match=r"more than spark\.driver\.maxResultSize") as told:
            Lookup(archive, spark, driver_rows=0).ask(EVERYONE)
    finally:
        settings.remove("spark.driver.maxResultSize")
    assert "\n" not in str(told.value)
    assert len(Lookup(archive, spark, driver_rows=0).ask(EVERYONE)["m"]) == 1_000


def test_a_missing_file_is_named_by_jobs_on_spark(
    spark: Any, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roamcast.pipeline.archive.care.SPARK_BYTES", 0)
    append(table.slice(0, 50), tmp_path / "a", settings=COARSE)
    path = min((tmp_path / "a").rglob("*.parquet"))
    path.unlink()
    for job in (
        lambda: Lookup(tmp_path / "a", spark, driver_rows=0).ask(EVERYONE),
        lambda: erase(tmp_path / "a", ["nobody"], spark),
    ):
        with pytest.raises(MissingError, match=r"is missing in the archive") as told:
            job()
        assert path.name in str(told.value)


def test_a_small_plan_does_not_start_spark(archive: Path) -> None:
    def start() -> Any:
        raise AssertionError("Spark was started for a small plan")

    assert len(Lookup(archive, start).ask(EVERYONE)["m"]) == 1_000


def test_a_bad_row_in_a_task_is_one_line_and_nothing_lands(
    spark: Any, table: pa.Table, tmp_path: Path
) -> None:
    append(table.slice(0, 10), tmp_path / "a")
    version = Archive.open(tmp_path / "a").version
    bad = table.set_column(2, CONTEXTS.field("lon"), pa.array([500.0] * 1_000))
    bad = bad.set_column(3, CONTEXTS.field("lat"), pa.array([0.0] * 1_000))
    with pytest.raises(ContextError, match=r"^a context's point is no WGS84"):
        append(spark.createDataFrame(bad), tmp_path / "a")
    assert Archive.open(tmp_path / "a").version == version


def test_a_damaged_file_in_a_task_is_one_line(spark: Any, table: pa.Table, tmp_path: Path) -> None:
    append(table.slice(0, 50), tmp_path / "a")
    path = min((tmp_path / "a").rglob("*.parquet"))
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="is damaged") as told:
        Lookup(tmp_path / "a", spark, driver_rows=0).ask(EVERYONE)
    assert path.name in str(told.value)
    assert "\n" not in str(told.value)


def test_a_large_file_is_loaded_by_workers(
    spark: Any, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.jsonl").write_bytes(lines(from_arrow(table)))
    monkeypatch.setattr(loading, "HERE_BYTES", 0)
    monkeypatch.setattr(loading, "STRETCH_BYTES", 100_000)
    done = load(tmp_path / "c.jsonl", tmp_path / "a", spark=lambda: spark)
    assert done.rows == 1_000
    assert same(everything(tmp_path / "a"), table)


def test_a_bad_line_is_told_with_its_number_and_nothing_lands(
    spark: Any, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = lines(from_arrow(table.slice(0, 300))).splitlines(keepends=True)
    good[250] = b'{"type": "Feature"}\n'
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"".join(good))
    with pytest.raises(InputError, match=r"c\.jsonl, line 251"):
        load(path, tmp_path / "a")
    monkeypatch.setattr(loading, "HERE_BYTES", 0)
    monkeypatch.setattr(loading, "STRETCH_BYTES", 10_000)
    with pytest.raises(InputError, match=r"c\.jsonl, line 251"):
        load(path, tmp_path / "a", spark=lambda: spark)
    with pytest.raises(MissingError):
        Archive.open(tmp_path / "a")


@pytest.mark.parametrize("here", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_file_with_more_names_than_an_archive_has_room_for_is_refused(
    spark: Any, tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = archive_layout.COLUMNS_MAX
    if not here:
        monkeypatch.setattr(loading, "HERE_BYTES", 0)

    def write(names: int) -> Path:
        path = tmp_path / f"{names}.jsonl"
        moment = {"t_r": "2026-01-01T00:00:00Z", "t_d": None, "place": "a"}
        feature = {"type": "Feature", "geometry": None}
        texts = [
            msgspec.json.encode({**feature, "id": f"v{n}", "properties": moment | {f"n{n}": n}})
            for n in range(names)
        ]
        path.write_bytes(b"\n".join(texts))
        return path

    assert load(write(most), tmp_path / "a", spark=lambda: spark).rows == most
    with pytest.raises(LimitError, match="at most 1024 attribute columns"):
        load(write(most + 1), tmp_path / "b", spark=lambda: spark)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("size", [1, 7, 100, 4_096, 10**9])
def test_stretches_of_a_file_have_each_line_once(size: int, tmp_path: Path) -> None:
    some = from_arrow(contexts(3, 12))
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\n" + lines(some).rstrip(b"\n"))
    end = path.stat().st_size
    found = [c for start in range(0, end, size) for c in read_stretch(path, start, start + size)]
    assert found == some


def test_lookups_miss_nothing_while_files_are_compacted_and_deleted(
    spark: Any, table: pa.Table, tmp_path: Path
) -> None:
    for start in range(0, 1_000, 250):
        append(table.slice(start, 250), tmp_path / "a", settings=COARSE)
    everyone = sorted(table["vid"].to_pylist())
    stop = threading.Event()
    problems: list[object] = []

    def ask(lookup: Lookup) -> None:
        while not stop.is_set():
            try:
                if lookup.ask(EVERYONE)["m"] != everyone:
                    problems.append("an answer misses a vid")
            except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
                problems.append(error)

    askers = [
        threading.Thread(target=ask, args=(Lookup(tmp_path / "a", session, driver_rows=0),))
        for session in (None, spark)
    ]
    for asker in askers:
        asker.start()
    for seed in range(3):
        more = table.slice(seed * 250, 250)
        append(more, tmp_path / "a")
        compact(tmp_path / "a", spark)
        vacuum(tmp_path / "a", hours=0)
    time.sleep(0.5)
    stop.set()
    for asker in askers:
        asker.join()
    assert problems == []


def test_workers_rewrite_as_the_driver_does(
    spark: Any, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roamcast.pipeline.archive.care.SPARK_BYTES", 0)
    for start in (0, 500):
        append(table.slice(start, 500), tmp_path / "a", settings=COARSE)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    there, here = tmp_path / "a", tmp_path / "b"
    assert compact(there, spark) == compact(here)
    assert compact(there, spark).files_replaced == 0
    assert same(everything(there), table)
    gone = table["vid"].to_pylist()[5:25]
    assert erase(there, gone, spark) == erase(here, gone)
    assert len(Lookup(there).ask(EVERYONE)["m"]) == 980
    ages = {"reduce_before": BEGIN + 3 * DAY, "drop_before": BEGIN + 2 * DAY}
    assert retain(there, **ages, spark=spark) == retain(here, **ages)
    assert same(everything(there), everything(here))
    assert not list((there / "_lookups").iterdir())


def test_messages_in_a_folder_are_answered_once_each(
    spark: Any, archive: Path, table: pa.Table, tmp_path: Path
) -> None:
    asked = messages(23, 30)
    incoming, out = tmp_path / "in", tmp_path / "out"
    (tmp_path / "in[1]").mkdir()  # a pattern to Spark
    with pytest.raises(InputError, match="symbolic link"):
        answer_folder(spark, tmp_path / "in[1]", str(archive), out, once=True)
    incoming.symlink_to(tmp_path / "in[1]")
    named = [{"id": name, "filter": one.source} for name, one in asked.items()]
    encoded = [msgspec.json.encode(record) + b"\n" for record in named]

    def answers() -> dict[str, list[str]]:
        files = sorted(out.glob("answers-*.jsonl"))
        found = [msgspec.json.decode(x) for f in files for x in f.read_bytes().splitlines()]
        assert len({record["id"] for record in found}) == len(found)
        return {record["id"]: record["vids"] for record in found}

    (incoming / "1.jsonl").write_bytes(b"".join(encoded[:20]))
    bad = b'no message\n{"id": "x", "filter": "age >"}\n{"id": "J\xf6rg", "filter": "age > 1"}\n'
    long = b"x" * (LINE_BYTES_MAX + 1)
    (incoming / "2.jsonl").write_bytes(bad + long + b"\n")
    answer_folder(spark, incoming, str(archive), out, once=True)
    want = expected(table, asked)
    assert answers() == {name: want[name] for name in list(asked)[:20]}
    refused = [
        msgspec.json.decode(x) for x in next(out.glob("refused-*")).read_bytes().splitlines()
    ]
    assert [record["line"] for record in refused] == [
        "no message",
        '{"id": "x", "filter": "age >"}',
        '{"id": "J\ufffdrg", "filter": "age > 1"}',
        long[1:].decode(),
    ]
    late = incoming / "15:00 [3].jsonl"
    late.write_bytes(b"".join(encoded[20:]))
    os.utime(late, (1_000_000_000, 1_000_000_000))  # moved here, but old
    answer_folder(spark, incoming, str(archive), out, once=True)
    assert answers() == want
