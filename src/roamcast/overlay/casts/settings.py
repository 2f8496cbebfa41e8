"""Bounds and times of casts."""

from typing import Final

import msgspec

from roamcast.model.time import MICROSECONDS
from roamcast.overlay.casts.messages import PAIRS_MAX

DAY_US: Final = 86_400 * MICROSECONDS


class CastSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much a node holds of casts, and how patient it is; intervals in microseconds."""

    cache_max: int = 1_000_000
    """Casts that wait here for people (TCC III-E); then those for elsewhere are pushed down."""
    casts_max: int = 2_000_000
    """Casts held here; more of our own users are refused, others' wait in custody."""
    plan_chars: int = 512
    """Characters of a filter that is taken apart at once; a longer one beside the loop."""
    sender_max: int = 10_000
    """Casts that one sender may have waiting at the node where they send."""
    endings_max: int = 1_000_000
    """Casts that are over and remembered."""
    batch_us: int = 50_000
    batch_casts: int = 64
    """A batch of look-ups begins after this time, or with so many casts."""
    batch_max: int = 4_096
    """Questions of one batch: what gathers while one is under way goes together."""
    lookups_max: int = 2
    """Batches under way."""
    events_max: int = 50_000
    """Changes of the map during a look-up; after more, it is repeated."""
    candidates_max: int = 1_000_000
    """Open contexts whose fate is not decided, over all casts; beyond it look-ups decide."""
    pairs_max: int = 200_000
    """Vids found and not yet passed on, in memory; beyond it nothing more is looked up or taken."""
    union_max: int = 20_000
    """Vids of one cast that wait to be united with others (trap 9)."""
    update_max: int = 100_000
    """Vids of one cast that an update can reach: so many stay on disk after delivery."""
    page_pairs: int = PAIRS_MAX
    page_bytes: int = 128 * 1024
    """Vids, and bytes, of one page."""
    deposits_max: int = 16
    posts_max: int = 64
    """Deposits, and parcels, under way."""
    retry_us: int = MICROSECONDS
    retry_us_max: int = 300 * MICROSECONDS
    """Delay before a deposit is repeated, doubled each time; parcels and writes use the first."""
    life_us: int = DAY_US
    """Life of a cast whose sender names no expiry, if its filter names no later moment."""
    late_us: int = DAY_US
    """How long after its expiry a cast may still reach a node that was cut off."""
    lateness_us: int = 90 * MICROSECONDS
    """How long after a moment contexts that began or ended then may still be reported."""
    return_us: int = 65 * MICROSECONDS
    """When, after a restart, it is known who has not come back (0048)."""
    margin_us: int = 60 * MICROSECONDS
    """How long news of a node takes to reach all others: twice the linger of tables."""
    unknown_us: int = 2 * MICROSECONDS
    """How long a new link may take to offer its tables before unknown means yes."""
    patience_us: int = 8 * MICROSECONDS
    hop_us: int = MICROSECONDS
    """How long the origin waits for results, and how much less each hop does."""
    again_us: int = 60 * MICROSECONDS
    again_max: int = 5
    """When neighbours that have not answered are asked again, doubled each time; how often."""
    report_us: int = MICROSECONDS
    reports_max: int = 10_000
    """Interval of reports to the origin; nodes whose reports are held for one cast."""
    scan_casts: int = 100
    scan_us: int = 20_000
    """Casts whose links are looked at in one step after the tables changed, and the pause."""
