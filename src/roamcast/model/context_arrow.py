"""Contexts in bulk: Arrow record batches with one typed column per attribute.

An attribute's column is called `kind:name`, TCC's (type, name, value) tuple, for instance
`integer:age`. An attribute that is a number in one context and a text in another has two columns,
so nothing is converted or lost, and no attribute can collide with a fixed column. The kinds and
their types come from `model.kinds`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from roamcast.errors import ContextError
from roamcast.model import kinds
from roamcast.model.contexts import SEALING_KEY, Attribute, Context, check

TYPES: dict[str, Any] = {kind.name: kind.arrow(pa) for kind in kinds.KINDS.values()}
"""The Arrow type of each attribute kind's columns."""

STAMP = TYPES["timestamp"]
FIXED = [
    pa.field("vid", pa.string(), nullable=False),
    pa.field("place", pa.string()),
    pa.field("lon", pa.float64()),
    pa.field("lat", pa.float64()),
    pa.field("t_r", STAMP, nullable=False),
    pa.field("t_d", STAMP),
]
_WHOLE = {TYPES[kind.name] for kind in kinds.KINDS.values() if kind.compared in kinds.DISCRETE}
"""Types whose scalars are integers: moments and booleans."""

_FIXED_TYPES = {field.name: field.type for field in FIXED}


def column_of(name: str, value: Attribute) -> str:
    """Name the column that holds this value of this attribute."""
    kind = kinds.kind_of(value)
    assert kind is not None
    return f"{kind.name}:{name}"


SEALING_COLUMN = column_of(SEALING_KEY, "")
"""The column with the keys that casts to archived vids are sealed to (0221)."""


def columns_of(contexts: Iterable[Context]) -> dict[str, None]:
    """Name the attribute columns of these contexts, in the order in which they appear."""
    return dict.fromkeys(
        column_of(name, value) for context in contexts for name, value in context.attributes.items()
    )


def attribute_kind(column: str) -> str | None:
    """Name the kind of an attribute column; None if this is no such column."""
    kind, colon, name = column.partition(":")
    return kind if colon and name and kind in TYPES else None


def check_column(column: str, found: Any) -> None:
    """Raise unless a column's type is the one that its name asks for."""
    kind = attribute_kind(column)
    expected = _FIXED_TYPES.get(column) if kind is None else TYPES[kind]
    if expected is None:
        raise ContextError(f"{column!r} is not an attribute column such as integer:age")
    if found != expected:
        raise ContextError(f"column {column!r} is {found}, not {expected}")


def check_columns(given: pa.Schema) -> None:
    """Raise unless a schema has the fixed columns, and beside them attribute columns only."""
    for name in given.names:
        if len(given.get_all_field_indices(name)) > 1:
            raise ContextError(f"the batch has two columns {name[:60]!r}")
    for field in FIXED:
        if field.name not in given.names:
            raise ContextError(f"the batch needs a column {field.name!r} of type {field.type}")
    for field in given:
        check_column(field.name, field.type)


def schema(columns: Iterable[str]) -> pa.Schema:
    """Give the schema with the fixed columns and these attribute columns, sorted."""
    fields = []
    for column in sorted(set(columns)):
        kind = attribute_kind(column)
        if kind is None:
            raise ContextError(f"{column!r} is not an attribute column such as integer:age")
        fields.append(pa.field(column, TYPES[kind]))
    return pa.schema([*FIXED, *fields])


def schema_of(contexts: Iterable[Context]) -> pa.Schema:
    """Give the smallest schema that holds all these contexts."""
    return schema(columns_of(contexts))


def to_arrow(contexts: Sequence[Context], into: pa.Schema | None = None) -> pa.RecordBatch:
    """Put contexts into one record batch; a schema without room for an attribute is refused."""
    target = schema_of(contexts) if into is None else into
    check_columns(target)
    columns: dict[str, list[Any]] = {field.name: [None] * len(contexts) for field in target}
    for row, context in enumerate(contexts):
        columns["vid"][row] = context.vid
        columns["place"][row] = context.place
        if context.point is not None:
            columns["lon"][row], columns["lat"][row] = context.point
        columns["t_r"][row] = context.t_r
        columns["t_d"][row] = context.t_d
        for name, value in context.attributes.items():
            kind = kinds.kind_of(value)
            assert kind is not None
            column = columns.get(f"{kind.name}:{name}")
            if column is None:
                raise ContextError(f"the schema has no column {column_of(name, value)!r}")
            column[row] = kind.scalar(value)
    arrays = [array_of(columns[field.name], field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def array_of(scalars: list[Any], arrow: Any) -> pa.Array:
    """Make a column of scalars as they are compared (`kinds.Kind.scalar`), None where missing."""
    if arrow in _WHOLE:
        return pa.array(scalars, pa.int64()).cast(arrow)
    return pa.array(scalars, arrow)


def from_arrow(batch: pa.RecordBatch | pa.Table) -> list[Context]:
    """Take the contexts out of a record batch again."""
    check_columns(batch.schema)
    names = batch.schema.names
    attributes = sorted(set(names) - _FIXED_TYPES.keys())
    data = {name: _listed(batch.column(name)) for name in names}
    return [_row(data, attributes, row) for row in range(batch.num_rows)]


def _listed(column: Any) -> list[Any]:
    values = column.cast(pa.int64()) if column.type in _WHOLE else column
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
        attributes[name] = _value(kind, name, value)
    lon, lat = data["lon"][row], data["lat"][row]
    if (lon is None) != (lat is None):
        raise ContextError(f"row {row} has a longitude or a latitude alone")
    point = None if lon is None else (lon, lat)
    vid, place, t_r, t_d = (data[name][row] for name in ("vid", "place", "t_r", "t_d"))
    if vid is None or t_r is None:
        raise ContextError(f"row {row} has no {'vid' if vid is None else 't_r'}")
    return check(Context(vid, place, point, attributes, t_r, t_d))


def _value(kind: str, name: str, stored: Any) -> Attribute:
    try:
        return kinds.KINDS[kind].value(stored)
    except OverflowError:  # Arrow's 64 bits reach beyond Python's years
        raise ContextError(f"attribute {name!r} lies outside the years 1 to 9999 in UTC") from None
