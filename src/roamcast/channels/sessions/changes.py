"""What updates mean for a watch, and the one event that says what two of them did."""

import enum
from typing import Final, TypeVar

import msgspec

from roamcast.channels.server.messages import State
from roamcast.model.contexts import Context

K = TypeVar("K")


class EventKind(enum.StrEnum):
    """What an update means for a watch."""

    APPEARED = "appeared"
    CHANGED = "changed"
    LEFT = "left"


_MERGED: Final[dict[tuple[EventKind, EventKind], EventKind | None]] = {
    (EventKind.APPEARED, EventKind.CHANGED): EventKind.APPEARED,
    (EventKind.APPEARED, EventKind.LEFT): None,  # it came and went unseen
    (EventKind.CHANGED, EventKind.CHANGED): EventKind.CHANGED,
    (EventKind.CHANGED, EventKind.LEFT): EventKind.LEFT,
    (EventKind.LEFT, EventKind.APPEARED): EventKind.CHANGED,
}


class ContextEvent(msgspec.Struct, frozen=True, gc=False):
    """What happened to an object, and its state afterwards."""

    kind: EventKind
    state: State
    at_us: int
    context: Context | None = None
    """The state decoded, where it is at hand."""


def merged(earlier: ContextEvent | None, later: ContextEvent) -> ContextEvent | None:
    """Give the one event that says what two said; None: together they say nothing."""
    if earlier is None:
        return later
    kind = _MERGED.get((earlier.kind, later.kind), later.kind)
    return None if kind is None else ContextEvent(kind, later.state, later.at_us, later.context)


def merge(events: dict[K, ContextEvent], entry: K, later: ContextEvent) -> None:
    """Put an event to those that wait, so that one is left for each entry at the most."""
    both = merged(events.get(entry), later)
    if both is None:
        del events[entry]
    else:
        events[entry] = both
