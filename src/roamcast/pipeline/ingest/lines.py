"""Sightings as lines of JSON and of CSV, read and checked by columns, many lines at a time.

A usual line of JSON is decoded once, into the fields of a sighting; one that is unusual (a number
as a text, an object where a text belongs, no JSON) is decoded field by field and goes through
`check_row`. A file is divided at its lines, so tasks share it. Runs in Spark's Python workers and
in the driver (decisions 0371, 0481).
"""

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import InputError
from roamcast.identity import sightings as limits
from roamcast.pipeline.ingest.check_row import NOT_UTF8, Fields, Given
from roamcast.pipeline.ingest.columns import Array, Stored, checked_columns, in_file
from roamcast.pipeline.ingest.files import (
    DAMAGE,
    FIELDS,
    Header,
    Reading,
    csv_header,
    format_of,
    opened_bytes,
)

CHUNK_BYTES = 8 * 1_048_576
"""Of a file that are decoded together, however long it is."""

LINE_BYTES_MAX = 4 * limits.LINE_LENGTH_MAX
"""Of a line that are kept: it is too long then, whatever its letters take."""

_SEEK_BYTES = 65_536
_END = re.compile(rb"[\r\n]")
_POINT = ("lon", "lat")
_NO_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)


def read_lines(
    path: str, reading: Reading, latest: int, first: int = 0, end: int | None = None
) -> Iterator[pa.Table]:
    """Give the lines of a file that begin in a stretch of its bytes, checked, a chunk at a time.

    latest: a time after this lies in the future (µs). What is wrong with a line is its `reason`.
    """
    parser: Parser
    if format_of(path, reading) == "json":
        parser = JsonLines(reading)
    else:
        parser = CsvLines(csv_header(path), reading)
    try:
        with opened_bytes(path) as file:
            for lines in parser.rows(chunks(file, first, end)):
                yield in_file(path, checked_lines(parser, lines, reading, latest))
    except DAMAGE as error:
        raise InputError(f"the file is cut or damaged: {error}", source=path) from None


