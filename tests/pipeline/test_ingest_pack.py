"""Packets: however rows are divided and arrive, a bucket comes out whole and in order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.pipeline.ingest import pack as ingest_pack
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.pack import (
    Packer,
    buckets_of,
    compact,
    opened,
    text_hashes,
    unpacked,
)

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
    }
)


def in_order(one: dict[str, Any]) -> tuple[Any, ...]:
    """As Spark sorts: nothing before something, texts by their bytes."""
    values = [one[name] for name in rows.SORTED_BY]
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    return tuple((value is not None, value) for value in texts)


def packets(taken: list[dict[str, Any]], chunk: int, buckets: int = 4) -> Iterator[pa.RecordBatch]:
    parts = [taken[first : first + 2] for first in range(0, len(taken), 2)]
    packer = Packer(buckets)
    packer.chunk_rows = chunk
    return packer(pa.Table.from_pylist(part, schema=rows.TAKEN) for part in parts)


@given(
    st.lists(row, max_size=25),
    st.integers(1, 30),
    st.sampled_from([1, 4, 70_000]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100)
def test_rows_come_out_whole_and_sorted_however_they_travelled(
    taken: list[dict[str, Any]], chunk: int, buckets: int, chance: Any
) -> None:
    found = [b.slice(i, 1) for b in packets(taken, chunk, buckets) for i in range(b.num_rows)]
    chance.shuffle(found)
    came = []
    met: dict[Any, set[int]] = {}
    for bucket in {b.column("bucket")[0].as_py() for b in found}:
        assert 0 <= bucket < buckets
        mine = [b for b in found if b.column("bucket")[0].as_py() == bucket]
        table = unpacked(mine)
        assert table.schema == rows.TAKEN
        got = table.to_pylist()
        keys = [in_order(one) for one in got]
        assert keys == sorted(keys)
        came += [(repr(in_order(one)), one["raw"] or "", one["fresh"]) for one in got]
        for one in got:
            if one["rank"] != rows.RANK_DEAD:
                met.setdefault(one["person"], set()).add(bucket)
    want = [(repr(in_order(one)), one["raw"] or "", one["fresh"]) for one in taken]
    assert sorted(came) == sorted(want)
    assert all(len(buckets) == 1 for buckets in met.values()), "a person is in one bucket"


@given(st.lists(row, min_size=1, max_size=9))
def test_some_columns_of_a_packet_are_read_alone(taken: list[dict[str, Any]]) -> None:
    for batch in packets(taken, 9):
        for packet in batch["packet"]:
            whole = rows.taken(opened(packet))
            for names in (["person", "rank"], ["rank"], ["raw"]):
                assert opened(packet, names).to_pylist() == whole.select(names).to_pylist()


def test_dead_letters_are_spread_over_all_buckets() -> None:
    dead = dict.fromkeys(rows.TAKEN.names) | {"rank": rows.RANK_DEAD, "fresh": True}
    table = pa.Table.from_pylist([dead] * 1_000, schema=rows.TAKEN)
    assert np.bincount(buckets_of(table, 10)).tolist() == [100] * 10


@given(st.lists(st.text(max_size=5) | st.sampled_from(["p-1", "p-2"]), max_size=20))
def test_a_text_has_one_hash_wherever_it_stands(texts: list[str]) -> None:
    alone = {text: int(text_hashes(pa.array([text], pa.string()))[0]) for text in texts}
    together = text_hashes(pa.array(["before", *texts], pa.string()).slice(1))
    assert together.tolist() == [alone[text] for text in texts]


def test_hashes_of_numbered_people_fill_all_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_pack, "HASHED_TOGETHER", 1_000)
    names = pa.array([f"person-{number:06d}" for number in range(10_000)], pa.string())
    hashes = text_hashes(names)
    assert len(set(hashes.tolist())) == 10_000
    for buckets in (2, 10, 64, 100):
        counts = np.bincount((hashes % np.uint64(buckets)).astype(int), minlength=buckets)
        assert counts.min() > 0.6 * 10_000 / buckets


@given(
    st.lists(st.none() | st.text(max_size=2), max_size=9),
    st.lists(st.integers(0, 8), max_size=40),
)
def test_a_dictionary_keeps_only_the_texts_that_rows_have(
    words: list[str | None], chosen: list[int]
) -> None:
    column = pa.array(words, rows.WORDS).take(
        pa.array([n for n in chosen if n < len(words)], pa.int32())
    )
    kept = compact(column)
    assert kept.to_pylist() == column.to_pylist()
    assert sorted(kept.dictionary.to_pylist()) == sorted(
        {w for w in column.to_pylist() if w is not None}
    )


def test_a_bucket_without_rows_is_an_empty_table() -> None:
    assert unpacked([]).num_rows == 0
    assert unpacked([]).schema.names == rows.TAKEN.names


def test_more_rows_than_the_limit_are_refused_and_as_many_are_not() -> None:
    one = dict.fromkeys(rows.TAKEN.names) | {"rank": 2, "fresh": True}
    found = list(packets([one | {"person": "ann", "time": n} for n in range(5)], 2))
    assert unpacked(found, rows_max=5).num_rows == 5
    with pytest.raises(LimitError, match="more than 4 sightings of one person"):
        unpacked(found, rows_max=4)


def test_with_many_buckets_a_chunk_grows_up_to_its_limit() -> None:
    assert Packer(4).chunk_rows == ingest_pack.CHUNK_ROWS
    assert Packer(500).chunk_rows == 500 * ingest_pack.PACKET_ROWS
    assert Packer(10_000).chunk_rows == ingest_pack.CHUNK_ROWS_MAX
