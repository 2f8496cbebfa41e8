"""What ingest remembers from batch to batch: a private folder of the trusted node.

    keys.json            the keys that seal vids (0600)
    sealing.key          the secret behind the keys that mail to these vids is sealed to (0600)
    ingest.json          the name under which batches are committed, and to which archive
    lock                 held by the one ingest that runs
    batches/00000012/    batch.json, rows/kind=person|open|pending; contexts/ until committed
    batches/00000007/    rows/ of an older batch that is still a layer of what is remembered
    done.sqlite          files of earlier batches, and names for their dead letters
    dead_letters/        batch=00000012/…

A batch is written here first, whole. It counts from the moment the archive commits its number:
there is no second truth that could disagree (decision 0052). A batch that was not committed is
written again. People's ids stand in this folder and nowhere else, and of batches that are no layer
(`layers`) of the last nothing of them is left.

`Bond` ties the folder to one archive by the id of the archive's table. Another archive knows
nothing of this folder's batches: an ingest into it would begin at 1 and overwrite the register of
the first archive's people. An archive that was deleted and made anew is another one, too.

`Done` knows the files of all batches but the last. Months of a watch would leave a million
manifests, so older ones are folded into one SQLite file: a hash of 16 bytes per file, and the
names. Folding is one transaction, may be repeated, and costs what is added (decision 0056).
"""

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import msgspec

from roamcast import files
from roamcast.errors import InputError, MissingError, RoamcastError
from roamcast.identity.agent_core import NEVER
from roamcast.identity.keys import RandomBytes, TrustedKeys, load_keys, new_keys, save_keys
from roamcast.identity.sealing import SEED_BYTES
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.files import SightingFile
from roamcast.pipeline.ingest.layers import Layers
from roamcast.pipeline.ingest.rows import PERSON

SEALING_FILE = "sealing.key"


class Bond(msgspec.Struct, frozen=True):
    """The name under which this folder commits, and the id of its archive's table, once known."""

    application: str
    archive: str | None = None
    shared: bool = False
    """Whether its keys are of a trusted node elsewhere."""


def read_bond(folder: Path, random_bytes: RandomBytes) -> Bond:
    """Read a folder's bond; a folder without one gets a name, and an archive at its first batch."""
    path = folder / "ingest.json"
    if not path.exists():
        write_bond(folder, Bond(f"ingest-{random_bytes(8).hex()}"))
    try:
        return msgspec.json.decode(path.read_bytes(), type=Bond)
    except msgspec.DecodeError as error:
        raise InputError(f"not ours: {error}", source=str(path)) from None


def write_bond(folder: Path, bond: Bond) -> None:
    """Write a folder's bond; it is on disk before any batch can be committed under it."""
    files.write_whole(folder / "ingest.json", msgspec.json.encode(bond))


def existing(archive: str | Path) -> Archive | None:
    """Open an archive if there is one; nothing is made."""
    try:
        return Archive.open(archive)
    except MissingError:
        return None


def identity(archive: Archive) -> str:
    """Give the id that an archive's table got when it was made."""
    return str(archive.table.metadata().id)


def committed_in(
    found: Archive | None, bond: Bond, folder: Path, *, holds: bool, through: int
) -> int:
    """Give the number of the folder's last batch in an archive, 0 if there is none yet.

    An archive that is not this folder's is refused if the folder `holds` batches, and so is one
    that is older than the folder, where batches up to `through` have been followed by others.
    """
    number = None if found is None else found.last_batch(bond.application)
    if bond.archive is None:
        ours = number is not None  # a folder from before there were bonds
    else:
        ours = found is not None and identity(found) == bond.archive
    if holds and not ours:
        if found is None:
            raise MissingError(
                f"the archive of {folder} is gone: bring it back, or give --private another folder"
            )
        raise InputError(
            f"it holds the people of another archive than the one at {found.storage.uri}: "
            "give --private another folder",
            source=str(folder),
        )
    if through >= (number or 1):
        raise InputError(
            f"the archive is at batch {number or 0} and this folder is further: was an older "
            "archive put back?",
            source=str(folder),
        )
    return number or 0


