"""To which archive does a private folder belong? To one, by the id of the archive's table.

Another archive knows nothing of this folder's batches: an ingest into it would begin at 1 and
overwrite the register of the first one's people. An archive that was deleted and made anew under
the same path is another one, too. So the folder says which it means, and the rest is refused.
"""

from pathlib import Path

import msgspec

from roamcast import files
from roamcast.errors import InputError, MissingError
from roamcast.identity.keys import RandomBytes
from roamcast.pipeline.archive.table import Archive


class Bond(msgspec.Struct, frozen=True):
    """Under which name this folder commits, and to which archive: its table's id, once known."""

    application: str
    archive: str | None = None


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
