"""Rows that were no sightings, and why: a table beside the private state, one folder a batch."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from roamcast.pipeline.ingest.state import IngestState

COLUMNS = ("reason", "file", "person", "time", "source", "place", "lon", "lat", "attributes", "raw")


def dead_letters(state: IngestState) -> pa.Table:
    """Read all dead letters of committed batches; `file` is the path that held the row."""
    parts = [_batch(path, state) for path in _folders(state)]
    if not parts:
        return pa.table({name: pa.array([], pa.string()) for name in ("reason", "file", "raw")})
    return pa.concat_tables(parts)


def counted(state: IngestState) -> dict[str, int]:
    """Count the dead letters by reason, most frequent first."""
    tally = dead_letters(state).group_by("reason").aggregate([([], "count_all")])
    pairs = zip(tally["reason"].to_pylist(), tally["count_all"].to_pylist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def _folders(state: IngestState) -> Iterator[Path]:
    for path in sorted((state.folder / "dead_letters").glob("batch=*")):
        if int(path.name.partition("=")[2]) <= state.last.number:
            yield path


def _batch(path: Path, state: IngestState) -> pa.Table:
    table = ds.dataset(path, format="parquet").to_table(columns=list(COLUMNS))
    for at, field in enumerate(table.schema):
        if field.type == pa.string():
            table = table.set_column(at, field, readable(table.column(at)))
    names = state.batch(int(path.name.partition("=")[2])).names
    numbers = table["file"].combine_chunks().dictionary_encode()
    known = [names.get(number, "?") for number in numbers.dictionary.to_pylist()]
    # a file that could not be read at all has no rows: its letter's text is its path
    files = pc.coalesce(pa.array(known, pa.string()).take(numbers.indices), table["raw"])
    return table.set_column(table.schema.get_field_index("file"), "file", files)


def readable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give texts that can be printed: older batches kept bytes that are no UTF-8."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        kept = texts.cast(pa.binary()).to_pylist()
        told = [None if text is None else text.decode(errors="replace") for text in kept]
        return pa.chunked_array([pa.array(told, pa.string())])
    return texts
