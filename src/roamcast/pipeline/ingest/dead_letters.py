"""Rows that were no sightings, and why: a table beside the private state, one folder a batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from roamcast import files
from roamcast.identity.sightings import SOURCES
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


@contextmanager
def replayed(state: IngestState) -> Iterator[list[Path]]:
    """Give files with the rows of all dead letters, to be ingested again under the block.

    Rows that were understood come as Parquet, lines of JSON as they were; other letters stay. When
    the block ends without an error, what was given is deleted: a row that is still no sighting is
    a letter of the new batch. After a crash the letters are there, and rows that were taken count
    as repeated or late.
    """
    with TemporaryDirectory(prefix=".replay-", dir=state.folder) as name:
        found: list[Path] = []
        left: list[tuple[Path, pa.Table]] = []
        for folder in _folders(state):
            table = ds.dataset(folder, format="parquet").to_table(columns=list(COLUMNS))
            understood = pc.is_valid(table["time"])
            written = pc.fill_null(pc.starts_with(table["raw"], "{"), False)
            lines = pc.and_(pc.invert(understood), written)
            target = Path(name) / folder.name.partition("=")[2]
            found += _sightings(table.filter(understood), table.filter(lines), target)
            left.append((folder, table.filter(pc.invert(pc.or_(understood, lines)))))
        yield found
    for folder, rest in left:
        _keep_only(folder, rest)


def _sightings(rows: pa.Table, texts: pa.Table, target: Path) -> Iterator[Path]:
    if rows.num_rows:
        path = target.with_suffix(".parquet")
        source = pa.array(SOURCES).take(rows["source"].combine_chunks())
        kept = {name: rows[name] for name in ("person", "place", "lon", "lat", "attributes")}
        moments = rows["time"].cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({**kept, "source": source, "time": moments}), path)
        yield path
    if texts.num_rows:
        path = target.with_suffix(".jsonl")
        path.write_text("\n".join(texts["raw"].to_pylist()) + "\n", encoding="utf-8")
        yield path


def _keep_only(folder: Path, rest: pa.Table) -> None:
    before = list(folder.glob("*.parquet"))
    if rest.num_rows:
        pq.write_table(rest, folder / f"{uuid4().hex}.parquet")
        for path in before:
            path.unlink()
    else:
        files.remove_tree(folder)


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
