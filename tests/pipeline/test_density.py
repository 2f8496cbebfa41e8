"""The archive divides by how many contexts there are, and nothing is lost or counted twice."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.pipeline.archive import density
from roamcast.pipeline.archive import files as archive_files
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.bounds import FileBounds
from roamcast.pipeline.archive.care import compact
from roamcast.pipeline.archive.density import coarser, label_of, month, settled, to_join, week
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.retention import erase
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Needs
from roamcast.pipeline.lookup.run import Lookup
from tests.strategies_pipeline import contexts, messages


def vids(archive: Path) -> list[str]:
    opened = Archive.open(archive)
    paths = opened.files()["path"].to_pylist()
    return sorted(v for path in paths for v in read_file(opened.storage, path)["vid"].to_pylist())


def labels(archive: Path) -> list[density.Label]:
    return [label_of(file) for file in Archive.open(archive).files().to_pylist()]


@pytest.mark.parametrize(
    ("day", "of_week", "of_month"),
    [
        ("2026-11-17", "2026-W47", "2026-11"),
        ("2027-01-01", "2026-W53", "2027-01"),
        ("0001-01-01", "0001-W01", "0001-01"),
        ("9999-12-31", "9999-W52", "9999-12"),
    ],
)
def test_weeks_and_months_are_named(day: str, of_week: str, of_month: str) -> None:
    assert (week(day), month(day)) == (of_week, of_month)
    assert week(of_week) == of_week
    assert month(of_month) == of_month


days = st.sampled_from(["2026-01-05", "2026-01-06", "2026-01-31", "2026-02-01"])
rows = st.lists(st.tuples(st.just("hours"), days, st.sampled_from(["a", "b", "none"])), min_size=1)


@given(rows)
def test_each_context_lies_in_the_finest_division_that_is_dense(
    placed: list[density.Label],
) -> None:
    before, density.DENSE_ROWS = density.DENSE_ROWS, 3
    try:
        found = settled(pa.table(dict(zip(("span", "day", "cell"), zip(*placed, strict=True),
                                          strict=True))))  # fmt: skip
    finally:
        density.DENSE_ROWS = before
    told = list(zip(*(found[name].to_pylist() for name in found.schema.names), strict=True))
    counts = {label: told.count(label) for label in told}
    for fine, label in zip(placed, told, strict=True):
        assert label in (fine, *coarser(fine))
        assert counts[label] >= 3 or label == coarser(fine)[-1]
        assert placed.count(fine) < 3 or label == fine


def test_few_contexts_of_many_days_and_cells_become_few_files(tmp_path: Path) -> None:
    append(contexts(3, 2_000), tmp_path / "a")
    months = {(span, day) for span, day, _ in labels(tmp_path / "a")}
    assert len(labels(tmp_path / "a")) == len(months)
    assert {cell for _, _, cell in labels(tmp_path / "a")} == {density.MANY}


def test_compaction_divides_again_what_has_become_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density, "DENSE_ROWS", 50)
    table = contexts(4, 2_000, days=3)
    for start in range(0, 2_000, 40):  # no batch is dense, all together are
        append(table.slice(start, 40), tmp_path / "a")
    assert {cell for _, _, cell in labels(tmp_path / "a")} == {density.MANY}
    compact(tmp_path / "a")
    fine = [label for label in labels(tmp_path / "a") if label[2] != density.MANY]
    assert fine
    assert vids(tmp_path / "a") == sorted(table["vid"].to_pylist())
    assert compact(tmp_path / "a").files_replaced == 0


def test_an_archive_of_the_version_before_is_read_and_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had a file for each day and cell, in the same format."""
    table, asked = contexts(5, 1_000), messages(6, 44)
    with monkeypatch.context() as before:
        before.setattr(archive_files, "settled", lambda table: table)
        append(table, tmp_path / "a")
    many, answers = len(labels(tmp_path / "a")), Lookup(tmp_path / "a").ask(asked)
    append(contexts(7, 10).slice(0, 0), tmp_path / "a")
    compact(tmp_path / "a")
    assert len(labels(tmp_path / "a")) * 10 < many
    assert Lookup(tmp_path / "a").ask(asked) == answers
    assert vids(tmp_path / "a") == sorted(table["vid"].to_pylist())


def test_an_erased_file_stays_in_its_division(tmp_path: Path) -> None:
    table = contexts(8, 500)
    append(table, tmp_path / "a")
    before = sorted(labels(tmp_path / "a"))
    done = erase(tmp_path / "a", [table["vid"][0].as_py(), "nobody"])
    assert (done.rows_erased, done.files_left) == (1, 0)
    assert sorted(labels(tmp_path / "a")) == before
    assert vids(tmp_path / "a") == sorted(table["vid"].to_pylist())[1:]


def test_large_or_lonely_files_are_left_alone() -> None:
    def file(day: str, size: int, count: int) -> dict[str, object]:
        return {"path": f"{day}{size}", "size_bytes": size, "num_records": count,
                "partition.span": "hours", "partition.day": day, "partition.cell": "a"}  # fmt: skip

    dense, large = density.DENSE_ROWS, density.FILE_BYTES_GOAL
    assert to_join([file("2026-01-05", 10, dense), file("2026-01-06", 10, dense)]) == []
    assert to_join([file("2026-01-05", 10, 1), file("2026-01-06", large, 1)]) == []
    assert to_join([file("2026-01-05", 10, 1), file("2026-02-06", 10, 1)]) == []
    (both,) = to_join([file("2026-01-05", 10, 1), file("2026-01-06", 20, 1)])
    assert len(both) == 2
    full = [file("2026-01-05", large // 2 - 1, dense) for _ in range(5)]
    assert [len(group) for group in to_join(full)] == [2, 2]


def test_the_tree_names_the_pairs_that_the_rule_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density, "DENSE_ROWS", 1)
    append(contexts(9, 300), tmp_path / "a")
    needs = Needs(list(messages(10, 200).values()))
    bounds = FileBounds(Archive.open(tmp_path / "a").files())
    which, files = bounds.pairs(needs)
    found = np.zeros((needs.count, bounds.parts), bool)
    found[which, files] = True
    assert (found == bounds.possible(needs, np.arange(needs.count))).all()
    assert 0 < found.sum() < found.size / 2
