"""Which sightings do these files hold? A DataFrame of checked rows; the rest carry their reason.

All checks are Spark's own expressions; they say the same as `identity.sightings`, in its words.
Only the inside of `attributes` is checked later, once for each distinct text (`ingest_scan`).
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from roamcast.errors import InputError
from roamcast.identity import sightings as limits
from roamcast.identity.sightings import SOURCES
from roamcast.model.contexts import PLACE_LENGTH_MAX
from roamcast.model.places_path import DEPTH_MAX
from roamcast.pipeline.ingest_files import (
    FIELDS,
    Reading,
    SightingFile,
    check_columns,
    csv_header,
    format_of,
    parquet_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RAW_LENGTH_MAX = 4_096
"""How much of a malformed row is kept with its reason."""

_CORRUPT = "_corrupt"
_UNPRINTABLE = r"[\p{C}\p{Z}&&[^ ]]"  # as Python's str.isprintable
_NO_PATH = rf"^[{{\[]|(^|/)(/|$)|(/[^/]*+){{{DEPTH_MAX}}}|{_UNPRINTABLE}"
_STAMP = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6}0*)?(Z|[+-]\d\d:\d\d)$"


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
    return _checked(reduce(lambda a, b: a.unionByName(b), parts), reading, latest)


def shape_of(file: SightingFile, reading: Reading) -> tuple[str, object]:
    """Look at a file's format and columns; files of one shape are read together."""
    path = file.path
    kind = format_of(path, reading)
    assert kind is not None
    if kind == "json":
        return kind, None
    if kind == "csv":
        header = csv_header(path)
        check_columns(header, reading, path)
        return kind, header
    schema = parquet_schema(path)
    check_columns(schema.names, reading, path)
    for field in FIELDS:
        if reading.column(field) in schema.names:
            _check_type(field, schema.field(reading.column(field)).type, path)
    return kind, tuple((field.name, str(field.type)) for field in schema)


def _check_type(field: str, kind: pa.DataType, path: str) -> None:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    good = {
        "time": text or pa.types.is_timestamp(kind),
        "lon": text or pa.types.is_floating(kind) or pa.types.is_integer(kind),
        "lat": text or pa.types.is_floating(kind) or pa.types.is_integer(kind),
        "person": text or pa.types.is_integer(kind),
        "attributes": text or pa.types.is_struct(kind) or pa.types.is_map(kind),
    }
    if not good.get(field, text):
        raise InputError(f"column {field!r} cannot be of type {kind}", source=path)


def _read_json(
    spark: "SparkSession", paths: list[str], shape: object, reading: Reading
) -> "DataFrame":
    from pyspark.sql import functions as f

    del shape
    names = [*dict.fromkeys(reading.column(field) for field in FIELDS), _CORRUPT]
    schema = ", ".join(f"`{name}` string" for name in names)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    line = f.col("value")
    too_long = f.length(line) > limits.LINE_LENGTH_MAX
    broken = ~f.rtrim(line).endswith("}") | line.rlike(r"\}\s*\{") | too_long
    return (
        spark.read.text(paths)
        .where(f.trim(line) != "")
        .select(line, f.from_json(line, schema, options).alias("r"), "_metadata.file_path")
        .select(
            *(_field(field, "r", reading).alias(field) for field in FIELDS),
            f.lit(None).cast("bigint").alias("stamp"),
            f.when(f.col(f"r.{_CORRUPT}").isNotNull() | broken, "not JSON").alias("broken"),
            line.alias("raw"),
            f.col("file_path").alias("file"),
        )
    )


def _read_csv(
    spark: "SparkSession", paths: list[str], shape: object, reading: Reading
) -> "DataFrame":
    from pyspark.sql import functions as f

    assert isinstance(shape, tuple)
    schema = ", ".join(f"`{name.replace('`', '``')}` string" for name in (*shape, _CORRUPT))
    table = (
        spark.read.schema(schema)
        .options(header="true", escape='"')
        .option("columnNameOfCorruptRecord", _CORRUPT)
        .csv(paths)
    )
    told = f.concat_ws(",", *(f.coalesce(f"`{name}`", f.lit("")) for name in shape))
    return table.select(
        *(_field(field, None, reading, shape).alias(field) for field in FIELDS),
        f.lit(None).cast("bigint").alias("stamp"),
        f.when(f.col(_CORRUPT).isNotNull(), "not a row of its table").alias("broken"),
        f.coalesce(_CORRUPT, told).alias("raw"),
        f.col("_metadata.file_path").alias("file"),
    )


