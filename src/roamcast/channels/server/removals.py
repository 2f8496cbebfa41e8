"""Removals: what was unpublished, remembered for a bounded time.

0026: a context is its newest state. Removals have stamps, too, so that what one side of a partition
removed does not come back from the other.
"""

from collections.abc import Iterator

import msgspec


class Removal(msgspec.Struct, frozen=True):
    """A context was unpublished as of a stamp, by whom, and since when that is known here."""

    stamp: int
    owner: str
    since_us: int


class Removed:
    """Removals by vid, the first noted first; at most `removed_max`, each for `lasts_us`.

    A removal lasts longer than anybody may hold a context without having learned of it.
    """

    def __init__(self, lasts_us: int, removed_max: int) -> None:
        self.removed_max = removed_max
        self._lasts_us = lasts_us
        self._known: dict[str, Removal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, vid: str) -> Removal | None:
        """Give the removal of a vid, if there is one."""
        return self._known.get(vid)

    def note(self, vid: str, removal: Removal, now: int) -> None:
        """Remember a removal; of two the later stamp counts."""
        known = self._known.get(vid)
        if known is None or removal.stamp > known.stamp:
            self._known.pop(vid, None)
            self._known[vid] = removal
            self.prune(now)

    def forget(self, vid: str) -> None:
        """Forget a removal, because the context was published again later."""
        self._known.pop(vid, None)

    def prune(self, now: int) -> None:
        """Forget removals that are too old, and the first noted beyond the bound.

        A removal that was handed over may be older than those noted here before it: it is then
        forgotten a little late, together with them.
        """
        excess = len(self._known) - self.removed_max
        gone: list[str] = []
        for vid, removal in self._known.items():
            if len(gone) >= excess and removal.since_us > now - self._lasts_us:
                break
            gone.append(vid)
        for vid in gone:
            del self._known[vid]

    def items(self, now: int) -> Iterator[tuple[str, Removal]]:
        """Give the removals that still count, by vid."""
        for vid, removal in self._known.items():
            if removal.since_us > now - self._lasts_us:
                yield vid, removal
