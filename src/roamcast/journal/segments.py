"""Journals on disk: numbered Parquet segments, each whole or absent (`roamcast.files`).

What a killed writer leaves unfinished has a hidden name, is never read, and is deleted when the
same journal is next opened for writing.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from roamcast import files
from roamcast.errors import InputError, LimitError
from roamcast.journal.book import Entry
from roamcast.journal.schema import SCHEMA, from_batch, to_batch

SEGMENT_RECORDS_MAX: Final = 65_536
SEGMENTS_MAX: Final = 10**8
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SEGMENT: Final = re.compile(r"(?P<name>.+)-(?P<number>\d{8})\.parquet")


class Segments:
    """Writes one host's or one run's journal as numbered segments in a folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        records_max: int = SEGMENT_RECORDS_MAX,
        private: bool = False,
    ) -> None:
        """`private`: the folder and its segments are their owner's alone."""
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is not a name for a journal: use a-z, 0-9, '.', '_', '-'")
        assert 0 < records_max <= SEGMENT_RECORDS_MAX
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
        if private:
            folder.chmod(files.OWNER_ONLY_FOLDER)
            for _, path in _numbered(folder, name):
                path.chmod(files.OWNER_ONLY)
        for left_over in folder.glob(".*.new"):
            whole = _SEGMENT.fullmatch(left_over.name.removesuffix(".new")[1:])
            if whole and whole["name"] == name:  # another host may be writing its own right now
                left_over.unlink()
        self._folder = folder
        self._name = name
        self._records_max = records_max
        self._mode = files.OWNER_ONLY if private else files.ANYONE
        self._held: list[Entry] = []
        numbers = [number for number, _ in _numbered(folder, name)]
        self._number = max(numbers, default=0)

    def add(self, entries: list[Entry]) -> None:
        """Take entries; every full segment is written at once, so memory stays bounded."""
        self._held += entries
        while len(self._held) >= self._records_max:
            self._write(self._held[: self._records_max])
            del self._held[: self._records_max]

    def close(self) -> None:
        """Write what is still in memory as a last, shorter segment."""
        if self._held:
            self._write(self._held)
            self._held = []

    def _write(self, entries: list[Entry]) -> None:
        self._number += 1
        if self._number >= SEGMENTS_MAX:
            raise LimitError(f"a journal has at most {SEGMENTS_MAX - 1} segments")
        path = self._folder / f"{self._name}-{self._number:08d}.parquet"
        table = pa.Table.from_batches([to_batch(entries)])
        files.write_with(
            path, lambda file: pq.write_table(table, file, compression="zstd"), mode=self._mode
        )

    def prune(self, before_s: float) -> int:
        """Delete segments last written before a time, in seconds since 1970; say how many.

        The newest stays: its number is the one that the next follows.
        """
        old = [
            path
            for _, path in _numbered(self._folder, self._name)[:-1]
            if path.stat().st_mtime < before_s
        ]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


def segments_of(folder: Path, name: str | None = None) -> list[Path]:
    """List a journal's whole segments in order; without a name, all journals', name by name."""
    return [path for _, path in _numbered(folder, name)]


def read_table(path: Path) -> pa.Table:
    """Read one segment; columns that its writer did not have yet are null."""
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"not a journal segment: {error}", source=str(path)) from None
    for field in SCHEMA:
        if field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(SCHEMA.names).cast(SCHEMA)


def read_entries(folder: Path, name: str | None = None) -> Iterator[Entry]:
    """Read a folder's journal back, one segment in memory at a time."""
    for path in segments_of(folder, name):
        yield from from_batch(read_table(path))


def _numbered(folder: Path, name: str | None) -> list[tuple[int, Path]]:
    found = []
    for path in folder.iterdir() if folder.is_dir() else []:
        match = _SEGMENT.fullmatch(path.name)
        if match and name in (None, match["name"]):
            found.append((match["name"], int(match["number"]), path))
    return [(number, path) for _, number, path in sorted(found)]
