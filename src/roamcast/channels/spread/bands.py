"""How much may still be sent to a client with a bandwidth limit? (AMS 13)

The guarantee is per client: one ledger counts every byte to it, from every channel it listens to
and by unicast, in any window of one second wherever it begins. Data may use seven eighths of a
limit: the rest stays for synchronisation and heals, without which a quiet channel beside a busy
one would look dead.
"""

from collections import deque

from roamcast.model.time import MICROSECONDS


class Ledger:
    """The bytes sent to one client in the last second."""

    __slots__ = ("_entries", "_total", "limit_bytes", "usable_bytes")

    def __init__(self, limit_bytes: int, reserve_bytes: int) -> None:
        assert limit_bytes > reserve_bytes
        self.limit_bytes = limit_bytes
        self.usable_bytes = limit_bytes - reserve_bytes
        self._entries: deque[tuple[int, int]] = deque()
        self._total = 0

    def room(self, now: int, *, control: bool = False) -> int:
        """How many bytes may leave now; what left exactly a second ago still counts."""
        entries = self._entries
        while entries and entries[0][0] < now - MICROSECONDS:
            self._total -= entries.popleft()[1]
        usable = self.usable_bytes if control else self.usable_bytes * 7 // 8
        return usable - self._total

    def charge(self, now: int, size: int) -> None:
        """Count bytes that leave now."""
        self._entries.append((now, size))
        self._total += size

    def freed_at(self) -> int | None:
        """When the oldest bytes stop counting."""
        return self._entries[0][0] + MICROSECONDS + 1 if self._entries else None
