"""`Areas`: where the brokers and archives beyond each link have contexts, asked with a target.

A broker offers its own area, and one entry for each area or range of days of its archive: when its
area changes, what it archived before still lies where it was, and historic casts must find it.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.model.areas import Area, check
from roamcast.model.parts import Occupancy
from roamcast.overlay.tables.hearing import Changes, TableBounds
from roamcast.overlay.tables.link_table import SharedTable
from roamcast.overlay.tables.sending import Value
from roamcast.overlay.tables.table import ENTRY_BYTES_MAX, TableEntry

LOCAL_MAX: Final = 1_024
"""Areas of one broker, those of its archive included."""

ENTRIES_MAX: Final = 65_536
BYTES_MAX: Final = 16 * 1024 * 1024
"""TableBounds on what one neighbour may offer."""

_decode = msgspec.msgpack.Decoder(Area).decode


class Areas(SharedTable[Area]):
    """Areas beyond each link. A key is made from its value, so a changed area is a new entry."""

    name = "areas"
    bounds = TableBounds(ENTRIES_MAX, BYTES_MAX)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._local: dict[str, str] = {}
        self._values: dict[str, bytes] = {}

    def put(self, name: str, area: Area) -> None:
        """Set an area of this broker: its own, or one of its archive."""
        value = msgspec.msgpack.encode(check(area))
        if len(value) > ENTRY_BYTES_MAX:
            raise LimitError(f"an area exceeds the limit of {ENTRY_BYTES_MAX} bytes")
        if name not in self._local and len(self._local) >= LOCAL_MAX:
            raise LimitError(f"a broker exceeds the limit of {LOCAL_MAX} areas")
        self.remove(name)
        key = _key(value)
        self._local[name] = key
        self._add(key, value, None)

    def remove(self, name: str) -> None:
        """Take an area of this broker away, if it has one of this name."""
        key = self._local.pop(name, None)
        if key is not None and key not in self._local.values():
            self._discard(key, None)

    def names(self) -> list[str]:
        """Name the areas of this broker."""
        return list(self._local)

    def beyond(self, thing: Area, came_from: str | None) -> list[str]:
        """Name the links behind which a context may lie in the area."""
        found = self._unknown(came_from)
        for name, link in self._links.items():
            if name == came_from or name in found:
                continue
            if any(thing.meets(area) for area in link.hearing.entries.values()):
                found.add(name)
        return sorted(found)

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        return super().occupancy() | {"areas.local": (len(self._local), LOCAL_MAX)}

    def _read(self, entry: TableEntry) -> Area:
        try:
            area = check(_decode(entry.value))
        except msgspec.DecodeError as error:
            raise InputError(f"an area is malformed: {error}") from None
        if msgspec.msgpack.encode(area) != entry.value or _key(entry.value) != entry.key:
            raise InputError("an area's key is not the digest of its canonical value")
        return area

    def _keys(self, link: str) -> Iterable[str]:
        return (key for key in self._holders if self._held_for(link, key))

    def _wanted(self, link: str, key: str) -> Value:
        return self._values[key] if self._held_for(link, key) else None

    def _changed(self, link: str, changes: Changes[Area]) -> None:
        for key, (_, new) in changes.items():
            if new is None:
                self._discard(key, link)
            else:
                self._add(key, msgspec.msgpack.encode(new), link)

    def _add(self, key: str, value: bytes, source: str | None) -> None:
        self._hold(key, source)
        self._values[key] = value
        self._mark(key, source)

    def _discard(self, key: str, source: str | None) -> None:
        if self._release(key, source):
            del self._values[key]
        self._mark(key, source)


def _key(value: bytes) -> str:
    return blake2b(value, digest_size=16).hexdigest()
