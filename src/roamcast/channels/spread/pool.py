"""May one more channel be opened, and under which name? A bounded number at a time, a name once.

A name is never used again. Whoever hears late of a channel that was given back listens to silence:
not to another stream, whose messages no ledger would charge to it, and not to what another view
class may see. Nor are names of one epoch used in another: when the two sides of a partition meet
again, their servers share no channel.
"""

from hashlib import blake2b


class Pool:
    """The channels of one view class in one epoch."""

    def __init__(self, view_class: str, channels_max: int, epoch: int = 0, kind: str = "") -> None:
        mark = blake2b(f"{epoch}/{view_class}".encode(), digest_size=4).hexdigest()
        self.used = 0
        self._prefix = f"map/{mark}/{kind}" if kind else f"map/{mark}"
        self._channels_max = channels_max
        self._named = 0

    @property
    def free(self) -> bool:
        """Whether a channel can be had."""
        return self.used < self._channels_max

    def take(self) -> str | None:
        """Give a new name, or None when all channels are in use."""
        if not self.free:
            return None
        self.used += 1
        self._named += 1
        return f"{self._prefix}/{self._named}"

    def give_back(self) -> None:
        """A channel is in use no more."""
        self.used -= 1
        assert self.used >= 0