def _read_parquet(
    spark: "SparkSession", paths: list[str], shape: object, reading: Reading
) -> "DataFrame":
    from pyspark.sql import functions as f

    assert isinstance(shape, tuple)
    kinds = dict(shape)
    columns = []
    stamp = f.lit(None).cast("bigint")
    for field in FIELDS:
        column = _field(field, None, reading, tuple(kinds))
        kind = kinds.get(reading.column(field), "string")
        if kind.startswith("timestamp") and "tz=" in kind:
            stamp, column = f.unix_micros(column), f.lit(None)
        elif kind.startswith("timestamp"):  # wall time: it needs the zone, as text does
            column = f.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
        elif kind.startswith(("struct", "map")):
            column = f.to_json(column)
        columns.append(column.cast("string").alias(field))
    fields = [f.col(f"`{name}`").cast("string") for name in kinds]
    return spark.read.parquet(*paths).select(
        *columns,
        stamp.alias("stamp"),
        f.lit(None).cast("string").alias("broken"),
        f.concat_ws(",", *fields).alias("raw"),
        f.col("_metadata.file_path").alias("file"),
    )


_READERS = {"json": _read_json, "csv": _read_csv, "parquet": _read_parquet}


def _field(
    field: str, inside: str | None, reading: Reading, known: Sequence[str] | None = None
) -> "Column":
    """Give the column of a field: read from the file, or a constant, or nothing."""
    from pyspark.sql import functions as f

    name = reading.column(field)
    if known is not None and name not in known:
        return f.lit(reading.constants.get(field)).cast("string")
    column = f.col(f"{inside}.`{name}`" if inside else f"`{name}`")
    constant = reading.constants.get(field)
    return column if constant is None else f.coalesce(column, f.lit(constant))


def _checked(rows: "DataFrame", reading: Reading, latest: int) -> "DataFrame":
    from pyspark.sql import functions as f

    time = f.upper(f.translate("time", " ", "T"))
    if reading.zone is not None:
        time = f.when(time.rlike(r"(Z|[+-]\d\d:\d\d)$"), time).otherwise(
            f.concat(time, f.lit(reading.zone))
        )
    position = f.array_position(f.array(*map(f.lit, SOURCES)), f.col("source"))
    number = f.when(position > 0, position - 1)
    typed = rows.select(
        "person",
        number.cast("tinyint").alias("source"),
        f.coalesce(
            "stamp", f.when(time.rlike(_STAMP), f.unix_micros(time.try_cast("timestamp")))
        ).alias("time"),
        "place",
        f.col("lon").try_cast("double").alias("lon"),
        f.col("lat").try_cast("double").alias("lat"),
        f.struct("lon", "lat").alias("said"),
        "attributes",
        f.xxhash64("file").alias("file"),
        "broken",
        "raw",
    )
    reason = _reason(latest)
    return typed.select(
        *("person", "source", "time", "place", "lon", "lat", "attributes", "file"),
        reason.alias("reason"),
        f.when(reason.isNotNull(), f.substring("raw", 1, RAW_LENGTH_MAX)).alias("raw"),
    )


def _reason(latest: int) -> "Column":
    """Say what is wrong with a row, in the order and the words of `identity.sightings`."""
    from pyspark.sql import functions as f

    person, place, lon, lat = (f.col(name) for name in ("person", "place", "lon", "lat"))
    said_lon, said_lat = f.col("said.lon"), f.col("said.lat")
    half = lon.isNull() | lat.isNull()
    within = lon.between(-180, 180) & lat.between(-90, 90)
    return f.coalesce(
        f.col("broken"),
        f.when(person.isNull() | (person == ""), "person is missing"),
        f.when(
            f.length(person) > limits.PERSON_LENGTH_MAX,
            f"person is longer than {limits.PERSON_LENGTH_MAX} characters",
        ),
        f.when(person.rlike(rf"^[{{\[]|{_UNPRINTABLE}"), "person is not printable text"),
        f.when(f.col("source").isNull(), f"source is not one of {', '.join(SOURCES)}"),
        f.when(f.col("time").isNull(), "time is not an RFC 3339 timestamp with a zone"),
        f.when(f.col("time") > latest, "time lies in the future"),
        f.when(f.length(place) > PLACE_LENGTH_MAX, "place is too long"),
        f.when(place.rlike(_NO_PATH), "place is not a path"),
        f.when(
            (said_lon.isNotNull() | said_lat.isNotNull()) & half, "lon and lat are not two numbers"
        ),
        f.when(lon.isNotNull() & ~within, "no WGS84 longitude and latitude"),
        f.when(place.isNull() & lon.isNull(), "a sighting needs a place, or lon and lat"),
        f.when(
            f.length("attributes") > limits.ATTRIBUTES_LENGTH_MAX,
            f"attributes are longer than {limits.ATTRIBUTES_LENGTH_MAX} characters",
        ),
    )
