"""How a person's rows come together: packed by bucket before the shuffle, sorted after it.

Spark moves rows one by one, column by column. So what crosses its shuffle is packets instead: all
rows of a chunk that belong to one bucket of people, as compressed Arrow. A task of the scan gets
all packets of its bucket and sorts them by numbers (decision 0055).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roamcast.errors import LimitError
from roamcast.pipeline.archive.files import ranks
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
    """`mapInArrow`'s function before the shuffle: rows with their `bucket` in, packets out."""

    def __init__(self, buckets: int) -> None:
        self.chunk_rows = min(CHUNK_ROWS_MAX, max(CHUNK_ROWS, buckets * PACKET_ROWS))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack one partition, a chunk at a time."""
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= self.chunk_rows:
                yield packed(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            yield packed(pa.Table.from_batches(waiting))


def packed(table: pa.Table) -> pa.RecordBatch:
    """Divide a chunk's rows by bucket and pack each part."""
    buckets = table["bucket"].to_numpy()
    order = _by(buckets, np.arange(len(buckets)))
    # a column without a value stays at home: most rows have no use for half of the columns
    used = [n for n in table.schema.names if n != "bucket" and table[n].null_count < len(table)]
    table = table.select(used).take(pa.array(order)).combine_chunks()
    found, starts = np.unique(buckets[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    packets = [
        _packet(table.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    arrays = [pa.array(found.astype(np.int32)), pa.array(packets, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=_PACKET)


def _packet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    packet: bytes = sink.getvalue().to_pybytes()
    return packet


def unpacked(batches: Iterable[pa.RecordBatch], rows_max: int = BUCKET_ROWS_MAX) -> pa.Table:
    """Return all rows of a bucket, in the order that the scan needs."""
    parts = []
    count = 0
    for batch in batches:
        for packet in batch.column("packet"):
            parts.append(pa.ipc.open_stream(packet.as_buffer()).read_all())
            count += parts[-1].num_rows
            if count > rows_max:
                raise LimitError(
                    f"more than {rows_max} sightings of one person at once; ingest fewer files"
                )
    table = pa.concat_tables([rows.TAKEN.empty_table(), *parts], promote_options="default")
    return sorted_rows(newest(table.combine_chunks()))


def sorted_rows(table: pa.Table) -> pa.Table:
    """Give rows in the order that the scan needs."""
    return table.take(pa.array(in_order(table)))


def in_order(table: pa.Table) -> Order:
    """Give the order of rows by person, rank and time, and for equal ones by all the rest."""
    person, rank = ranks(table["person"]) + 1, table["rank"].to_numpy()
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
    texts = [ranks(table[name]) for name in ("attributes", "place")]
    return [texts[0], *numbers, texts[1], table["source"].fill_null(-1).to_numpy()]


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
