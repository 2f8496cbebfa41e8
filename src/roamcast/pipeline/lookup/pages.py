"""Plain pages of a file in memory, decoded without opening a reader for each column.

A row group of the archive is small and has one page a column, so Parquet's readers cost several
times what they decode. A page of plain values without nulls, compressed by Snappy, as the archive
writes numbers, moments and vids, is decompressed here. For whatever else a file holds, or if
anything is odd, the answer is None, and pyarrow reads it, or says what is damaged (decision 0360).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from roamcast.model.kernels import inlined, kernel
from roamcast.pipeline.archive.layout import Array

TYPES = {"DOUBLE": np.dtype("<f8"), "INT64": np.dtype("<i8")}
ENCODINGS = {"PLAIN", "RLE"}
"""RLE is that of the levels, which say where nulls are."""

HEADER_BYTES = 32
"""Of a page's header that are looked at; a struct of Thrift's compact protocol."""

TEXT_BYTES_MAX = 2**31 - 1


def page_header(header: bytes) -> tuple[int, int, int] | None:
    """Read a page's size, compressed size and number of values; None if it is not plain data.

    Writers write the fields of a header in their order: its type (0: data), both sizes, and of data
    the number of values and the encoding (0: plain). A checksum or anything else is left alone.
    """
    if header[:3] != b"\x15\x00\x15":
        return None
    size, at = _integer(header, 3)
    if header[at : at + 1] != b"\x15":
        return None
    packed, at = _integer(header, at + 1)
    if header[at : at + 2] != b"\x2c\x15":
        return None
    values, at = _integer(header, at + 2)
    return (size, packed, values) if header[at : at + 2] == b"\x15\x00" else None


def _integer(header: bytes, at: int) -> tuple[int, int]:
    """Read a number of Thrift's, whose lowest bit is the sign; give where it ends."""
    found, at = _unsigned(header, at)
    return (found >> 1) ^ -(found & 1), at


def _unsigned(header: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, the lowest first."""
    found = shift = 0
    for byte in header[at : at + 5]:
        at += 1
        found |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return found, at


@inlined
def _length(data: Any, at: Any) -> Any:
    """Read the length of a text."""
    low = np.int64(data[at]) | np.int64(data[at + 1]) << 8
    return low | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24


@kernel
def text_starts(data: Any, first: int, last: int, starts: Any) -> bool:
    """Write where each text of a page begins, before it four bytes with its length."""
    at = first
    for row in range(len(starts)):
        if at + 4 > last:
            return False
        starts[row] = at + 4
        at += 4 + _length(data, at)
    return at == last


@kernel
def text_lengths(data: Any, starts: Any, at: Any, offsets: Any) -> int:
    """Write the offsets of some rows' texts if they are put one after another; give their size."""
    total = 0
    for number in range(len(at)):
        start = starts[at[number]]
        offsets[number] = total
        total += _length(data, start - 4)
    offsets[len(at)] = total
    return total


@kernel
def gather(data: Any, starts: Any, at: Any, offsets: Any, out: Any) -> None:
    """Put some rows' texts one after another."""
    for number in range(len(at)):
        start, first = starts[at[number]], offsets[number]
        for byte in range(offsets[number + 1] - first):
            out[first + byte] = data[start + byte]


class PlainPages:
    """Where the plain pages of a file lie: found once, when a column is first read."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self._columns: dict[str, int] = {
            name: number for number, name in enumerate(metadata.schema.names)
        }
        self._found: dict[str, Array | None] = {}

    def numbers(self, raw: pa.Buffer, name: str, groups: Array) -> Array | None:
        """Give a column of row groups as numbers, None if it is not plain there."""
        column = self._columns[name]
        width = TYPES.get(self._metadata.schema.column(column).physical_type)
        bodies = None if width is None else self._bodies(raw, name, groups)
        if bodies is None or width is None:
            return None
        parts = []
        for body, first, rows in bodies:
            if body.size != first + width.itemsize * rows:
                return None
            parts.append(np.frombuffer(body, width, rows, first))
        return np.concatenate(parts)

    def texts(self, raw: pa.Buffer, name: str, groups: Array, at: Array) -> pa.Array | None:
        """Give the texts of some rows, counted through row groups, None if they are not plain."""
        column = self._metadata.schema.column(self._columns[name])
        plain = column.physical_type == "BYTE_ARRAY"
        bodies = self._bodies(raw, name, groups) if plain else None
        if bodies is None:
            return None
        data = np.concatenate([np.frombuffer(body, np.uint8) for body, _, _ in bodies])
        starts = np.empty(sum(rows for _, _, rows in bodies), np.int64)
        base = row = 0
        for body, first, rows in bodies:
            end = base + body.size
            if not text_starts(data, base + first, end, starts[row : row + rows]):
                return None
            base, row = end, row + rows
        offsets = np.empty(len(at) + 1, np.int32)
        size = text_lengths(data, starts, at, offsets)
        if size > TEXT_BYTES_MAX:
            return None
        out = np.empty(size, np.uint8)
        gather(data, starts, at, offsets, out)
        return pa.StringArray.from_buffers(len(at), pa.py_buffer(offsets), pa.py_buffer(out))

    def _bodies(
        self, raw: pa.Buffer, name: str, groups: Array
    ) -> Sequence[tuple[pa.Buffer, int, int]] | None:
        """Decompress the pages of row groups: each with its first value's place, and its rows."""
        if name not in self._found:
            self._found[name] = self._find(raw, self._columns[name])
        known = self._found[name]
        if known is None:
            return None
        optional = self._metadata.schema.column(self._columns[name]).max_definition_level
        snappy, bodies = pa.Codec("snappy"), []
        for begin, packed, size, rows in known[groups].tolist():
            if begin < 0:
                return None
            try:
                body = snappy.decompress(raw.slice(begin, packed), decompressed_size=size)
            except (pa.ArrowException, OSError):
                return None
            first = 0
            if optional:  # levels: their length and themselves, all alike without a null
                first = 4 + int.from_bytes(body[:4], "little") if size >= 4 else size + 1
            if body.size != size or first > size:
                return None
            bodies.append((body, first, rows))
        return bodies

    def _find(self, raw: pa.Buffer, column: int) -> Array | None:
        """Read the headers of a column's pages; None if none of them can be plain."""
        told = self._metadata.schema.column(column)
        if told.max_repetition_level or told.max_definition_level > 1:
            return None
        found = np.full((self._metadata.num_row_groups, 4), -1, np.int64)
        for group in range(len(found)):
            chunk = self._metadata.row_group(group).column(column)
            known = chunk.statistics
            if (
                chunk.compression != "SNAPPY"
                or not ENCODINGS.issuperset(chunk.encodings)
                or known is None
                or not known.has_null_count
                or known.null_count
            ):
                continue
            first = chunk.data_page_offset
            end = first + chunk.total_compressed_size
            header = page_header(raw[first : first + HEADER_BYTES].to_pybytes())
            if header is None or end > raw.size:
                continue
            size, packed, values = header
            # one page is the whole row group: what follows the header is the page
            if values != chunk.num_values or not 0 < packed < end - first:
                continue
            begin = end - packed
            if _unsigned(raw[begin : begin + 5].to_pybytes(), 0)[0] == size:  # as Snappy says
                found[group] = begin, packed, size, values
        return found
