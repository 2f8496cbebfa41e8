"""Whose vids are in the archive? What the trusted node can answer, and how it forgets a person.

Erasure has two halves. The archive deletes the rows of the vids listed here (`pipeline erase`).
The trusted node deletes the person: register line, open interval, waiting sightings and dead
letters. Then the vids that somebody may have copied open to a number that stands for nobody.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.identity.pseudonyms import HANDLE, REGISTER, resolve, vids_of
from roamcast.pipeline import ingest_rows as rows
from roamcast.pipeline.archive_table import Archive
from roamcast.pipeline.ingest_state import IngestState

CHUNK_ROWS = 1_000_000


def register_of(state: IngestState) -> pa.Table:
    """Read who is known, with the handle that stands for each of them."""
    folder = state.rows(state.last.number, rows.PERSON)
    if folder is None:
        return REGISTER.empty_table()
    table = ds.dataset(folder, format="parquet").to_table(columns=["person", "handle"])
    return pa.table([table["person"], table["handle"].cast(HANDLE)], schema=REGISTER)


def people_behind(state: IngestState, vids: pa.Array) -> pa.Array:
    """Resolve vids; null where nobody is behind one (any more)."""
    return resolve(vids, state.keys, register_of(state))


def vids_of_person(state: IngestState, person: str) -> list[str]:
    """List a person's vids in the archive, reading its vids once, a million at a time."""
    register = register_of(state)
    if not pc.any(pc.equal(register["person"], person)).as_py():
        raise InputError("the register knows no such person")
    found: list[str] = []
    for column in _archived(state):
        found += vids_of(person, column, state.keys, register).to_pylist()
    return sorted(found)


def forget_person(state: IngestState, person: str) -> None:
    """Delete a person from everything the trusted node keeps between batches."""
    for kind in (rows.PERSON, rows.OPEN, rows.PENDING):
        folder = state.rows(state.last.number, kind)
        if folder is not None:
            _delete(folder, person)
    for folder in sorted((state.folder / "dead_letters").glob("batch=*")):
        _delete(folder, person)


def _archived(state: IngestState) -> Iterator[pa.Array]:
    archive = Archive.open(state.archive)
    for path in archive.files()["path"].to_pylist():
        with archive.storage.open(path) as source:
            for batch in pq.ParquetFile(source).iter_batches(CHUNK_ROWS, columns=["vid"]):
                yield batch.column(0)


def _delete(folder: Path, person: str) -> None:
    """Write a folder's files again without a person's rows; each is replaced whole."""
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        kept = table.filter(pc.fill_null(pc.not_equal(table["person"], person), fill_value=True))
        if kept.num_rows == table.num_rows:
            continue
        beside = path.with_name(f".{path.name}.new")
        pq.write_table(kept, beside)
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)  # Spark's sum of the old bytes
        beside.replace(path)
