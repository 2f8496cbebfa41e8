"""The columns of a journal, derived from the record structs of `model.records`.

A journal is one wide table: time, host, kind, then every field of every record. It is one table
because a figure's number usually needs several kinds together, and a column of nulls costs nothing
in Parquet. A field name has the same type and meaning in every record that has it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from roamcast.journal.book import Entry
from roamcast.model.records import RECORDS, Record, kind_of

_TYPES: Final[dict[Any, Any]] = {
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    float: pa.float64(),
}
_REPEATING: Final = pa.dictionary(pa.int32(), pa.string())
_FRAME: Final = (
    pa.field("time_us", pa.int64(), nullable=False),
    pa.field("host", _REPEATING, nullable=False),
    pa.field("kind", _REPEATING, nullable=False),
)
"""What the driver adds to each record."""

NEEDED: Final = tuple(field.name for field in _FRAME)
"""The columns without which a file is no journal segment; readers fill in all others."""


def derive(records: Iterable[type[Record]]) -> pa.Schema:
    """Give the schema that holds all fields of these records."""
    columns: dict[str, Any] = {}
    for record in records:
        for field in msgspec.structs.fields(record):
            expected = columns.setdefault(field.name, _TYPES[field.type])
            assert expected == _TYPES[field.type], f"{field.name} has two types in journal records"
    assert not columns.keys() & set(NEEDED), "a record's field hides one that the driver adds"
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    return pa.schema([*_FRAME, *fields], metadata={"roamcast.journal": "1"})


SCHEMA: Final = derive(RECORDS)
KINDS: Final[dict[str, type[Record]]] = {kind_of(record): record for record in RECORDS}
FIELDS: Final = {kind: record.__struct_fields__ for kind, record in KINDS.items()}
assert len(KINDS) == len(RECORDS), "two records state the same kind"


def to_batch(entries: Iterable[Entry]) -> pa.RecordBatch:
    """Put entries into columns; a field that a record does not have is null."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for time_us, host, record in entries:
        row = msgspec.structs.asdict(record)
        row.update(time_us=time_us, host=host, kind=kind_of(record))
        for name, column in columns.items():
            column.append(row.get(name))
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def from_batch(batch: pa.RecordBatch | pa.Table) -> Iterator[Entry]:
    """Read entries back; unknown kinds are skipped, missing fields get their defaults."""
    for row in batch.to_pylist():
        record = KINDS.get(row["kind"])
        if record is None:
            continue
        fields = {name: row[name] for name in FIELDS[row["kind"]] if row.get(name) is not None}
        yield row["time_us"], row["host"], record(**fields)
