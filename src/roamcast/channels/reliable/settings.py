"""How patient and how large is a reliable channel? Its intervals and bounds."""

import msgspec


class ChannelSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds, bounds in messages and bytes; both ends use the same."""

    sync_interval_us: int = 500_000
    """Quiet for so long, the sender says where it stands (AMS: the synchronisation interval)."""
    sync_interval_us_max: int = 1_000_000
    """While it stays quiet it says so ever more slowly, up to this (Holbrook, Singhal and Cheriton,
    LBRM: variable heartbeat); a client on many quiet channels pays for each of them."""
    round_trip_us: int = 20_000
    """A guess of the slowest round trip; a healed message is not healed again within it."""
    backoff_round_trips: int = 6
    """The interval over which receivers spread their requests, in round trips (RFC 5740: 6)."""
    retry_us_max: int = 2_000_000
    """Requests that stay unanswered are repeated ever more slowly, up to this."""
    receivers_expected: int = 1_000
    """Audience a receiver assumes until a synchronisation message tells it better."""
    buffer_messages_max: int = 1_024
    buffer_bytes_max: int = 16 * 1024 * 1024
    """What the sender keeps for heals; who is further behind gets a snapshot."""
    ahead_messages_max: int = 1_024
    ahead_bytes_max: int = 16 * 1024 * 1024
    """What a receiver keeps while something before it is missing."""
    gather_us: int = 40_000
    """How long the sender gathers receivers that need a snapshot."""
    snapshot_unicasts_max: int = 8
    """More of them than this, and the snapshot is multicast once."""
    snapshot_multicast_bytes_max: int = 60_000
    """Unless it is larger than a datagram: then these many are answered, the rest ask again."""

    @property
    def backoff_interval_us(self) -> int:
        """The interval of a first request."""
        return self.round_trip_us * self.backoff_round_trips

    def __post_init__(self) -> None:
        assert min(msgspec.structs.astuple(self)) > 0
