"""Settings of casts: when a second person must consent, and how long the audit log is kept."""

from typing import Annotated

from roamcast.live.config.sections import Section, number


class CastSection(Section, frozen=True, kw_only=True):
    """Casts of this service's users (docs/casts.md)."""

    consent_above: Annotated[
        int,
        number(
            0,
            10**9,
            "casts to about this many pseudonyms or more, or to a number that is not known, need a "
            "second person's consent; 0: none does",
        ),
    ] = 0
    consent_s: Annotated[
        float, number(1, 7 * 86_400, "how long a cast waits for a second person's consent")
    ] = 3_600.0
    audit_days: Annotated[
        int, number(0, 36_600, "how long the audit log is kept; 0: none is written")
    ] = 90
