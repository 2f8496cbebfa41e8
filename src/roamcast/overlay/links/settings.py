"""Intervals and bounds of links."""

import msgspec

from roamcast.channels.reliable.settings import ChannelSettings


class LinkSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds, bounds in messages and bytes; all nodes use about the same."""

    greet_us: int = 500_000
    """Interval between greetings while no answer comes."""
    patience_us: int = 5_000_000
    """An attempt that has not led to a link after this long is over."""
    retry_us: int = 500_000
    retry_us_max: int = 15_000_000
    """Delay before the next attempt; it doubles with every failure up to the maximum."""
    steady_us: int = 30_000_000
    """A link that was up for this long counts as good: the delay starts over."""
    silent_us: int = 10_000_000
    """A neighbour that is not heard for this long is gone."""
    stalled_us: int = 20_000_000
    """A neighbour that acknowledges nothing for this long, while something waits, is stalled."""
    acknowledge_us: int = 20_000
    """How long a receipt waits for a frame to travel with."""
    skew_us_max: int = 60_000_000
    """A neighbour whose clock differs by more is refused (OVERLAY trap 27)."""
    queue_messages_max: int = 4_096
    queue_bytes_max: int = 32 * 1024 * 1024
    """What may wait for one link; from half of it on, parts are asked to pause."""
    frames_per_s_max: int = 20_000
    """A neighbour that sends more floods us, and is cut off; so many may also come at once."""
    neighbours_max: int = 1_000
    channel: ChannelSettings = ChannelSettings(
        sync_interval_us=500_000,
        sync_interval_us_max=2_000_000,
        receivers_expected=1,
        buffer_messages_max=256,
        buffer_bytes_max=8 * 1024 * 1024,
        ahead_messages_max=256,
        ahead_bytes_max=8 * 1024 * 1024,
    )
    """Its buffer is the window: so much is under way unacknowledged."""


class NeighbourSettings(msgspec.Struct, frozen=True):
    """A node that may link with this one: its public key, and where its hosts are dialled.

    Without addresses it is awaited, and not dialled.
    """

    key: bytes
    addresses: tuple[str, ...] = ()
