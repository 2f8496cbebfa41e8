"""How do contexts travel in bulk? As Arrow record batches with one typed column an attribute.

An attribute's column is called `kind:name`, TCC's (type, name, value) tuple, for instance
`integer:age`: an attribute that is a number in one context and a text in another is two columns,
so nothing is converted and nothing lost, and no attribute can collide with a fixed column.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from roamcast.errors import ContextError
from roamcast.model import time
from roamcast.model.contexts import Attribute, Context, check

STAMP = pa.timestamp("us", tz="UTC")
KINDS = {
    "string": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": STAMP,
}
FIXED = [
    pa.field("vid", pa.string(), nullable=False),
    pa.field("place", pa.string()),
    pa.field("lon", pa.float64()),
    pa.field("lat", pa.float64()),
    pa.field("t_r", STAMP, nullable=False),
    pa.field("t_d", STAMP),
]


def kind_of(value: Attribute) -> str:
    """Name the kind of an attribute's value."""
    if isinstance(value, bool):  # before int: a bool is an int in Python
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    return "float" if isinstance(value, float) else "timestamp"


def column_of(name: str, value: Attribute) -> str:
    """Name the column that holds this value of this attribute."""
    return f"{kind_of(value)}:{name}"


def schema(columns: Iterable[str]) -> pa.Schema:
    """Give the schema with the fixed columns and these attribute columns, sorted."""
    fields = []
    for column in sorted(set(columns)):
        kind, colon, name = column.partition(":")
        if not colon or not name or kind not in KINDS:
            raise ContextError(f"{column!r} is not an attribute column such as integer:age")
        fields.append(pa.field(column, KINDS[kind]))
    return pa.schema([*FIXED, *fields])


def schema_of(contexts: Iterable[Context]) -> pa.Schema:
    """Give the smallest schema that holds all these contexts."""
    return schema(column_of(n, v) for context in contexts for n, v in context.attributes.items())


def to_arrow(contexts: Sequence[Context], into: pa.Schema | None = None) -> pa.RecordBatch:
    """Put contexts into one record batch; a schema without room for an attribute is refused."""
    target = schema_of(contexts) if into is None else into
    _check_fixed(target)
    columns: dict[str, list[Any]] = {field.name: [None] * len(contexts) for field in target}
    for row, context in enumerate(contexts):
        columns["vid"][row] = context.vid
        columns["place"][row] = context.place
        if context.point is not None:
            columns["lon"][row], columns["lat"][row] = context.point
        columns["t_r"][row] = context.t_r
        columns["t_d"][row] = context.t_d
        for name, value in context.attributes.items():
            column = columns.get(column_of(name, value))
            if column is None:
                raise ContextError(f"the schema has no column {column_of(name, value)!r}")
            column[row] = time.from_datetime(value) if isinstance(value, datetime) else value
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type)
        if field.type == STAMP
        else pa.array(columns[field.name], field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def from_arrow(batch: pa.RecordBatch | pa.Table) -> list[Context]:
    """Take the contexts out of a record batch again."""
    _check_fixed(batch.schema)
    names = set(batch.schema.names)
    attributes = schema(names - {field.name for field in FIXED}).names[len(FIXED) :]
    for column in attributes:
        if batch.schema.field(column).type != KINDS[column.partition(":")[0]]:
            raise ContextError(f"column {column!r} does not have its type")
    data = {name: _listed(batch.column(name)) for name in names}
    return [_row(data, attributes, row) for row in range(batch.num_rows)]


def _check_fixed(given: pa.Schema) -> None:
    for name in given.names:
        if len(given.get_all_field_indices(name)) > 1:
            raise ContextError(f"the batch has two columns {name[:60]!r}")
    for field in FIXED:
        if field.name not in given.names or given.field(field.name).type != field.type:
            raise ContextError(f"the batch needs a column {field.name!r} of type {field.type}")


def _listed(column: Any) -> list[Any]:
    values = column.cast(pa.int64()) if column.type == STAMP else column
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:
        raise ContextError("a column of texts is not UTF-8") from None


def _row(data: dict[str, list[Any]], columns: list[str], row: int) -> Context:
    attributes: dict[str, Attribute] = {}
    for column in columns:
        value = data[column][row]
        if value is None:
            continue
        kind, _, name = column.partition(":")
        if name in attributes:
            raise ContextError(f"attribute {name!r} has two values in row {row}")
        attributes[name] = _moment(name, value) if kind == "timestamp" else value
    lon, lat = data["lon"][row], data["lat"][row]
    if (lon is None) != (lat is None):
        raise ContextError(f"row {row} has a longitude or a latitude alone")
    point = None if lon is None else (lon, lat)
    vid, place, t_r, t_d = (data[name][row] for name in ("vid", "place", "t_r", "t_d"))
    if vid is None or t_r is None:
        raise ContextError(f"row {row} has no {'vid' if vid is None else 't_r'}")
    return check(Context(vid, place, point, attributes, t_r, t_d))


def _moment(name: str, instant: int) -> datetime:
    if not time.EARLIEST <= instant <= time.LATEST:
        raise ContextError(f"attribute {name!r} lies outside the years 1 to 9999 in UTC")
    return time.to_datetime(instant)
