"""The one wide row that passes between ingest's stages; each kind of row uses a part of it.

Into the scan go people (with their handles), open intervals, sightings and dead letters, sorted by
person. Out come the same kinds for the next batch, and contexts. One schema for all of them lets
one Spark job write everything at once (decision 0052). Its columns are flat because Spark asks for
the size of its Arrow batch after every row, and a list column then counts anew.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.identity import agent_core as core
from roamcast.identity.pseudonyms import HANDLE_BYTES
from roamcast.identity.whereabouts import cell_or_place

PERSON, OPEN, PENDING, DEAD, CONTEXT, COUNT = (
    "person",
    "open",
    "pending",
    "dead",
    "context",
    "count",
)
"""The kinds of rows that the scan gives."""

RANK_PERSON, RANK_OPEN, RANK_SIGHTING, RANK_DEAD = 0, 1, 2, 3
"""The order of one person's rows on the way in."""

SEPARATOR = "\x1f"
"""Between texts: no place and no attribute contains a control character."""
WORDS = pa.dictionary(pa.int32(), pa.string())
"""Texts that many rows share: what is asked of them is asked once per distinct one."""

_SHARED = {
    "person": pa.string(),
    "time": pa.int64(),
    "source": pa.int8(),
    "place": pa.string(),
    "lon": pa.float64(),
    "lat": pa.float64(),
    "attributes": pa.string(),
    "handle": pa.binary(),
    "numbers": pa.binary(),
    "texts": pa.string(),
    "file": pa.int64(),
    "reason": pa.string(),
    "raw": pa.string(),
}
TAKEN = pa.schema(
    [
        *(_SHARED | dict.fromkeys(("person", "place", "attributes"), WORDS)).items(),
        *(("rank", pa.int8()), ("fresh", pa.bool_()), ("layer", pa.int8())),
    ]
)
"""What the scan takes; `layer` numbers the layer of what is remembered."""
GIVEN = pa.schema(
    [*_SHARED.items(), ("t_d", pa.int64()), ("vid", pa.string()), ("kind", pa.string())]
)
"""What the scan gives: for a context, `time` is its t_r and `attributes` their canonical text."""

SORTED_BY = ("person", "rank", "time", "source", "place", "lon", "lat", "attributes")

COUNTED = ("sightings", "repeated", "late", "malformed", "pending", "contexts", "open", "people")
"""What every task counts, in the order of its numbers; the newest time follows them."""


def is_text(column: pa.Array) -> bool:
    """Say whether a column has texts, of whatever size, as a dictionary or not."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def coded(column: pa.Array) -> pa.DictionaryArray:
    """Give a column as a dictionary of texts; numbers are texts of their digits."""
    if pa.types.is_dictionary(column.type):
        return column.cast(WORDS)
    return column.cast(pa.string()).dictionary_encode()


def taken(table: pa.Table) -> pa.Table:
    """Give rows in the columns of TAKEN, those null that they do not have."""
    known = set(table.schema.names)
    arrays = [
        table[field.name].cast(field.type)
        if field.name in known
        else pa.nulls(table.num_rows, field.type)
        for field in TAKEN
    ]
    return pa.table(arrays, schema=TAKEN)


def chosen(table: pa.Table, order: npt.NDArray[np.int64]) -> pa.Table:
    """Take rows; columns without a value are not looked at."""
    at = pa.array(order)
    arrays = [
        pa.nulls(len(order), column.type)
        if column.null_count == len(column)
        else column.combine_chunks().take(at)
        for column in table.columns
    ]
    return pa.table(arrays, schema=table.schema)


def given(kind: str, count: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Make rows of one kind; the columns it does not use are null."""
    arrays = [
        pa.repeat(kind, count)
        if field.name == "kind"
        else columns.get(field.name, pa.nulls(count, field.type))
        for field in GIVEN
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=GIVEN)


def passed_on(kind: str, rows: pa.Table, reasons: pa.Array | None = None) -> pa.RecordBatch:
    """Pass sightings on unchanged, to wait or as dead letters with a reason."""
    columns = {
        name: rows[name].combine_chunks().cast(kind)
        for name, kind in _SHARED.items()
        if name not in {"numbers", "texts"}
    }
    if reasons is not None:
        columns["reason"] = reasons
    return given(kind, rows.num_rows, columns)


def held_columns(states: core.Integers, texts: pa.Array) -> dict[str, pa.Array]:
    """Write states with the texts of their keys (`texts` begins with a null for no key)."""
    count = len(states)
    codes = states[:, list(core.KEY_COLUMNS)]
    kept = texts.take(pa.array(codes.ravel())).fill_null("")
    offsets = np.arange(count + 1, dtype=np.int32) * len(core.KEY_COLUMNS)
    lists = pa.ListArray.from_arrays(pa.array(offsets), kept)
    return {"numbers": _packed(states), "texts": pc.binary_join(lists, SEPARATOR)}


