"""How a person's rows come together: packed by bucket before the shuffle, sorted after it.

Spark moves rows one by one, column by column. So what crosses its shuffle is packets instead: all
rows of a chunk that belong to one bucket of people, as compressed Arrow, each text once. A task of
the scan gets all packets of its bucket and sorts them by numbers (decision 0055).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import LimitError
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.layers import newest

CHUNK_ROWS = 262_144
PACKET_ROWS = 2_048
"""With many buckets a chunk grows, so that a packet still has so many rows."""

CHUNK_ROWS_MAX = 2_097_152
BUCKET_ROWS = 400_000
"""Rows of a bucket, on average: what a task of the scan holds in memory."""

BUCKET_ROWS_MAX = 50_000_000
"""One person's rows are never divided; more than this in one batch are refused."""

PACKET_SQL = "bucket int, packet binary"
_PACKET = pa.schema([("bucket", pa.int32()), ("packet", pa.binary())])
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")

Order = npt.NDArray[np.int64]


class Packer:
    """Gathers rows until a chunk is full and packs it, by buckets of people."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        self.chunk_rows = min(CHUNK_ROWS_MAX, max(CHUNK_ROWS, buckets * PACKET_ROWS))

    def __call__(self, parts: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Pack rows in the columns of `rows.TAKEN`; a part stays whole."""
        waiting: list[pa.Table] = []
        count = 0
        for part in parts:
            if count and count + part.num_rows > self.chunk_rows:
                yield packed(pa.concat_tables(waiting), self.buckets)
                waiting, count = [], 0
            waiting.append(part)
            count += part.num_rows
        if count:
            yield packed(pa.concat_tables(waiting), self.buckets)


