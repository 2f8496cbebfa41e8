"""Which server is the newer one, and on which host? An epoch says both, and no two are equal.

An epoch is a round and a seat: rounds grow with time and by a second beyond every round heard of,
seats are the hosts that may serve, in their order of precedence. So epochs of one host grow without
a disk, two hosts that start at the same moment have different ones, and the newer of two wins
everywhere.
"""

from collections.abc import Sequence
from typing import Final

from roamcast.model.machine import Effect

SEATS_MAX: Final = 1_000
"""So many hosts may serve a region; rounds of microseconds since 1970 times this fit 63 bits."""

AHEAD_US_MAX: Final = 3_600_000_000
"""An epoch that lies further in the future than clocks go wrong is nobody's."""


STEP_US: Final = 1_000_000
"""The least between two rounds, whatever clocks say: logs tell lives apart by seconds (0431)."""


class SteppedDown(Effect, frozen=True, gc=False):
    """The server of this epoch has handed over, or could not: whoever runs it lets it end."""

    epoch: int


def epoch_at(now: int, seat: int, newest: int) -> int:
    """Give the epoch of a server that starts now on a seat and knows of an epoch."""
    assert 0 <= seat < SEATS_MAX
    return max(now, newest // SEATS_MAX + STEP_US) * SEATS_MAX + seat


def seat_of(epoch: int) -> int:
    """Say on which seat the server of an epoch was started."""
    return epoch % SEATS_MAX


def genuine(epoch: int, sender: str, seats: Sequence[str], now: int) -> bool:
    """Whether this host, among those that may serve, may have started in this epoch by now."""
    return credible(epoch, seats, now) and seats[seat_of(epoch)] == sender


def credible(epoch: int, seats: Sequence[str], now: int) -> bool:
    """Whether any of these hosts may have started in this epoch by now."""
    return seat_of(epoch) < len(seats) and epoch // SEATS_MAX <= now + AHEAD_US_MAX
