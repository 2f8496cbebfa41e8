"""`DigestTable`: entries that are named by the digest of their value, so a value never changes."""

from abc import abstractmethod
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.model.parts import Occupancy
from roamcast.overlay.tables.hearing import Changes
from roamcast.overlay.tables.link_table import SharedTable
from roamcast.overlay.tables.sending import Value
from roamcast.overlay.tables.table import ENTRY_BYTES_MAX, TableEntry

LOCAL_MAX: Final = 1_024
"""Entries of one broker."""

ENTRIES_MAX: Final = 65_536
BYTES_MAX: Final = 16 * 1024 * 1024
"""Bounds on what one neighbour may offer."""

V = TypeVar("V")


class DigestTable(SharedTable[V]):
    """A changed value is a new entry; this broker's own have names here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._local: dict[str, str] = {}
        self._values: dict[str, bytes] = {}

    @abstractmethod
    def _decoded(self, value: bytes) -> V:
        """Decode and check a value; DecodeError or InputError if it is not valid."""

    def put(self, name: str, entry: V) -> None:
        """Set an entry of this broker."""
        value = msgspec.msgpack.encode(entry)
        self._decoded(value)
        if len(value) > ENTRY_BYTES_MAX:
            raise LimitError(f"an entry exceeds the limit of {ENTRY_BYTES_MAX} bytes")
        if name not in self._local and len(self._local) >= LOCAL_MAX:
            raise LimitError(f"a broker exceeds the limit of {LOCAL_MAX} {self.name}")
        key = digest_of(value)
        if self._local.get(name) == key:
            return
        self.remove(name)
        self._local[name] = key
        self._add(key, value, None)

    def remove(self, name: str) -> None:
        """Take an entry of this broker away, if it has one of this name."""
        key = self._local.pop(name, None)
        if key is not None and key not in self._local.values():
            self._discard(key, None)

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        return super().occupancy() | {f"{self.name}.local": (len(self._local), LOCAL_MAX)}

    def _read(self, entry: TableEntry) -> V:
        try:
            found = self._decoded(entry.value)
        except msgspec.DecodeError as error:
            raise InputError(f"an entry of {self.name} is malformed: {error}") from None
        if msgspec.msgpack.encode(found) != entry.value or digest_of(entry.value) != entry.key:
            raise InputError(f"a key of {self.name} is not the digest of its canonical value")
        return found

    def _keys(self, link: str) -> Iterable[str]:
        return (key for key in self._holders if self._held_for(link, key))

    def _wanted(self, link: str, key: str) -> Value:
        return self._values[key] if self._held_for(link, key) else None

    def _changed(self, link: str, changes: Changes[V]) -> None:
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


def digest_of(value: bytes) -> str:
    """Give the key of an entry with this value."""
    return blake2b(value, digest_size=16).hexdigest()
