"""What users give to flows and get from them, through the driver."""

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.overlay.flows.messages import Events
from roamcast.overlay.flows.vector import Pairs, Position


class PublishEvent(Input, frozen=True):
    """Publish an event; `EventPublished` once it is on disk, or `Failed`."""

    ticket: int
    producer: str
    life: int
    number: int
    context: Context
    data: bytes = b""
    needs: Pairs = ()


class SubscribeEvents(Input, frozen=True):
    """Let a consumer have every event that a filter matches, from a vector on or from now on.

    A consumer that is there already is asked for again: its positions are those of the vector.
    """

    ticket: int
    consumer: str
    wanted: Filter
    vector: Pairs = ()
    buffered: bool = False
    """It is not there: hold its events, within bounds, until it is (a virtual consumer)."""
    modulated: bool = False
    """Its modulators come first: they get what the consumer would."""


class UnsubscribeEvents(Input, frozen=True):
    """A consumer wants nothing any more, or is served elsewhere."""

    consumer: str


class EventPublished(Effect, frozen=True):
    """An event is on disk, at this position of this node's log."""

    ticket: int
    origin: str
    at: Position


class EventsStanding(Effect, frozen=True):
    """All routes to a consumer stand: it gets everything after these positions."""

    consumer: str
    vector: Pairs


class VirtualStanding(Effect, frozen=True):
    """All routes to a consumer stand that is not there yet: everything after these is held."""

    consumer: str
    vector: Pairs


class EventsDelivered(Effect, frozen=True):
    """The consumer's events in (after, upto] of an origin's log; often none."""

    consumer: str
    origin: str
    after: Position
    upto: Position
    events: Events


class EventsLost(Effect, frozen=True):
    """The origin's log no longer had (after, upto]: show the consumer the current set."""

    consumer: str
    origin: str
    after: Position
    upto: Position
    reason: str


class ForModulators(Effect, frozen=True):
    """What flows have for a consumer whose modulators come first."""

    given: EventsStanding | EventsDelivered | EventsLost
