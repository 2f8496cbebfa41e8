"""Reading a share of a lookup: which rows of a file match which messages.

The same code runs in the driver and in workers. Columns are read late: first the times and points
of the row groups that can match, as far as bounds do not decide, then what is checked
(`lookup.checks`) of the groups that have candidates, then the vids of those with a match. If the
candidates are too many, because messages have neither times nor boxes, whole row groups go through
the matching kernel, with the messages as its filters.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.matching import FilterSet
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Normal
from roamcast.model.kinds import holding
from roamcast.model.time import FOREVER
from roamcast.pipeline.archive.bounds import FIRST, GroupBounds
from roamcast.pipeline.archive.files import check_columns, damage, times
from roamcast.pipeline.archive.layout import Array, context_name
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.lookup.pages import PlainPages
from roamcast.pipeline.lookup.plan import Needs, Share, named, properties
from roamcast.pipeline.lookup.scan import (
    ASK_ENDS,
    ASK_POINT,
    ASK_STARTS,
    BLOCK_ROWS,
    candidates,
)

CANDIDATES_PER_ROW = 8
"""Pairs of a need and a row, on average over a file, up to which pairs are checked one by one."""

CANDIDATES_SPARE = 65_536
CANDIDATES_MAX = 1 << 25
PAIRS_TOGETHER = 1 << 25
"""Pairs that one call of the kernel may find at most, should every message match every row."""

ANSWERED_TOGETHER = 1 << 22
"""Pairs whose vids are written out at once: a vid has some forty bytes, a number four."""

FOOTERS_REMEMBERED = 4_096
ANSWER = pa.schema([("message", pa.int32()), ("vid", pa.string())])
_WHERE = {"t_r": ASK_STARTS, "t_d": ASK_ENDS, "lon": ASK_POINT, "lat": ASK_POINT}
_TIMES = {"t_r", "t_d"}
_NOTHING: Array = np.zeros(0)
_NO_TIMES: Array = np.zeros(0, np.int64)


class Footer:
    """A data file's footer: its columns and the bounds of its row groups."""

    def __init__(self, storage: Storage, path: str) -> None:
        with storage.open(path) as source, damage(path):
            self.metadata = pq.read_metadata(source)
            schema = self.metadata.schema.to_arrow_schema()
        self.columns = check_columns(path, schema)
        self.bounds = GroupBounds(self.metadata, self.columns)
        self.pages = PlainPages(self.metadata)
        groups = range(self.metadata.num_row_groups)
        self.rows: Array = np.array([self.metadata.row_group(g).num_rows for g in groups], np.int64)


@lru_cache(maxsize=FOOTERS_REMEMBERED)
def _footer(uri: str, path: str) -> Footer:
    """Read a footer; files never change once written, so it stays right."""
    return Footer(Storage(uri), path)


class OpenFile:
    """A data file that is being read; coded: columns whose texts are read as codes."""

    def __init__(self, source: Any, footer: Footer, coded: Sequence[str]) -> None:
        self.footer = footer
        self._source = source
        self._coded = coded

    @cached_property
    def raw(self) -> pa.Buffer | None:
        """The whole file if it is in memory, as a local one is."""
        if not isinstance(self._source, pa.MemoryMappedFile):
            return None
        self._source.seek(0)
        return self._source.read_buffer(self._source.size())

    @cached_property
    def parquet(self) -> pq.ParquetFile:
        """The file for pyarrow, which reads what is not plain."""
        return pq.ParquetFile(
            self._source, metadata=self.footer.metadata, read_dictionary=self._coded
        )


