"""Settings of flows; intervals in microseconds."""

import msgspec


class FlowSettings(msgspec.Struct, frozen=True):
    """How long logs are, how patient homes, and the bounds of everything held."""

    log_age_us: int = 600_000_000
    log_bytes_max: int = 256 * 1024 * 1024
    unwritten_max: int = 1_024
    """Events that wait for the disk; beyond, publishers are refused."""
    gather_us: int = 10_000
    """The least between two writes of the log while publishers wait for the disk (0430)."""
    consumers_max: int = 100_000
    reader_bytes_max: int = 4 * 1024 * 1024
    """Events that one reader holds until what lies before them is there."""
    queue_bytes_max: int = 4 * 1024 * 1024
    """Flows that wait for one link; beyond, they are dropped, and fetched by who missed them."""
    empty_us: int = 200_000
    """How long it takes until a neighbour, or a consumer, is told that there was nothing for it."""
    patience_us: int = 20_000
    """Delay before what is missing is fetched: it may be on its way."""
    doubt_us: int = 50_000
    """The same while wants are not known to stand: so long a reader may hear nothing then."""
    fetch_us: int = 1_000_000
    """Delay before a fetch that was not answered is repeated."""
    wave_us: int = 2_000_000
    """Delay before a wave that was not answered is begun again."""
    hold_us: int = 60_000_000
    """How long an event waits for what it needs; then nobody waits for that origin until it speaks,
    and what comes of it later is told as late."""
    buffer_bytes_max: int = 1024 * 1024
    buffer_age_us: int = 120_000_000
    """What is held for one consumer that is not there; beyond, its start moves."""
