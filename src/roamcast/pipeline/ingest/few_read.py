"""Few sightings, read in this process: what `read` and `check` do with Spark.

A batch of a few rows is done long before Java has started. Parquet is read as Spark's tasks read
it, lines of JSON are read here; CSV is left to Spark, whose parser defines what it means.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from roamcast.errors import InputError
from roamcast.identity import sightings as limits
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.check import NOT_UTF8
from roamcast.pipeline.ingest.check_row import Given, checked_row
from roamcast.pipeline.ingest.columns import read_columns
from roamcast.pipeline.ingest.files import (
    DAMAGE,
    FIELDS,
    Reading,
    SightingFile,
    format_of,
    number_of,
    opened_bytes,
)

_TEXT = re.compile(rb"[^ \t\n\x0b\f\r]")
_TWO_OBJECTS = re.compile(r"\}[ \t\n\x0b\f\r]*\{")


def readable_here(file: SightingFile, reading: Reading) -> bool:
    """Say whether a file's rows mean the same here as they do to Spark."""
    return format_of(file.path, reading) in {"json", "parquet"}


def read_here(files: Sequence[SightingFile], reading: Reading, latest: int) -> pa.Table:
    """Give all rows of the files, checked, in the columns of `rows.TAKEN`."""
    parts = [rows.TAKEN.empty_table()]
    for file in files:
        if format_of(file.path, reading) == "parquet":
            parts += read_columns(file.path, reading, latest)
        else:
            given = _lines(file.path, reading)
            number = {"file": number_of(file.path)}
            found = [checked_row(one, reading, latest) | number for one in given]
            parts.append(pa.Table.from_pylist(found, schema=rows.TAKEN))
    return pa.concat_tables(parts)


def _lines(path: str, reading: Reading) -> Iterator[Given]:
    try:
        with opened_bytes(path) as source:
            data = source.read()
    except DAMAGE as error:
        raise InputError(f"the file is cut or damaged: {error}", source=path) from None
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in data.split(b"\n"):
        if not _TEXT.search(line):
            continue
        text = line.decode(errors="replace")
        try:
            line.decode()
            broken = None
        except UnicodeDecodeError:
            broken = NOT_UTF8
        if broken is None and len(text) > limits.LINE_LENGTH_MAX:
            broken = "the line is too long"
        fields = _decoded(text)
        if fields is None:
            broken, fields = broken or "not JSON", {}
        yield {field: fields.get(reading.column(field)) for field in FIELDS}, None, broken, text


def _decoded(text: str) -> dict[str, str | None] | None:
    """Give the values of a JSON object as texts; numbers and objects are texts of JSON."""
    if not text.rstrip(" \t\r").endswith("}") or _TWO_OBJECTS.search(text):
        return None
    try:
        said = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {name: _plain(bytes(value)) for name, value in said.items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _plain(value: bytes) -> str | None:
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    if value[:1] in b"{[" and len(value) > limits.ATTRIBUTES_LENGTH_MAX:
        value = msgspec.json.encode(msgspec.json.decode(value))  # escapes and spaces do not count
    return None if value == b"null" else value.decode()