def held_states(numbers: pa.Array, texts: pa.Array) -> tuple[core.Integers, pa.Array]:
    """Read states and, in rows of the same order, the texts of their keys."""
    width = core.STATE_WIDTH * 8
    states = _bytes(numbers, width).view(np.int64).reshape(-1, core.STATE_WIDTH)
    kept = pc.split_pattern(texts, SEPARATOR).flatten()
    return states.copy(), pc.if_else(pc.equal(kept, ""), pa.scalar(None, pa.string()), kept)


def count_row(numbers: list[int], columns: list[str]) -> pa.RecordBatch:
    """Give what a task counted, and which attribute columns its contexts have."""
    packed = _packed(np.array([numbers], dtype=np.int64))
    texts = pa.array([SEPARATOR.join(columns)], pa.string())
    return given(COUNT, 1, {"numbers": packed, "texts": texts})


def counts_of(row: Mapping[str, Any]) -> tuple[list[int], list[str]]:
    """Decode a task's counts."""
    columns = [name for name in row["texts"].split(SEPARATOR) if name]
    return np.frombuffer(row["numbers"], np.int64).tolist(), columns


def _packed(table: core.Integers) -> pa.Array:
    """Put each row of integers into one binary value."""
    kind = pa.binary(table.shape[1] * 8)
    data = pa.py_buffer(np.ascontiguousarray(table).tobytes())
    return pa.Array.from_buffers(kind, len(table), [None, data]).cast(pa.binary())


def _bytes(column: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Read equally long binary values as a matrix of bytes."""
    fixed = column.cast(pa.binary(width))
    start = fixed.offset * width
    data = np.frombuffer(fixed.buffers()[1], np.uint8)
    return data[start : start + len(fixed) * width].reshape(-1, width)


def points(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Turn bits into degrees, null where there is no point."""
    degrees = np.ascontiguousarray(numbers).view(np.float64)
    return pa.array(degrees, pa.float64(), mask=np.isnan(degrees))


def context_rows(
    closed: core.Integers, texts: pa.Array, attributes: pa.Array, vids: pa.Array
) -> pa.RecordBatch:
    """Return closed contexts under their vids; the person is dropped here."""
    return given(
        CONTEXT,
        len(closed),
        {
            "time": pa.array(closed[:, core.CLOSED_FROM]),
            "t_d": pa.array(closed[:, core.CLOSED_TO]),
            "place": cell_or_place(texts.take(pa.array(closed[:, core.CLOSED_PLACE]))),
            "lon": points(closed[:, core.CLOSED_LON]),
            "lat": points(closed[:, core.CLOSED_LAT]),
            "attributes": attributes,
            "vid": vids,
        },
    )


def person_rows(
    people: pa.Array, handles: npt.NDArray[np.uint8], since: core.Integers, until: core.Integers
) -> pa.RecordBatch:
    """Give the register's lines: `file` and `time` say since and until when a person is known."""
    data = pa.py_buffer(np.ascontiguousarray(handles).tobytes())
    column = pa.Array.from_buffers(pa.binary(HANDLE_BYTES), len(people), [None, data])
    columns = {
        "person": people,
        "handle": column.cast(pa.binary()),
        "file": pa.array(since),
        "time": pa.array(until),
    }
    return given(PERSON, len(people), columns)


def handle_matrix(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Read handles as a matrix of bytes, one row each."""
    return _bytes(column, HANDLE_BYTES)


def degrees(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Read a column of degrees, NaN where it is null."""
    return np.array(column.fill_null(np.nan).to_numpy(), dtype=np.float64)


def numbered(parts: list[pa.Array]) -> tuple[list[core.Integers], pa.Array]:
    """Number the texts of all parts alike from 1, 0 for none; give numbers and the texts.

    A part may be a dictionary: then its texts are numbered, and not those of each row.
    """
    words = [part.dictionary if pa.types.is_dictionary(part.type) else part for part in parts]
    encoded = pa.concat_arrays(words).dictionary_encode()
    numbers = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) + 1
    found = np.split(numbers, np.cumsum([len(part) for part in words])[:-1])
    texts = pa.concat_arrays([pa.nulls(1, pa.string()), encoded.dictionary])
    for at, part in enumerate(parts):
        if pa.types.is_dictionary(part.type):
            found[at] = np.append(found[at], 0)[part.indices.fill_null(-1).to_numpy()]
    return found, texts


def renumbered(states: core.Integers, texts: pa.Array) -> tuple[core.Integers, pa.Array]:
    """Number the keys of states by their own texts."""
    codes, dictionary = numbered([texts])
    states = states.copy()
    states[:, list(core.KEY_COLUMNS)] = codes[0].reshape(len(states), -1)
    return states, dictionary
