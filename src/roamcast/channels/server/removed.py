"""What was cancelled a while ago? The stamps of objects that are gone, so that none comes back.

It is remembered for a bounded time: longer than anyone may hold an object without having heard that
it was cancelled.
"""

from collections.abc import Iterator

import msgspec


class Removal(msgspec.Struct, frozen=True):
    """As of which stamp an object is gone, who cancelled it, and since when that is known."""

    stamp: int
    owner: str
    since_us: int


class Removed:
    """Cancelled objects by vid, the first noted first."""

    def __init__(self, lasts_us: int, most: int) -> None:
        self._lasts_us = lasts_us
        self._most = most
        self._known: dict[str, Removal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, vid: str) -> Removal | None:
        """Say how an object was cancelled, if it was."""
        return self._known.get(vid)

    def note(self, vid: str, one: Removal, now: int) -> None:
        """Remember that an object was cancelled; the latest counts."""
        known = self._known.get(vid)
        if known is None or one.stamp > known.stamp:
            self._known.pop(vid, None)
            self._known[vid] = one
            self.prune(now)

    def forget(self, vid: str) -> None:
        """It was published again, later."""
        self._known.pop(vid, None)

    def prune(self, now: int) -> None:
        """Forget what was noted too long ago, and the longest known of too many.

        What another server has known for long may stand behind what is known here for less long,
        and go with that.
        """
        excess = len(self._known) - self._most
        gone: list[str] = []
        for vid, one in self._known.items():
            if len(gone) >= excess and one.since_us > now - self._lasts_us:
                break
            gone.append(vid)
        for vid in gone:
            del self._known[vid]

    def items(self, now: int) -> Iterator[tuple[str, Removal]]:
        """Give all whose time is not over, by vid."""
        for vid, one in self._known.items():
            if one.since_us > now - self._lasts_us:
                yield vid, one
