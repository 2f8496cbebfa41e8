"""A parcel in custody: its bytes, and for each node it is for how far it has come."""

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from roamcast.model.machine import Writes, step
from roamcast.overlay.events import ParcelId

PREFIX: Final = "overlay/parcel/"
HELD: Final = PREFIX + "held/"
BODY: Final = PREFIX + "body/"
SEEN: Final = PREFIX + "seen/"


class ParcelState(enum.StrEnum):
    """How far a parcel has come towards one node."""

    NEW = "new"
    WRITTEN = "written"
    SENT = "sent"
    TAKEN = "taken"


class ParcelEvent(enum.StrEnum):
    """What moves it."""

    STORED = "it is on disk"
    LEFT = "it was sent to the next node, or given to the part it is for"
    RETURNED = "the next node did not take it, or the link is over"
    ANSWERED = "the next node has it on disk, or the part has"


_S, _E = ParcelState, ParcelEvent
PARCEL_TABLE: Final = {
    (_S.NEW, _E.STORED): _S.WRITTEN,
    (_S.WRITTEN, _E.LEFT): _S.SENT,
    (_S.SENT, _E.RETURNED): _S.WRITTEN,
    (_S.SENT, _E.ANSWERED): _S.TAKEN,
}


class StoredBody(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What does not change of a parcel, on disk."""

    kind: str
    body: bytes


class StoredTargets(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For whom a parcel is still held, on disk; its age at the time of the write."""

    parcel: ParcelId
    targets: tuple[str, ...]
    age_us: int
    written_us: int


class Held:
    """One parcel in custody."""

    def __init__(self, parcel: ParcelId, kind: str, body: bytes, age_us: int, now: int) -> None:
        self.parcel = parcel
        self.kind = kind
        self.body = body
        self.states: dict[str, ParcelState] = {}
        self.body_stored = False
        """Whether its bytes are on disk for certain, so that later writes may leave them out."""
        self.not_before = 0
        """When it may be sent again to who was busy."""
        self.refusals = 0
        self._age_us = age_us
        self._since = now

    def age(self, now: int) -> int:
        """How long it has been held in all, here and before."""
        return self._age_us + max(0, now - self._since)

    def sent(self, targets: Iterable[str]) -> list[str]:
        """Give those nodes that it was sent on to; some may have been given up since."""
        return [one for one in targets if self.states.get(one) is ParcelState.SENT]

    def move(self, targets: Iterable[str], event: ParcelEvent) -> None:
        """Let some of its nodes take a step; what is taken is no longer held."""
        for target in targets:
            state = step(PARCEL_TABLE, self.states[target], event)
            if state is ParcelState.TAKEN:
                del self.states[target]
            else:
                self.states[target] = state

    def writes(self, now: int, *, without: str = "", body: bool = False) -> Writes:
        """Give what to write of it: for whom it is held, and once also its bytes."""
        name = name_of(self.parcel)
        targets = tuple(target for target in self.states if target != without)
        if not targets:
            return ((HELD + name, None), (BODY + name, None))
        stored = StoredTargets(self.parcel, targets, self.age(now), now)
        held = (HELD + name, msgspec.msgpack.encode(stored))
        if not body:
            return (held,)
        return held, (BODY + name, msgspec.msgpack.encode(StoredBody(self.kind, self.body)))


def name_of(parcel: ParcelId) -> str:
    """Give the end of a parcel's keys in the store."""
    return f"{parcel.origin}/{parcel.epoch:019}/{parcel.number:012}"
