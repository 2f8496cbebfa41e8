"""Erasing people everywhere: at the trusted node, in an ingest's private folder, in an archive.

The trusted node goes first and at once: from then on nobody is reached by the person's vids. It
keeps the bare handle, by which it tells an archive's job which vids are of somebody who is gone. So
this may be interrupted and repeated at any point, and what people erased by themselves is found as
well (decision 0188).
"""

from collections.abc import Iterable
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Protocol

import msgspec

from roamcast.identity.pseudonyms import open_vids
from roamcast.pipeline.archive.retention import Erased, erase
from roamcast.pipeline.ingest.state import opened, private_folder
from roamcast.pipeline.ingest.trusted import archived_vids, forget_person, register_of
from roamcast.pipeline.spark.progress import QUIET, Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roamcast.pipeline.archive.care import Workers


class ErasingNode(Protocol):
    """The trusted node, as `client.operating.TrustClient` asks it."""

    def erase(self, person: str) -> int:
        """Erase a person there; give how many entries of the mailbox went with them."""

    def departed(self, vids: Iterable[str]) -> list[str]:
        """Give those vids whose person was erased there."""


class Forgotten(msgspec.Struct, frozen=True):
    """What was deleted where; `person_entries` is None where nobody was named."""

    person_entries: int | None
    private_rows: int
    archive: Erased


def forget_departed(
    archive: str | Path,
    client: ErasingNode,
    person: str | None = None,
    private: Path | None = None,
    *,
    spark: "SparkSession | Workers | None" = None,
    progress: Bar = QUIET,
) -> Forgotten:
    """Erase a person at the trusted node, then all contexts of those who are gone from it."""
    entries = None if person is None else client.erase(person)
    columns = archived_vids(archive, spark)
    gone = client.departed(vid for column in columns for vid in column.to_pylist())
    # The register of an ingest first: after the archive's rows nothing would name them any more.
    deleted = _forget_private(archive, private, gone, person)
    return Forgotten(entries, deleted, erase(archive, gone, spark, progress))


def _forget_private(
    archive: str | Path, private: Path | None, gone: list[str], person: str | None
) -> int:
    if private is None and "://" in str(archive):
        return 0
    folder = private or private_folder(archive)
    if not (folder / "keys.json").exists():
        return 0
    import pyarrow as pa

    with opened(folder, archive, "localhost", token_bytes) as state:
        register = register_of(state)
        handles = open_vids(pa.array(gone, pa.string()), state.keys)
        names = dict(
            zip(register["handle"].to_pylist(), register["person"].to_pylist(), strict=True)
        )
        people = {names[one] for one in handles.to_pylist() if one in names}
        if person is not None:
            people.add(person)
        return sum(forget_person(state, one) for one in sorted(people))
