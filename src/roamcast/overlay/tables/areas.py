"""`Areas`: where the brokers and archives beyond each link have contexts, asked with a target.

A broker offers its own area, and that of its past: when its places change, what it remembers still
lies where it was, and historic casts must find it.
"""

from typing import Final

import msgspec

from roamcast.model.areas import Area, check
from roamcast.overlay.tables.digest_table import BYTES_MAX, ENTRIES_MAX, DigestTable
from roamcast.overlay.tables.hearing import TableBounds

_decode: Final = msgspec.msgpack.Decoder(Area).decode


class Areas(DigestTable[Area]):
    """Areas beyond each link."""

    name = "areas"
    bounds = TableBounds(ENTRIES_MAX, BYTES_MAX)

    def beyond(self, thing: Area, came_from: str | None) -> list[str]:
        """Name the links behind which a context may lie in the area."""
        found = self._unknown(came_from)
        for name, link in self._links.items():
            if name == came_from or name in found:
                continue
            if any(thing.meets(area) for area in link.hearing.entries.values()):
                found.add(name)
        return sorted(found)

    def _decoded(self, value: bytes) -> Area:
        return check(_decode(value))
