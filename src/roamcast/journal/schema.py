"""Which columns does a journal have? One wide table: time, host, kind, then every record's fields.

One table, because a figure's number mostly needs several kinds together, and a column of nulls
costs nothing in Parquet. A field's name means the same in every record type that has it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from roamcast.journal.book import Entry
from roamcast.model.records import RECORDS, Record

SCHEMA: Final = pa.schema(
    [
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("host", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("vid", pa.string()),
        pa.field("place", pa.string()),
        pa.field("t_r", pa.int64()),
        pa.field("t_d", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("update", pa.string()),
        pa.field("change", pa.string()),
        pa.field("queries", pa.int64()),
        pa.field("clients", pa.int64()),
        pa.field("query_set", pa.string()),
        pa.field("recurrence", pa.int64()),
        pa.field("channel", pa.string()),
        pa.field("message", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("peer", pa.string()),
        pa.field("receivers", pa.int64()),
        pa.field("receiver", pa.string()),
        pa.field("producer", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("delay_us", pa.int64()),
        pa.field("step", pa.string()),
        pa.field("incarnation", pa.int64()),
        pa.field("cast", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("matched", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("query", pa.int64()),
        pa.field("filter", pa.string()),
        pa.field("view_class", pa.string()),
        pa.field("remote", pa.bool_()),
    ],
    metadata={"roamcast.journal": "1"},
)

KINDS: Final[dict[str, type[Record]]] = {record.__name__: record for record in RECORDS}
FIELDS: Final = {kind: record.__struct_fields__ for kind, record in KINDS.items()}


def to_batch(entries: Iterable[Entry]) -> pa.RecordBatch:
    """Lay entries out in columns; a field that a record does not have is null."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for time_us, host, record in entries:
        kind = type(record).__name__
        row = msgspec.structs.asdict(record)
        row.update(time_us=time_us, host=host, kind=kind)
        for name, column in columns.items():
            column.append(row.get(name))
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def from_batch(batch: pa.RecordBatch | pa.Table) -> Iterator[Entry]:
    """Read entries back; kinds this version does not know are left out, absent fields default."""
    for row in batch.to_pylist():
        record = KINDS.get(row["kind"])
        if record is None:
            continue
        fields = {name: row[name] for name in FIELDS[row["kind"]] if row.get(name) is not None}
        yield row["time_us"], row["host"], record(**fields)
