"""The intervals and bounds of a reliable channel."""

import msgspec


class ChannelSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds, bounds in messages and bytes; both ends use the same."""

    sync_interval_us: int = 500_000
    """Quiet time after which the sender sends its position (AMS: the synchronisation interval)."""
    sync_interval_us_max: int = 1_000_000
    """Upper bound of that interval, which doubles while the sender stays quiet: a client on many
    quiet channels pays for each (Holbrook, Singhal and Cheriton, LBRM: variable heartbeat)."""
    round_trip_us: int = 20_000
    """Estimate of the slowest round trip; a message is not healed twice within it."""
    backoff_round_trips: int = 6
    """Interval over which receivers spread their requests, in round trips (RFC 5740: 6)."""
    retry_us_max: int = 2_000_000
    """Upper bound of the interval between repeated requests, which doubles each time."""
    receivers_expected: int = 1_000
    """Audience that a receiver assumes until a synchronisation message gives the sender's count."""
    buffer_messages_max: int = 1_024
    buffer_bytes_max: int = 16 * 1024 * 1024
    """Bounds of the sender's buffer for heals; a receiver further behind gets a snapshot."""
    ahead_messages_max: int = 1_024
    ahead_bytes_max: int = 16 * 1024 * 1024
    """Bounds of what a receiver holds while something before it is missing."""
    gather_us: int = 40_000
    """How long the sender gathers receivers that need a snapshot."""
    snapshot_unicasts_max: int = 8
    """If more receivers than this need a snapshot, it is multicast once."""
    snapshot_multicast_bytes_max: int = 60_000
    """A larger snapshot does not fit a datagram: so many receivers get it, the others ask again."""

    @property
    def backoff_interval_us(self) -> int:
        """The interval of a first request."""
        return self.round_trip_us * self.backoff_round_trips

    def __post_init__(self) -> None:
        assert min(msgspec.structs.astuple(self)) > 0