class Parser(Protocol):
    """What a kind of lines is."""

    def rows(self, chunks: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
        """Leave out lines that are no rows."""

    def columns(self, lines: Sequence[bytes]) -> tuple[Stored, Array]:
        """Give the fields of usual lines, and which lines are usual; of the others nothing."""

    def alone(self, text: str) -> tuple[Fields, str | None]:
        """Give the fields of any line as texts, and what is broken with it."""


def checked_lines(
    parser: Parser, lines: Sequence[bytes], reading: Reading, latest: int
) -> pa.Table:
    """Check lines; give what each of them says, or what is wrong with it."""

    def given(dubious: Array) -> Iterator[Given]:
        return (_given(parser, lines[at]) for at in dubious.tolist())

    stored, usual = parser.columns(lines)
    usual &= np.fromiter((len(line) <= limits.LINE_LENGTH_MAX for line in lines), bool, len(lines))
    usual &= _texts(lines)
    return checked_columns(stored, len(lines), reading, latest, usual, given)


def _given(parser: Parser, line: bytes) -> Given:
    """Take one line apart, as `check_row` wants it."""
    text = line.decode(errors="replace")
    fields, broken = parser.alone(text)
    if len(text) > limits.LINE_LENGTH_MAX:
        broken = "the line is too long"
    return fields, None, broken if _texts([line]).all() else NOT_UTF8, text


def _texts(lines: Sequence[bytes]) -> Array:
    """Say which lines are UTF-8."""
    try:
        b"\n".join(lines).decode()
    except UnicodeDecodeError:
        if len(lines) == 1:
            return np.zeros(1, bool)
        return np.concatenate([_texts([line]) for line in lines])
    return np.ones(len(lines), bool)


class JsonLines:
    """Lines with an object of JSON each; numbers and objects in it are texts of JSON."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        usual = _usual(reading)
        self._decode = None if usual is None else msgspec.json.Decoder(usual).decode

    def rows(self, chunks: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
        """Every line is a row."""
        yield from chunks

    def columns(self, lines: Sequence[bytes]) -> tuple[Stored, Array]:
        """Decode lines whose fields are of their usual types."""
        if self._decode is None:
            return {}, np.zeros(len(lines), bool)
        usual = np.ones(len(lines), bool)
        found: list[tuple[Any, ...]] = []
        for at, line in enumerate(lines):
            try:
                one = self._decode(line)
                said = _attributes(one.attributes)
                if one.person == 0:  # -0 is another text
                    usual[at] = False
                found.append((one.person, one.source, one.time, one.place, one.lon, one.lat, said))
            except _NO_JSON:
                usual[at] = False
                found.append(_NOTHING)
        columns = dict(zip(FIELDS, zip(*found, strict=True), strict=True))
        people = [None if one is None else str(one) for one in columns.pop("person")]
        stored = {"person": pa.array(people, pa.string())}
        for field, values in columns.items():
            stored[field] = pa.array(values, pa.float64() if field in _POINT else pa.string())
        return stored, usual

    def alone(self, text: str) -> tuple[Fields, str | None]:
        """Decode a line whatever its fields are."""
        try:
            said = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            fields = {name: _plain(bytes(value)) for name, value in said.items()}
        except _NO_JSON:
            return {}, "not JSON"
        return {field: fields.get(self._reading.column(field)) for field in FIELDS}, None


_NOTHING = (None,) * len(FIELDS)


_ESCAPED = re.compile(r'["\\\x00-\x1f]')
"""What JSON escapes: the decoder knows no names with these."""


def _usual(reading: Reading) -> Any:
    """Give what a usual line is decoded to, its fields called as their columns; None if nothing."""
    names = {field: reading.column(field) for field in FIELDS}
    odd = _ESCAPED.search("".join(names.values()))
    if odd or len(set(names.values())) < len(names):
        return None
    kinds: dict[str, Any] = dict.fromkeys(FIELDS, str | None)
    kinds |= {"person": str | int | None} | dict.fromkeys(_POINT, float | None)
    fields: list[Any] = [(field, kind, None) for field, kind in kinds.items()]
    fields[FIELDS.index("attributes")] = ("attributes", msgspec.Raw, msgspec.Raw())
    return msgspec.defstruct("Line", fields, rename=names, gc=False)


def _attributes(raw: msgspec.Raw) -> str | None:
    said = bytes(raw)
    return _plain(said) if said else None


def _plain(value: bytes) -> str | None:
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    if value[:1] in b"{[" and len(value) > limits.ATTRIBUTES_LENGTH_MAX:
        value = msgspec.json.encode(msgspec.json.decode(value))  # escapes and spaces do not count
    return None if value == b"null" else value.decode()


class CsvLines:
    """Lines of a table, with commas between its fields; no field has a line's end in it.

    A field between quotes may have commas, and quotes twice; a quote that is not closed, or closed
    before the field's end, makes the line no row. An empty field says nothing.
    """

    def __init__(self, header: Header, reading: Reading) -> None:
        self._header = header
        names = {field: reading.column(field) for field in FIELDS}
        self._at = {f: header.names.index(n) for f, n in names.items() if n in header.names}

    def rows(self, chunks: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
        """Leave out the header, also where tables were put together."""
        header = self._header.line.encode()
        for lines in chunks:
            if rows := [line for line in lines if line != header]:
                yield rows

    def columns(self, lines: Sequence[bytes]) -> tuple[Stored, Array]:
        """Divide lines; usual ones have as many fields as the header."""
        count = len(self._header.names)
        usual = np.ones(len(lines), bool)
        found = []
        for at, line in enumerate(lines):
            fields = fields_of(line.decode(errors="replace"))
            if len(fields) != count:
                usual[at] = False
                fields = [""] * count
            found.append([fields[column] for column in self._at.values()])
        stored = {}
        for field, values in zip(self._at, zip(*found, strict=True), strict=True):
            texts = pa.array(values, pa.string())
            stored[field] = pc.if_else(pc.equal(texts, ""), None, texts)
        return stored, usual

    def alone(self, text: str) -> tuple[Fields, str | None]:
        """Divide any line."""
        fields = fields_of(text)
        if len(fields) != len(self._header.names):
            return {}, "not a row of its table"
        return {field: fields[at] or None for field, at in self._at.items()}, None


_QUOTED = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"[ \t]*(?:,|\Z)')
"""A field between quotes, and what ends it."""


def fields_of(line: str) -> list[str]:
    """Divide a line of a table at its commas; one whose quotes do not fit has no fields."""
    if '"' not in line:
        return line.split(",")
    found, at = [], 0
    while at <= len(line):
        if line.startswith('"', at):
            quoted = _QUOTED.match(line, at)
            if quoted is None:
                return []
            found.append(quoted[1].replace('""', '"'))
            at = quoted.end() if quoted[0].endswith(",") else len(line) + 1
        else:
            comma = line.find(",", at)
            end = len(line) if comma < 0 else comma
            found.append(line[at:end])
            at = end + 1
    return found


def chunks(file: IO[bytes], first: int = 0, end: int | None = None) -> Iterator[list[bytes]]:
    """Give the lines with text in them that begin in a stretch of a file, many at a time."""
    stop = None if end is None else _next_line(file, end)
    at = _next_line(file, first)
    if stop is not None:
        file.seek(at)
    rest, fresh = b"", at == 0
    while block := file.read(CHUNK_BYTES if stop is None else min(CHUNK_BYTES, stop - at)):
        at += len(block)
        if fresh:
            block, fresh = block.removeprefix(BOM_UTF8), False
        cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if cut:
            if lines := _divided(rest + block[:cut]):
                yield lines
            rest = block[cut:]
        elif len(rest) <= LINE_BYTES_MAX:
            rest += block
    if lines := _divided(rest):
        yield lines


def _next_line(file: IO[bytes], at: int) -> int:
    """Give where the first line begins that begins at a position or after it."""
    if not at:
        return 0
    file.seek(at - 1)  # the end of a line just before begins one here
    passed = at - 1
    while block := file.read(_SEEK_BYTES):
        if found := _END.search(block):
            return passed + found.end()
        passed += len(block)
    return passed


def _divided(data: bytes) -> list[bytes]:
    """Give lines with text in them, whatever ends them."""
    if b"\r" in data:
        data = data.replace(b"\r", b"\n")
    return [line for line in data.split(b"\n") if line and not line.isspace()]
