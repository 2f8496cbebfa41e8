"""Which files hold sightings, and how are their columns called? Looked at before Spark reads them.

JSON lines, CSV with a header, or Parquet, told by the name's ending (`.gz` may follow the first
two). What makes a whole file unreadable is said here, with the file's name, before anything is
written: a Parquet file that is none, a column that is missing or of the wrong type.
"""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError, LimitError

FIELDS = ("person", "source", "time", "place", "lon", "lat", "attributes")
FORMATS = {"jsonl": "json", "json": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}
FILES_MAX = 1_000_000
HEADER_LENGTH_MAX = 65_536


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How to read files that were not made for us.

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
    """Return the reading if it speaks of our fields and of formats we know."""
    for field in (*reading.columns, *reading.constants):
        if field not in FIELDS:
            raise InputError(f"{field!r} is no field of a sighting: {', '.join(FIELDS)}")
    if reading.format not in (None, *FORMATS.values()):
        raise InputError(f"{reading.format!r} is no format: json, csv or parquet")
    zone = reading.zone
    if zone is not None and (len(zone) != 6 or zone[0] not in "+-" or zone[3] != ":"):
        raise InputError(f"{zone!r} is no zone such as +00:00")
    return reading


def format_of(path: str, reading: Reading) -> str | None:
    """Name the format of a file, or none if it does not look like sightings."""
    if reading.format is not None:
        return reading.format
    name = path.rpartition("/")[2].lower().removesuffix(".gz")
    return FORMATS.get(name.rpartition(".")[2])


def listed(paths: Iterable[Path], reading: Reading) -> list[SightingFile]:
    """List the files meant: themselves, or what lies in a folder, hidden ones left out."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            inside = (p for p in path.rglob("*") if p.is_file() and not _hidden(p, path))
            found.update(p.resolve() for p in inside if format_of(str(p), reading))
        elif path.is_file():
            if format_of(str(path), reading) is None:
                raise InputError("not .jsonl, .csv or .parquet: say --format", source=str(path))
            found.add(path.resolve())
        else:
            raise InputError("there is no such file or folder", source=str(path))
    if len(found) > FILES_MAX:
        raise LimitError(f"more than {FILES_MAX} files at once; give fewer folders")
    return [stated(str(path)) for path in sorted(found)]


def stated(path: str) -> SightingFile:
    """Take note of a file as it is now."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", source=path) from None
    return SightingFile(path, status.st_size, status.st_mtime_ns)


def csv_header(path: str) -> tuple[str, ...]:
    """Read the column names of a CSV file."""
    import csv

    opener = gzip.open if path.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            line = file.readline(HEADER_LENGTH_MAX + 1)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read it: {error}", source=path) from None
    if len(line) > HEADER_LENGTH_MAX:
        raise LimitError(f"its header is longer than {HEADER_LENGTH_MAX}", source=path)
    names = next(csv.reader([line]), [])
    if len(set(names)) < len(names):
        raise InputError("a column stands twice in its header", source=path)
    return tuple(names)


def parquet_schema(path: str) -> pa.Schema:
    """Read the schema of a Parquet file from its footer."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"not a readable Parquet file: {reason}", source=path) from None


def parquet_rows(path: str) -> int:
    """Count the rows of a Parquet file from its footer."""
    try:
        return int(pq.read_metadata(path).num_rows)
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


def _hidden(path: Path, folder: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(folder).parts)
