"""Which channel is free? A bounded pool of group names, given back after a rest and reused in turn.

Names of one view class are never used for another: who still listens to a channel that was given
back can only hear what its class may see. Nor are names of one epoch used in another: when the two
sides of a partition meet again, their servers share no channel.
"""

from collections import deque
from hashlib import blake2b


class Pool:
    """Names of one view class in one epoch; every use of a name has its own incarnation."""

    def __init__(self, view_class: str, channels_max: int, epoch: int = 0, kind: str = "") -> None:
        mark = blake2b(f"{epoch}/{view_class}".encode(), digest_size=4).hexdigest()
        self._prefix = f"map/{mark}/{kind}" if kind else f"map/{mark}"
        self._channels_max = channels_max
        self._made = 0
        self._free: deque[str] = deque()

    @property
    def used(self) -> int:
        """How many names are in use."""
        return self._made - len(self._free)

    @property
    def free(self) -> bool:
        """Whether a name can be had."""
        return self._made < self._channels_max or bool(self._free)

    def take(self) -> str | None:
        """Give a free name, the longest unused first, or None when all are in use."""
        if self._made < self._channels_max:
            self._made += 1
            return f"{self._prefix}/{self._made}"
        return self._free.popleft() if self._free else None

    def give_back(self, name: str) -> None:
        """Take a name back."""
        self._free.append(name)
        assert len(self._free) <= self._made
