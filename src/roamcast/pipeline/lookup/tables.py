"""A lookup's answer as a table: a folder of Parquet with a row for each message and vid."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError, RoamcastError
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.run import Lookup
from roamcast.pipeline.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_pairs(
    spark: "Callable[[], SparkSession] | None",
    archive: str | Path,
    messages: Mapping[str, Filter],
    out: Path,
) -> int:
    """Write (id, vid), distinct, into a new folder; give the number of rows.

    Spark's workers write what they find, however much; without Spark the bound of `Lookup` holds.
    """
    if out.exists():
        raise InputError("it is there already: give a new folder", source=str(out))
    if spark is None:
        found = Lookup(archive).pairs(list(messages.values()))
        ids = pa.array(list(messages), pa.string()).take(found["message"])
        try:
            out.mkdir(parents=True)
            pq.write_table(pa.table({"id": ids, "vid": found["vid"]}), out / "part-0.parquet")
        except OSError as error:
            raise RoamcastError(f"cannot write {out}: {error.strerror}") from None
        return int(found.num_rows)
    from roamcast.pipeline.analysis.reading import look_up

    Archive.open(archive)  # a wrong path is told before Spark starts
    session = spark()
    with translated(Storage(archive).failed):
        look_up(session, archive, messages).write.parquet(str(out.resolve()))
        return int(session.read.parquet(str(out.resolve())).count())
