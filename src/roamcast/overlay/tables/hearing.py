"""Hearing a neighbour's table: pages are kept apart until their version is whole."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.overlay.tables.table import Offer, TableEntry

V = TypeVar("V")
Changes = dict[str, tuple[V | None, V | None]]
"""Keys with their old and new values; None: no such entry."""


class TableBounds(msgspec.Struct, frozen=True):
    """TableBounds on what one neighbour may have in a table."""

    entries_max: int
    bytes_max: int


class _Staged(msgspec.Struct, Generic[V]):
    """The pages of a version that is not whole yet."""

    version: int
    full: bool
    page: int
    """The page that comes next."""
    count: int
    size: int
    """Entries and bytes that the table has once this is applied."""
    values: dict[str, V]
    sizes: dict[str, int]
    gone: set[str]


class Hearing(Generic[V]):
    """What one neighbour offered: whole versions only, newer ones only."""

    def __init__(self, read: Callable[[TableEntry], V], bounds: TableBounds) -> None:
        self.entries: dict[str, V] = {}
        self.version: int | None = None
        """The version that `entries` is; None: nothing is known of this neighbour yet."""
        self.size = 0
        """Bytes of all entries, as they were sent."""
        self._sizes: dict[str, int] = {}
        self._read = read
        self._bounds = bounds
        self._staged: _Staged[V] | None = None

    @property
    def staged(self) -> int:
        """Entries of a version that is not whole yet."""
        return 0 if self._staged is None else len(self._staged.values)

    def hear(self, offer: Offer) -> Changes[V] | None:
        """Take a page; give what changed if it completes a version. Raises with nothing changed."""
        held = -1 if self.version is None else self.version
        if offer.version == held:
            return None  # repeated: it is applied already
        if offer.version < held:
            raise InputError(f"version {offer.version} of a table is older than {held}")
        if not offer.full and (self.version is None or offer.version != held + 1):
            raise InputError(f"version {offer.version} does not follow {held}")
        staged = self._begun(offer)
        entries, count, size = self._checked(offer, staged)
        staged.count, staged.size, staged.page = count, size, offer.page + 1
        staged.values |= entries
        staged.sizes |= {entry.key: _size(entry) for entry in offer.add}
        staged.gone.update(offer.remove)
        self._staged = staged
        return self._apply(staged) if offer.last else None

    def _begun(self, offer: Offer) -> _Staged[V]:
        if not offer.page:  # the first page begins a version, or begins it again
            count, size = (0, 0) if offer.full else (len(self.entries), self.size)
            return _Staged(offer.version, offer.full, 0, count, size, {}, {}, set())
        staged = self._staged
        wanted = (offer.version, offer.full, offer.page)
        if staged is None or (staged.version, staged.full, staged.page) != wanted:
            raise InputError(f"page {offer.page} of version {offer.version} is out of order")
        return staged

    def _checked(self, offer: Offer, staged: _Staged[V]) -> tuple[dict[str, V], int, int]:
        count, size = staged.count, staged.size
        added = {entry.key for entry in offer.add}
        removed = set(offer.remove)
        twice = len(added) < len(offer.add) or len(removed) < len(offer.remove)
        known = staged.sizes.keys() | staged.gone
        if twice or not added.isdisjoint(removed | known) or not removed.isdisjoint(known):
            raise InputError("an offer has a key twice")
        if staged.full and removed:
            raise InputError("a full offer removes nothing")
        if not removed <= self.entries.keys():
            raise InputError("an offer removes what was never offered")
        for entry in offer.add:
            old = None if staged.full else self._sizes.get(entry.key)
            count += old is None
            size += _size(entry) - (old or 0)
        count -= len(removed)
        size -= sum(self._sizes[key] for key in removed)
        if count > self._bounds.entries_max:
            raise LimitError(f"a table exceeds the limit of {self._bounds.entries_max} entries")
        if size > self._bounds.bytes_max:
            raise LimitError(f"a table exceeds the limit of {self._bounds.bytes_max} bytes")
        return {entry.key: self._read(entry) for entry in offer.add}, count, size

    def _apply(self, staged: _Staged[V]) -> Changes[V]:
        old = self.entries
        gone = old.keys() - staged.values.keys() if staged.full else staged.gone
        changes: Changes[V] = {
            key: (old.get(key), value)
            for key, value in staged.values.items()
            if old.get(key) != value
        }
        for key in sorted(gone):
            changes[key] = (old.pop(key), None)
            del self._sizes[key]
        old |= staged.values
        self._sizes |= staged.sizes
        self.version, self.size = staged.version, staged.size
        self._staged = None
        return changes


def _size(entry: TableEntry) -> int:
    return len(entry.key.encode()) + len(entry.value)
