"""`LinkTable`: what all tables share. A filling adds its entries and its question."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from roamcast.errors import InputError, LimitError
from roamcast.model.parts import Occupancy, Timers
from roamcast.overlay.tables.hearing import Changes, Hearing, TableBounds
from roamcast.overlay.tables.sending import FIXED, Algebra, Sending, Value
from roamcast.overlay.tables.table import (
    EPOCH_MAX,
    LINGER_US,
    LINKS_MAX,
    PAGE_BYTES_MAX,
    VERSIONS_PER_EPOCH,
    Offer,
    TableEntry,
)

V = TypeVar("V")


class TableLink(Generic[V]):
    """Both directions of one link, and whether it is in use."""

    def __init__(self, sending: Sending, hearing: Hearing[V]) -> None:
        self.sending = sending
        self.hearing = hearing
        self.up: bool
        """From its first reset on."""


class LinkTable(ABC, Generic[V]):
    """Offers, versions, linger and resets of every link of one table."""

    name: str
    bounds: ClassVar[TableBounds]
    busy_alone = False

    def __init__(
        self,
        *,
        epoch: int = 0,
        linger_us: int = LINGER_US,
        page_bytes: int = PAGE_BYTES_MAX,
    ) -> None:
        assert 0 <= epoch <= EPOCH_MAX
        self._first_version = epoch * VERSIONS_PER_EPOCH
        self._linger_us = linger_us
        self._page_bytes = page_bytes
        self._now = 0
        self._links: dict[str, TableLink[V]] = {}
        self._dropped: Timers[str] = Timers()

    @abstractmethod
    def beyond(self, thing: Any, came_from: str | None) -> list[str]:
        """Name the links, but the one it came from, behind which the thing may matter; sorted."""

    @abstractmethod
    def _read(self, entry: TableEntry) -> V:
        """Decode a neighbour's entry; InputError or LimitError if it is not valid."""

    @abstractmethod
    def _keys(self, link: str) -> Iterable[str]:
        """Give the keys of all that is to be offered to a link."""

    @abstractmethod
    def _wanted(self, link: str, key: str) -> Value:
        """Give what is to be offered to a link under a key: nothing that it offered itself."""

    @abstractmethod
    def _changed(self, link: str, changes: Changes[V]) -> None:
        """Take over what changed of a neighbour's entries, and `_mark` what that changes."""

    def _algebra(self, key: str) -> Algebra:  # noqa: ARG002 — fillings choose by key
        """Give how the values of a key grow; most tables have keys that name their values."""
        return FIXED

    def reset(self, link: str) -> None:
        """Begin or begin again with a link: the next offer to it is full."""
        found = self._links.get(link)
        if found is None:
            if len(self._links) >= LINKS_MAX:
                raise LimitError(f"a table exceeds the limit of {LINKS_MAX} links")
            sending = Sending(
                self._first_version,
                lambda key: self._wanted(link, key),
                self._algebra,
                linger_us=self._linger_us,
                page_bytes=self._page_bytes,
            )
            found = self._links[link] = TableLink(sending, Hearing(self._read, self.bounds))
        found.up = True
        self._dropped.cancel(link)
        found.sending.reset(self._keys(link))

    def drop(self, link: str) -> None:
        """Stop offering to a link; what it offered lingers, then goes."""
        found = self._links.get(link)
        if found is not None and found.up:
            found.up = False
            self._dropped.set(link, self._now + self._linger_us)

    def offer(self, link: str) -> Offer | None:
        """Give the next page to send; None if nothing is new or a version waits."""
        found = self._links.get(link)
        return None if found is None or not found.up else found.sending.next_page(self._now)

    def confirmed(self, link: str, version: int) -> None:
        """Take the neighbour's word that it applied a version."""
        found = self._links.get(link)
        if found is not None and found.up:
            found.sending.confirm(version, self._now)

    def take(self, link: str, offer: Offer) -> None:
        """Take a page of a neighbour's offer; raises with nothing changed."""
        found = self._links.get(link)
        if found is None or not found.up:
            raise InputError(f"an offer came on {link!r}, which is not in use")
        changes = found.hearing.hear(offer)
        if changes:
            self._changed(link, changes)

    def advance(self, now: int) -> None:
        """Let time pass: what lingered long enough goes."""
        self._now = max(self._now, now)
        for link in self._dropped.due(self._now):
            entries = self._links[link].hearing.entries
            # Last, so that a filling sees the link as it was.
            self._changed(link, {key: (value, None) for key, value in entries.items()})
            del self._links[link]
        for found in self._links.values():
            found.sending.advance(self._now)

    def deadline(self) -> int | None:
        """Give the time at which something has lingered long enough."""
        if not self._links:
            return None
        times = [found.sending.deadline() for found in self._links.values() if found.up]
        times.append(self._dropped.deadline())
        return min((time for time in times if time is not None), default=None)

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        hearings = [link.hearing for link in self._links.values()]
        links = max(1, len(hearings))
        return {
            f"{self.name}.links": (len(hearings), LINKS_MAX),
            f"{self.name}.heard": (
                sum(len(h.entries) + h.staged for h in hearings),
                2 * links * self.bounds.entries_max,
            ),
            f"{self.name}.bytes": (sum(h.size for h in hearings), links * self.bounds.bytes_max),
        }

    def knows(self, link: str) -> bool:
        """Whether a link has offered all that lies beyond it."""
        found = self._links.get(link)
        return found is not None and found.hearing.version is not None

    def offered(self, link: str) -> Mapping[str, V]:
        """Give what a link has offered, by key."""
        found = self._links.get(link)
        return {} if found is None else found.hearing.entries

    @property
    def idle(self) -> bool:
        """Whether no link in use has anything to send or to be confirmed."""
        return all(link.sending.idle for link in self._links.values() if link.up)

    def settled(self, link: str) -> bool:
        """Whether a link in use has confirmed everything that is to be offered to it."""
        found = self._links.get(link)
        return found is not None and found.up and found.sending.idle

    def _unknown(self, came_from: str | None) -> set[str]:
        """Name the links of which nothing is known yet: they count for every question."""
        return {
            name
            for name, link in self._links.items()
            if name != came_from and link.hearing.version is None
        }

    def _mark(self, key: str, source: str | None) -> None:
        """Look at a key again for every link but the one its change came from."""
        for name, link in self._links.items():
            if name != source:
                link.sending.changed.add(key)


class SharedTable(LinkTable[V]):
    """A table of entries that several sources may have; None is this broker itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._holders: dict[str, set[str | None]] = {}

    def _held_for(self, link: str, key: str) -> bool:
        """Return whether somebody but the link itself has the entry (split horizon)."""
        holders = self._holders.get(key)
        return holders is not None and (len(holders) > 1 or link not in holders)

    def _hold(self, key: str, source: str | None) -> bool:
        """Note that a source has an entry; return whether it is the first one."""
        holders = self._holders.setdefault(key, set())
        holders.add(source)
        return len(holders) == 1

    def _release(self, key: str, source: str | None) -> bool:
        """Note that a source has an entry no more; return whether it was the last one."""
        holders = self._holders[key]
        holders.discard(source)
        if holders:
            return False
        del self._holders[key]
        return True
