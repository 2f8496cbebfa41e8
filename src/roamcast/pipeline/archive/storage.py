"""Where an archive's files lie: a folder, or an object store that pyarrow can reach.

Address and credentials of a store come from the environment (`AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, …), for pyarrow's data files and for deltalake's commits alike.
"""

import os
import pickle
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from roamcast.errors import InputError, MissingError, RoamcastError

TRAVELLING = "_lookups"
"""The folder for what tasks are told and tell; table readers skip names that begin like this."""


class Storage:
    """One archive's folder; small and picklable, so that tasks can open it where they run."""

    def __init__(self, archive: str | Path) -> None:
        text = str(archive)
        self.uri = text if "://" in text else str(Path(text).resolve())
        self._opened: tuple[Any, str] | None = None

    @property
    def local(self) -> bool:
        """Whether it is a folder of this machine's file system."""
        return "://" not in self.uri

    @property
    def writable(self) -> bool:
        """Whether files may be written here; of an object store only trying tells, so yes."""
        return not self.local or os.access(self.uri, os.W_OK)

    @property
    def failed(self) -> str:
        """The beginning of an error message when a job on this archive fails."""
        return f"a job on the archive at {self.uri} failed"

    def create(self, path: str) -> Any:
        """Open a new file for writing; its folders are made."""
        system, root = self._open()
        full = f"{root}/{path}"
        if self.local:
            if not Path(root).is_dir():  # files written here would be in no archive
                raise MissingError(
                    f"{gethostname()} does not see the archive at {self.uri}: Spark's workers "
                    "need it under the same path"
                )
            Path(full).parent.mkdir(parents=True, exist_ok=True)
        return system.open_output_stream(full)

    def open(self, path: str) -> Any:
        """Open a file for reading, in memory where it is local."""
        system, root = self._open()
        try:
            if self.local:
                return pa.memory_map(f"{root}/{path}")
            return system.open_input_file(f"{root}/{path}")
        except FileNotFoundError:
            raise GoneError(f"{path} is no longer in the archive at {self.uri}") from None
        except OSError as error:
            raise RoamcastError(
                f"cannot read {path} of the archive at {self.uri}: {one_line(error)}"
            ) from None

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Give those of some files that are not there, sorted."""
        system, root = self._open()
        asked = sorted(set(paths))
        try:
            found = system.get_file_info([f"{root}/{path}" for path in asked])
        except OSError as error:
            raise RoamcastError(
                f"cannot look into the archive at {self.uri}: {one_line(error)}"
            ) from None
        gone = fs.FileType.NotFound
        return [path for path, info in zip(asked, found, strict=True) if info.type == gone]

    def size(self, path: str) -> int:
        """Give a file's size in bytes."""
        system, root = self._open()
        return int(system.get_file_info(f"{root}/{path}").size)

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files that no commit names (best effort: vacuum finds the rest)."""
        system, root = self._open()
        for path in paths:
            try:
                system.delete_file(f"{root}/{path}")
            except OSError:
                continue

    def files(self) -> list[str]:
        """List all data files that lie here, committed or not, by path."""
        system, root = self._open()
        found = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        inside = [info.path[len(root) + 1 :] for info in found if info.is_file]
        return sorted(p for p in inside if p.endswith(".parquet") and p.split("/")[0][:1] != "_")

    def travelling(self) -> dict[str, int]:
        """List the files that carry values to tasks or back, with their modification time in ns."""
        system, root = self._open()
        selected = fs.FileSelector(f"{root}/{TRAVELLING}", allow_not_found=True)
        found = (info for info in system.get_file_info(selected) if info.is_file)
        return {f"{TRAVELLING}/{info.base_name}": info.mtime_ns for info in found}

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            if self.local:
                self._opened = (fs.LocalFileSystem(), self.uri)
            else:
                try:
                    system, root = fs.FileSystem.from_uri(self.uri)
                except (pa.ArrowException, OSError) as error:
                    raise InputError(
                        f"no archive can be at {self.uri}: {one_line(error)}"
                    ) from None
                self._opened = (system, root.rstrip("/"))
        return self._opened

    def __getstate__(self) -> str:
        return self.uri

    def __setstate__(self, uri: str) -> None:
        self.uri = uri
        self._opened = None


class GoneError(MissingError):
    """A file that the plan names was deleted since: plan again."""


@contextmanager
def travelling(storage: Storage, packed: bytes) -> Iterator[str]:
    """Pickle a value beside the data, for tasks to read while the block lasts; return its path.

    Large closures do not survive Spark Connect. What tasks answer in files whose paths begin with
    this one is deleted as well.
    """
    path = f"{TRAVELLING}/{uuid4().hex}"
    try:
        try:
            with storage.create(path) as sink:
                sink.write(packed)
        except OSError as error:
            raise RoamcastError(
                f"cannot write to the archive at {storage.uri}: {error.strerror or one_line(error)}"
            ) from None
        yield path
    finally:
        storage.discard(found for found in storage.travelling() if found.startswith(path))


_arrived: dict[str, Any] = {}


def arrived(storage: Storage, path: str) -> Any:
    """Read a travelling value in a task; a reused worker caches the last one."""
    key = f"{storage.uri}/{path}"
    if key not in _arrived:
        _arrived.clear()
        with storage.open(path) as source:
            _arrived[key] = pickle.loads(source.read())  # noqa: S301 - we wrote it ourselves
    return _arrived[key]


def one_line(error: Exception) -> str:
    """Shorten a store's error to one line: deltalake prints its causes as a coloured tree."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return ": ".join(part.strip(" ↳") for part in plain.splitlines() if part.strip(" ↳"))
