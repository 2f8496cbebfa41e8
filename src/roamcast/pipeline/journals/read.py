"""Journals as Spark reads them: segments as one table, with their run and their order.

A journal is a folder of Parquet segments, of one broker, of one simulated run, or of many. `run` is
a segment's name without its number; `segment` and `row` give the order in which it was written.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError, LimitError
from roamcast.journal.schema import NEEDED, SCHEMA
from roamcast.journal.segments import segments_of
from roamcast.pipeline.spark.paths import literal, with_colons

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS_MAX = 1_000_000
FAILED = "a job on these journals failed"
"""What an error says first when Spark cannot finish one."""

_NAMED = r"^(.+)-(\d{8})\.parquet$"


def segments(paths: Sequence[Path]) -> list[Path]:
    """List the segments of folders and files; one that is none is an error before Spark starts."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = segments_of(path)
            if not inside:
                raise InputError("no journal segments there", source=str(path))
            found += inside
        elif path.exists() and re.fullmatch(_NAMED, path.name):
            found.append(path)
        else:
            raise InputError("no journal: give a folder of segments, or one", source=str(path))
    if len(found) > SEGMENTS_MAX:
        raise LimitError(f"one job reads at most {SEGMENTS_MAX} segments")
    unique = list(dict.fromkeys(path.resolve() for path in found))
    for path in unique:
        _check(path)
    return unique


def _check(path: Path) -> None:
    """Read a segment's footer; a damaged file or a foreign one is told with its name."""
    try:
        names = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"not a journal segment: {error}", source=str(path)) from None
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise InputError(f"not a journal segment: no {', '.join(missing)}", source=str(path))


def read_journals(spark: "SparkSession", paths: Sequence[Path]) -> "DataFrame":
    """Read segments that `segments` has listed; columns their writers did not know are null."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    plain = [pa.field(field.name, _plain(field.type)) for field in SCHEMA]
    names = [str(path) for path in paths]
    reader = with_colons(spark.read, names).schema(from_arrow_schema(pa.schema(plain)))
    stored: DataFrame = reader.parquet(*map(literal, names))
    name = f.col("_metadata.file_name")
    return stored.select(
        f.regexp_extract(name, _NAMED, 1).alias("run"),
        f.regexp_extract(name, _NAMED, 2).cast("long").alias("segment"),
        f.col("_metadata.row_index").alias("row"),
        *SCHEMA.names,
    )


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
