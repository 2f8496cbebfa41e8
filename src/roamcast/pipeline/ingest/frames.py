"""An ingest for whoever has a Spark session: sightings in files, or rows of a DataFrame.

Rows of a DataFrame are written into the private folder by Spark's workers, since they name people,
ingested as files, and deleted. What `roamcast pipeline ingest` promises holds: a row that is no
sighting is a dead letter, and a call that fails leaves the archive as it was. Now is the session's.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.pipeline.ingest.parquet import shape_in
from roamcast.pipeline.ingest.run import (
    IngestSettings,
    check_archive,
    check_files,
    check_settings,
    ingest_once,
)
from roamcast.pipeline.ingest.state import opened, private_folder
from roamcast.pipeline.ingest.write import check_shared
from roamcast.pipeline.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GIVEN = "the DataFrame"


def ingest_sightings(
    spark: "SparkSession",
    sightings: "DataFrame | str | Path | Sequence[str | Path]",
    archive: str | Path,
    *,
    private: str | Path | None = None,
    trusted_node: str = "localhost",
    settings: IngestSettings | None = None,
    keep_open: bool = False,
) -> dict[str, int]:
    """Archive the contexts of sightings under fresh vids; give what was counted.

    sightings: files or folders, each file once however often it is given; or a DataFrame with
        columns person, source, time, place or lon and lat, attributes (or as `settings.reading`
        maps them), whose rows are taken as they come.
    archive: its folder or URI; made if it does not exist.
    private: the trusted node's folder, `ARCHIVE.private` by default; driver and workers see it.
    keep_open: leave contexts open at the end, because more sightings will follow.
    """
    chosen = check_settings(settings or IngestSettings())
    check_archive(archive, chosen.archive)
    folder = private_folder(archive) if private is None else Path(private)
    frame: Any = sightings if hasattr(sightings, "mapInArrow") else None
    paths: list[Path] = []
    if frame is not None:
        frame = _fields(frame, chosen)
        chosen = msgspec.structs.replace(
            chosen, reading=msgspec.structs.replace(chosen.reading, format="parquet")
        )
    else:
        given: Any = [sightings] if isinstance(sightings, str | Path) else sightings
        paths = [Path(path) for path in given]
        if not paths:
            raise InputError("no sightings were given")
        check_files(paths, chosen)  # what is refused here leaves nothing behind
    now = spark.sql("SELECT unix_micros(current_timestamp())").collect()[0][0]
    with opened(folder, archive, trusted_node, token_bytes) as state:
        if state.shared:
            raise InputError(
                f"its people are a trusted node's, {state.keys.node}: the command asks it"
            )
        if frame is not None:
            paths = _written(frame, state.new_given())
        batch = ingest_once(spark, state, paths, chosen, lambda: now, finish=not keep_open)
    return dict(batch.counts)


def _fields(frame: "DataFrame", settings: IngestSettings) -> "DataFrame":
    """Choose the columns of a sighting; raise for one that cannot hold its field."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import to_arrow_schema

    shape = shape_in(to_arrow_schema(frame.schema, timezone="UTC"), settings.reading, GIVEN)
    return frame.select(
        *(f.col(f"`{name.replace('`', '``')}`") for name in dict.fromkeys(shape.values()))
    )


def _written(frame: "DataFrame", folder: Path) -> list[Path]:
    """Write rows into files, at least one; give those of the tasks that counted."""
    from pyspark.sql.pandas.types import to_arrow_schema

    work = _Write(str(folder))
    with translated("the DataFrame was not read, the archive is as before"):
        found = frame.mapInArrow(work, "path string").toArrow()["path"].to_pylist()
    if not found:
        found = [str(folder / "none.parquet")]
        pq.write_table(to_arrow_schema(frame.schema, timezone="UTC").empty_table(), found[0])
    return [Path(path) for path in found]


class _Write(msgspec.Struct, frozen=True):
    """`mapInArrow`'s function: writes a partition's rows into one file and names it."""

    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write one partition; one without rows has no file."""
        check_shared(self.folder)
        path = Path(self.folder) / f"{uuid4().hex}.parquet"
        writer = None
        try:
            for batch in batches:
                writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd")
                writer.write_batch(batch)
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            yield pa.RecordBatch.from_pydict({"path": [str(path)]})
