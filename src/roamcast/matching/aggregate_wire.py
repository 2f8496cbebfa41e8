"""Summaries as bytes: MessagePack arrays, names once, an interval of one value as that value.

What a neighbour sent is checked as it is read, so that no comparison of bounds can fail later.
"""

from collections.abc import Sequence
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta

from roamcast.errors import InputError
from roamcast.matching.aggregate_parts import SummaryPart
from roamcast.model import kinds
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import Box
from roamcast.model.filters.values import Interval, Intervals, Kind

PARTS_MAX: Final = 128
PROPERTIES_MAX: Final = 256
"""Properties with a comparison each; a summary with more forgets the last by name."""

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_TYPES: Final[dict[Kind, tuple[type, ...]]] = {
    "number": (int, float),
    "string": (str,),
    "boolean": (int,),
    "instant": (int,),
}
_OPEN_LOW, _OPEN_HIGH = 1, 2

_Scalar = int | float | str
_Written = _Scalar | tuple[_Scalar | None, _Scalar | None, int]
_Bound = tuple[int, tuple[_Written, ...]]


class _Part(msgspec.Struct, frozen=True, array_like=True):
    partial: bool
    every: tuple[int, ...]
    box: tuple[float, float, float, float] | None
    bounds: tuple[_Bound, ...]


class Wire(msgspec.Struct, frozen=True, array_like=True):
    """A summary as it is sent; numbers stand for names and properties."""

    count: Annotated[int, Meta(ge=0)]
    watermark: int | None
    names: Annotated[tuple[str, ...], Meta(max_length=2 * PROPERTIES_MAX)]
    properties: Annotated[tuple[tuple[int, int], ...], Meta(max_length=PROPERTIES_MAX)]
    parts: Annotated[tuple[_Part, ...], Meta(max_length=PARTS_MAX)]


_decoder = msgspec.msgpack.Decoder(Wire)
_encode = msgspec.msgpack.Encoder().encode


def pack(count: int, watermark: int | None, parts: Sequence[SummaryPart]) -> bytes:
    """Write a summary."""
    properties = sorted({key for part in parts for key in part.values})
    named = {name for name, _ in properties} | {name for part in parts for name in part.every}
    names = sorted(named)
    number = {name: at for at, name in enumerate(names)}
    place = {key: at for at, key in enumerate(properties)}
    return _encode(
        Wire(
            count,
            watermark,
            tuple(names),
            tuple((number[name], _KINDS.index(kind)) for name, kind in properties),
            tuple(_written(part, number, place) for part in parts),
        )
    )


def _written(
    part: SummaryPart, number: dict[str, int], place: dict[tuple[str, Kind], int]
) -> _Part:
    box = part.box
    return _Part(
        part.partial,
        tuple(sorted(number[name] for name in part.every)),
        None if box is None else (box.west, box.south, box.east, box.north),
        tuple(
            (place[key], tuple(_short(interval) for interval in part.values[key]))
            for key in sorted(part.values)
        ),
    )


def _short(interval: Interval) -> _Written:
    low, high = interval.low, interval.high
    closed = interval.low_closed and interval.high_closed
    if low is not None and low == high and closed:
        return low
    flags = (not interval.low_closed) * _OPEN_LOW + (not interval.high_closed) * _OPEN_HIGH
    return (low, high, flags)


def unpack(data: bytes) -> tuple[int, int | None, tuple[SummaryPart, ...]]:
    """Read a summary: its count, its watermark and its parts; InputError if it is malformed."""
    try:
        wire = _decoder.decode(data)
        keys = [(wire.names[name], _KINDS[kind]) for name, kind in wire.properties]
        parts = tuple(_part(part, wire.names, keys) for part in wire.parts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"a summary is malformed: {error}") from None
    except IndexError:
        raise InputError("a summary names a property that it does not list") from None
    return wire.count, wire.watermark, parts


def _part(part: _Part, names: Sequence[str], keys: Sequence[tuple[str, Kind]]) -> SummaryPart:
    values: dict[tuple[str, Kind], Intervals] = {}
    for at, written in part.bounds:
        kind = keys[at][1]
        values[keys[at]] = sets.normalise([_interval(one, kind) for one in written], kind)
    box = None
    if part.box is not None:
        if not all(map(kinds.is_finite, part.box)):
            raise InputError("a box of a summary has a bound that is no number")
        box = Box(*part.box)
    return SummaryPart(values, frozenset(names[at] for at in part.every), box, part.partial)


def _interval(written: _Written, kind: Kind) -> Interval:
    if isinstance(written, tuple):
        low, high, flags = written
    else:
        low = high = written
        flags = 0
    for end in (low, high):
        if end is None:
            continue
        if type(end) not in _TYPES[kind] or (isinstance(end, float) and not kinds.is_finite(end)):
            raise InputError(f"a summary bounds a {kind} by {end!r}"[:200])
    return Interval(low, high, not flags & _OPEN_LOW, not flags & _OPEN_HIGH)
