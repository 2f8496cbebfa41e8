"""Files that survive a crash: written whole or not at all, and on disk when the call returns.

A write goes to a new file beside the target. That file is synced and renamed over the target, then
the folder is synced, because a rename that only the system's memory knows is undone by a power cut.
A reader sees the old file or the new one, never half of one. What a killed writer leaves has a name
that starts with a dot and ends in `.new`; the next write of the same target replaces it.

Everything here raises OSError as the system does: the caller knows what the file was for.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final

OWNER_ONLY: Final = 0o600
"""Mode for secrets. The file has it from its first byte: a chmod afterwards would come too late."""

OWNER_ONLY_FOLDER: Final = 0o700
ANYONE: Final = 0o666
"""Mode for everything else; the process's umask takes away what the machine does not allow."""


def write_whole(path: Path, data: bytes, *, mode: int = ANYONE) -> None:
    """Replace the file at `path` with these bytes."""
    write_with(path, lambda file: file.write(data), mode=mode)


def write_with(path: Path, write: Callable[[IO[bytes]], object], *, mode: int = ANYONE) -> None:
    """Replace the file at `path` with what `write` puts into the open file it is given.

    If `write` raises, the target is as before and nothing is left beside it.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)  # an open of what is there would keep its mode
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def move_into_place(beside: Path, path: Path) -> None:
    """Let a finished file take the place of another in the same file system."""
    sync(beside)
    beside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file's bytes, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Bring a folder and everything below it to disk; a folder that is not there is no error."""
    for path in [folder, *folder.rglob("*")] if folder.is_dir() else []:
        sync(path)


def sync_named(root: Path, names: Iterable[str]) -> None:
    """Bring files below a root to disk, with every folder between; some may be gone already."""
    folders = {root.parent, root}
    for name in names:
        path = root / name
        if path.exists():
            sync(path)
            inside = len(path.relative_to(root).parts)
            folders.update(path.parents[: inside - 1])
    for folder in sorted(folders):
        sync(folder)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter, and the folders above it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=OWNER_ONLY_FOLDER)
    for path in reversed(missing):
        sync(path.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder and everything below it, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


def remove_hidden(folder: Path) -> None:
    """Remove unfinished files below a folder: their names start with a dot."""
    for path in sorted(folder.rglob(".*")) if folder.is_dir() else []:
        path.unlink()
