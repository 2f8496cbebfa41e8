"""Sightings to archived contexts, one batch of files at a time, each exactly once.

Read and check the rows; bring each person's rows together, in order, with what was open before; run
the user agent's rules over them (`ingest.scan`); write everything to the private folder; commit the
contexts to the archive last. `ingest_once` takes files that are there, `ingest_watch` those that
arrive; both run `ingest_batch`, so a stream gives the same result as a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from roamcast.errors import InputError, RoamcastError
from roamcast.identity.agent_settings import AgentSettings
from roamcast.identity.whereabouts import CELL_RESOLUTION
from roamcast.model.context_arrow import SEALING_COLUMN
from roamcast.model.places_geojson import read_places
from roamcast.model.time import MICROSECONDS
from roamcast.pipeline.archive import append as archive
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.layout import check_settings as check_layout
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest import few, job, rows
from roamcast.pipeline.ingest.archive import (
    ArchiveWriter,
    Run,
    discard_unfinished,
    settle_commits,
    settle_files,
    write_contexts,
)
from roamcast.pipeline.ingest.files import Reading, SightingFile, check_reading, listed, number_of
from roamcast.pipeline.ingest.read import check_file
from roamcast.pipeline.ingest.scan import EVER, ScanTask
from roamcast.pipeline.ingest.state import IngestState, SightingBatch, existing
from roamcast.pipeline.ingest.write import WriteTask
from roamcast.pipeline.spark.errors import translated
from roamcast.pipeline.spark.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roamcast.pipeline.spark.session import Sessions

LATE_MAX_S = 3_660 * 86_400
EVERYTHING = 1 << 62
"""As `here_rows`: no batch is too large to be done without Spark's jobs."""

Clock = Callable[[], int]


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for reading sightings and deciding contexts; durations in seconds.

    `late_s`: how long a stream waits for rows that come out of order. `future_s`: how far ahead
    of now a row's time may lie. `here_rows`: up to how many rows a batch is done without Spark's
    jobs; -1 for none, None for the default.
    """

    agent: AgentSettings = AgentSettings()
    reading: Reading = Reading()
    late_s: float = 600.0
    future_s: float = 60.0
    places: str | None = None
    resolution: int = CELL_RESOLUTION
    archive: ArchiveSettings | None = None
    here_rows: int | None = None


def check_settings(settings: IngestSettings) -> IngestSettings:
    """Return the settings if all of them can be used; the hierarchy of places is read once."""
    settings.agent.vector()
    check_reading(settings.reading)
    for name in ("late_s", "future_s"):
        if not 0 <= getattr(settings, name) <= LATE_MAX_S:
            raise InputError(f"{name} is not between 0 and {LATE_MAX_S} s")
    if settings.places is not None:
        try:
            read_places(Path(settings.places).read_bytes())
        except OSError as error:
            raise InputError(
                f"cannot read places: {error.strerror}", source=settings.places
            ) from None
        except InputError as error:
            raise error.located(settings.places) from None
    return settings


def check_archive(archive: str | Path, settings: ArchiveSettings | None) -> None:
    """Raise if an archive cannot be made with these settings, or is there with others."""
    if settings is not None:
        check_layout(settings)
        found = existing(archive)
        if found is not None and found.settings != settings:
            Archive.make(archive, settings)  # it says why not


def check_files(paths: Sequence[Path], settings: IngestSettings) -> list[SightingFile]:
    """List the files meant; one that cannot be read is an error before any work, or Spark."""
    found = listed(paths, check_settings(settings).reading)
    if not found:
        raise InputError("no sightings there: .jsonl, .csv or .parquet", source=str(paths[0]))
    for file in found:
        check_file(file, settings.reading)
    return found


def ingest_once(
    spark: "Sessions",
    state: IngestState,
    paths: Sequence[Path],
    settings: IngestSettings,
    clock: Clock,
    *,
    finish: bool = True,
) -> SightingBatch:
    """Ingest what has not been ingested yet; `finish` closes what is open at its last sighting."""
    check_archive(state.archive, settings.archive)
    files = [file for file in check_files(paths, settings) if file not in state.done]
    waiting = state.last.counts.get("open", 0) + state.last.counts.get("pending", 0)
    if not files and not (finish and waiting):
        return msgspec.structs.replace(state.last, files=(), counts=dict.fromkeys(rows.COUNTED, 0))
    return ingest_batch(spark, state, files, settings, clock(), finish=finish)


def ingest_batch(
    spark: "Sessions",
    state: IngestState,
    files: Sequence[SightingFile],
    settings: IngestSettings,
    now: int,
    *,
    finish: bool,
    stream: tuple[str, int] | None = None,
    unreadable: Sequence[tuple[str, str]] = (),
    quiet: int = 0,
) -> SightingBatch:
    """Process one batch of files and commit it; `unreadable` has (path, reason) of dead files.

    quiet: microseconds for which a stream has brought nothing: its time goes on with the clock.
    """
    last = state.last
    waited = max(last.released, last.newest + quiet - round(settings.late_s * MICROSECONDS))
    release_until = EVER if finish else waited
    scan = ScanTask(state.keys, settings.agent, release_until, settings.places, settings.resolution)
    latest = now + round(settings.future_s * MICROSECONDS)
    with disk_errors(state.folder):
        target = state.target(settings.archive)
        number, again = state.begin()
        writer = ArchiveWriter(target.storage, (), f"{state.application}-{number}-")
        if again:
            discard_unfinished(writer)
        task = WriteTask(scan, str(state.batch_folder(number)), target.settings)
        reading, most = settings.reading, _here_rows(settings)
        found = few.few_rows(state, files, reading, latest, unreadable, task, most)
        if found is not None:
            done = _scanned(state, target, task, lambda task: found.written(task, last.counts))
        else:
            done = _by_spark(
                session_of(spark), state, target, task, files, reading, latest, unreadable
            )
        newest = max(last.newest, done.newest)
        dead = done.counts["malformed"] + done.counts["late"]
        batch = SightingBatch(
            number=number,
            files=tuple(files),
            stream=stream or last.stream,
            newest=newest,
            released=newest if finish else release_until,
            counts=done.counts,
            columns=done.columns,
            names={number_of(file.path): file.path for file in files} if dead else {},
            layers=() if found is None else found.layers,
        )
        state.prepare(batch)
    _commit(spark, target, state, batch, done.contexts)
    return batch


def _here_rows(settings: IngestSettings) -> int:
    return few.HERE_ROWS if settings.here_rows is None else settings.here_rows


def _by_spark(
    spark: "SparkSession",
    state: IngestState,
    target: Archive,
    task: WriteTask,
    files: Sequence[SightingFile],
    reading: Reading,
    latest: int,
    unreadable: Sequence[tuple[str, str]],
) -> job.Written:
    """Run a batch as jobs of Spark: everything that is remembered, and the files' rows."""
    parts = job.parts(spark, state, files, reading, latest, unreadable)
    counts = state.last.counts
    remembered = sum(counts.get(kind, 0) for kind in ("people", "open", "pending"))
    buckets = job.buckets(files, remembered, reading)
    packets = job.packets_of(parts, buckets)
    with ExitStack() as stack:
        if state.handles_of is not None:
            packets = stack.enter_context(job.on_disks(packets))
            new = job.strangers(spark, packets, state.handles_of)
            packets = packets.unionByName(job.packets_of([new], buckets))
        return _scanned(state, target, task, lambda task: job.write(packets, task, buckets))


