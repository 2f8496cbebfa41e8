"""Files of sightings, whatever their format: what is wrong with a whole file, and its rows."""

from collections.abc import Iterator

import pyarrow as pa

from roamcast.pipeline.ingest.columns import read_columns
from roamcast.pipeline.ingest.files import (
    Reading,
    SightingFile,
    check_columns,
    csv_header,
    format_of,
)
from roamcast.pipeline.ingest.lines import read_lines
from roamcast.pipeline.ingest.parquet import parquet_shape


def check_file(file: SightingFile, reading: Reading) -> None:
    """Raise for a file whose columns cannot hold sightings; lines of JSON are looked at alone."""
    kind = format_of(file.path, reading)
    if kind == "parquet":
        parquet_shape(file.path, reading)
    elif kind == "csv":
        check_columns(csv_header(file.path).names, reading, file.path)


def read_file(file: SightingFile, reading: Reading, latest: int) -> Iterator[pa.Table]:
    """Give all rows of a file, checked, in the columns of `rows.TAKEN`."""
    read = read_columns if format_of(file.path, reading) == "parquet" else read_lines
    yield from read(file.path, reading, latest)
