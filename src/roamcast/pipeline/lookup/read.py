"""Reading a share of a lookup: which vids of these files match which messages.

The same function runs in the driver and in workers. Of each file only the row groups that can match
are read, and of those first the times and points. Rows outside every need are dropped by a small
kernel; the rest goes through the matching kernel, with the messages as its filters.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.matching import FilterSet, Pairs
from roamcast.model.kernels import kernel
from roamcast.pipeline.archive.bounds import GroupBounds
from roamcast.pipeline.archive.files import check_columns, damage, times
from roamcast.pipeline.archive.layout import Array, context_name
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.lookup.plan import Needs, Share


@kernel
def mark(
    t_r: Any,
    t_d: Any,
    lon: Any,
    lat: Any,
    first: int,
    last: int,
    needs: Any,
    times: Any,
    boxed: Any,
    boxes: Any,
    keep: Any,
) -> int:
    """Mark the rows from first to last that lie within some need; give how many there are."""
    found = 0
    for need in needs:
        low_r, high_r = times[need, 0], times[need, 1]
        low_d, high_d = times[need, 2], times[need, 3]
        in_box = boxed[need]
        west, east = boxes[need, 0], boxes[need, 1]
        south, north = boxes[need, 2], boxes[need, 3]
        for row in range(first, last):
            if t_r[row] < low_r or t_r[row] > high_r or t_d[row] < low_d or t_d[row] > high_d:
                continue
            # NaN, no point, is within no box
            if in_box and not (west <= lon[row] <= east and south <= lat[row] <= north):
                continue
            if not keep[row]:
                keep[row] = True
                found += 1
    return found


def warm_up() -> None:
    """Compile, or load what was compiled before."""
    whole, real = np.zeros(1, np.int64), np.zeros(1)
    needs, boxed = np.zeros(1, np.int32), np.zeros(1, np.bool_)
    mark(whole, whole, real, real, 0, 1, needs, whole.repeat(4).reshape(1, 4), boxed,
         real.repeat(4).reshape(1, 4), np.zeros(1, np.bool_))  # fmt: skip


MATCHED_TOGETHER = 8_192
"""Rows gathered before the matching kernel runs: a call costs as much as some hundred rows."""

PAIRS_TOGETHER = 1 << 25
"""Pairs that one call of the kernel may find at most, should every message match every row."""

ANSWERED_TOGETHER = 1 << 22
"""Pairs whose vids are written out at once: a vid has some forty bytes, a number four."""

FOOTERS_KEPT = 4_096
ANSWER = pa.schema([("message", pa.int32()), ("vid", pa.string())])
_WHERE = ["t_r", "t_d", "lon", "lat"]


class Footer:
    """A data file's footer: its columns and the bounds of its row groups."""

    def __init__(self, storage: Storage, path: str) -> None:
        with storage.open(path) as source, damage(path):
            self.metadata = pq.read_metadata(source)
            schema = self.metadata.schema.to_arrow_schema()
        self.columns = check_columns(path, schema)
        self.bounds = GroupBounds(self.metadata, self.columns)
        groups = range(self.metadata.num_row_groups)
        self.starts = np.cumsum([0, *(self.metadata.row_group(g).num_rows for g in groups)])


@lru_cache(maxsize=FOOTERS_KEPT)
def _footer(uri: str, path: str) -> Footer:
    """Read a footer; files never change once written, so it stays right."""
    return Footer(Storage(uri), path)


class Reader:
    """The messages of a lookup, compiled for matching against files."""

    def __init__(self, filters: FilterSet, needs: Needs, asked: Iterable[str]) -> None:
        self._filters = filters
        self._needs = needs
        self._asked = frozenset(asked)

    def answers(self, storage: Storage, shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
        """Give the pairs of message and vid that these files hold, distinct within a batch."""
        held: list[pa.Table] = []
        for share in shares:
            held.extend(self.rows(storage, share))
            if sum(part.num_rows for part in held) >= MATCHED_TOGETHER:
                yield from self._matched(held)
                held = []
        if held:
            yield from self._matched(held)

    def rows(self, storage: Storage, share: Share) -> Iterator[pa.Table]:
        """Read the rows of a file that lie within some need."""
        footer = _footer(storage.uri, share.path)
        possible = footer.bounds.possible(self._needs, share.needs)
        groups = np.flatnonzero(possible.any(axis=0))
        if not len(groups):
            return
        with storage.open(share.path) as source, damage(share.path):
            file = pq.ParquetFile(source, metadata=footer.metadata)
            where = file.read_row_groups(groups.tolist(), columns=_WHERE, use_threads=False)
            keep, kept = self._scan(footer, where, groups, share.needs, possible)
            if not kept.any():
                return
            rest = [
                stored
                for name, stored in footer.columns.items()
                if name == "vid" or name in self._asked or name.partition(":")[2] in self._asked
            ]
            wanted = [stored for stored in rest if stored not in _WHERE]
            other = file.read_row_groups(groups[kept].tolist(), columns=wanted, use_threads=False)
        at = np.flatnonzero(keep)
        in_kept = np.cumsum(np.repeat(kept, np.diff(footer.starts)[groups])) - 1
        where, other = where.take(pa.array(at)), other.take(pa.array(in_kept[at]))
        columns = {name: where[name] for name in _WHERE} | {
            context_name(name): other[name] for name in wanted
        }
        columns.setdefault("place", pa.nulls(where.num_rows, pa.string()))
        yield pa.table(columns)

    def _scan(
        self, footer: Footer, where: pa.Table, groups: Array, needs: Array, possible: Array
    ) -> tuple[Array, Array]:
        """Mark the rows that lie within some need, and the row groups that have one."""
        t_r, t_d = times(where["t_r"]), times(where["t_d"])
        lon, lat = np.asarray(where["lon"]), np.asarray(where["lat"])
        keep = np.zeros(where.num_rows, np.bool_)
        kept = np.zeros(len(groups), bool)
        first = 0
        for number, group in enumerate(groups.tolist()):
            last = first + int(footer.starts[group + 1] - footer.starts[group])
            chosen = needs[possible[:, group]]
            kept[number] = mark(
                t_r, t_d, lon, lat, first, last, chosen, self._needs.times, self._needs.boxed,
                self._needs.boxes, keep,
            )  # fmt: skip
            first = last
        return keep, kept

    def _matched(self, held: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        table = pa.concat_tables(held, promote_options="default").combine_chunks()
        together = max(1, PAIRS_TOGETHER // max(1, len(self._filters)))
        for start in range(0, table.num_rows, together):
            part = table.slice(start, together)
            pairs = self._filters.match_batch(part)
            for first in range(0, len(pairs.rows), ANSWERED_TOGETHER):
                last = first + ANSWERED_TOGETHER
                some = Pairs(pairs.rows[first:last], pairs.numbers[first:last], pairs.names)
                yield _answer(part["vid"], some)


def _answer(vids: pa.ChunkedArray, pairs: Pairs) -> pa.RecordBatch:
    messages = pa.array(pairs.ids.astype(np.int32))
    found = pa.table({"message": messages, "vid": vids.take(pa.array(pairs.rows))})
    distinct = found.group_by(["message", "vid"], use_threads=False).aggregate([])
    return pa.RecordBatch.from_arrays(
        [distinct[name].combine_chunks() for name in ANSWER.names], schema=ANSWER
    )
