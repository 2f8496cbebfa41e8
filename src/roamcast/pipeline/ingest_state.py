"""What does ingest remember from batch to batch? A private folder of the trusted node.

    keys.json            the keys that seal vids (0600)
    ingest.json          the name under which batches are committed to the archive
    lock                 held by the one ingest that runs
    batches/00000012/    batch.json, rows/kind=person|open|pending; contexts/ until committed
    dead_letters/        batch=00000012/…

A batch is written here first, whole. It counts from the moment the archive commits its number:
there is no second truth that could disagree (docs/decisions/0052). A batch that was not committed
is written again. People's ids stand in this folder and nowhere else.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from roamcast.errors import InputError, RoamcastError
from roamcast.identity.agent_core import NEVER
from roamcast.identity.keys import Keys, RandomBytes, load_keys, new_keys, save_keys
from roamcast.pipeline.archive_table import Archive
from roamcast.pipeline.ingest_files import SightingFile


class BusyError(RoamcastError):
    """Another ingest works on this folder; nothing was changed."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch did. `released`: sightings up to here have been worked in; `names`: the paths
    behind the numbers by which its dead letters name their files.
    """

    number: int
    files: tuple[SightingFile, ...] = ()
    stream: tuple[str, int] | None = None
    newest: int = NEVER
    released: int = NEVER
    counts: dict[str, int] = {}
    columns: tuple[str, ...] = ()
    names: dict[int, str] = {}


class IngestState:
    """One private folder; create it with `opened`, which holds its lock."""

    def __init__(self, folder: Path, application: str, keys: Keys, archive: str | Path) -> None:
        self.folder = folder
        self.application = application
        self.keys = keys
        self.archive = archive
        self.last = self._last_committed()
        self.done = {file for batch in self._manifests() for file in batch.files}

    def rows(self, number: int, kind: str) -> Path | None:
        """Give where a batch's rows of one kind lie, or none if it has none."""
        found = self.batch_folder(number) / "rows" / f"kind={kind}"
        return found if found.is_dir() else None

    def batch_folder(self, number: int) -> Path:
        """Give a batch's folder."""
        return self.folder / "batches" / f"{number:08d}"

    def begin(self) -> tuple[int, bool]:
        """Give the next batch's number, its folder empty, and whether it was begun before."""
        number = self.last.number + 1
        folder = self.batch_folder(number)
        again = folder.exists()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        return number, again

    def prepare(self, batch: Batch) -> None:
        """Put everything of a batch on disk; what is missing now is only the archive's commit."""
        folder = self.batch_folder(batch.number)
        dead = folder / "rows" / "kind=dead"
        target = self.folder / "dead_letters" / f"batch={batch.number:08d}"
        shutil.rmtree(target, ignore_errors=True)
        if dead.is_dir():
            target.parent.mkdir(exist_ok=True, mode=0o700)
            dead.rename(target)
            _sync(target)
        (folder / "batch.json").write_bytes(msgspec.json.encode(batch))
        _sync(folder / "rows")
        for path in (folder / "batch.json", folder):
            _sync_one(path)

    def committed(self, batch: Batch) -> None:
        """Take note that the archive has committed this batch; clean up what it replaces."""
        before, self.last = self.last, batch
        self.done.update(batch.files)
        shutil.rmtree(self.batch_folder(before.number) / "rows", ignore_errors=True)
        shutil.rmtree(self.batch_folder(batch.number) / "contexts", ignore_errors=True)

    def batch(self, number: int) -> Batch:
        """Read what a batch did."""
        path = self.batch_folder(number) / "batch.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Batch)
        except (OSError, msgspec.DecodeError):
            raise InputError(
                f"batch {number} of the archive is missing here: is this its private folder?",
                source=str(path),
            ) from None

    def _last_committed(self) -> Batch:
        number = Archive.make(self.archive).last_batch(self.application)
        return Batch(number=0) if number is None else self.batch(number)

    def _manifests(self) -> Iterator[Batch]:
        for path in sorted((self.folder / "batches").glob("*/batch.json")):
            if int(path.parent.name) <= self.last.number:
                yield msgspec.json.decode(path.read_bytes(), type=Batch)


@contextmanager
def opened(
    folder: Path, archive: str | Path, node: str, random_bytes: RandomBytes
) -> Iterator[IngestState]:
    """Open the private folder, made if needed, for as long as the block lasts; one at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"cannot use it: {error.strerror}", source=str(folder)) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # falls with its process, even killed
        except OSError:
            raise BusyError(f"another ingest holds {folder}: wait for it, or stop it") from None
        if folder.stat().st_mode & 0o077:
            raise InputError("others may look into it: chmod 700 it", source=str(folder))
        yield IngestState(
            folder, _application(folder, random_bytes), _keys(folder, node, random_bytes), archive
        )
    finally:
        os.close(lock)


def _application(folder: Path, random_bytes: RandomBytes) -> str:
    path = folder / "ingest.json"
    if not path.exists():
        name = {"application": f"ingest-{random_bytes(8).hex()}"}
        beside = path.with_name("ingest.json.new")
        beside.write_bytes(msgspec.json.encode(name))
        beside.replace(path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])["application"]
    except (msgspec.DecodeError, KeyError) as error:
        raise InputError(f"not ours: {error}", source=str(path)) from None


def _keys(folder: Path, node: str, random_bytes: RandomBytes) -> Keys:
    path = folder / "keys.json"
    if not path.exists():
        save_keys(new_keys(node, random_bytes), path)
    return load_keys(path)


def private_folder(archive: str | Path) -> Path:
    """Give the folder beside a local archive that holds what the archive must not."""
    text = str(archive)
    if "://" in text:
        raise InputError("an archive in an object store needs --private FOLDER on this machine")
    path = Path(text).resolve()
    return path.with_name(path.name + ".private")


def _sync(folder: Path) -> None:
    """Bring a folder's files to disk: who wrote them left that to the system."""
    for path in [folder, *folder.rglob("*")] if folder.is_dir() else []:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
