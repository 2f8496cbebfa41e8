"""Keys: the ends of predicates' intervals as 64-bit integers of the same order."""

import struct
from typing import Any

from roamcast.matching.layout import HIGHEST, LOWEST
from roamcast.model.filters.values import Interval

EXACT_BELOW = 2.0**53
"""From here on float64 cannot represent all integers: the reference confirms such bounds (0004)."""

NUMBER_BITS = struct.Struct("<d")
INTEGER_BITS = struct.Struct("<q")


def number_key(value: float) -> int:
    """Map a float64 to an int64 of the same order; as `checking.number_key`, without Numba."""
    bits: int = INTEGER_BITS.unpack(NUMBER_BITS.pack(value + 0.0))[0]
    return bits if bits >= 0 else bits ^ HIGHEST


def number_ends(interval: Interval) -> tuple[int, int, bool]:
    """Return an interval of numbers as keys, and whether they are exact.

    Rounding to float64 preserves order, so closed ends are never too narrow. An open end moves by
    one key, which is exact below 2⁵³; above that, the reference confirms.
    """
    low, high, exact = LOWEST, HIGHEST, True
    if interval.low is not None:
        value = _rounded(interval.low)
        low = number_key(value)
        if abs(value) >= EXACT_BELOW:
            exact = False
        elif not interval.low_closed:
            low += 1
    if interval.high is not None:
        value = _rounded(interval.high)
        high = number_key(value)
        if abs(value) >= EXACT_BELOW:
            exact = False
        elif not interval.high_closed:
            high -= 1
    return low, high, exact


def _rounded(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def whole_ends(interval: Interval) -> tuple[int, int]:
    """Return an interval of integers as closed keys; attributes have 64 bits."""
    low = LOWEST if interval.low is None else int(interval.low) + (not interval.low_closed)
    high = HIGHEST if interval.high is None else int(interval.high) - (not interval.high_closed)
    if low > HIGHEST or high < LOWEST:
        return HIGHEST, LOWEST
    return max(low, LOWEST), min(high, HIGHEST)


def is_point(interval: Interval) -> bool:
    """Whether an interval is one value."""
    return interval.low is not None and interval.low == interval.high
