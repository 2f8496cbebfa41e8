"""Filters read lately: crowds and clients that ask again send the same few texts."""

from typing import Final

from roamcast.model.caching import ByBytes
from roamcast.model.filters import Filter

BYTES_MAX: Final = 16 << 20
"""Some thousand short filters: enough for a crowd, little for who sends a new one each time."""

WEIGHT: Final = 64
"""Bytes of a filter's trees for each character of its text, at least what the dearest take."""

recent: Final[ByBytes[str, Filter]] = ByBytes(BYTES_MAX)


def read(text: str) -> Filter:
    """Read a filter, with all that is derived from it, unless it was read lately."""
    found = recent.get(text)
    if found is None:
        found = Filter.parse(text)
        recent.put(text, found, WEIGHT * (len(text) + len(found.text)))
    return found
