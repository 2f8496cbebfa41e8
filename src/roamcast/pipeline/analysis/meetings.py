"""Who met whom: pairs of contexts at one place at one time, by a sweep over their beginnings.

A join of a table with itself compares everybody who was ever at a place with everybody else. The
sweep walks a place's contexts in the order of their beginnings and compares each with those that
have not ended yet, so its work grows with those who met. A place's contexts are cut into buckets of
time, each a task's work; a pair is told by the bucket in which its common time begins, so once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.model.kernels import kernel

BUCKET_S = 6 * 3_600
PAIRS_TOGETHER = 1 << 20
"""Pairs that a task holds before it hands them on."""

MET = "source string, vid string, place string, shared long"
_MET = pa.schema(
    [
        ("source", pa.string()),
        ("vid", pa.string()),
        ("place", pa.string()),
        ("shared", pa.int64()),
    ]
)


@kernel
def sweep(
    state: Any,
    groups: Any,
    begins: Any,
    start: Any,
    reach: Any,
    vids: Any,
    asked: Any,
    everybody: Any,
    sources: Any,
    found: Any,
) -> int:
    """Write pairs of rows that meet and one of which is asked about; stop where room ends.

    Rows are sorted by group, then by start. state: the row to go on with, and how many rows are in
    `everybody` and `sources`, which hold those of its group that may still be there. begins: a
    group's first moment; common time that begins before it is another group's.
    """
    count = 0
    row, all_there, asked_there = state[0], state[1], state[2]
    while row < len(start):
        if row == 0 or groups[row] != groups[row - 1]:
            all_there = asked_there = 0
        there = everybody if asked[row] else sources
        size = all_there if asked[row] else asked_there
        if count + size > len(found):
            break
        kept = 0
        for place in range(size):
            other = there[place]
            if reach[other] <= start[row]:
                continue  # it is gone, so it meets nobody who begins later
            there[kept] = other
            kept += 1
            # rows come by their starts: common time begins with this row
            if vids[other] != vids[row] and start[row] >= begins[groups[row]]:
                found[count, 0], found[count, 1] = other, row
                count += 1
        if asked[row]:
            all_there = kept
            sources[asked_there] = row
            asked_there += 1
        else:
            asked_there = kept
        everybody[all_there] = row
        all_there += 1
        row += 1
    state[0], state[1], state[2] = row, all_there, asked_there
    return count


def met(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give who met whom among rows of whole buckets.

    Rows are (place, bucket, vid, start, end, reach, asked), moments in µs; `reach` is until when
    somebody who comes may meet the vid, which for a context that lasts is earlier than its end.
    """
    held = list(batches)
    if not held:
        return
    table = pa.Table.from_batches(held).combine_chunks()
    places = np.asarray(table["place"].combine_chunks().dictionary_encode().indices)
    buckets, start = np.asarray(table["bucket"]), np.asarray(table["start"])
    order = np.lexsort([start, buckets, places])
    table = table.take(pa.array(order))
    places, buckets, start = places[order], buckets[order], start[order]
    changed = (places[1:] != places[:-1]) | (buckets[1:] != buckets[:-1])
    groups = np.concatenate([[0], np.cumsum(changed)])
    begins = buckets[np.concatenate([[True], changed])] * BUCKET_S * 1_000_000
    coded = table["vid"].combine_chunks().dictionary_encode()
    asked = np.asarray(table["asked"])
    columns = (groups, begins, start, np.asarray(table["reach"]), np.asarray(coded.indices), asked)
    state = np.zeros(3, np.int64)
    everybody, sources = (np.empty(len(start), np.int64) for _ in range(2))
    room = PAIRS_TOGETHER
    while state[0] < len(start):
        before = int(state[0])
        pairs = np.empty((room, 2), np.int64)
        count = sweep(state, *columns, everybody, sources, pairs)
        if state[0] == before:  # one row met more than there is room for
            room *= 2
            continue
        yield from _batches(table, pairs[:count], asked)


def _batches(table: pa.Table, pairs: Any, asked: Any) -> Iterator[pa.RecordBatch]:
    """Write pairs out, once for each of the two who is asked about."""
    start, end = np.asarray(table["start"]), np.asarray(table["end"])
    for source, other in ((0, 1), (1, 0)):
        mine = pairs[asked[pairs[:, source]]]
        if not len(mine):
            continue
        left, right = mine[:, source], mine[:, other]
        shared = np.minimum(end[left], end[right]) - np.maximum(start[left], start[right])
        columns = [
            table["vid"].take(pa.array(left)),
            table["vid"].take(pa.array(right)),
            table["place"].take(pa.array(left)),
            pc.cast(pa.array(shared), pa.int64()),
        ]
        found = pa.table(columns, schema=_MET)
        yield from found.filter(pc.greater(found["shared"], 0)).to_batches()
