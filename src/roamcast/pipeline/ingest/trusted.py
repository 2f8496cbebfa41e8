"""The trusted node beside an ingest: whose vids are in the archive, and which keys seal them.

Erasure has two halves. The archive deletes the rows of the vids listed here (`pipeline erase`). The
trusted node deletes the person: register line, open interval, waiting sightings and dead letters.
Vids that somebody may have copied then open to a number that stands for nobody.

A new epoch of keys is for the day a key may have been seen, and for forgetting by calendar: it
seals with a fresh key while old keys still open their vids. Destroying an old epoch's key makes all
its vids stand for nobody, for ever. Both happen under the ingest's lock, never inside a batch.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast import files
from roamcast.errors import InputError
from roamcast.identity.key_store import KeyStore
from roamcast.identity.keys import RandomBytes, TrustedKeys, save_keys
from roamcast.identity.pseudonyms import HANDLE, REGISTER, resolve, vids_of
from roamcast.identity.sealing import agent_secrets
from roamcast.pipeline.archive.care import Workers
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.layers import GROUP_ROWS
from roamcast.pipeline.ingest.state import IngestState
from roamcast.pipeline.spark.errors import collected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Epochs(msgspec.Struct, frozen=True):
    """A trusted node's epochs: the one that seals, and those whose vids can be opened."""

    node: str
    current: int
    open: tuple[int, ...]
    destroyed: tuple[int, ...]


def epochs_of(keys: TrustedKeys) -> Epochs:
    """Say which epochs there are, without their keys."""
    destroyed = tuple(n for n in range(1, keys.current + 1) if n not in keys.epochs)
    return Epochs(keys.node, keys.current, tuple(sorted(keys.epochs)), destroyed)


def rotate(state: IngestState, random_bytes: RandomBytes) -> Epochs:
    """Begin the next epoch: vids are sealed with a fresh key, older ones still open."""
    if state.shared:
        raise InputError("these keys are a trusted node's: it rotates and destroys them")
    return _save(state, state.keys.rotated(random_bytes))


def destroy(state: IngestState, epoch: int) -> Epochs:
    """Destroy an old epoch's key; there is no way back."""
    if state.shared:
        raise InputError("these keys are a trusted node's: it rotates and destroys them")
    if epoch == state.keys.current:
        raise InputError(f"epoch {epoch} seals now: rotate first, then destroy it")
    return _save(state, state.keys.without(epoch))


def _save(state: IngestState, keys: TrustedKeys) -> Epochs:
    save_keys(keys, state.folder / "keys.json")
    state.keys = keys
    return epochs_of(keys)


CHUNK_ROWS = 1_000_000
BROUGHT_ROWS = 10_000_000
"""About how many vids Spark brings here at a time."""

_ESCAPED = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')


def register_of(state: IngestState) -> pa.Table:
    """Read who is known, with the handle that stands for each of them."""
    parts = [REGISTER.empty_table()]
    for _, path in state.layers.files(rows.PERSON):
        table = pq.read_table(path, columns=["person", "handle"], partitioning=None)
        handles = table["handle"].cast(HANDLE)
        parts.append(pa.table([table["person"], handles], schema=REGISTER))
    # a handle is for ever: lines of one person in several layers are the same
    return pa.concat_tables(parts).group_by(["person", "handle"]).aggregate([])


def people_behind(state: IngestState, vids: pa.Array) -> pa.Array:
    """Resolve vids; null where nobody is behind one (any more)."""
    return resolve(vids, state.keys, register_of(state))


def vids_of_person(
    state: IngestState, person: str, spark: "SparkSession | Workers | None" = None
) -> list[str]:
    """List a person's vids in the archive, reading its vids once, a million at a time.

    Workers of Spark read the vids; keys and register stay here.
    """
    register = register_of(state)
    if not pc.any(pc.equal(register["person"], person)).as_py():
        raise InputError("the register knows no such person")
    found: list[str] = []
    for column in archived_vids(state.archive, spark):
        found += vids_of(person, column, state.keys, register).to_pylist()
    return sorted(found)


def give_seeds(
    state: IngestState,
    person: str,
    store: KeyStore,
    spark: "SparkSession | Workers | None" = None,
) -> int:
    """Give a person the keys of their vids in the archive; give how many vids these are.

    They open mail that came to what sensors saw; nothing of anybody else's (decision 0221).
    """
    secret = state.sealing_secret
    if not secret:
        raise InputError("this ingest holds no keys: it has no trusted node that takes mail")
    vids = vids_of_person(state, person, spark)
    store.add_held(vids, [agent_secrets(secret, vid) for vid in vids], "seen by sensors")
    return len(vids)


