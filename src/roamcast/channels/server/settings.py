"""The bounds and intervals of a map service, AMS's thresholds q and m, and its baselines."""

import enum

import msgspec

from roamcast.channels.reliable.settings import ChannelSettings


class Mode(enum.StrEnum):
    """How updates reach clients; the first two are AMS's baselines."""

    UNICAST = "unicast only"
    SINGLE = "one channel for everything"
    MANY = "many channels"


class MapSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds; a client uses its server's settings."""

    mode: Mode = Mode.MANY
    query_channels: bool = True
    query_sets: bool = True
    """Off: only multiply-subscribed queries get channels (AMS, figure 4)."""
    subscribers_min: int = 2
    """AMS's q: subscribers of a query, or recurrences of a set, that earn a channel."""
    history_max: int = 512
    """AMS's m: update query sets in the history of a view class."""
    channels_max: int = 1_024
    """Channels in use or lingering, for each view class."""
    streams_per_query_max: int = 32
    parts_max: int = 16
    """Most queries that a disjunction is taken apart into; one with more parts stays whole."""
    subscriptions_max: int = 64
    """Per client."""
    publications_max: int = 100_000
    """Per client: one client may publish everything that stands in a building."""
    clients_max: int = 1_000_000
    contexts_max: int = 1_000_000
    queries_max: int = 1_000_000

    notes_max: int = 512
    """A new query is noted at so many contexts at once, at the others in slices of as many."""
    page_contexts_max: int = 256
    """A larger current set rides on a carousel or comes in pages; for a client with a limit it is
    cut."""
    page_bytes_max: int = 40_000
    carousel_bytes_per_s: int = 1_000_000

    local_scope: str = ""
    """The site that local groups reach; "" for everywhere."""
    wide_groups_max: int = 4
    """Wide-area groups for clients beyond that site, for each view class; 0: unicast for all."""
    wide_subscribers_min: int = 3
    """Remote subscribers of a query that earn it a wide-area group."""
    relay_clients_max: int = 1_000
    """Clients of a relay; it has so many times a client's subscriptions and queue."""

    outbox_items_max: int = 4_096
    batch_bytes_max: int = 16_000
    repeat_us: int = 100_000
    repeat_us_max: int = 2_000_000
    heartbeat_us: int = 1_000_000
    client_timeout_us: int = 5_000_000
    """Silence after which a client is collected, with its contexts and subscriptions."""
    server_here_us: int = 1_000_000
    restart_spread_us: int = 500_000
    linger_us: int = 5_000_000
    """Time for which a channel that was given back still answers heals."""
    flush_us: int = 50_000
    """Interval at which what a band lacks is tried again."""
    limit_bytes_min: int = 1_024
    """The lowest bandwidth limit of a client, in bytes a second; lower ones are refused."""
    well_known_reserve_bytes: int = 96
    """Reserve of each limit for what goes to everybody: one `ServerHere` in any second."""
    tombstones_max: int = 4_096
    tombstone_us: int = 30_000_000
    removed_max: int = 100_000
    removed_us: int = 60_000_000
    """Time for which a removal is remembered (0026); it must exceed `client_timeout_us`, for which
    a server may hold a context that was removed elsewhere."""
    server_timeout_us: int = 5_000_000
    """Silence after which clients count their server as lost, and warn an older one they hear."""
    stamp_ahead_us_max: int = 60_000_000
    """How far a stamp may lie in the future; beyond it the client's clock is wrong."""
    handover_us: int = 5_000_000
    """Time after which a server that steps down gives up if no page of its map is taken."""
    channel: ChannelSettings = ChannelSettings(
        buffer_messages_max=512, buffer_bytes_max=2 * 1024 * 1024
    )

    standing_steps_max: int = 250_000
    """Steps that the subscriptions of one subject may cost every update (0095)."""

    @property
    def subscribers_keep(self) -> int:
        """Subscribers below which a channel is given back: half of q, so that it does not flap."""
        return (self.subscribers_min + 1) // 2
