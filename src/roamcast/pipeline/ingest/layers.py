"""What an ingest remembers of people, in layers: a batch of few people writes a thin one.

A layer is the rows of one batch: of each of its people a line of the register, and what is open or
waits. Of somebody in several layers only the newest counts. A batch of few rows looks up the people
it has, in files that are sorted by person, and writes a layer of just them; a large one reads all
layers and writes one. So a batch costs what it touches, not everybody ever seen (decision 0370).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast.identity.agent_core import NEVER
from roamcast.pipeline.ingest import rows

KINDS = {
    rows.PERSON: rows.RANK_PERSON,
    rows.OPEN: rows.RANK_OPEN,
    rows.PENDING: rows.RANK_SIGHTING,
}
"""What is remembered, and its rank among a person's rows."""

GROUP_ROWS = 4_096
"""Rows of a row group: to look somebody up is to read one of each file."""

LAYERS_MAX = 24
"""Then all of them become one again."""

SMALL_ROWS = 4_096
"""A layer below that is always taken over by the next."""


class Layers:
    """The layers that count, as folders of `kind=…`, the oldest first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)

    def files(self, kind: str) -> Iterator[tuple[int, Path]]:
        """Give the files of a kind, each with the number of its layer."""
        for number, folder in enumerate(self.folders):
            for path in sorted((folder / f"kind={kind}").glob("[!.]*.parquet")):
                yield number, path

    def sizes(self) -> list[int]:
        """Count the people of each layer."""
        found = [0] * len(self.folders)
        for number, path in self.files(rows.PERSON):
            found[number] += int(pq.read_metadata(path).num_rows)
        return found

    def people(self, layers: Sequence[int]) -> set[str]:
        """Name the people of some layers."""
        found: set[str] = set()
        for number, path in self.files(rows.PERSON):
            if number in layers:
                found.update(_column(path, "person").to_pylist())
        return found

    def due(self, open_before: int, pending_until: int, most: int) -> set[str] | None:
        """Name who was last seen before a moment, or waits for one that has come.

        It may name more: whoever a newer layer has as well. None if they are more than `most`.
        """
        found: set[str] = set()
        for kind, before in ((rows.OPEN, open_before), (rows.PENDING, pending_until + 1)):
            for _, path in self.files(kind):
                table = _read(path, ["person", "time"])
                # layers of earlier versions do not say when: then everybody is looked at
                passed = pc.less(pc.fill_null(table["time"], NEVER), before)
                found.update(table["person"].filter(passed).to_pylist())
                if len(found) > most:
                    return None
        return found

    def of(self, people: set[str]) -> pa.Table:
        """Give all that is remembered of some people, in the columns of `rows.TAKEN`."""
        wanted = pa.array(sorted(people), pa.string())
        parts = [rows.TAKEN.empty_table()]
        for kind, rank in KINDS.items():
            for number, path in self.files(kind):
                table = _holding(path, wanted)
                parts.append(remembered(table, rank, number))
        return newest(pa.concat_tables(parts).combine_chunks())


def remembered(table: pa.Table, rank: int, layer: int) -> pa.Table:
    """Give rows of a layer's file in the columns of `rows.TAKEN`."""
    count = table.num_rows
    return rows.taken(
        table.append_column("rank", pa.array(np.full(count, rank, np.int8)))
        .append_column("fresh", pa.array(np.zeros(count, bool)))
        .append_column("layer", pa.array(np.full(count, layer, np.int8)))
    )


def newest(table: pa.Table) -> pa.Table:
    """Leave of each person's remembered rows those of the newest layer that has the person."""
    layers = table["layer"].combine_chunks()
    ends = pc.min_max(layers)
    if ends["min"].as_py() == ends["max"].as_py():
        return table
    person = table["person"].combine_chunks()
    whose = person.indices.fill_null(len(person.dictionary)).to_numpy(zero_copy_only=False)
    layer = layers.fill_null(-1).to_numpy(zero_copy_only=False)
    named = table["rank"].to_numpy() == rows.RANK_PERSON
    top = np.full(len(person.dictionary) + 1, -1, np.int8)
    np.maximum.at(top, whose[named], layer[named])
    return table.filter(pa.array((layer < 0) | (layer == top[whose])))


def taken_over(sizes: Sequence[int], people: int, most: int) -> int:
    """Say how many of the newest layers a new one takes over, so that there are few.

    A layer is taken over when the new one is at least half as large. So each line is written again
    a number of times that grows with the logarithm of the layers, and never when it is one of many.
    """
    count = 0
    for size in reversed(sizes):
        if size > max(SMALL_ROWS, 2 * people) or people + size > most:
            break
        people += size
        count += 1
    return count


def _holding(path: Path, wanted: pa.Array) -> pa.Table:
    """Read the rows of some people, from the row groups that may hold them."""
    with pq.ParquetFile(path) as file:
        names = np.asarray(wanted.to_pylist(), object)
        at = file.schema_arrow.get_field_index("person")
        groups = []
        for number in range(file.num_row_groups):
            said = file.metadata.row_group(number).column(at).statistics
            known = said is not None and said.has_min_max
            if not known or _between(names, said.min, said.max):
                groups.append(number)
        table = file.read_row_groups(groups, use_threads=False)
    return table.filter(pc.is_in(table["person"], wanted))


def _between(names: Any, low: str, high: str) -> bool:
    return bool(np.searchsorted(names, low) < np.searchsorted(names, high, "right"))


def _column(path: Path, name: str) -> Any:
    return _read(path, [name])[name]


def _read(path: Path, names: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        known = [name for name in names if name in file.schema_arrow.names]
        table = file.read(known, use_threads=False)
    for name in names:
        if name not in known:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.int64()))
    return table