HASH_BYTES = 16
_TABLES = (
    "CREATE TABLE IF NOT EXISTS files (hash BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS names (batch INTEGER PRIMARY KEY, paths BLOB NOT NULL)",
)
BatchFiles = tuple[int, Sequence[SightingFile], Mapping[int, str]]
"""Of a batch: its number, its files, the paths behind the numbers in its dead letters."""


class BatchMark:
    """The files of all committed batches. `recent`: those of batches that are not folded yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recent: set[SightingFile] = set()
        with self._named():
            # a watch works in a thread of Spark's, one batch after the other
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # EXTRA: a commit counts only when the journal's end is on disk, for then the
            # manifests are removed
            self._database.execute("PRAGMA synchronous = EXTRA")
            for table in _TABLES:
                self._database.execute(table)

    @property
    def through(self) -> int:
        """The number of the last batch that was folded."""
        with self._named():
            return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    def __contains__(self, file: object) -> bool:
        """Say whether a file was ingested as it is now."""
        assert isinstance(file, SightingFile)
        if file in self.recent:
            return True
        with self._named():
            found = self._database.execute("SELECT 1 FROM files WHERE hash = ?", (_hash(file),))
            return found.fetchone() is not None

    def fold(self, batches: Iterable[BatchFiles]) -> None:
        """Take over the file lists of batches, all or none."""
        through = self.through
        with self._named():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for number, files, names in batches:
                    self._database.executemany(
                        "INSERT OR IGNORE INTO files VALUES (?)", ((_hash(file),) for file in files)
                    )
                    if names:
                        self._database.execute(
                            "INSERT OR REPLACE INTO names VALUES (?, ?)",
                            (number, msgspec.json.encode(names)),
                        )
                    through = max(through, number)
                self._database.execute(f"PRAGMA user_version = {through}")
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def names(self, number: int) -> dict[int, str]:
        """Give the paths behind the numbers by which a folded batch's dead letters name files."""
        with self._named():
            found = self._database.execute("SELECT paths FROM names WHERE batch = ?", (number,))
            row = found.fetchone()
        return {} if row is None else msgspec.json.decode(row[0], type=dict[int, str])

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RoamcastError(f"cannot use {self.path}: {error}") from None


def _hash(file: SightingFile) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(file), digest_size=HASH_BYTES).digest()


_NUMBER = 8 * "[0-9]"


class BusyError(RoamcastError):
    """Another ingest works on this folder; nothing was changed."""


class SightingBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch did. `released`: sightings up to here have been worked in; `names`: the paths
    behind the numbers by which its dead letters name their files; `layers`: the older batches whose
    rows still count, the oldest first.
    """

    number: int
    files: tuple[SightingFile, ...] = ()
    stream: tuple[str, int] | None = None
    newest: int = NEVER
    released: int = NEVER
    counts: dict[str, int] = {}
    columns: tuple[str, ...] = ()
    names: dict[int, str] = {}
    layers: tuple[int, ...] = ()


HandlesOf = Callable[[Sequence[str]], list[bytes]]


class IngestState:
    """One private folder; create it with `opened`, which holds its lock."""

    def __init__(
        self, folder: Path, bond: Bond, keys: TrustedKeys, archive: str | Path, done: BatchMark
    ) -> None:
        self.folder = folder
        self.keys = keys
        self.archive = archive
        self._bond = bond
        self.done = done
        self.handles_of: HandlesOf | None = None
        """Asks a trusted node for the handles of people; without it they are drawn here."""
        number = self._committed_in(existing(archive))
        self.last = self.batch(number) if number else SightingBatch(number=0)
        whole = not self.last.layers and self.last.counts.get("people")
        for layer in (*self.last.layers, *([number] if whole else [])):
            if not (self.batch_folder(layer) / "rows" / f"kind={PERSON}").is_dir():
                raise InputError(f"the register of batch {layer} is missing", source=str(folder))
        self._tidy()

    @property
    def shared(self) -> bool:
        """Whether the keys are of a trusted node elsewhere."""
        return self._bond.shared

    @property
    def sealing_secret(self) -> bytes:
        """The secret behind the keys of its vids, if a trusted node has their mailboxes (0221)."""
        if not self.shared:
            return b""
        path = self.folder / SEALING_FILE
        try:
            if path.stat().st_mode & 0o077:
                raise InputError("others may read this secret: chmod 600 it", source=str(path))
            found = bytes.fromhex(path.read_text("ascii").strip())
        except FileNotFoundError:
            return b""  # an ingest from before vids had keys
        except (OSError, ValueError) as error:
            raise InputError(f"this secret can not be read: {error}", source=str(path)) from None
        if len(found) != SEED_BYTES:
            raise InputError(f"this secret has {SEED_BYTES} bytes", source=str(path))
        return found

    @property
    def application(self) -> str:
        """The name under which batches are committed."""
        return self._bond.application

    @property
    def numbers(self) -> list[int]:
        """The batches whose rows are what is remembered, the oldest first."""
        found = (*self.last.layers, self.last.number)
        return [n for n in found if (self.batch_folder(n) / "rows" / f"kind={PERSON}").is_dir()]

    @property
    def layers(self) -> Layers:
        """What is remembered of people."""
        return Layers([self.batch_folder(number) / "rows" for number in self.numbers])

    def batch_folder(self, number: int) -> Path:
        """Give a batch's folder."""
        return self.folder / "batches" / f"{number:08d}"

    def target(self, settings: ArchiveSettings | None) -> Archive:
        """Open this folder's archive, the first time made with these settings, and bind it."""
        found = existing(self.archive)
        number = self._committed_in(found)
        if number != self.last.number:  # an error came after the commit: files were chosen without
            raise RoamcastError(f"batch {number} has happened meanwhile; start the ingest again")
        if found is None or (settings is not None and settings != found.settings):
            found = Archive.make(self.archive, settings)  # or it says why not
        bond = msgspec.structs.replace(self._bond, archive=identity(found))
        if bond != self._bond:
            write_bond(self.folder, bond)
            self._bond = bond
        return found

    def begin(self) -> tuple[int, bool]:
        """Give the next batch's number, its folder empty, and whether it was begun before."""
        number = self.last.number + 1
        folder = self.batch_folder(number)
        again = folder.exists()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _empty(folder)
        return number, again

    def prepare(self, batch: SightingBatch) -> None:
        """Put everything of a batch on disk; what is missing now is only the archive's commit."""
        folder = self.batch_folder(batch.number)
        files.remove_hidden(folder / "rows")  # tasks that ran twice have left them
        dead = folder / "rows" / "kind=dead"
        target = self.folder / "dead_letters" / f"batch={batch.number:08d}"
        files.remove_tree(target)
        if dead.is_dir():
            target.parent.mkdir(exist_ok=True, mode=0o700)
            dead.rename(target)
            files.sync_tree(target)
            files.sync(target.parent)
        (folder / "batch.json").write_bytes(msgspec.json.encode(batch))
        files.sync_tree(folder / "rows")
        for path in (folder / "batch.json", folder, folder.parent, self.folder):
            files.sync(path)

    def new_given(self) -> Path:
        """Make an empty folder for sightings that come from no file; they go with their batch."""
        files.remove_tree(self._given)
        self._given.mkdir(mode=0o700)
        return self._given

    @property
    def _given(self) -> Path:
        return self.folder / "streamed"

    def withdraw(self, batch: SightingBatch) -> None:
        """Undo the preparation: another folder has committed this number."""
        (self.batch_folder(batch.number) / "batch.json").unlink()

    def committed(self, batch: SightingBatch) -> None:
        """Record that the archive has committed this batch; delete what it replaces."""
        before, self.last = self.last, batch
        self.done.recent.update(batch.files)
        with suppress(OSError, RoamcastError):  # the batch has happened: opening cleans up, too
            if before.number:
                replaced = {*before.layers, before.number} - set(batch.layers)
                self._fold(sorted(replaced | {before.number}))
                self.done.recent.difference_update(before.files)
            files.remove_tree(self.batch_folder(batch.number) / "contexts")
            files.remove_tree(self._given)

    def batch(self, number: int) -> SightingBatch:
        """Read what a batch did; of a folded one only the names for its dead letters are left."""
        path = self.batch_folder(number) / "batch.json"
        if number <= self.done.through and not path.exists():
            return SightingBatch(number=number, names=self.done.names(number))
        try:
            return msgspec.json.decode(path.read_bytes(), type=SightingBatch)
        except (OSError, msgspec.DecodeError):
            raise InputError(
                f"batch {number} of the archive is missing here: is this its private folder?",
                source=str(path),
            ) from None

    def _committed_in(self, found: Archive | None) -> int:
        through = self.done.through
        holds = bool(through) or any((self.folder / "batches").glob("*/batch.json"))
        return committed_in(found, self._bond, self.folder, holds=holds, through=through)

    def _tidy(self) -> None:
        """Fold the file lists of older batches; delete what is not needed, as it names people."""
        folders = {int(path.name): path for path in (self.folder / "batches").glob(_NUMBER)}
        self._fold(sorted(number for number in folders if number < self.last.number))
        files.remove_tree(self._given)
        for number, folder in folders.items():
            if number > self.last.number:
                _empty(folder)  # the folder stays: it says that the batch was begun
        for number in (*self.last.layers, self.last.number):
            rows = self.batch_folder(number) / "rows"
            for folder in (rows / "kind=dead", rows.with_name("contexts")):
                files.remove_tree(folder)
            files.remove_hidden(rows)
        for folder in (self.folder / "dead_letters").glob("batch=*"):
            if int(folder.name.partition("=")[2]) > self.last.number:
                files.remove_tree(folder)
        self.done.recent.update(self.last.files)

    def _fold(self, numbers: list[int]) -> None:
        """Store the file lists of older batches, then delete the batches; a crash repeats both."""
        if not numbers:
            return
        whole = (n for n in numbers if (self.batch_folder(n) / "batch.json").exists())
        said = (self.batch(number) for number in whole)
        self.done.fold((batch.number, batch.files, batch.names) for batch in said)
        for number in numbers:
            if number in self.last.layers:
                (self.batch_folder(number) / "batch.json").unlink(missing_ok=True)
                files.remove_tree(self.batch_folder(number) / "contexts")
            else:
                files.remove_tree(self.batch_folder(number))


