"""What is on disk of casts: how it is written, and how it is read again."""

from collections.abc import Mapping
from typing import Final

import msgspec

from roamcast.model.machine import Writes
from roamcast.overlay.casts.desk import HeldCasts
from roamcast.overlay.casts.held import (
    BODY,
    END,
    PAGE,
    PAYLOADS,
    REPORTED,
    SENT,
    SETTLED,
    HeldCast,
    StoredCast,
    StoredEnd,
    StoredPage,
    name_of,
)
from roamcast.overlay.casts.messages import CastReport

_decode: Final = msgspec.msgpack.decode


def written(held: HeldCast, payload: bytes) -> Writes:
    """Give what is written of a new cast: its payload apart, for it is not kept in memory."""
    name = name_of(held.id)
    return (BODY + name, msgspec.msgpack.encode(held.stored())), (PAYLOADS + name, payload)


def read_stored(
    stored: Mapping[str, bytes], desk: HeldCasts
) -> tuple[list[HeldCast], list[StoredEnd]]:
    """Read casts that are not held yet, with all that belongs to them, and those that are over."""
    fresh: dict[str, HeldCast] = {}
    ended: list[StoredEnd] = []
    known = {name_of(cast): held for cast, held in desk.casts.items()}
    for key in sorted(stored):  # bodies come before their ends
        if key.startswith(BODY):
            held = HeldCast(_decode(stored[key], type=StoredCast))
            if held.id not in desk.casts:
                fresh[name_of(held.id)] = held
        elif key.startswith(END):
            end = _decode(stored[key], type=StoredEnd)
            found = fresh.get(name_of(end.cast)) or known.get(name_of(end.cast))
            if found is None:
                ended.append(end)
            elif end.status:
                found.end = end
    for key in sorted(stored):
        found = fresh.get(key.split("/")[2])
        if found is not None:
            _take_up(found, key, stored[key], desk)
    return list(fresh.values()), ended


def _take_up(held: HeldCast, key: str, value: bytes, desk: HeldCasts) -> None:
    if key.startswith(SENT):
        held.sent_to[value.decode()] = None
    elif key.startswith(SETTLED):
        held.settled = True
    elif key.startswith(REPORTED):
        report = _decode(value, type=CastReport)
        held.reports[report.node] = report
    elif key.startswith(PAGE):
        desk.delivery.take_up(held, _decode(value, type=StoredPage))
