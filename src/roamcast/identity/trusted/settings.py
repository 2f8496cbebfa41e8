"""Bounds and times of a trusted node."""

from typing import Final

import msgspec

from roamcast.model.casts import LIFETIME_MAX, PAYLOAD_BYTES_MAX
from roamcast.model.time import MICROSECONDS

DAY_US: Final = 86_400 * MICROSECONDS

SEALED_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 8_192
"""A letter with the envelope around it: `letters.py` and `sealing.py` add less than this."""

PARCELS_MAX: Final = 256
"""Vids of one deposit; a cast with more comes in pages."""

NAME_LENGTH_MAX: Final = 128
"""Characters of a subject, a sender or a kind."""


class TrustSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much a trusted node holds for everybody and for one person, and for how long."""

    people_max: int = 1_000_000
    pool_size: int = 32
    """All pools have this size: a pool's size tells nobody whose it is."""
    pools_max: int = 64
    """Pools that one person draws in `pools_us`."""
    pools_us: int = DAY_US
    credential_us: int = DAY_US
    """Grid of the expiry of credentials, the same for everybody (decision 0111)."""
    mails_max: int = 1_000
    mail_bytes_max: int = 16 << 20
    mail_us: int = 60 * DAY_US
    """Age at which mail that nobody fetched is deleted."""
    all_bytes_max: int = 512 << 20
    """Mail of all mailboxes together; it is held in memory."""
    seen_max: int = 10_000
    """Casts that one mailbox remembers, so that no later copy is delivered."""
    cast_us_max: int = LIFETIME_MAX
    grace_us: int = DAY_US
    """How much longer a cast is remembered than it may arrive: clocks are set back now and then."""
    window: int = 32
    """Mails pushed to a person and not yet acknowledged."""
    deposits_max: int = 1_024
    """Deposits that wait for the disk."""
    retry_us: int = MICROSECONDS
    """Delay before deleting what a disk refused to delete."""
    devices_max: int = 8
    """Devices of one person that are woken by a push."""
    wake_delay_us: int = 30 * MICROSECONDS
    """A push leaves a random part of this after the mail came (decision 0186)."""
    wake_again_us: int = 3_600 * MICROSECONDS
    """Pause before who was woken and has not come is woken again."""
    push_retry_us: int = 60 * MICROSECONDS
    """Pause after the first push that failed; it doubles with each."""
    pushes_max: int = 1_000
    """Pushes on their way."""
    failures_max: int = 8
    """Pushes to a device that fail in a row before it is forgotten."""
    departed_us: int = 90 * DAY_US
    """How long the handle of an erased person is kept, so that archives erase what is theirs."""
    round_to: int = 5
    """Counts that brokers are told are rounded down to a multiple of this."""
