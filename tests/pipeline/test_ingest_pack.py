"""Packets: however rows are divided and arrive, a bucket comes out whole and in order."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.pipeline.ingest import pack as ingest_pack
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.pack import Packer, unpacked

SCHEMA = pa.schema([*rows.TAKEN, ("bucket", pa.int32())])
row = st.fixed_dictionaries(
    {
        "person": st.none() | st.sampled_from(["ann", "bob", "cid", "é", "Z"]),
        "time": st.none() | st.integers(-3, 3),
        "source": st.none() | st.integers(0, 3),
        "place": st.none() | st.sampled_from(["a", "a/b", "é"]),
        "lon": st.none() | st.sampled_from([-1.5, 0.0, 2.0]),
        "lat": st.none() | st.sampled_from([-1.5, 2.0]),
        "attributes": st.none() | st.sampled_from(["{}", '{"a":1}']),
        "raw": st.none() | st.just("x"),
        "rank": st.integers(0, 3),
        "fresh": st.booleans(),
        "bucket": st.integers(0, 70_000),
    }
)


def in_order(one: dict[str, Any]) -> tuple[Any, ...]:
    """As Spark sorts: nothing before something, texts by their bytes."""
    values = [one[name] for name in rows.SORTED_BY]
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    return tuple((value is not None, value) for value in texts)


def packets(taken: list[dict[str, Any]], chunk: int) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_pylist(taken, schema=SCHEMA)
    packer = Packer(4)
    packer.chunk_rows = chunk
    return packer(table.to_batches(max_chunksize=2))


@given(st.lists(row, max_size=25), st.integers(1, 30), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_rows_come_out_whole_and_sorted_however_they_travelled(
    taken: list[dict[str, Any]], chunk: int, chance: Any
) -> None:
    found = [b.slice(i, 1) for b in packets(taken, chunk) for i in range(b.num_rows)]
    chance.shuffle(found)
    for bucket in {one["bucket"] for one in taken}:
        mine = [b for b in found if b.column("bucket")[0].as_py() == bucket]
        table = unpacked(mine)
        assert table.schema.names == rows.TAKEN.names
        want = [one for one in taken if one["bucket"] == bucket]
        got = table.to_pylist()
        keys = [in_order(one) for one in got]
        assert keys == sorted(in_order(one) for one in want)
        counted = [(repr(in_order(one)), one["raw"] or "", one["fresh"]) for one in got]
        expected = [(repr(in_order(one)), one["raw"] or "", one["fresh"]) for one in want]
        assert sorted(counted) == sorted(expected)


def test_a_bucket_without_rows_is_an_empty_table() -> None:
    assert unpacked([]).num_rows == 0
    assert unpacked([]).schema.names == rows.TAKEN.names


def test_more_rows_than_the_limit_are_refused_and_as_many_are_not() -> None:
    one = dict.fromkeys(SCHEMA.names) | {"rank": 2, "fresh": True, "bucket": 0}
    found = list(packets([one | {"person": "ann", "time": n} for n in range(5)], 2))
    assert unpacked(found, rows_max=5).num_rows == 5
    with pytest.raises(LimitError, match="more than 4 sightings of one person"):
        unpacked(found, rows_max=4)


def test_with_many_buckets_a_chunk_grows_up_to_its_limit() -> None:
    assert Packer(4).chunk_rows == ingest_pack.CHUNK_ROWS
    assert Packer(500).chunk_rows == 500 * ingest_pack.PACKET_ROWS
    assert Packer(10_000).chunk_rows == ingest_pack.CHUNK_ROWS_MAX
