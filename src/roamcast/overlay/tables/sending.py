"""Offering a table to one neighbour: versions, pages, and removals that wait.

`shown` is what the neighbour holds once it has applied the last version. It may grow with every
version. Something goes from it only after the neighbour has confirmed a version that holds it and
it has then lingered unwanted: otherwise a context that begins and ends between two versions would
never be known to the neighbour, and a cast to it would be lost on the way.
"""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from roamcast.errors import LimitError
from roamcast.model.parts import Timers
from roamcast.overlay.tables.table import PAGE_ENTRIES_MAX, PAGES_MAX, Offer, TableEntry

Value = bytes | None
"""An entry's value; None: no such entry."""


class Algebra(msgspec.Struct, frozen=True):
    """How a table's values grow: whether the first says all that the second does, and their sum."""

    covers: Callable[[bytes, bytes], bool]
    join: Callable[[bytes, bytes], bytes]

    def both(self, first: Value, other: Value) -> Value:
        """Join two values, the second of which is the newer; either may be missing."""
        if first is None or other is None or first == other:
            return other if first is None else first
        if self.covers(first, other):
            return first
        return other if self.covers(other, first) else self.join(first, other)

    def within(self, inner: Value, outer: Value) -> bool:
        """Return whether the outer value says all that the inner one does."""
        if inner is None or inner == outer:
            return True
        return outer is not None and self.covers(outer, inner)


FIXED = Algebra(lambda one, other: one == other, lambda _, new: new)
"""For tables whose keys name their values, so that a value never changes."""


class Sending:
    """What one neighbour was offered, and what is to be offered next."""

    def __init__(
        self,
        version: int,
        wanted: Callable[[str], Value],
        algebra: Callable[[str], Algebra],
        *,
        linger_us: int,
        page_bytes: int,
    ) -> None:
        self.version = version
        self.shown: dict[str, bytes] = {}
        self.changed: set[str] = set()
        """Keys to look at before the next version."""
        self._wanted = wanted
        self._algebra = algebra
        self._linger_us = linger_us
        self._page_bytes = page_bytes
        self._passed: dict[str, bytes] = {}
        # Keys whose shown value is larger than what is wanted, with all that was wanted of them
        # since that was noticed: this is what stays in the end.
        self._leaving: dict[str, Value] = {}
        self._unconfirmed: set[str] = set()
        self._lingering: Timers[str] = Timers()
        self._over: set[str] = set()
        self._full = True
        self._waits = False
        self._pages: deque[Offer] = deque()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent or confirmed."""
        return not (self._pages or self._waits or self.changed or self._full)

    def reset(self, keys: Iterable[str]) -> None:
        """Offer everything again, what still lingers included; its waiting begins anew."""
        self._full = True
        self._waits = False
        self._pages.clear()
        self.changed.update(keys, self.shown)
        for key in self._leaving:
            self._lingering.cancel(key)
        self._unconfirmed = set(self._leaving)
        self._over.clear()

    def passed(self, key: str, value: bytes) -> None:
        """Show a value once although it is gone: it came and went since the last version."""
        self._passed[key] = self._algebra(key).both(self._passed.get(key), value) or value
        self.changed.add(key)

    def confirm(self, version: int, now: int) -> None:
        """Take the neighbour's confirmation of the version under way."""
        if self._waits and not self._pages and version == self.version:
            self._waits = False
            self._linger(now)

    def advance(self, now: int) -> None:
        """Look again at what has lingered long enough."""
        for key in self._lingering.due(now):
            self._over.add(key)
            self.changed.add(key)

    def deadline(self) -> int | None:
        """Give the time at which something has lingered long enough."""
        return self._lingering.deadline()

    def next_page(self, now: int) -> Offer | None:
        """Give the next page; None if nothing is new or a version waits to be confirmed."""
        if not self._waits:
            self._prepare(now)
        return self._pages.popleft() if self._pages else None

    def _prepare(self, now: int) -> None:
        add: dict[str, bytes] = {}
        remove: list[str] = []
        for key in sorted(self.changed):
            old, new = self.shown.get(key), self._settled(key)
            if new == old:
                continue
            if new is None:
                del self.shown[key]
                remove.append(key)
            else:
                self.shown[key] = add[key] = new
        self.changed.clear()
        self._passed.clear()
        if self._full:
            add, remove = self.shown, []
        elif not add and not remove:
            self._linger(now)  # all that is shown is confirmed
            return
        self.version += 1
        self._pages.extend(_pages(self.version, self._full, add, remove, self._page_bytes))
        self._full = False
        self._waits = True

    def _settled(self, key: str) -> Value:
        """Give what is to be shown of a key now."""
        algebra = self._algebra(key)
        both = algebra.both
        wanted = self._wanted(key)
        seen = both(self._passed.get(key), wanted)
        leaving = key in self._leaving
        if key in self._over:
            new = both(self._leaving[key], seen)
            self._forget(key)
            leaving = False
        else:
            new = both(self.shown.get(key), seen)
        if algebra.within(new, wanted):
            self._forget(key)
        elif leaving:
            self._leaving[key] = both(self._leaving[key], seen)
        else:
            self._leaving[key] = wanted
            self._unconfirmed.add(key)
        return new

    def _linger(self, now: int) -> None:
        for key in sorted(self._unconfirmed):
            self._lingering.set(key, now + self._linger_us)
        self._unconfirmed.clear()

    def _forget(self, key: str) -> None:
        self._leaving.pop(key, None)
        self._unconfirmed.discard(key)
        self._over.discard(key)
        self._lingering.cancel(key)


def _pages(
    version: int, full: bool, add: dict[str, bytes], remove: list[str], page_bytes: int
) -> list[Offer]:
    """Divide a version into pages; the removals are in the last ones."""
    parts: list[tuple[list[TableEntry], list[str]]] = [([], [])]
    size = 0

    def room(key: str, value: bytes) -> tuple[list[TableEntry], list[str]]:
        nonlocal size
        more = len(key.encode()) + len(value)
        entries, removals = parts[-1]
        held = len(entries) + len(removals)
        if held and (size + more > page_bytes or held >= PAGE_ENTRIES_MAX):
            parts.append(([], []))
            size = 0
        size += more
        return parts[-1]

    for key, value in add.items():
        room(key, value)[0].append(TableEntry(key, value))
    for key in remove:
        room(key, b"")[1].append(key)
    if len(parts) > PAGES_MAX:
        raise LimitError(f"a table of {len(parts)} pages exceeds the limit of {PAGES_MAX}")
    last = len(parts) - 1
    return [
        Offer(version, full, number, number == last, tuple(entries), tuple(removals))
        for number, (entries, removals) in enumerate(parts)
    ]