class FilePart:
    """Some row groups of an open file; rows are counted through them."""

    def __init__(self, file: OpenFile, groups: Array) -> None:
        self._file = file
        self._footer = file.footer
        self.groups = groups
        self.starts: Array = np.concatenate([[0], np.cumsum(file.footer.rows[groups])])

    @property
    def rows(self) -> int:
        """How many rows the groups have."""
        return int(self.starts[-1])

    def of(self, chosen: Array) -> "FilePart":
        """Give some of the row groups."""
        return FilePart(self._file, self.groups[chosen])

    def narrowed(self, at: Array) -> tuple["FilePart", Array]:
        """Give the groups in which some of these rows lie, and the rows' numbers there."""
        own = np.searchsorted(self.starts, at, "right") - 1
        kept = np.zeros(len(self.groups), bool)
        kept[own] = True
        if kept.all():
            return self, at
        part = self.of(kept)
        moved = np.zeros(len(self.groups), np.int64)
        moved[kept] = self.starts[:-1][kept] - part.starts[:-1]
        return part, at - moved[own]

    def read(self, names: Sequence[str]) -> pa.Table:
        """Read columns by their names in `model.context_arrow`, as far as the file has them."""
        stored = {name: self._footer.columns.get(name) for name in names}
        there = [column for column in stored.values() if column is not None]
        groups = self.groups.tolist()
        table = self._file.parquet.read_row_groups(groups, columns=there, use_threads=False)
        return table.select(there).rename_columns([context_name(column) for column in there])

    def column(self, name: str) -> Array:
        """Read degrees, or moments in µs with FOREVER where there is none."""
        raw = self._file.raw
        found = None if raw is None else self._plain(raw, name)
        if found is not None:
            return found
        values = self.read([name]).column(0)
        return times(values) if name in _TIMES else np.asarray(values)

    def vids(self, at: Array) -> pa.Array:
        """Read the vids of some rows."""
        raw = self._file.raw
        if raw is not None:
            stored = self._footer.columns["vid"]
            found = self._footer.pages.texts(raw, stored, self.groups, at)
            if found is not None:
                return found
        return self.read(["vid"]).column(0).take(pa.array(at)).combine_chunks()

    def _plain(self, raw: pa.Buffer, name: str) -> Array | None:
        return self._footer.pages.numbers(raw, self._footer.columns[name], self.groups)

    def of_property(self, name: str) -> list[str]:
        """Name the columns that hold a property."""
        if name in {"place", "vid"}:
            return [name]
        return [column for column in self._footer.columns if column.partition(":")[2] == name]

    def numbers(self, name: str) -> Array:
        """Give an attribute's numbers, NaN where there is none."""
        asked = [f"{kind}:{name}" for kind in holding("number")]
        there = [column for column in asked if column in self._footer.columns]
        raw = self._file.raw
        if raw is not None and len(there) == 1:
            plain = self._plain(raw, there[0])
            if plain is not None:
                return plain.astype(np.float64, copy=False)
        table = self.read(there)
        found: Array | None = None
        for column in table.columns:
            values = np.asarray(column.cast(pa.float64(), safe=False))
            found = values if found is None else np.where(np.isnan(found), values, found)
        return np.full(self.rows, np.nan) if found is None else found

    def texts(self, name: str) -> tuple[Array, pa.Array]:
        """Give a property's texts: codes, -1 where there is none, and the distinct texts."""
        column = name if name in {"place", "vid"} else f"string:{name}"
        table = self.read([column])
        if not table.num_columns:
            return np.full(self.rows, -1, np.int32), pa.array([], pa.string())
        found = table.column(0)
        if not pa.types.is_dictionary(found.type):
            found = found.dictionary_encode()
        coded = found.unify_dictionaries().combine_chunks()
        if isinstance(coded, pa.ChunkedArray):  # without rows there is no chunk
            return np.zeros(0, np.int32), pa.array([], pa.string())
        codes = coded.indices.fill_null(-1) if coded.null_count else coded.indices
        return np.asarray(codes), coded.dictionary

    def table(self, parts: Sequence[Normal]) -> pa.Table:
        """Give the fixed columns and those that some parts of normal forms speak of."""
        asked = {name for part in parts for name in named(part)}
        return self.whole(asked)

    def whole(self, asked: Iterable[str]) -> pa.Table:
        """Give times, points, and the columns of some properties; nobody asks for the rest."""
        columns = [*_WHERE, *(c for name in sorted(set(asked)) for c in self.of_property(name))]
        table = plain(self.read(list(dict.fromkeys(columns))))
        for name, missing in (("vid", "v"), ("place", None)):
            if name not in table.schema.names:
                none = pa.repeat(pa.scalar(missing, pa.string()), table.num_rows)
                table = table.append_column(name, none)
        return table