def forget_person(state: IngestState, person: str) -> int:
    """Delete a person from everything the trusted node keeps; give how many rows that were.

    The register's line goes last: as long as something is left, the person can still be named, so
    whoever was interrupted says it again. What unfinished and older batches had left of anybody
    was removed when the folder was opened.
    """
    letters = sorted((state.folder / "dead_letters").glob("batch=*"))
    kinds = [
        folder / f"kind={kind}"
        for kind in (rows.OPEN, rows.PENDING, rows.PERSON)
        for folder in state.layers.folders
    ]
    return sum(_delete(folder, person) for folder in (*letters, *kinds))


def archived_vids(
    archive: str | Path, spark: "SparkSession | Workers | None" = None
) -> Iterator[pa.Array]:
    """Read all vids of an archive, a million at a time; those that Spark reads come once each."""
    opened = Archive.open(archive)
    workers = Workers.of(spark)
    if workers is not None and opened.size_bytes >= workers.bytes_min:
        yield from _read_by_spark(opened, workers.spark)
        return
    for path in opened.files()["path"].to_pylist():
        with opened.storage.open(path) as source:
            for batch in pq.ParquetFile(source).iter_batches(CHUNK_ROWS, columns=["vid"]):
                yield batch.column(0)


def _read_by_spark(archive: Archive, spark: "SparkSession") -> Iterator[pa.Array]:
    """Let Spark's workers read the vids and drop repeated ones; bring them here in parts."""
    from pyspark.sql import functions as f

    from roamcast.pipeline.analysis.reading import contexts

    vids = contexts(spark, archive.storage.uri, columns=["vid"]).distinct()
    parts = -(-sum(archive.files()["num_records"].to_pylist()) // BROUGHT_ROWS)
    for part in range(parts):
        mine = vids.where(f.pmod(f.xxhash64("vid"), f.lit(parts)) == part)
        yield collected(mine, archive.storage.failed)["vid"].combine_chunks()


def _delete(folder: Path, person: str) -> int:
    """Write a folder's files again without a person's rows; each is replaced whole."""
    deleted = 0
    files.remove_hidden(folder)  # what was begun beside, and Spark's sums of the old bytes
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        others = pc.fill_null(pc.not_equal(table["person"], person), fill_value=True)
        if "raw" in table.schema.names:
            others = pc.and_(others, pc.invert(_spoken_of(table["raw"], person)))
        kept = table.filter(others)
        if kept.num_rows == table.num_rows:
            continue
        beside = path.with_name(f".{path.name}.new")
        pq.write_table(kept, beside, row_group_size=GROUP_ROWS)
        files.move_into_place(beside, path)
        deleted += table.num_rows - kept.num_rows
    return deleted


def _spoken_of(texts: pa.ChunkedArray, person: str) -> pa.ChunkedArray:
    """Say which texts of dead letters hold a person's id, however JSON or CSV may write it.

    They are dead because they could not be read, so they are not parsed: the id counts wherever it
    stands as a word of its own, which a whole value always is. Now and then that takes a letter
    too many (a place called like the person), never one too few.
    """
    whole = _whole(person)
    distinct = texts.combine_chunks().dictionary_encode()
    found = [
        text is not None and any(whole.search(reading) for reading in _readings(text))
        for text in distinct.dictionary.to_pylist()
    ]
    return pc.fill_null(pa.array(found, pa.bool_()).take(distinct.indices), fill_value=False)


def _readings(text: str) -> set[str]:
    """Give a text as it is, with JSON's escapes undone, and with CSV's doubled quotes undone."""
    plain = _ESCAPED.sub(lambda found: str(json.loads(f'"{found[0]}"')), text)
    return {text, plain, text.replace('""', '"')}


def _whole(person: str) -> re.Pattern[str]:
    """Find an id that is no part of a longer word; digits also no part of a date or a fraction."""
    before = r"(?<!\w)" if re.match(r"\w", person) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", person) else ""
    if person.isdecimal():
        before, after = rf"(?<!\d[.:-]){before}", rf"{after}(?![.:-]\d)"
    return re.compile(before + re.escape(person) + after)