def packed(table: pa.Table, buckets: int) -> pa.RecordBatch:
    """Divide a chunk's rows by bucket and pack each part."""
    table = table.combine_chunks()
    bucket = buckets_of(table, buckets)
    order = _by(bucket, np.arange(len(bucket)))
    bucket = bucket[order]
    # a column without a value stays at home: most rows have no use for half of the columns
    used = [name for name in table.schema.names if table[name].null_count < len(table)]
    arrays = [table[name].combine_chunks().take(pa.array(order)) for name in used]
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    ends = np.append(starts[1:], len(order))
    packets = [
        _packet(used, [array.slice(start, end - start) for array in arrays])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    found = [pa.array(bucket[starts].astype(np.int32)), pa.array(packets, pa.binary())]
    return pa.RecordBatch.from_arrays(found, schema=_PACKET)


def buckets_of(table: pa.Table, buckets: int) -> Order:
    """Give the bucket of each row: its person's; the letters of the dead, of any."""
    person = table["person"].combine_chunks()
    hashes = np.append(text_hashes(person.dictionary), np.uint64(0))
    found = hashes[person.indices.fill_null(-1).to_numpy()] % np.uint64(buckets)
    # dead letters may have no person, and many: each goes where its place in the chunk sends it
    spread = np.arange(len(found), dtype=np.uint64) % np.uint64(buckets)
    dead = table["rank"].to_numpy() == rows.RANK_DEAD
    return np.where(dead, spread, found).astype(np.int64)


HASHED_TOGETHER = 4_096
"""Texts that are hashed at once: eight bytes are needed for each of their letters."""

_ODD = np.uint64(0x9E3779B97F4A7C15)


def text_hashes(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Hash texts by their bytes, on every machine alike: a polynomial modulo 2^64, then mixed."""
    parts = [
        _sums(texts.slice(first, HASHED_TOGETHER))
        for first in range(0, len(texts), HASHED_TOGETHER)
    ]
    found = np.concatenate([np.empty(0, np.uint64), *parts])
    found = (found ^ (found >> np.uint64(32))) * _ODD
    mixed: npt.NDArray[np.uint64] = found ^ (found >> np.uint64(32))
    return mixed


def _sums(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Add up each text's letters, every place in it with its own factor."""
    _, offsets, letters = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths, starts = np.diff(bounds), bounds[:-1] - bounds[0]
    found = np.zeros(len(texts), np.uint64)
    some = np.flatnonzero(lengths)
    if len(some):
        data = np.frombuffer(letters, np.uint8)[bounds[0] : bounds[-1]].astype(np.uint64)
        factors = np.cumprod(np.full(lengths.max(), _ODD))
        data *= factors[np.arange(len(data)) - np.repeat(starts, lengths)]
        found[some] = np.add.reduceat(data, starts[some])
    return found


def _packet(names: list[str], arrays: list[pa.Array]) -> bytes:
    batch = pa.RecordBatch.from_arrays([compact(array) for array in arrays], names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    packet: bytes = sink.getvalue().to_pybytes()
    return packet


def compact(column: pa.Array) -> pa.Array:
    """Leave in a dictionary only the texts that rows have."""
    if not pa.types.is_dictionary(column.type):
        return column
    codes, count = column.indices.fill_null(-1).to_numpy(), len(column.dictionary)
    if count <= 4 * len(codes):
        met = np.zeros(count + 1, bool)
        met[codes] = True
        used = np.flatnonzero(met[:count])
        codes = np.append(np.cumsum(met[:count]) - 1, -1)[codes]
    else:  # to look through all texts would take longer than to sort these codes
        found, which = np.unique(codes, return_inverse=True)
        used = found[found >= 0]
        codes = which - (len(found) - len(used))
    new = pa.array(codes.astype(np.int32), mask=codes < 0 if column.null_count else None)
    return pa.DictionaryArray.from_arrays(new, column.dictionary.take(pa.array(used)))


def unpacked(batches: Iterable[pa.RecordBatch], rows_max: int = BUCKET_ROWS_MAX) -> pa.Table:
    """Return all rows of a bucket, in the order that the scan needs."""
    parts = []
    count = 0
    for batch in batches:
        for packet in batch.column("packet"):
            parts.append(opened(packet))
            count += parts[-1].num_rows
            if count > rows_max:
                raise LimitError(
                    f"more than {rows_max} sightings of one person at once; ingest fewer files"
                )
    table = pa.concat_tables([rows.TAKEN.empty_table(), *parts], promote_options="default")
    return sorted_rows(newest(table.combine_chunks()))


def opened(packet: pa.BinaryScalar, names: Sequence[str] | None = None) -> pa.Table:
    """Give a packet's rows, or some of its columns; one that it does not have is null."""
    stream = packet.as_buffer()
    if names is None:
        return pa.ipc.open_stream(stream).read_all()
    fields = pa.ipc.open_stream(stream).schema.names
    wanted = [fields.index(name) for name in names if name in fields]
    options = pa.ipc.IpcReadOptions(included_fields=wanted)
    found = pa.ipc.open_stream(stream, options=options).read_all()
    return rows.taken(found).select(names)


def sorted_rows(table: pa.Table) -> pa.Table:
    """Give rows in the order that the scan needs, each text once in its dictionary."""
    for at, field in enumerate(table.schema):
        if field.type == rows.WORDS:
            texts = table.column(at).combine_chunks()
            if len(texts.dictionary.unique()) < len(texts.dictionary):  # a foreign file's own
                texts = rows.coded(texts.cast(pa.string()))
            table = table.set_column(at, field, texts)
    return rows.chosen(table, in_order(table))


def in_order(table: pa.Table) -> Order:
    """Give the order of rows by person, rank and time, and for equal ones by all the rest."""
    person, rank = ranks_of(table["person"]) + 1, table["rank"].to_numpy()
    time = table["time"].fill_null(np.iinfo(np.int64).min).to_numpy()
    order: Order = np.argsort(time, kind="stable")  # files follow time, so this is nearly done
    order = _by(person, _by(rank, order))
    following = [values[order][1:] == values[order][:-1] for values in (person, rank, time)]
    same = following[0] & following[1] & following[2]
    if same.any():
        tied = np.append(same, False) | np.insert(same, 0, False)
        group = np.cumsum(np.insert(~same, 0, True))[tied]
        some = order[tied]
        order[tied] = some[np.lexsort([*_rest(table.take(pa.array(some))), group])]
    return order


def _rest(table: pa.Table) -> list[Any]:
    """Give the columns that decide between rows of one person and moment, the last one first."""
    numbers = [table[name].fill_null(-np.inf).to_numpy() for name in ("lat", "lon")]
    texts = [ranks_of(table[name]) for name in ("attributes", "place")]
    return [texts[0], *numbers, texts[1], table["source"].fill_null(-1).to_numpy()]


def ranks_of(column: pa.ChunkedArray) -> Order:
    """Give ranks in the order of a column's texts, -1 for none."""
    texts = column.combine_chunks()
    order = np.asarray(pc.sort_indices(texts.dictionary))
    ranks = np.empty(len(order) + 1, np.int64)
    ranks[order], ranks[-1] = np.arange(len(order)), -1
    found: Order = ranks[texts.indices.fill_null(-1).to_numpy()]
    return found


def _by(values: npt.NDArray[Any], order: Order) -> Order:
    """Sort an order stably by small non-negative numbers.

    NumPy sorts 16-bit numbers by counting, without comparing.
    """
    high = int(values.max()) if len(values) else 0
    for shift in range(0, high.bit_length(), 16):
        digit = (values >> shift).astype(np.uint16)  # the lowest 16 bits of what is left
        order = order[np.argsort(digit[order], kind="stable")]
    return order


assert set(rows.SORTED_BY) == {
    *("person", "rank", "time", "source", "place", "lon", "lat", "attributes")
}
