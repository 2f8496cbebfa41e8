"""The ends of flows at people: what a consumer has had and a producer published, wherever it was.

The SDK holds a `ConsumerCursor` for each subscription and gives its vector to the next home. With
two homes at once, or deliveries that overlap, each event comes out once and in its producer's order
(trap 15). A `ProducerCursor` says what each event of its producer needs.
"""

from collections.abc import Iterable
from types import MappingProxyType
from typing import TypeVar

import msgspec

from roamcast.overlay.flows.events import EventsDelivered, EventsLost, EventsStanding
from roamcast.overlay.flows.messages import NEEDS_MAX, Event
from roamcast.overlay.flows.reader import NumberedEvent, Numbers
from roamcast.overlay.flows.vector import Pairs, Position, Vector, merge, pairs

EventForm = TypeVar("EventForm", bound=NumberedEvent)


class TakenEvents(msgspec.Struct, frozen=True):
    """What a delivery brings: new events; or that something before it is missing."""

    events: tuple[Event, ...] = ()
    missing: bool = False
    """Subscribe again with the vector: a delivery before this one was lost."""


class ConsumerCursor:
    """The vector of one subscription, and the numbers of its producers."""

    def __init__(self) -> None:
        self.vector: dict[str, Position] = {}
        self.late = 0
        """Events that came after a later one of their producer: their origin was out of reach."""
        self._numbers = Numbers()
        self._late: dict[str, Position] = {}
        """Origins that were waited for in vain → up to where their events may still come."""

    @property
    def pairs(self) -> Pairs:
        """The vector as it travels."""
        return pairs(self.vector)

    def standing(self, given: EventsStanding) -> bool:
        """Begin with origins that were not known before; known ones stay where they are.

        Return whether the home begins too late: another one said where to begin before it did.
        Then it is asked again with the vector.
        """
        late = False
        for origin, position in given.vector:
            late |= position > self.vector.setdefault(origin, position)
        return late

    def lost(self, given: EventsLost) -> bool:
        """Move over what is lost; return whether it was lost to this consumer."""
        known = self.vector.get(given.origin)
        back = given.upto < given.after == known  # it lay beyond the end of the log
        if known is not None and not back and not given.after <= known < given.upto:
            return False
        self.vector[given.origin] = given.upto
        return True

    def take(self, given: EventsDelivered) -> TakenEvents:
        """Take a delivery: give its events that are new."""
        events = ((number, event.needs, event) for number, event in given.events)
        fresh = self.fresh(given.origin, given.after, given.upto, events)
        return TakenEvents(missing=True) if fresh is None else TakenEvents(tuple(fresh))

    def fresh(
        self,
        origin: str,
        after: Position,
        upto: Position,
        events: Iterable[tuple[int, Pairs, EventForm]],
    ) -> list[EventForm] | None:
        """Take the events in (after, upto], each with what it needs, in any form: give the new.

        None if something before them is missing.
        """
        cursor = self.vector.setdefault(origin, after)
        if after > cursor:
            return None
        if upto <= cursor:
            return []
        self.vector[origin] = upto
        # Numbers of another epoch than the cursor's are all behind it.
        had = cursor.number if cursor.epoch == upto.epoch else -1
        late = self._late.get(origin, Position(0, 0))
        found: list[EventForm] = []
        for number, needs, event in events:
            if number <= had:
                continue
            if needs:
                self._note_missing(needs)
            if self._numbers.is_new(event):
                found.append(event)
            elif Position(upto.epoch, number) <= late and self._numbers.is_new(event, late=True):
                self.late += 1
                found.append(event)
        if late <= upto:
            self._late.pop(origin, None)
        return found

    def _note_missing(self, needs: Pairs) -> None:
        """What comes before what it needs was held for in vain: that may still come."""
        for origin, at in needs:
            known = self.vector.get(origin)
            if known is not None and known < at:
                self._late[origin] = max(at, self._late.get(origin, at))


class ProducerCursor:
    """Where one producer has published, and the number of its next event."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.number = 0
        self._published: dict[str, Position] = {}

    def following(self) -> int:
        """Give the number of the next event."""
        self.number += 1
        return self.number

    def published(self, origin: str, at: Position) -> None:
        """Note where an event is, as its acknowledgement says."""
        self._published.pop(origin, None)
        self._published[origin] = at
        if len(self._published) > NEEDS_MAX:
            del self._published[next(iter(self._published))]

    def needs(self, seen: Vector = MappingProxyType({})) -> Pairs:
        """Say what must be delivered before the next event: all of its own, and what it has seen.

        All of its own, not the last only: a consumer may begin to read between the two, and would
        take the older ones for repetitions.
        """
        return pairs(merge(self._published, seen))
