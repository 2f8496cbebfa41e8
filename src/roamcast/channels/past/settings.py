"""How long the past stays, and where it goes."""

from typing import Final

import msgspec

RETURN_US: Final = 60_000_000
"""How long after a restart a publisher may come back as if nothing had happened (0048)."""

BATCH_PIECES_MAX: Final = 1_000
"""Pieces that leave the log together; a batch's list of keys is one stored value."""


class PastSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    archive: bool = False
    """Whether what has ended goes to an archive; without one it is forgotten in the end."""
    store_us: int = 24 * 3_600_000_000
    """How long a piece stays in the store after its end."""
    steps_max: int = 1_000_000
    """Steps in the log; beyond it the pieces that ended first leave early."""
    look_us: int = 10_000_000
    """How often it is looked for pieces that leave the log."""
    alive_us: int = 1_000_000
    """How often a broker notes that it is up, while somebody's contexts depend on it."""
    return_us: int = RETURN_US
    """How long after a restart a client may come back as if nothing had happened."""
    retry_us: int = 200_000
    """After how long a write that failed is tried again."""
    patience_us: int = 120_000_000
    """How long the steps of another host's batch are awaited; then it is named anew."""
    rows_max: int = 100_000
    """Steps that may wait for the disk; publications beyond it are refused."""
    gone_max: int = 100_000
    """Vids that left whose ends are remembered, so that none begins again before it ended."""
