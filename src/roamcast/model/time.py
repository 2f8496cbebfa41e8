"""Timestamps: integer microseconds since 1970 UTC inside, RFC 3339 outside (decision 0020)."""

import re
from datetime import UTC, datetime, timedelta

from roamcast.errors import InputError

FOREVER = 2**63 - 1
"""The t_d of an open context, where a number is needed."""

MICROSECONDS = 1_000_000
"""Microseconds in a second."""

EARLIEST = -62_135_596_800 * MICROSECONDS
LATEST = 253_402_300_800 * MICROSECONDS - 1
"""The range of RFC 3339: years 1 to 9999."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE = EPOCH.replace(tzinfo=None)
MICROSECOND = timedelta(microseconds=1)
_STAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6}0*)?"
    r"([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def parse_instant(text: str) -> int:
    """Parse an RFC 3339 timestamp. The zone is mandatory; more than microseconds is an error.

    Rounding a finer timestamp could move it across the bound of a filter.
    """
    found = _STAMP.fullmatch(text)
    if found is None:
        raise InputError(
            f"{_shown(text)} is not an RFC 3339 timestamp such as 2026-11-15T09:00:00Z"
        )
    zone = found[1]
    try:  # Python's own parser knows more forms, and cuts off digits: the pattern admits none of it
        if text[11:13] == "24":  # read from Python 3.14 on
            raise ValueError("hour must be in 0..23")
        moment = datetime.fromisoformat(text[: -len(zone)])
    except ValueError as error:
        raise InputError(f"{_shown(text)} does not exist: {error}") from None
    offset = 0
    if zone not in "Zz":
        offset = (int(zone[1:3]) * 60 + int(zone[4:6])) * 60 * MICROSECONDS
        offset = -offset if zone[0] == "-" else offset
    instant = (moment - _EPOCH_NAIVE) // MICROSECOND - offset
    if not EARLIEST <= instant <= LATEST:
        # A valid local time can fall outside the range once its offset is applied.
        raise InputError(f"{_shown(text)} lies outside the years 1 to 9999 in UTC")
    return instant


def as_instant(text: str) -> int | None:
    """Parse a string attribute that holds a timestamp or a date; None if it holds neither.

    JSON has no timestamps, so data from elsewhere carries them as strings (decision 0004).
    """
    if len(text) < 10 or not text[0].isdigit():  # most strings: skip the parser and its exception
        return None
    try:
        return parse_day(text) if len(text) == 10 else parse_instant(text)
    except InputError:
        return None


def parse_day(text: str) -> int:
    """Parse a date as the first microsecond of that day in UTC."""
    if _DAY.fullmatch(text) is None:
        raise InputError(f"{_shown(text)} is not a date such as 2026-11-15")
    return parse_instant(f"{text}T00:00:00Z")


def format_instant(instant: int) -> str:
    """Format an instant as RFC 3339 in UTC, with microseconds if it has some, as msgspec does."""
    return to_datetime(instant).isoformat().replace("+00:00", "Z")


def from_datetime(moment: datetime) -> int:
    """Convert an aware datetime to microseconds, exactly."""
    if moment.tzinfo is None:
        raise InputError(f"{moment.isoformat()} has no time zone; add one, such as Z")
    return (moment - EPOCH) // MICROSECOND


def to_datetime(instant: int) -> datetime:
    """Convert microseconds to an aware datetime in UTC."""
    return EPOCH + instant * MICROSECOND


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
