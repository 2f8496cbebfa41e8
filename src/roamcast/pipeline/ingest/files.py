"""Files of sightings: which there are, and what their columns are called, before a row is read.

JSON lines, CSV with a header, or Parquet, by the name's ending (`.gz` may follow the first two).
What makes a whole file unreadable is reported here, with the file's name, before anything is
written: a Parquet file that is none, a column that is missing or of the wrong type.
"""

import gzip
import hashlib
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError, LimitError

FIELDS = ("person", "source", "time", "place", "lon", "lat", "attributes")
FORMATS = {"jsonl": "json", "json": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}
FILES_MAX = 1_000_000
HEADER_LENGTH_MAX = 65_536
COLUMNS_MAX = 20_000
"""Of a table."""

_ZONE = re.compile(r"[+-](?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)
DAMAGE = (OSError, EOFError, zlib.error, pa.ArrowException)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How to map foreign files to our fields.

    `columns`: our field → the column's name there. `constants`: a value for a field that no column
    has. `zone`: what a time without a zone means, such as `+00:00`; without it such a row is dead.
    """

    format: str | None = None
    columns: Mapping[str, str] = {}
    constants: Mapping[str, str] = {}
    zone: str | None = None

    def column(self, field: str) -> str:
        """Give the name that a field has in the files."""
        return self.columns.get(field, field)


class SightingFile(msgspec.Struct, frozen=True, order=True):
    """One file as it was found; the same path with another size or time is another file."""

    path: str
    size: int
    modified_ns: int


def check_reading(reading: Reading) -> Reading:
    """Return the mapping if it names only known fields and formats."""
    for field in (*reading.columns, *reading.constants):
        if field not in FIELDS:
            raise InputError(f"{field!r} is no field of a sighting: {', '.join(FIELDS)}")
    if reading.format not in (None, *FORMATS.values()):
        raise InputError(f"{reading.format!r} is no format: json, csv or parquet")
    if reading.zone is not None and _ZONE.fullmatch(reading.zone) is None:
        raise InputError(f"{reading.zone!r} is no zone such as +00:00")
    return reading


def format_of(path: str, reading: Reading) -> str | None:
    """Name the format of a file, or none if it does not look like sightings."""
    if reading.format is not None:
        return reading.format
    name = path.rpartition("/")[2].lower().removesuffix(".gz")
    return FORMATS.get(name.rpartition(".")[2])


def listed(paths: Iterable[Path], reading: Reading) -> list[SightingFile]:
    """List the given files, and those in given folders except hidden ones."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            inside = (p for p in files_inside(path) if format_of(str(p), reading))
            found.update(located(p, reading) for p in inside)
        elif path.is_file():
            if format_of(str(path), reading) is None:
                raise InputError("not .jsonl, .csv or .parquet: say --format", source=str(path))
            if hidden(path.name):
                raise InputError("hidden files are left out: rename it", source=str(path))
            found.add(located(path, reading))
        else:
            raise InputError("there is no such file or folder", source=str(path))
        if len(found) > FILES_MAX:
            raise LimitError(f"more than {FILES_MAX} files at once; give fewer folders")
    for path in found:
        if (shown := os.fsencode(path).decode(errors="replace")) != str(path):
            raise InputError("its name is not UTF-8: rename it", source=shown)
    return [stated(str(path)) for path in sorted(found)]


def files_inside(folder: Path, *, loops: bool = True) -> Iterator[Path]:
    """Give the files below a folder, links followed, hidden names left out.

    A folder is entered once, whatever leads to it. loops: if a link may lead back to a folder that
    it lies in; else such a link is an error.
    """
    above: dict[tuple[int, int], bool] = {}  # by folder: whether we are still inside
    stack = [(_folder_id(folder), _entries(folder))]
    above[stack[0][0]] = True
    while stack:
        entry = next(stack[-1][1], None)
        if entry is None:
            above[stack.pop()[0]] = False
        elif entry.is_dir():
            number = _folder_id(Path(entry.path))
            if not loops and above.get(number):
                raise InputError("it leads back to a folder it lies in", source=entry.path)
            if number not in above:
                above[number] = True
                stack.append((number, _entries(Path(entry.path))))
        elif entry.is_file():
            yield Path(entry.path)


def _folder_id(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _entries(folder: Path) -> "Iterator[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return iter([entry for entry in found if not hidden(entry.name)])
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", source=str(folder)) from None


def hidden(name: str) -> bool:
    """Say whether a file or folder of this name is left out; Spark leaves out nearly the same."""
    return name[:1] in {".", "_"} or name.endswith("._COPYING_")


def located(path: Path, reading: Reading) -> Path:
    """Give a file's own path, so that it is one file under all its links.

    A link whose name says more than the file's own keeps it: `a.jsonl` for `blob-17`.
    """
    own = path.resolve()
    if format_of(str(own), reading) == format_of(str(path), reading) and not hidden(own.name):
        return own
    return path.parent.resolve() / path.name


def stated(path: str) -> SightingFile:
    """Take note of a file as it is now."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", source=path) from None
    return SightingFile(path, status.st_size, status.st_mtime_ns)


class Header(msgspec.Struct, frozen=True):
    """The first line of a table that has text, and the columns' names in it."""

    line: str
    names: tuple[str, ...]


def csv_header(path: str) -> Header:
    """Read the header of a CSV file."""
    import csv

    try:
        with opened_bytes(path) as file:
            start = file.read(HEADER_LENGTH_MAX + 1)
    except DAMAGE as error:
        raise InputError(f"cannot read it: {error}", source=path) from None
    lines = [line for line in start.removeprefix(BOM_UTF8).splitlines() if line.strip()]
    if not lines:
        raise InputError("it does not begin with a header", source=path)
    if len(lines) == 1 and len(start) > HEADER_LENGTH_MAX:
        raise LimitError(f"its header is longer than {HEADER_LENGTH_MAX}", source=path)
    try:
        line = lines[0].decode()
    except UnicodeDecodeError:
        raise InputError("its header is not UTF-8", source=path) from None
    names = next(csv.reader([line]))
    if len(set(names)) < len(names):
        raise InputError("a column stands twice in its header", source=path)
    if len(names) > COLUMNS_MAX:
        raise LimitError(f"it has more than {COLUMNS_MAX} columns", source=path)
    return Header(line, tuple(names))


def opened_bytes(path: str) -> IO[bytes]:
    """Open a file for its bytes, unpacked."""
    if packed(path):
        return gzip.open(path, "rb")  # type: ignore[return-value]  # it reads bytes all the same
    return Path(path).open("rb")


def damage(path: str, reading: Reading) -> str | None:
    """Return what is wrong with a file as a whole, or none; compressed files are read whole."""
    try:
        if format_of(path, reading) == "parquet":
            with pq.ParquetFile(path) as table:
                for _ in table.iter_batches():
                    pass
        else:
            with opened_bytes(path) as file:
                while file.read(1 << 20) and packed(path):
                    pass
    except DAMAGE as error:
        reason = str(error).splitlines() or ["no reason given"]
        return f"the file is cut or damaged: {reason[0]}"
    return None


ROW_BYTES = 64
"""What a row of text takes at least, in a file; a compressed one takes a tenth of it."""


def expected_rows(file: SightingFile, reading: Reading) -> int:
    """Estimate the number of rows of a file."""
    if format_of(file.path, reading) == "parquet":
        return int(parquet_footer(file.path).num_rows)
    return file.size // (ROW_BYTES // 10 if packed(file.path) else ROW_BYTES)


def packed(path: str) -> bool:
    """Say whether a file is compressed as a whole."""
    return path.lower().endswith(".gz")


def number_of(path: str) -> int:
    """Number a file for the rows that come from it."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def parquet_footer(path: str) -> Any:
    """Read what a Parquet file says of itself."""
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"not a readable Parquet file: {reason}", source=path) from None


def check_columns(names: Iterable[str], reading: Reading, path: str) -> None:
    """Raise unless a table has the columns that a sighting cannot do without."""
    known = set(names)
    wanted = set(reading.columns.values())
    for field in ("person", "source", "time"):
        if field not in reading.constants:
            wanted.add(reading.column(field))
    missing = sorted(wanted - known)
    if missing:
        raise InputError(f"column {missing[0]!r} is missing", source=path)
    if reading.column("place") not in known and "place" not in reading.constants:
        for field in ("lon", "lat"):
            if reading.column(field) not in known:
                raise InputError(
                    f"it has neither a column 'place' nor {reading.column(field)!r}", source=path
                )