@contextmanager
def opened(
    folder: Path,
    archive: str | Path,
    node: str,
    random_bytes: RandomBytes,
    given: TrustedKeys | None = None,
) -> Iterator[IngestState]:
    """Open the private folder, made if needed, for as long as the block lasts; one at a time.

    `given`: the keys that a trusted node elsewhere gave this ingest, instead of its own.
    """
    fresh = None if (folder / "keys.json").exists() else given or new_keys(node, random_bytes)
    if fresh is not None and any(folder.glob("batches/*/batch.json")):
        raise InputError("its keys.json is gone: bring it back from a copy", source=str(folder))
    with _locked(folder), ExitStack() as stack:
        try:
            if fresh is not None:
                save_keys(fresh, folder / "keys.json")
            keys, bond = load_keys(folder / "keys.json"), read_bond(folder, random_bytes)
            if given is not None and given != keys:
                raise InputError(
                    f"its vids are sealed with other keys of {keys.node} than {given.node} gave: "
                    "ingest into another archive",
                    source=str(folder),
                )
            if given is not None and not bond.shared:
                bond = msgspec.structs.replace(bond, shared=True)
                write_bond(folder, bond)
            if bond.shared and not (folder / SEALING_FILE).exists():
                secret = random_bytes(SEED_BYTES).hex().encode()
                files.write_whole(folder / SEALING_FILE, secret, mode=files.OWNER_ONLY)
            done = stack.enter_context(closing(BatchMark(folder / "done.sqlite")))
            state = IngestState(folder, bond, keys, archive, done)
        except OSError as error:
            raise RoamcastError(f"cannot write to {folder}: {error.strerror or error}") from None
        yield state


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        files.make_private_folder(folder)
        if folder.stat().st_mode & 0o077:
            raise InputError("others may look into it: chmod 700 it", source=str(folder))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"cannot use it: {error.strerror}", source=str(folder)) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # falls with its process, even killed
        except OSError:
            raise BusyError(f"another ingest holds {folder}: wait for it, or stop it") from None
        yield
    finally:
        os.close(lock)


def private_folder(archive: str | Path) -> Path:
    """Give the folder beside a local archive that holds what the archive must not."""
    text = str(archive)
    if "://" in text:
        raise InputError("an archive in an object store needs --private FOLDER on this machine")
    path = Path(text).resolve()
    return path.with_name(path.name + ".private")


def _empty(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            files.remove_tree(path)
        else:
            path.unlink()
