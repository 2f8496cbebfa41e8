"""What the archive forgets: old contexts step by step, exact times, a person at once."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import InputError, LimitError
from roamcast.identity.blurring import rounded
from roamcast.identity.coarsening import coarsened
from roamcast.identity.live_blur import CROWD_MIN_MAX
from roamcast.model.context_arrow import FIXED, SEALING_COLUMN
from roamcast.model.time import LATEST
from roamcast.pipeline.archive.care import (
    THREADS_MAX,
    ArchiveChange,
    Rewritten,
    Workers,
    compact,
    rewrite,
)
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.storage import GoneError
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.spark.progress import QUIET, Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIDS_MAX = 10_000_000
RETAINED = ("vid", "place", "t_r", "t_d", SEALING_COLUMN)
"""What a reduced context still says: where and when, and how to write to who was there."""


class Erased(msgspec.Struct, frozen=True):
    """What an erasure did, and how many files in the folder still hold one of the vids.

    `files_left` is 0 unless somebody is writing these vids at this moment, or crashed while
    doing so: such files are not part of the archive, and `vacuum` deletes them.
    """

    vids: int
    rows_erased: int
    files_replaced: int
    files_deleted: int
    files_left: int


def retain(
    archive: str | Path,
    *,
    reduce_before: int | None = None,
    drop_before: int | None = None,
    spark: "SparkSession | Workers | None" = None,
    progress: Bar = QUIET,
) -> Rewritten:
    """Reduce contexts that ended before one moment to place and time; drop those before another.

    Moments are microseconds since 1970. A reduced context keeps its vid, place, t_r and t_d, and
    loses its point and its attributes. A context that still lasts is kept as it is.
    """
    if reduce_before is not None and drop_before is not None and drop_before > reduce_before:
        raise InputError("contexts are reduced before they are dropped: check the two ages")
    target = Archive.open(archive)
    total = Rewritten()
    if drop_before is not None:
        total += rewrite(target, _drop(drop_before), spark=spark, progress=progress)
    if reduce_before is not None:
        total += rewrite(target, _reduce(reduce_before), spark=spark, progress=progress)
    return total


def _old(table: pa.Table, before: int) -> pa.ChunkedArray:
    return pc.fill_null(pc.less(table["t_d"].cast(pa.int64()), before), False)


def _drop(before: int) -> ArchiveChange:
    return ArchiveChange(
        may=lambda files: files.ended_before(before),
        affects=lambda table: bool(pc.any(_old(table, before)).as_py()),
        apply=lambda table: table.filter(pc.invert(_old(table, before))),
        look_at=("t_d",),
    )


def _reduce(before: int) -> ArchiveChange:
    def affects(table: pa.Table) -> bool:
        old = table.filter(_old(table, before))
        return any(
            old[name].null_count < len(old) for name in old.schema.names if name not in RETAINED
        )

    def apply(table: pa.Table) -> pa.Table:
        old = _old(table, before)
        columns = {
            name: table[name]
            if name in RETAINED
            else pc.if_else(old, pa.scalar(None, table[name].type), table[name])
            for name in table.schema.names
        }
        return pa.table(columns)

    return ArchiveChange(lambda files: files.ended_before(before), affects, apply)


class Blurred(msgspec.Struct, frozen=True):
    """What blurring did; `files_deleted` held exact times until now."""

    rows: int
    files_replaced: int
    files_deleted: int


def blur(
    archive: str | Path,
    grid_s: int,
    spark: "SparkSession | Workers | None" = None,
    progress: Bar = QUIET,
    *,
    crowd_min: int = 0,
) -> Blurred:
    """Round the times of an archive to a coarser grid, and delete the old files at once.

    What is appended from now on is rounded as well. A finer grid is refused: the times are gone.
    `crowd_min` also coarsens places and points that fewer contexts share; they are counted within
    a file, so compact before. What is appended later has to be coarsened again.
    """
    if not 0 <= crowd_min <= CROWD_MIN_MAX:
        raise LimitError(f"a crowd is from 0 to {CROWD_MIN_MAX}")
    target = Archive.open(archive)
    if grid_s < target.settings.grid_s:
        raise InputError(
            f"the archive at {target.storage.uri} has {target.settings.summary}: "
            f"rounded times cannot be made finer"
        )
    target.set_settings(msgspec.structs.replace(target.settings, grid_s=grid_s))
    change = ArchiveChange(
        may=lambda files: ~np.zeros(files.parts, bool),
        affects=lambda table: _off_grid(table, grid_s) or _is_thin(table, crowd_min),
        # whatever is written is rounded on the way (`layout.placed`)
        apply=lambda table: _thickened(table, crowd_min),
        look_at=("vid", "t_r", "t_d", *(("place", "lon", "lat") if crowd_min else ())),
    )
    done = rewrite(target, change, spark=spark, progress=progress)
    replaced = _replaced(target)
    target.storage.discard(replaced)
    return Blurred(done.rows_read, done.files_replaced, len(replaced))


def thicken(
    archive: str | Path,
    crowd_min: int,
    spark: "SparkSession | Workers | None" = None,
    progress: Bar = QUIET,
) -> Blurred:
    """Coarsen an archive where few are, after joining its files: crowds are counted in a file.

    Its grid stays. Call it again after appending; what is coarse enough stays as it is.
    """
    compact(archive, spark, progress)
    return blur(
        archive, Archive.open(archive).settings.grid_s, spark, progress, crowd_min=crowd_min
    )


def _thickened(table: pa.Table, crowd_min: int) -> pa.Table:
    """Give a file's contexts with places and points that at least so many share."""
    if not crowd_min:
        return table
    begin = table["t_r"].cast(pa.int64()).to_numpy()
    end = pc.fill_null(table["t_d"].cast(pa.int64()), LATEST).to_numpy()
    lons, lats = (pc.fill_null(table[name], np.nan).to_numpy() for name in ("lon", "lat"))
    places, *moved = coarsened(table["place"].to_pylist(), lons, lats, begin, end, crowd_min)
    changes = {"place": pa.array(places, table.schema.field("place").type)}
    for name, values in zip(("lon", "lat"), moved, strict=True):
        changes[name] = pa.array(values, table.schema.field(name).type, from_pandas=True)
    columns = [changes.get(name, table[name]) for name in table.schema.names]
    return pa.table(columns, schema=table.schema)


