"""The name under which a service feeds its own archive, and who else may write to that."""

from typing import Final

from roamcast.errors import InputError
from roamcast.pipeline.archive.table import Archive

FEED: Final = "roamcast-past"
"""The application of a service's batches; one feed per archive (decision 0108)."""


def check_unfed(target: Archive, what: str) -> None:
    """Refuse to load a journal into an archive that has its contexts from a service itself."""
    if target.last_batch(FEED) is not None:
        raise InputError(
            f"a service feeds the archive at {target.storage.uri} itself: {what} would be there "
            "twice, load it into another archive"
        )
