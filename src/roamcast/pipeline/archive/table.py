"""One snapshot of the archive's Delta table, and commits to it.

Readers see a snapshot; writers commit whole batches. Appends carry (application, batch), so a batch
that was committed is not committed again. Every job that rewrites files carries one common
transaction, so that of two jobs that began at the same snapshot one is refused: delta-rs does not
compare the files they remove (decision 0042).

A commit that seems to fail may have landed: the disk was full only for the checkpoint after it, or
a store's answer was lost and the retry looked like somebody else's commit. Others already read such
a commit, so its files must stay. Each commit has a name in the log by which it is found (0049).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from roamcast.errors import InputError, LimitError, MissingError, RoamcastError
from roamcast.model.context_arrow import FIXED
from roamcast.model.kinds import KINDS
from roamcast.pipeline.archive.files import DataFile
from roamcast.pipeline.archive.layout import (
    COLUMNS_MAX,
    PARTITIONS,
    ArchiveSettings,
    check_settings,
    context_name,
    stored_name,
)
from roamcast.pipeline.archive.storage import Storage, one_line

KEY = "roamcast-commit"


class Commit:
    """An attempt to commit to a table, based on one snapshot."""

    def __init__(self, uri: str, table: DeltaTable, marks: list[Transaction]) -> None:
        self._uri = uri
        self._before = int(table.version())
        self._name = uuid4().hex
        self.properties = CommitProperties({KEY: self._name}, app_transactions=marks)

    def after(self, problem: Exception) -> DeltaTable:
        """Return the current table if the commit landed despite an error; else raise the error."""
        try:
            fresh = DeltaTable(self._uri)
            newer = int(fresh.version()) - self._before
            names = [entry.get(KEY) for entry in fresh.history(newer)] if newer > 0 else []
        except (OSError, DeltaError) as error:
            raise RoamcastError(
                f"nobody can say whether a commit landed ({one_line(problem)}): "
                f"the archive at {self._uri} cannot be read: {one_line(error)}"
            ) from None
        if self._name in names:
            return fresh
        if isinstance(problem, CommitFailedError):
            raise problem
        raise refusal(self._uri, problem) from None


def refusal(uri: str, problem: Exception) -> Exception:
    """Say in one line why a commit was refused."""
    if not isinstance(problem, OSError | DeltaError):
        return problem
    return RoamcastError(f"cannot commit to the archive at {uri}: {one_line(problem)}")


ATTEMPTS_MAX = 8
REWRITING = "roamcast-rewriting"
"""The application under which compaction, retention and erasure exclude each other."""

DEFAULT = ArchiveSettings()
"""What a new archive is made with if nobody says otherwise."""

Result = TypeVar("Result")


class RefusedError(RoamcastError):
    """Other writers committed first at every attempt; the archive is as they left it."""


class FedError(RoamcastError):
    """Somebody else feeds this archive."""


class Archive:
    """A handle on one archive: its settings, its files, its commits."""

    def __init__(self, storage: Storage, table: DeltaTable) -> None:
        self.storage = storage
        self.table = table
        self.settings = ArchiveSettings.decode(table.metadata().description)

    @classmethod
    def open(cls, archive: str | Path) -> "Archive":
        """Open an archive that exists."""
        storage = Storage(archive)
        try:
            return cls(storage, DeltaTable(storage.uri))
        except TableNotFoundError:
            raise MissingError(
                f"no archive at {storage.uri}: `roamcast pipeline load` or `ingest` makes one"
            ) from None
        except (OSError, DeltaError) as error:
            raise InputError(
                f"the archive at {storage.uri} cannot be read: {one_line(error)}"
            ) from None

    @classmethod
    def make(cls, archive: str | Path, settings: ArchiveSettings | None = None) -> "Archive":
        """Open an archive, or make an empty one with these settings."""
        storage = Storage(archive)
        chosen = check_settings(settings or DEFAULT)
        fields = pa.schema(
            [field.with_nullable(True) for field in FIXED]
            + [pa.field(name, pa.string()) for name in PARTITIONS]
        )
        try:
            if not DeltaTable.is_deltatable(storage.uri):
                DeltaTable.create(
                    storage.uri,
                    Schema.from_arrow(fields),
                    mode="ignore",
                    partition_by=PARTITIONS,
                    description=chosen.encode(),
                )
            made = cls(storage, DeltaTable(storage.uri))
        except (OSError, DeltaError) as error:
            raise RoamcastError(
                f"cannot make an archive at {storage.uri}: {one_line(error)}"
            ) from None
        if settings is not None and made.settings != settings:
            raise InputError(
                f"the archive at {storage.uri} has {made.settings.summary};"
                f" it cannot have {settings.summary}"
            )
        return made

    def set_settings(self, settings: ArchiveSettings) -> None:
        """Change the settings for whatever is written from now on; what is there stays as it is."""
        check_settings(settings)

        def change() -> None:
            if self.settings != settings:
                self.table.alter.set_table_description(settings.encode())
                self.refresh()
                self.settings = settings

        self.retry(change)

    @property
    def version(self) -> int:
        """The snapshot's number."""
        return int(self.table.version())

    def refresh(self) -> None:
        """Move to the newest snapshot."""
        try:
            self.table.update_incremental()
        except (OSError, DeltaError) as error:
            raise InputError(
                f"the archive at {self.storage.uri} cannot be read: {one_line(error)}"
            ) from None

    def columns(self) -> list[str]:
        """Name the attribute columns, as in `model.context_arrow`."""
        names = (field.name for field in self.table.schema().fields)
        return [context_name(name) for name in names if ":" in name]

    @property
    def full(self) -> bool:
        """Say whether no attribute column can be added any more."""
        return len(self.columns()) >= COLUMNS_MAX

    def room(self, columns: Iterable[str]) -> frozenset[str]:
        """Give the attribute columns it has, and of these as many as fit, first by name."""
        known = frozenset(self.columns())
        return known.union(sorted(set(columns) - known)[: max(0, COLUMNS_MAX - len(known))])

    def files(self) -> pa.Table:
        """Give the files of this snapshot with their statistics, a row each."""
        return pa.table(self.table.get_add_actions(flatten=True))

    @property
    def size_bytes(self) -> int:
        """The bytes of this snapshot's files."""
        return sum(self.files()["size_bytes"].to_pylist())

    def last_batch(self, application: str) -> int | None:
        """Give the number of the last batch that this application committed."""
        found = self.table.transaction_version(application)
        return None if found is None else int(found)

    def add_columns(self, columns: Iterable[str]) -> None:
        """Give the table these attribute columns; what it has already stays."""

        def add() -> None:
            known = set(self.columns())
            new = [name for name in dict.fromkeys(columns) if name not in known]
            if len(known) + len(new) > COLUMNS_MAX:
                raise LimitError(
                    f"an archive has at most {COLUMNS_MAX} attribute columns, and this one has no "
                    f"room for {new[-1]!r}: give fewer names, or use another archive"
                )
            if new:
                self.table.alter.add_columns([_field(name) for name in new])

        self.retry(add)

    def append(
        self,
        files: Sequence[DataFile],
        transaction: tuple[str, int] | None,
        after: int | None = None,
    ) -> bool:
        """Commit new files; False if the transaction's batch was committed before.

        With `after` the batch before it must be the last one that was committed.
        """

        def commit() -> bool:
            if transaction is not None:
                done = self.last_batch(transaction[0])
                if after is not None and (done or 0) not in (after, transaction[1]):
                    raise FedError(
                        f"another service feeds the archive at {self.storage.uri}: one feed per "
                        "archive, choose another folder under [past] archive"
                    )
                if done is not None and done >= transaction[1]:
                    return False
            if ArchiveSettings.decode(self.table.metadata().description) != self.settings:
                # The files were laid out before the change, perhaps with exact times.
                raise InputError(
                    f"the settings of the archive at {self.storage.uri} have changed meanwhile: "
                    "start again"
                )
            marks = [Transaction(*transaction)] if transaction else []
            self._commit([_added(file, data_change=True) for file in files], marks)
            return True

        return self.retry(commit)

    def replace(
        self, old: Sequence[dict[str, Any]], new: Sequence[DataFile], now: int, *, changed: bool
    ) -> None:
        """Commit new files in the place of old ones (rows of `files()`), from this snapshot only.

        Raises CommitFailedError if another job that rewrites committed since the snapshot.
        """
        number = self.last_batch(REWRITING) or 0
        actions = [
            RemoveAction(
                file["path"],
                changed,
                now // 1_000,
                file["size_bytes"],
                {name: file[f"partition.{name}"] for name in PARTITIONS},
            )
            for file in old
        ]
        added = [_added(file, data_change=changed) for file in new]
        self._commit([*actions, *added], [Transaction(REWRITING, number + 1)])

    def retry(self, attempt: Callable[[], Result]) -> Result:
        """Run a function that commits; if another writer was faster, refresh and retry."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return attempt()
            except CommitFailedError:
                self.refresh()
            except (OSError, DeltaError) as error:
                raise refusal(self.storage.uri, error) from None
        raise RefusedError(
            f"others kept committing to the archive at {self.storage.uri}; try again"
        )

    def discard(self, files: Iterable[DataFile]) -> None:
        """Delete written files that no commit names; if that cannot be determined, keep all."""
        paths = [file.path for file in files]
        try:
            named = set(Archive.open(self.storage.uri).files()["path"].to_pylist())
        except Exception:  # noqa: BLE001 - whatever it is: better some waste than a hole
            return
        self.storage.discard(path for path in paths if path not in named)

    def check_there(self, paths: Iterable[str]) -> None:
        """Raise unless these files are there, or are no longer part of the archive."""
        missing = self.storage.missing(paths)
        self.refresh()  # after looking: who deletes a file has committed its replacement before
        named = set(self.files()["path"].to_pylist())
        for path in missing:
            if path in named:
                raise MissingError(
                    f"{path} is missing in the archive at {self.storage.uri}: put it back from a "
                    "copy, or give its contexts up with deltalake's DeltaTable.repair()"
                )

    def _commit(self, actions: list[Any], marks: list[Transaction]) -> None:
        commit = Commit(self.storage.uri, self.table, marks)
        try:
            self.table.create_write_transaction(
                actions,
                "append",
                self.table.schema(),
                PARTITIONS,
                commit_properties=commit.properties,
            )
            self.refresh()
        except Exception as error:  # noqa: BLE001 - it is raised again unless the commit landed
            self.table = commit.after(error)


def settings_for(
    archive: str | Path, *, resolution: int | None, grid_s: int | None
) -> ArchiveSettings | None:
    """Give the settings that a user asks for; what is not said is the archive's, or the default."""
    given = {
        name: value
        for name, value in (("resolution", resolution), ("grid_s", grid_s))
        if value is not None
    }
    if not given:
        return None
    try:
        base = Archive.open(archive).settings
    except MissingError:
        base = DEFAULT
    return msgspec.structs.replace(base, **given)


def _field(column: str) -> Field:
    kind = KINDS[column.partition(":")[0]]
    return Field(stored_name(column), PrimitiveType(kind.delta), nullable=True)


def _added(file: DataFile, *, data_change: bool) -> AddAction:
    written = time.time_ns() // 1_000_000
    return AddAction(file.path, file.size, file.partition, written, data_change, file.stats)
