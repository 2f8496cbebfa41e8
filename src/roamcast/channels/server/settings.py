"""How large and how patient is a map service? Its bounds, its thresholds q and m, its baselines."""

import enum

import msgspec

from roamcast.channels.reliable.settings import ChannelSettings


class Mode(enum.StrEnum):
    """How updates reach clients; the first two are AMS's baselines."""

    UNICAST = "unicast only"
    SINGLE = "one channel for everything"
    MANY = "many channels"


class MapSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds; a client uses the same as its server."""

    mode: Mode = Mode.MANY
    query_channels: bool = True
    query_sets: bool = True
    """Off: only multiply-subscribed queries get channels (AMS, figure 4)."""
    subscribers_min: int = 2
    """AMS's q: so many subscribers of a query, or recurrences of a set, earn a channel."""
    history_max: int = 512
    """AMS's m: how many update query sets are remembered."""
    channels_max: int = 1_024
    """Channels in use or lingering, for each view class."""
    streams_per_query_max: int = 32
    parts_max: int = 16
    """A disjunction is taken apart into so many queries at most, else it stays whole."""
    subscriptions_max: int = 64
    """Per client."""
    publications_max: int = 100_000
    """Per client: a building's fixed objects may come from one."""
    clients_max: int = 1_000_000
    contexts_max: int = 1_000_000
    queries_max: int = 1_000_000

    page_contexts_max: int = 256
    """A larger current set is carried round on a channel or listed in pages, and cut for a client
    with a limit."""
    page_bytes_max: int = 40_000
    carousel_bytes_per_s: int = 1_000_000
    carousel_rest_us: int = 5_000_000
    """After the last page the carousel waits so long for heals, then its channel is given back."""

    local_scope: str = ""
    """The site that local groups reach, and nothing beyond it; "" for everywhere."""
    wide_groups_max: int = 4
    """Wide-area groups for clients beyond it, for each view class; 0: each is told alone."""
    wide_subscribers_min: int = 3
    """So many of them ask the same before their query rides on a wide-area group."""
    relay_clients_max: int = 1_000
    """A relay stands for so many clients: it has their subscriptions and their queues."""

    outbox_items_max: int = 4_096
    batch_bytes_max: int = 16_000
    repeat_us: int = 100_000
    repeat_us_max: int = 2_000_000
    heartbeat_us: int = 1_000_000
    client_timeout_us: int = 5_000_000
    """Unheard for so long, a client is gone: its objects and subscriptions go with it."""
    server_here_us: int = 1_000_000
    restart_spread_us: int = 500_000
    linger_us: int = 5_000_000
    """A channel given back still answers heals for so long."""
    flush_us: int = 50_000
    """How often what a band lacks is tried again."""
    limit_bytes_min: int = 1_024
    """A client's limit; lower ones are refused."""
    well_known_reserve_bytes: int = 96
    """Of each limit, for what goes to everybody: one `ServerHere` in any second."""
    tombstones_max: int = 4_096
    tombstone_us: int = 30_000_000
    removed_max: int = 100_000
    removed_us: int = 60_000_000
    """So long a cancelled object cannot come back; longer than a server keeps a silent client."""
    server_timeout_us: int = 5_000_000
    """Unheard for so long, a server is lost: its clients tell an older one of its epoch."""
    stamp_ahead_us_max: int = 60_000_000
    """What a client says is so since later than this from now is refused: its clock is wrong."""
    handover_us: int = 5_000_000
    """A server that steps down gives up if no page of its map is taken for so long."""
    channel: ChannelSettings = ChannelSettings(
        buffer_messages_max=512, buffer_bytes_max=2 * 1024 * 1024
    )

    @property
    def subscribers_keep(self) -> int:
        """A channel is given back when fewer than this are left: hysteresis of half of q."""
        return (self.subscribers_min + 1) // 2
