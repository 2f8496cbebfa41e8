"""Morton codes: points on a curve along which near points mostly lie close together."""

from typing import Final

BITS: Final = 31
"""Bits of each coordinate."""

_SPREADS: Final = (
    (16, 0x0000FFFF0000FFFF),
    (8, 0x00FF00FF00FF00FF),
    (4, 0x0F0F0F0F0F0F0F0F),
    (2, 0x3333333333333333),
    (1, 0x5555555555555555),
)


def morton(longitude: float, latitude: float) -> int:
    """Return a point's Morton code: points close together mostly have close codes."""
    return _spread(cell(longitude, 360.0)) | _spread(cell(latitude, 180.0)) << 1


def cell(degrees: float, span: float) -> int:
    """Return the column or row of a coordinate; monotone, so no point leaves its box."""
    cell = int((degrees + span / 2) / span * (1 << BITS))
    return min(max(cell, 0), (1 << BITS) - 1)


def _spread(bits: int) -> int:
    """Put a zero before every bit."""
    for shift, mask in _SPREADS:
        bits = (bits | bits << shift) & mask
    return bits