class Reader:
    """The messages of a lookup, compiled for matching against files."""

    def __init__(self, messages: Sequence[Filter]) -> None:
        self.needs = Needs(messages)
        self._messages: Sequence[Filter] = list(messages)

    @cached_property
    def filters(self) -> FilterSet:
        """The messages as the kernel's filters, for files with too many candidates."""
        made = FilterSet()
        made.add_many((str(number), message) for number, message in enumerate(self._messages))
        return made

    def answers(self, storage: Storage, shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
        """Give the pairs of message and vid that these files hold, also more than once."""
        for share in shares:
            with storage.open(share.path) as source, damage(share.path):
                for messages, part, at in self._found(storage, share, source):
                    for first in range(0, len(at), ANSWERED_TOGETHER):
                        some = slice(first, first + ANSWERED_TOGETHER)
                        yield _answer(messages[some], *part.narrowed(at[some]))

    def rows(self, storage: Storage, share: Share, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Give the rows of a file that match some message, in those of these columns it has."""
        with storage.open(share.path) as source, damage(share.path):
            for _, part, at in self._found(storage, share, source):
                own, rows = part.narrowed(np.unique(at))
                yield plain(own.read(columns).take(pa.array(rows)))

    def _found(
        self, storage: Storage, share: Share, source: Any
    ) -> Iterator[tuple[Array, FilePart, Array]]:
        """Give messages' numbers and rows that match, with the row groups that hold the rows."""
        footer = _footer(storage.uri, share.path)
        possible = footer.bounds.possible(self.needs, share.needs)
        groups = np.flatnonzero(possible.any(axis=0))
        if not len(groups):
            return
        texts = [name if name == "place" else f"string:{name}" for name in self.needs.checks.texts]
        coded = [footer.columns[name] for name in texts if name in footer.columns]
        part = FilePart(OpenFile(source, footer, coded), groups)
        pairs = self._candidates(footer, part, share.needs, possible[:, groups])
        if pairs is not None:
            which, at = pairs
            if not len(which):
                return
            part, at = part.narrowed(at)
            pairs = self.needs.checks.hold(which, at, part)
        if pairs is None:
            yield from self._matched(part)
        elif len(pairs[0]):
            yield self.needs.messages[pairs[0]], part, pairs[1]

    def _candidates(
        self, footer: Footer, part: FilePart, needs: Array, possible: Array
    ) -> tuple[Array, Array] | None:
        """Give the pairs of a need and a row within it; None if they are too many."""
        asked = self._asked(footer, part, needs, possible)
        t_r, t_d, lon, lat = _where(part, asked)
        room = min(CANDIDATES_MAX, CANDIDATES_PER_ROW * part.rows + CANDIDATES_SPARE)
        which, at = np.empty(room, np.int32), np.empty(room, np.int32)
        bounds = np.empty((-(-int(footer.rows.max()) // BLOCK_ROWS), 8))
        found = candidates(
            part.starts, needs, asked, t_r, t_d, lon, lat, self.needs.times, self.needs.boxes,
            bounds, which, at,
        )  # fmt: skip
        return None if found < 0 else (which[:found], at[:found])

    def _asked(self, footer: Footer, part: FilePart, needs: Array, possible: Array) -> Array:
        """Say for each need and row group what rows must be compared with; -1 if none can match."""
        low_r, high_r, low_d, high_d = (self.needs.times[needs, n][:, None] for n in range(4))
        bounds, groups = footer.bounds, part.groups
        asked = np.zeros(possible.shape, np.int8)
        for ask, low, high, known in (
            (ASK_STARTS, low_r, high_r, bounds.starts),
            (ASK_ENDS, low_d, high_d, bounds.ends),
        ):
            whole = (low <= known[0][groups]) & (high >= known[1][groups])
            whole |= (low <= FIRST) & (high >= FOREVER)
            asked[~whole] |= ask
        asked[self.needs.boxed[needs]] |= ASK_POINT  # some rows of a group may have no point
        asked[~possible] = -1
        return asked

    def _matched(self, part: FilePart) -> Iterator[tuple[Array, FilePart, Array]]:
        """Let the matching kernel decide on whole row groups."""
        table = part.whole(self._properties).combine_chunks()
        together = max(1, PAIRS_TOGETHER // max(1, len(self.filters)))
        for start in range(0, table.num_rows, together):
            pairs = self.filters.match_batch(table.slice(start, together))
            if len(pairs.rows):
                yield pairs.ids.astype(np.int32), part, pairs.rows + start

    @cached_property
    def _properties(self) -> list[str]:
        return properties(self._messages)

    def __getstate__(self) -> tuple[Needs, list[bytes]]:
        return self.needs, [message.stored for message in self._messages]

    def __setstate__(self, state: tuple[Needs, list[bytes]]) -> None:
        self.needs, stored = state
        self._messages = _Stored(stored)


class _Stored(Sequence[Filter]):
    """Filters in their stored form, read when they are looked at."""

    def __init__(self, stored: list[bytes]) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, number: Any) -> Any:
        return Filter.of_stored(self._stored[number])


def plain(table: pa.Table) -> pa.Table:
    """Give texts as texts: those that are tested were read with their dictionaries."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            column = table.column(number).cast(pa.string())
            table = table.set_column(number, pa.field(field.name, pa.string()), column)
    return table


def _where(part: FilePart, asked: Array) -> list[Array]:
    """Read times and points of the row groups where they are asked for; elsewhere is anything."""
    found: list[Array] = []
    for name, ask in _WHERE.items():
        wanted: Array = np.logical_or.reduce((asked >= 0) & (asked & ask > 0))
        if not wanted.any():
            found.append(_NO_TIMES if name in _TIMES else _NOTHING)
        elif wanted.all():
            found.append(part.column(name))
        else:
            values = part.of(wanted).column(name)
            spread = np.zeros(part.rows, values.dtype)
            spread[np.repeat(wanted, np.diff(part.starts))] = values
            found.append(spread)
    return found


def _answer(messages: Array, part: FilePart, at: Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(messages), part.vids(at)], schema=ANSWER)