def _scanned(
    state: IngestState, target: Archive, task: WriteTask, write: Callable[[WriteTask], job.Written]
) -> job.Written:
    """Run the scan; rows with attributes that the archive has no room for are dead letters.

    Which names are the first too many only the whole scan tells: it is then done again, knowing.
    """
    columns: tuple[str, ...] = ()
    if not target.full:
        done = write(task)
        columns = done.columns
        if target.room(columns).issuperset(columns):
            return done
        state.begin()  # what was written is not wanted
    within = replace(task, scan=replace(task.scan, room=target.room(columns)))
    return write(within)


def _commit(
    spark: "Sessions",
    target: Archive,
    state: IngestState,
    batch: SightingBatch,
    contexts: Sequence[Run],
) -> None:
    """Commit a batch's contexts to the archive; this is the moment the batch counts."""
    transaction, since = (state.application, batch.number), target.version
    columns, secret = batch.columns, state.sealing_secret
    if secret and SEALING_COLUMN in target.room([SEALING_COLUMN]):
        columns = tuple(dict.fromkeys((*columns, SEALING_COLUMN)))
    else:
        secret = b""
    name = f"{state.application}-{batch.number}-"
    writer = ArchiveWriter(target.storage, columns, name, secret)
    try:
        with translated(job.FAILED):
            written = write_contexts(spark, writer, contexts)
        with disk_errors(Path(target.storage.uri)):
            settle_files(target.storage, written)
        landed = archive.commit(target, written, columns, transaction)
    except BaseException:
        discard_unfinished(writer)
        raise
    if not landed.committed:
        state.withdraw(batch)
        raise RoamcastError(f"batch {batch.number} was committed by somebody else; nothing changed")
    try:
        settle_commits(target, since)  # before what the batch replaces is deleted
    except OSError as error:
        raise RoamcastError(
            f"batch {batch.number} is in the archive, but perhaps not on disk: {error.strerror}"
        ) from None
    state.committed(batch)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a file system's error, such as a full disk, into one line."""
    try:
        yield
    except OSError as error:
        raise RoamcastError(
            f"cannot write to {folder}: {error.strerror or error}; the archive is as before"
        ) from None
