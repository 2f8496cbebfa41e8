"""What nodes say of events over links, and the event itself."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.caching import remembering
from roamcast.model.contexts import Context, context_of
from roamcast.model.wire import Count, Message, Name, messages_of
from roamcast.overlay.flows.vector import Pairs, Position
from roamcast.overlay.links.chunks import CHUNK_BYTES
from roamcast.overlay.links.messages import NodeName

DATA_BYTES_MAX: Final = 1024 * 1024
"""Opaque bytes of one event."""

BODY_BYTES_MAX: Final = 512 * 1024
"""Bytes of an event's packed context."""

REMEMBERED_BYTES: Final = 8 << 20
"""Bytes of contexts that are not unpacked again: an event is matched at every node of its way."""

NEEDS_MAX: Final = 64
"""Origins of which an event needs something."""

BATCH_BYTES: Final = 256 * 1024
"""Events of one flow or page, unless a single one is larger."""

CONTENT_BYTES_MAX: Final = 2 * DATA_BYTES_MAX
"""A batch, or the largest event with its context."""

REACH_MAX: Final = 500
"""Origins of one message about how far logs reach."""

FILTERS_MAX: Final = 32
FILTERS_BYTES_MAX: Final = 32_000
"""Filters of one fetch, and their texts; beyond, everything is fetched."""

EPOCH_OF: Final = "epoch of the origin's log"


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One event: who published it, what filters match, and opaque bytes."""

    producer: Name
    life: Count
    """Which life of the producer: its numbers begin anew with each, and lives only rise."""
    number: Count
    body: Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)]
    """The context that filters match, packed."""
    data: Annotated[bytes, Meta(max_length=DATA_BYTES_MAX)] = b""
    needs: Annotated[Pairs, Meta(max_length=NEEDS_MAX)] = ()
    """What must be delivered before: the producer's last event elsewhere, or all it had seen."""

    @property
    def context(self) -> Context:
        """What filters match; InputError if it cannot be read."""
        return _context(self.body)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return 100 + len(self.body) + len(self.data) + 40 * len(self.needs)


@remembering(REMEMBERED_BYTES, each=8)
def _context(body: bytes) -> Context:
    return context_of(body)


Events = tuple[tuple[Count, Event], ...]
"""Numbers of the origin's log, ascending, and the events there."""


class Flow(msgspec.Struct, frozen=True, array_like=True, tag="flow"):
    """Everything that you want of an origin's log in (after, upto]."""

    origin: NodeName
    epoch: Count
    after: Count
    upto: Count
    events: Events = ()


class FlowPage(msgspec.Struct, frozen=True, array_like=True, tag="page"):
    """The answer to a fetch: everything that its filters match in (after, upto].

    `after` is higher than was asked if the log no longer reaches back so far.
    """

    to: NodeName
    reader: Count
    asked: Position
    flow: Flow


class FlowChunk(Message, frozen=True, tag="flows.chunk", gc=False):
    """Node to neighbour: the next bytes of a flow or a page; no other's come in between."""

    number: Annotated[Count, Meta(description="of the chunk, from 0")]
    chunk: Annotated[bytes, Meta(max_length=CHUNK_BYTES)]
    last: bool


class FlowHello(Message, frozen=True, tag="flows.hello", gc=False):
    """Node to neighbour when the tree begins to run over the link: how far each log reaches."""

    reach: Annotated[Pairs, Meta(max_length=REACH_MAX)]
    ask: Annotated[bool, Meta(description="say the same of yours")]


class FlowEmpty(Message, frozen=True, tag="flows.empty", gc=False):
    """Node to neighbour: of these logs there is nothing more that you want in (after, upto]."""

    intervals: Annotated[tuple[Flow, ...], Meta(max_length=REACH_MAX)]


class FlowFetch(Message, frozen=True, tag="flows.fetch", gc=False):
    """Home to origin, along the tree: events of the log in (after, upto] that a filter matches."""

    to: Annotated[NodeName, Meta(description="the origin")]
    asker: NodeName
    reader: Count
    after: Position
    upto: Count
    filters: Annotated[tuple[str, ...], Meta(max_length=FILTERS_MAX, description="none: all")]


class FlowMark(Message, frozen=True, tag="flows.mark", gc=False):
    """Home to everybody, hop by hop: each passes it on once its own wants stand at the next."""

    home: NodeName
    wave: Position


class FlowStood(Message, frozen=True, tag="flows.stood", gc=False):
    """The answer to a mark: from these positions on, all that the home wants comes to it."""

    home: NodeName
    wave: Position
    start: Pairs


class FlowReset(Message, frozen=True, tag="flows.reset", gc=False):
    """Node to everybody: a link of the tree began, so earlier marks may not hold any more."""

    node: NodeName
    at: Position


FLOWS_MESSAGES: Final = messages_of(__name__)
