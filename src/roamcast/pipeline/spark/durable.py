"""What is on disk for sure? Files, and the folders that name them, that outlast a power cut.

A file that was written lies in the system's memory for a while, and so does its name in its
folder. What must be there before the next step is brought to disk here, one by one.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Bring a folder and everything in it to disk: who wrote it left that to the system."""
    for path in [folder, *folder.rglob("*")] if folder.is_dir() else []:
        sync(path)


def sync_named(root: Path, names: Iterable[str]) -> None:
    """Bring files below a root to disk with all folders on the way; some may be gone again."""
    folders = {root.parent, root}
    for name in names:
        path = root / name
        if path.exists():
            sync(path)
            inside = len(path.relative_to(root).parts)
            folders.update(path.parents[: inside - 1])
    for folder in sorted(folders):
        sync(folder)


def make_folder(folder: Path) -> None:
    """Make a folder that only its owner may look into, and those it lies in."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in reversed(missing):
        sync(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, over the one that is there."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    put_in_place(beside, path)


def put_in_place(beside: Path, path: Path) -> None:
    """Let a file that was written beside another take its place."""
    sync(beside)
    beside.replace(path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a folder and everything in it, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def remove_hidden(folder: Path) -> None:
    """Remove files that somebody began below a folder and nobody took."""
    for path in sorted(folder.rglob(".*")) if folder.is_dir() else []:
        path.unlink()
