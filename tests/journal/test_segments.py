"""Journals on disk: whole or absent, bounded, read back without loss."""

import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.journal import segments
from roamcast.journal.book import Entry, Journal
from roamcast.journal.schema import FIELDS, KINDS, SCHEMA, derive, from_batch, to_batch
from roamcast.journal.segments import (
    SEGMENT_RECORDS_MAX,
    Segments,
    read_entries,
    read_table,
    segments_of,
)
from roamcast.model.records import RECORDS, Delivery, Drop, Record, kind_of

entries = st.lists(
    st.tuples(
        st.integers(0, 2**62),
        st.text(max_size=8),
        st.one_of([st.from_type(record) for record in RECORDS]),
    ),
    max_size=30,
)


def fits(entry: Entry) -> bool:
    values = msgspec.structs.astuple(entry[2])
    return all(not isinstance(value, int) or abs(value) < 2**63 for value in values)


@given(entries)
def test_every_record_survives_the_columns(given_entries: list[Entry]) -> None:
    kept = [entry for entry in given_entries if fits(entry)]
    assert list(from_batch(to_batch(kept))) == kept


def test_every_field_of_every_record_has_a_column() -> None:
    fields = {name for names in FIELDS.values() for name in names}
    assert fields == set(SCHEMA.names) - {"time_us", "host", "kind"}
    assert set(KINDS) == {kind_of(record) for record in RECORDS}


def test_a_record_must_state_its_kind() -> None:
    with pytest.raises(TypeError, match="Silent states no kind"):

        class Silent(Record, frozen=True):
            reason: str


def test_renaming_a_record_class_changes_nothing_on_disk(tmp_path: Path) -> None:
    class Loss(Record, frozen=True, tag="Drop"):
        reason: str

    writer = Segments(tmp_path, "b1")
    writer.add([(1, "b1", Loss("loss"))])
    writer.close()
    assert list(read_entries(tmp_path)) == [(1, "b1", Drop("loss"))]


def test_a_field_name_has_one_type_in_all_records() -> None:
    class Odd(Record, frozen=True, tag="Odd"):
        reason: int

    with pytest.raises(AssertionError, match="reason has two types"):
        derive((Drop, Odd))


def some(count: int) -> list[Entry]:
    return [(number, "b1", Drop("loss", bytes=number)) for number in range(count)]


def test_a_journal_is_read_back_across_segments(tmp_path: Path) -> None:
    journal = Journal(Segments(tmp_path, "b1", records_max=1000))
    for entry in some(3_500):
        journal.write(*entry)
    journal.close()
    sizes = [len(read_table(path)) for path in segments_of(tmp_path, "b1")]
    assert sizes == [1000, 1000, 1000, 500]
    assert list(read_entries(tmp_path)) == some(3_500)


def test_a_segment_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    writer = Segments(tmp_path, "b1", records_max=10)
    writer.add(some(10))
    assert len(segments_of(tmp_path)) == 1
    assert writer._held == []
    writer.add(some(9))
    assert len(writer._held) == 9
    with pytest.raises(AssertionError):
        Segments(tmp_path, "b1", records_max=SEGMENT_RECORDS_MAX + 1)


def test_a_crash_before_the_rename_leaves_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Segments(tmp_path, "b1", records_max=2).add(some(2))
    writer = Segments(tmp_path, "b1", records_max=2)

    def power_cut(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", power_cut)
        with pytest.raises(KeyboardInterrupt):
            writer.add(some(2))
    assert list(read_entries(tmp_path)) == some(2)
    killed = tmp_path / ".b1-00000002.parquet.new"  # a process that is killed cannot clean up
    killed.write_bytes(b"PAR1 half of it")
    assert list(read_entries(tmp_path)) == some(2)
    after = Segments(tmp_path, "b1", records_max=2)
    assert len(list(tmp_path.iterdir())) == 1
    after.add(some(2))
    assert [path.name for path in segments_of(tmp_path)] == [
        "b1-00000001.parquet",
        "b1-00000002.parquet",
    ]


def test_journals_of_two_hosts_share_a_folder(tmp_path: Path) -> None:
    for name in ("b1", "b1-2"):
        writer = Segments(tmp_path, name)
        writer.add([(0, name, Drop("loss"))])
        writer.close()
    assert [host for _, host, _ in read_entries(tmp_path, "b1")] == ["b1"]
    assert [host for _, host, _ in read_entries(tmp_path)] == ["b1", "b1-2"]
    in_the_making = tmp_path / ".b1-2-00000002.parquet.new"
    in_the_making.touch()
    Segments(tmp_path, "b1")
    assert in_the_making.exists()
    assert segments_of(tmp_path / "absent") == []


def test_an_older_segment_without_a_column_is_read_with_nulls(tmp_path: Path) -> None:
    record = Delivery("ann", "b2", 7, delay_us=250)
    table = pa.Table.from_batches([to_batch([(1, "b1", record)])]).drop_columns(["delay_us"])
    pq.write_table(table, tmp_path / "b1-00000001.parquet")
    assert list(read_entries(tmp_path)) == [(1, "b1", Delivery("ann", "b2", 7, delay_us=0))]


def test_a_kind_from_a_newer_version_is_left_out(tmp_path: Path) -> None:
    class Dream(Record, frozen=True, tag="Dream"):
        reason: str

    writer = Segments(tmp_path, "b1")
    writer.add([(1, "b1", Dream("of sheep")), (2, "b1", Drop("loss"))])
    writer.close()
    assert list(read_entries(tmp_path)) == [(2, "b1", Drop("loss"))]


def test_what_is_no_segment_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "b1-00000001.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="b1-00000001"):
        read_table(path)


@pytest.mark.parametrize("name", ["", "../b1", "B1", "b 1", "x" * 65, "-b"])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        Segments(tmp_path, name)


def test_the_number_of_segments_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENTS_MAX", 3)
    writer = Segments(tmp_path, "b1", records_max=1)
    writer.add(some(2))
    with pytest.raises(LimitError):
        writer.add(some(1))
