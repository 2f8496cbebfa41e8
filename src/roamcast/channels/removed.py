"""What was cancelled a while ago? The stamps of objects that are gone, so that none comes back.

It is remembered for a bounded time: longer than anyone may hold an object without having heard that
it was cancelled.
"""

from collections.abc import Iterator


class Removed:
    """Cancelled objects by vid, the first noted first."""

    def __init__(self, lasts_us: int, most: int) -> None:
        self._lasts_us = lasts_us
        self._most = most
        self._known: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def note(self, vid: str, stamp: int, since_us: int, now: int) -> None:
        """Remember that an object was cancelled, and since when that is known."""
        if stamp > self.stamp(vid):
            self._known.pop(vid, None)
            self._known[vid] = (stamp, since_us)
            self.prune(now)

    def stamp(self, vid: str) -> int:
        """Say as of which stamp an object is cancelled, 0 if it is not."""
        return self._known.get(vid, (0, 0))[0]

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
        for vid, (_, since_us) in self._known.items():
            if len(gone) >= excess and since_us > now - self._lasts_us:
                break
            gone.append(vid)
        for vid in gone:
            del self._known[vid]

    def items(self, now: int) -> Iterator[tuple[str, int, int]]:
        """Give (vid, stamp, since when it is known) of all whose time is not over."""
        for vid, (stamp, since_us) in self._known.items():
            if since_us > now - self._lasts_us:
                yield vid, stamp, since_us
