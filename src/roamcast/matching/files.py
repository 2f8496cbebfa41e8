"""Matching of files, for `roamcast match`: JSON lines in, pairs out."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import msgspec

from roamcast.errors import FilterError, InputError, LimitError, MissingError
from roamcast.model import json_text
from roamcast.model.contexts import Context, decode
from roamcast.model.filters import Filter

LINE_BYTES_MAX = 1_048_576
ID_LENGTH_MAX = 256
BATCH = 4_096
SPOOL_BYTES = 64 * 1_048_576
"""Output is buffered until all input is read, beyond this on disk: bad input prints nothing."""

Pairs = Iterable[tuple[str, str]]


def write_matches(
    filters_path: Path, contexts_path: Path, out: IO[bytes], *, reference: bool = False
) -> None:
    """Write {"context": vid, "filter": id} lines, in the order of contexts, then of filters."""
    filters = dict(read_filters(filters_path))
    contexts = read_contexts(contexts_path)
    pairs = _by_reference(filters, contexts) if reference else _by_index(filters, contexts)
    with SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
        encode = msgspec.json.Encoder().encode
        for vid, name in pairs:
            spool.write(encode({"context": vid, "filter": name}) + b"\n")
        spool.seek(0)
        shutil.copyfileobj(spool, out)
    out.flush()


def read_filters(path: Path) -> Iterator[tuple[str, Filter]]:
    """Read FILTERS.jsonl: a line is {"id": "f1", "filter": CQL2 text or JSON}; ids are unique."""
    seen: set[str] = set()
    for number, line in numbered_lines(path):
        try:
            name, parsed = read_filter(line)
            if name in seen:
                raise FilterError(f"duplicate id {name!r}")
        except InputError as error:
            raise located(error, path, number) from None
        seen.add(name)
        yield name, parsed


def read_contexts(path: Path) -> Iterator[Context]:
    """Read CONTEXTS.jsonl: a GeoJSON Feature a line."""
    for number, line in numbered_lines(path):
        try:
            yield decode(line)
        except InputError as error:
            raise located(error, path, number) from None


def located(error: InputError, path: Path, number: int) -> InputError:
    """Add file and line to an error; without a position, it is where the line's object begins."""
    located = error.located(str(path), number)
    located.position = 1 if error.position is None else error.position
    return located


def read_filter(line: str) -> tuple[str, Filter]:
    """Read one line of FILTERS.jsonl."""
    record: Any = json_text.read(line, FilterError)
    if not isinstance(record, dict) or not record.keys() >= {"id", "filter"}:
        raise FilterError('a line is an object with "id" and "filter"')
    name = record["id"]
    if not isinstance(name, str) or not name:
        raise FilterError('"id" is not a text, or empty')
    if len(name) > ID_LENGTH_MAX:
        raise LimitError(f'"id" is longer than {ID_LENGTH_MAX} characters')
    return name, Filter.parse(record["filter"])


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1; bounded, UTF-8."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(raw) > LINE_BYTES_MAX:
                    raise LimitError(
                        f"a line has at most {LINE_BYTES_MAX} bytes",
                        source=str(path),
                        line=number,
                        position=LINE_BYTES_MAX + 1,
                    )
                try:
                    text = raw.decode()
                except UnicodeDecodeError as error:
                    raise InputError(
                        "not UTF-8", source=str(path), line=number, position=error.start + 1
                    ) from None
                if text.strip():
                    yield number, text
    except OSError as error:
        raise MissingError(f"{path}: {error.strerror}") from None


def _by_reference(filters: dict[str, Filter], contexts: Iterable[Context]) -> Pairs:
    for context in contexts:
        for name, one in filters.items():
            if one.matches(context):
                yield context.vid, name


def _by_index(filters: dict[str, Filter], contexts: Iterable[Context]) -> Pairs:
    from roamcast.matching import FilterSet

    index = FilterSet()
    index.add_many(filters.items())
    order = {name: number for number, name in enumerate(filters)}
    for context in contexts:
        for name in sorted(index.match(context), key=order.__getitem__):
            yield context.vid, name
