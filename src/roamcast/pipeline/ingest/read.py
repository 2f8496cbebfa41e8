"""Lines of JSON and CSV as a DataFrame of checked rows; rows that are none carry the reason.

`ingest.check` says what is wrong with a row. All of it is Spark's own expressions; Parquet is read
by `ingest.columns`.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from roamcast.identity import sightings as limits
from roamcast.pipeline.ingest.check import NOT_UTF8, checked
from roamcast.pipeline.ingest.files import (
    COLUMNS_MAX,
    FIELDS,
    Header,
    Reading,
    SightingFile,
    check_columns,
    csv_header,
    format_of,
)
from roamcast.pipeline.ingest.parquet import parquet_shape
from roamcast.pipeline.spark.paths import check_readable, literal, with_colons

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_CORRUPT = "_corrupt"
_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    # what is no JSON elsewhere is none here
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_CSV = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "escape": '"'}


def read_sightings(
    spark: "SparkSession", files: Sequence[SightingFile], reading: Reading, latest: int
) -> "DataFrame":
    """Give all rows of the files; what is wrong with a row stands under `reason`.

    latest: a time after this lies in the future (µs). Columns: person, source (number), time (µs),
    place, lon, lat, attributes, file, reason, raw.
    """
    groups: dict[tuple[str, object], list[str]] = {}
    for file in files:
        groups.setdefault(shape_of(file, reading), []).append(file.path)
    parts = [
        _READERS[kind](spark, paths, shape, reading) for (kind, shape), paths in groups.items()
    ]
    return checked(reduce(lambda a, b: a.unionByName(b), parts), reading, latest)


def shape_of(file: SightingFile, reading: Reading) -> tuple[str, object]:
    """Look at a file's format and columns; files of one shape are read together."""
    path = check_readable(file.path)
    kind = format_of(path, reading)
    assert kind is not None
    if kind == "json":
        return kind, None
    if kind == "parquet":
        return kind, parquet_shape(path, reading)
    header = csv_header(path)
    check_columns(header.names, reading, path)
    return kind, header


def _read_json(
    spark: "SparkSession", paths: list[str], shape: None, reading: Reading
) -> "DataFrame":
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    del shape
    names = [*dict.fromkeys(reading.column(field) for field in FIELDS), _CORRUPT]
    line, read = f.col("line"), f.col("read")
    ended = f.rtrim(line, f.lit(" \t\r")).endswith("}")
    broken = read[_CORRUPT].isNotNull() | ~ended | line.rlike(r"\}\s*\{")
    fields = {field: read[reading.column(field)] for field in FIELDS}
    schema = StructType([StructField(name, StringType()) for name in names])
    table = _lines(spark, paths).withColumn("read", f.from_json(line, schema, _JSON))
    return _rows(table, fields, f.when(broken, "not JSON"), reading)


def _read_csv(
    spark: "SparkSession", paths: list[str], shape: Header, reading: Reading
) -> "DataFrame":
    from pyspark.sql import functions as f

    line, read = f.col("line"), f.col("read")
    # columns are told apart by their number: names may differ in case only
    names = [*(f"c{number}" for number in range(len(shape.names))), _CORRUPT]
    fields = {
        field: read[f"c{shape.names.index(reading.column(field))}"]
        if reading.column(field) in shape.names
        else f.lit(None).cast("string")
        for field in FIELDS
    }
    commas = f.length(line) - f.length(f.translate(line, ",", ""))
    too_many = commas >= COLUMNS_MAX  # the parser would raise, and stop the batch
    schema = ", ".join(f"{name} string" for name in names)
    parsed = f.from_csv(f.when(~too_many, line), schema, _CSV)
    table = _lines(spark, paths).where(line != shape.line).withColumn("read", parsed)
    broken = too_many | read[_CORRUPT].isNotNull()
    return _rows(table, fields, f.when(broken, "not a row of its table"), reading)


def _lines(spark: "SparkSession", paths: list[str]) -> "DataFrame":
    """Read lines with text in them, and say whether they were UTF-8."""
    from pyspark.sql import functions as f

    table: DataFrame = with_colons(spark.read, paths).text([literal(path) for path in paths])
    return table.where(f.col("value").rlike(r"\S")).select(
        f.make_valid_utf8("value").alias("line"),
        f.is_valid_utf8("value").alias("valid"),
        f.col("_metadata.file_path").alias("file"),
    )


def _rows(
    table: "DataFrame", fields: "Mapping[str, Column]", broken: "Column", reading: Reading
) -> "DataFrame":
    """Give lines as rows of texts, with what is wrong with a line as a whole."""
    from pyspark.sql import functions as f

    line = f.col("line")
    return table.select(
        *(_or_constant(column, field, reading).alias(field) for field, column in fields.items()),
        f.coalesce(
            f.when(~f.col("valid"), NOT_UTF8),
            f.when(f.length(line) > limits.LINE_LENGTH_MAX, "the line is too long"),
            broken,
        ).alias("broken"),
        line.alias("raw"),
        "file",
    )


_READERS: dict[str, Any] = {"json": _read_json, "csv": _read_csv}


def _or_constant(column: "Column", field: str, reading: Reading) -> "Column":
    """Give a field's column, and where it says nothing the constant, if there is one."""
    from pyspark.sql import functions as f

    constant = reading.constants.get(field)
    return column if constant is None else f.coalesce(column, f.lit(constant))
