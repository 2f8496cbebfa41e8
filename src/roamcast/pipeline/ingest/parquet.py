"""What a Parquet file has of a sighting: its columns, their types, and how they are flattened.

Only the columns of a sighting are read, so others may be of any type. Moments are taken as the
integers that they are stored as: not every one of them has a date.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.pipeline.ingest.files import FIELDS, Reading, check_columns

_INTEGERS = {
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
}
_FLOATS = {pa.float32(), pa.float64()}
TEXTS = {pa.string(), pa.large_string()}
_NESTED = {*_INTEGERS, *_FLOATS, *TEXTS, pa.bool_(), pa.timestamp("us", "UTC")}

Shape = Mapping[str, str]
"""The columns that a file has of a sighting: our field → its name there."""


def parquet_shape(path: str, reading: Reading) -> Shape:
    """Inspect a file's columns; raise for one that cannot hold its field."""
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"not a readable Parquet file: {reason}", source=path) from None
    return shape_in(schema, reading, path)


def shape_in(schema: pa.Schema, reading: Reading, path: str) -> Shape:
    """Find a sighting's columns among a file's; raise for one that cannot hold its field."""
    check_columns(schema.names, reading, path)
    found = {}
    for field in FIELDS:
        name = reading.column(field)
        alike = [other for other in schema.names if other.lower() == name.lower()]
        if name not in alike:
            continue
        if len(alike) > 1:  # tables that are made of files do not tell them apart
            raise InputError(f"columns {alike[0]!r} and {alike[1]!r} are alike", source=path)
        kind = schema.field(name).type
        if pa.types.is_dictionary(kind):  # how Arrow holds it; Parquet stores the values
            kind = kind.value_type
        if pa.types.is_null(kind):
            continue
        if not _holds(field, kind):
            raise InputError(f"column {name!r} cannot be of type {kind}", source=path)
        found[field] = name
    return found


def _holds(field: str, kind: Any) -> bool:
    """Say whether a column of this type can hold a field."""
    if kind in TEXTS:
        return True
    if field == "time":
        return bool(pa.types.is_timestamp(kind))
    if field == "person":
        return kind in _INTEGERS
    if field in {"lon", "lat"}:
        return kind in _INTEGERS | _FLOATS
    return field == "attributes" and _is_object(kind) and _nested(kind)


def _is_object(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind))


def _nested(kind: Any) -> bool:
    """Say whether attributes may be of this type: objects and maps of what they may have."""
    if pa.types.is_struct(kind):
        return all(_nested(kind.field(at).type) for at in range(len(kind)))
    if pa.types.is_map(kind):
        return kind.key_type in TEXTS and _nested(kind.item_type)
    if pa.types.is_list(kind):
        return _nested(kind.value_type)
    return kind in _NESTED


def flat(column: pa.Array) -> pa.Array:
    """Give a column as texts, numbers or moments: an object is the text of its JSON."""
    kind = column.type
    if pa.types.is_dictionary(kind) and kind.value_type not in TEXTS:
        return flat(column.cast(kind.value_type))
    if kind == pa.float32():  # 0.1 means 0.1, not the nearest half of a double
        return column.cast(pa.string()).cast(pa.float64())
    if not _is_object(kind):
        return column
    texts = [_json_text(value, kind) for value in column.cast(_plainer(kind)).to_pylist()]
    return pa.array(texts, pa.binary()).view(pa.string())


def _plainer(kind: Any) -> Any:
    """Give an object's type with texts as bytes and moments as integers: all can be read."""
    if pa.types.is_struct(kind):
        inside = (kind.field(at) for at in range(len(kind)))
        return pa.struct([field.with_type(_plainer(field.type)) for field in inside])
    if pa.types.is_map(kind):
        return pa.map_(_plainer(kind.key_type), _plainer(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plainer(kind.value_type))
    if kind in TEXTS:
        return pa.binary() if kind == pa.string() else pa.large_binary()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _json_text(value: Any, kind: Any) -> bytes | None:
    """Write an object as JSON, as a source would; what is no text in it makes all of it none."""
    if value is None:
        return None
    try:
        return msgspec.json.encode(_jsonable(value, kind))
    except UnicodeDecodeError:
        return b"\xff"


def _jsonable(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):  # every row has all fields: one without a value says nothing
        named = {kind.field(at).name: kind.field(at).type for at in range(len(kind))}
        return {n: _jsonable(value[n], named[n]) for n in named if value[n] is not None}
    if pa.types.is_map(kind):
        return {key.decode(): _jsonable(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [_jsonable(item, kind.value_type) for item in value]
    if pa.types.is_timestamp(kind):
        return f"{np.datetime64(value // 1_000, 'ms')}Z"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return _number(value, kind)
    return value


def _number(value: float, kind: Any) -> float | str:
    """Write what is no number as a text: JSON has none (decision 0054)."""
    if not math.isfinite(value):
        return spelled(value)
    return float(str(np.float32(value))) if kind == pa.float32() else value


def spelled(value: float) -> str:
    """Write what is no number as Java writes it."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
