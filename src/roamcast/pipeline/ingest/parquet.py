"""Reading sightings from Parquet: only the columns of a sighting, each with its own type.

Spark would look at all columns of a file, and one whose type it does not know would make the file
unreadable. Moments are read as the integers that they are stored as: Spark's own conversion raises
where a value has no date, and does not know nanoseconds.
"""

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.model.time import LATEST, MICROSECONDS
from roamcast.pipeline.ingest.check import NOT_UTF8, not_utf8
from roamcast.pipeline.ingest.files import FIELDS, Reading, check_columns
from roamcast.pipeline.spark.paths import literal, with_colons

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_INTEGERS = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
}
_FLOATS = {pa.float32(): "float", pa.float64(): "double"}
_NESTED = {
    **_INTEGERS,
    **_FLOATS,
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.timestamp("us", "UTC"): "timestamp",
}


class StoredColumn(msgspec.Struct, frozen=True):
    """How a file stores a field: the column's name, its type in Spark, a moment's unit."""

    field: str
    name: str
    kind: str
    unit: str | None = None
    zoned: bool = False

    @property
    def column(self) -> str:
        """The name as SQL writes it."""
        return f"`{self.name.replace('`', '``')}`"


Shape = tuple[StoredColumn, ...]
"""What a file has of a sighting; files of one shape are read together."""


def parquet_shape(path: str, reading: Reading) -> Shape:
    """Inspect a file's columns; raise for one that cannot hold its field."""
    try:
        with pq.ParquetFile(path) as file:
            schema, stored = file.schema_arrow, file.schema
            moments = {stored.column(at).path: stored.column(at) for at in range(len(stored.names))}
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"not a readable Parquet file: {reason}", source=path) from None
    check_columns(schema.names, reading, path)
    found = []
    for field in FIELDS:
        name = reading.column(field)
        alike = [other for other in schema.names if other.lower() == name.lower()]
        if name not in alike:
            continue
        if len(alike) > 1:  # Spark does not tell them apart
            raise InputError(f"columns {alike[0]!r} and {alike[1]!r} are alike", source=path)
        kind = schema.field(name).type
        if pa.types.is_dictionary(kind):  # how Arrow holds it; Parquet stores the values
            kind = kind.value_type
        if pa.types.is_timestamp(kind) and field == "time":
            found.append(_moment(field, name, kind, moments[name]))
        elif not pa.types.is_null(kind):
            spark_kind = _kind(field, kind)
            if spark_kind is None:
                raise InputError(f"column {name!r} cannot be of type {kind}", source=path)
            found.append(StoredColumn(field, name, spark_kind))
    return tuple(found)


def _moment(field: str, name: str, kind: Any, stored: Any) -> StoredColumn:
    zoned = kind.tz is not None
    if stored.physical_type == "INT96":
        return StoredColumn(field, name, "timestamp_ntz", "int96", zoned)
    unit = msgspec.json.decode(stored.logical_type.to_json())["timeUnit"]
    return StoredColumn(field, name, "bigint", _UNITS[unit], zoned)


def _kind(field: str, kind: Any) -> str | None:
    """Name the type with which Spark reads a column, none if the field cannot be of it."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if field in {"person", "lon", "lat"} and kind in _INTEGERS:
        return _INTEGERS[kind]
    if field in {"lon", "lat"}:
        return _FLOATS.get(kind)
    if field == "attributes" and (pa.types.is_struct(kind) or pa.types.is_map(kind)):
        return _nested(kind)
    return None


def _nested(kind: Any) -> str | None:
    """Name the type of attributes: objects and maps of what an attribute may be."""
    if pa.types.is_struct(kind):
        inside = {kind.field(at).name: _nested(kind.field(at).type) for at in range(len(kind))}
        if None in inside.values():
            return None
        fields = (f"`{name.replace('`', '``')}`: {inner}" for name, inner in inside.items())
        return f"struct<{', '.join(fields)}>"
    if pa.types.is_map(kind):
        key, item = _nested(kind.key_type), _nested(kind.item_type)
        return None if key != "string" or item is None else f"map<string, {item}>"
    if pa.types.is_list(kind):
        item = _nested(kind.value_type)
        return None if item is None else f"array<{item}>"
    return _NESTED.get(kind)


def read_parquet(
    spark: "SparkSession", paths: list[str], shape: Shape, reading: Reading
) -> "DataFrame":
    """Read files of one shape; a text a field, `stamp` where the moments are no texts."""
    from pyspark.sql import functions as f

    schema = ", ".join(f"{one.column} {one.kind}" for one in shape)
    columns = {field: f.lit(reading.constants.get(field)).cast("string") for field in FIELDS}
    stamp = f.lit(None).cast("bigint")
    for one in shape:
        column = f.col(one.column)
        if one.unit is not None:
            stamp, column = _stamp(one, reading.zone), f.lit(None)
        elif one.kind.startswith(("struct", "map")):
            column = f.to_json(column)
        constant = reading.constants.get(one.field)
        text = column.cast("string")
        columns[one.field] = text if constant is None else f.coalesce(text, f.lit(constant))
    told = [f.col(one.column).cast("string") for one in shape]
    reader = with_colons(spark.read, paths).schema(schema)
    return reader.parquet(*map(literal, paths)).select(  # type: ignore[no-any-return]
        *(f.make_valid_utf8(column).alias(field) for field, column in columns.items()),
        stamp.alias("stamp"),
        f.when(not_utf8(list(columns.values())), NOT_UTF8).alias("broken"),
        f.make_valid_utf8(f.concat_ws(",", *told)).alias("raw"),
        f.col("_metadata.file_path").alias("file"),
    )


def _stamp(stored: StoredColumn, zone: str | None) -> "Column":
    """Return a moment in µs; one beyond their range becomes a value outside all valid years."""
    from pyspark.sql import functions as f

    name, most = stored.column, 2 * LATEST // 1_000
    micros = {
        "ms": f"if({name} is null, null, greatest(-{most}, least({most}, {name})) * 1000)",
        "us": name,
        "ns": f"{name} div 1000 - if({name} % 1000 < 0, 1, 0)",
        "int96": f"unix_micros(cast({name} as timestamp))",
    }
    assert stored.unit is not None
    if stored.zoned:
        return f.expr(micros[stored.unit])
    if zone is None:  # wall time says nothing without one
        return f.lit(None).cast("bigint")
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    east = (hours * 60 + minutes) * 60 * MICROSECONDS * (-1 if zone[0] == "-" else 1)
    local = f.expr(micros[stored.unit])
    return f.when(local.between(-2 * LATEST, 2 * LATEST), local - east).otherwise(local)