def _is_thin(table: pa.Table, crowd_min: int) -> bool:
    return bool(crowd_min) and not _thickened(table, crowd_min).equals(table)


def _off_grid(table: pa.Table, grid_s: int) -> bool:
    for batch in table.combine_chunks().to_batches():
        begin = np.asarray(batch.column("t_r").cast(pa.int64()))
        # a context that lasts has no end to round
        end = np.asarray(pc.fill_null(batch.column("t_d").cast(pa.int64()), LATEST))
        lower, upper = rounded(batch.column("vid"), begin, end, grid_s)
        if (lower != begin).any() or (upper != end).any():
            return True
    return False


def erase(
    archive: str | Path,
    vids: Iterable[str],
    spark: "SparkSession | Workers | None" = None,
    progress: Bar = QUIET,
) -> Erased:
    """Make contexts unreachable: rewrite what holds them, and delete the old files at once.

    Deleting does not wait for a vacuum. A lookup that is under way plans again.
    """
    distinct = sorted(set(vids))
    if len(distinct) > VIDS_MAX:
        raise LimitError(f"one erasure takes at most {VIDS_MAX} vids")
    wanted = pa.array(distinct, pa.string())
    target = Archive.open(archive)
    change = ArchiveChange(
        may=lambda files: ~np.zeros(files.parts, bool),  # a vid is random: no range excludes it
        affects=lambda table: _any(table, wanted),
        apply=lambda table: table.filter(pc.invert(_among(table, wanted))),
        look_at=("vid",),
    )
    searched: set[str] = set()
    done = rewrite(target, change, spark=spark, progress=progress, searched=searched)
    deleted = _holding(target, _replaced(target), wanted)
    target.storage.discard(deleted)
    # Whatever the job has not seen: files of others that were not committed, or were since.
    unseen = [path for path in target.storage.files() if path not in searched]
    left = _holding(target, unseen, wanted)
    return Erased(len(distinct), done.rows_dropped, done.files_replaced, len(deleted), len(left))


def _replaced(target: Archive) -> list[str]:
    """List the files that newer ones replaced and no vacuum has deleted yet."""
    target.refresh()
    found = target.table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
    return sorted(found)


def _holding(target: Archive, paths: list[str], wanted: pa.Array) -> list[str]:
    """Give the files that hold one of some vids, read in threads."""
    with ThreadPoolExecutor(THREADS_MAX) as threads:
        held = threads.map(lambda path: _holds(target, path, wanted), paths)
        return [path for path, holds in zip(paths, held, strict=True) if holds]


def _any(table: pa.Table, wanted: pa.Array) -> bool:
    return bool(pc.any(_among(table, wanted)).as_py())


def _among(table: pa.Table, wanted: pa.Array) -> pa.ChunkedArray:
    """Mark the rows of some vids; a hash table is made for each file, so of the shorter side."""
    if len(wanted) > table.num_rows:
        wanted = wanted.filter(pc.is_in(wanted, table["vid"]))
    return pc.is_in(table["vid"], wanted)


def _holds(target: Archive, path: str, wanted: pa.Array) -> bool:
    try:
        return _any(read_file(target.storage, path, ["vid"]), wanted)
    except GoneError:
        return False
    except InputError:  # half a file of a writer that crashed: who knows what is in it
        return True


assert set(RETAINED) - {SEALING_COLUMN} <= {field.name for field in FIXED}
