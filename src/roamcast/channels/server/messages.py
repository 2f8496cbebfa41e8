"""The messages between a map server and its clients (AMS, active map service).

A client numbers its operations and repeats them until they are answered. The server numbers its
batches and repeats them until they are receipted. Everything for many clients at once rides on
reliable channels as the same `Parcel` that a batch carries, so that a state of a context has the
same bytes everywhere.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from roamcast.channels.reliable.messages import (
    MESSAGES,
    PAYLOAD_BYTES_MAX,
    Channel,
    Incarnation,
    Sequence,
)
from roamcast.model.contexts import PATH_LENGTH_MAX, VID_LENGTH_MAX
from roamcast.model.wire import NAME_LENGTH_MAX, Count, Message, Name, Registry, messages_of

WELL_KNOWN: Final = "map/well-known"
"""The group every client listens to (AMS, Availability)."""

OPERATIONS_MAX: Final = 64
ITEMS_MAX: Final = 4_096
BANDS_MAX: Final = 16
STREAMS_MAX: Final = 64
QUERIES_MAX: Final = 64
CONTEXT_BYTES_MAX: Final = 8_192
FILTER_LENGTH_MAX: Final = 8_192
REASON_LENGTH_MAX: Final = 500

Epoch = Annotated[Count, Meta(description="the life of the map service that this belongs to")]
Session = Annotated[Count, Meta(description="the life of the client that this belongs to")]
Opened = Annotated[
    Count,
    Meta(
        description="when the server opened the session; if that changes, the server had collected "
        "the client and knows only what a repeated first request says"
    ),
]
Vid = Annotated[str, Meta(min_length=1, max_length=VID_LENGTH_MAX)]
Site = Annotated[str, Meta(max_length=PATH_LENGTH_MAX)]
Body = Annotated[
    bytes, Meta(max_length=CONTEXT_BYTES_MAX, description="the context, empty when it is gone")
]


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something inside a request or a parcel."""


class Publish(Item, frozen=True, tag="publish", gc=False):
    """Publish a context or change it; of two states the one with the later stamp stays."""

    body: Body
    stamp: Count


class Unpublish(Item, frozen=True, tag="unpublish", gc=False):
    """Unpublish a context; of its states and removals the one with the latest stamp stays."""

    vid: Vid
    stamp: Annotated[Count, Meta(description="0: only this client publishes it no more")] = 0


class Subscribe(Item, frozen=True, tag="subscribe", gc=False):
    """Place a subscription; the same name again replaces it and lists the current set anew."""

    subscription: Name
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX, description="CQL2 text")]


class Unsubscribe(Item, frozen=True, tag="unsubscribe", gc=False):
    """End a subscription."""

    subscription: Name


class Refresh(Item, frozen=True, tag="refresh", gc=False):
    """List the current set of a subscription again: something cannot be healed."""

    subscription: Name


class Hello(Item, frozen=True, tag="hello", gc=False):
    """The first operation of a session: what the client can take."""

    limit_bytes: Annotated[Count, Meta(description="most bytes in any second, 0 for no limit")] = 0
    site: Annotated[
        Site,
        Meta(
            description="where the client is, such as campus/b35; it decides which groups reach it"
        ),
    ] = ""
    relay: Annotated[bool, Meta(description="it subscribes for clients that receive no groups")] = (
        False
    )


class Settled(Item, frozen=True, tag="settled", gc=False):
    """The client has published everything; what it published in its last session ends."""


Operation = Publish | Unpublish | Subscribe | Unsubscribe | Refresh | Hello | Settled


class State(Item, frozen=True, tag="s", gc=False):
    """The state of a context after an update; all messages of one update have its number."""

    number: Count
    vid: Vid
    body: Body


class Band(Item, frozen=True, tag="b", gc=False):
    """A channel of a stream; clients with at least this limit listen from this position."""

    limit_bytes: Annotated[Count, Meta(description="0: only clients without limit")]
    channel: Channel
    incarnation: Incarnation
    next: Sequence


class Announce(Item, frozen=True, tag="announce", gc=False):
    """Updates of this query also come by these channels, until the last message of each."""

    query: Count
    stream: Count
    version: Count
    bands: Annotated[tuple[Band, ...], Meta(max_length=BANDS_MAX + 1)]


class Opening(Item, frozen=True, tag="opening", gc=False):
    """The answer to a subscription: its queries and streams, then its current set follows.

    With a carousel the set is carried round on that channel in pages; otherwise states follow and
    a closing ends them.
    """

    subscription: Name
    as_of: Count
    count: Annotated[Count, Meta(description="how many contexts match")]
    queries: Annotated[tuple[Count, ...], Meta(max_length=QUERIES_MAX)]
    streams: Annotated[tuple[Announce, ...], Meta(max_length=QUERIES_MAX * STREAMS_MAX)]
    carousel: tuple[Band, ...] = ()


class Closing(Item, frozen=True, tag="closing", gc=False):
    """The end of a current set as of this update, or of as much of it as a limit allows."""

    subscription: Name
    as_of: Count
    complete: bool = True


class Page(Item, frozen=True, tag="page", gc=False):
    """All contexts with low < vid ≤ high (no high: to the end), as of this update or later."""

    query: Count
    as_of: Count
    low: str
    high: str
    states: Annotated[tuple[State, ...], Meta(max_length=ITEMS_MAX)]


RefusedKind = Literal["publish", "unpublish", "subscribe", "session"]
"""What was refused; `refresh` and `unsubscribe` count as `subscribe`, the rest as `session`."""


class Refused(Item, frozen=True, tag="refused", gc=False):
    """An operation was refused, and why."""

    kind: RefusedKind
    name: Annotated[
        str,
        Meta(
            max_length=max(VID_LENGTH_MAX, NAME_LENGTH_MAX),
            description="the vid or the subscription; empty for a session, and for a publication "
            "whose body has no readable vid",
        ),
    ]
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


class Dropped(Item, frozen=True, tag="dropped", gc=False):
    """The server gave up on this client's subscriptions, and why."""

    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


class Superseded(Item, frozen=True, tag="superseded", gc=False):
    """Somebody else published this context later, or removed it: it is not the client's now.

    `own`: the client itself did, before it restarted with its clock set back. What it wants now
    counts once it has a later stamp.
    """

    vid: Vid
    stamp: Count
    own: bool = False


class Last(Item, frozen=True, tag="last", gc=False):
    """The channel's last message (decision 0062): whoever reads it has all of the channel."""


class Parcel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The payload of a batch or of a channel's message."""

    epoch: Epoch
    items: Annotated[
        tuple[
            State | Announce | Opening | Closing | Page | Refused | Dropped | Superseded | Last, ...
        ],
        Meta(max_length=ITEMS_MAX),
    ]
    pending: Annotated[
        tuple[Count, ...],
        Meta(
            max_length=BANDS_MAX, description="updates still pending, for this band and each above"
        ),
    ] = ()
    as_of: Annotated[Count, Meta(description="in a batch: the last update when it was made")] = 0


class Request(Message, frozen=True, tag="map.request", gc=False):
    """Client to server: operations, the first with this number; without any, a heartbeat."""

    epoch: Epoch
    session: Session
    number: Count
    operations: Annotated[tuple[Operation, ...], Meta(max_length=OPERATIONS_MAX)]


class Answer(Message, frozen=True, tag="map.answer", gc=False):
    """Server to client: the operations up to this number are taken."""

    epoch: Epoch
    session: Session
    number: Count
    opened: Opened


class Unknown(Message, frozen=True, tag="map.unknown", gc=False):
    """Server to client: this session is unknown; begin a new one."""

    epoch: Epoch
    session: Session


class Batch(Message, frozen=True, tag="map.batch", gc=False):
    """Server to one client: the next parcel, repeated until its receipt comes."""

    epoch: Epoch
    session: Session
    number: Count
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
    opened: Opened


class Receipt(Message, frozen=True, tag="map.receipt", gc=False):
    """Client to server: the batch with this number has come."""

    epoch: Epoch
    session: Session
    number: Count


class ServerHere(Message, frozen=True, tag="map.server", gc=False):
    """Server to the well-known group: at its start (Server-Restart) and periodically (watch-dog).

    Clients that know an older epoch register anew, each at a moment drawn from the spread.
    """

    epoch: Epoch
    spread_us: Count


MAP_MESSAGES: Final = messages_of(__name__)
MAP_PROTOCOL: Final = Registry((*MESSAGES, *MAP_MESSAGES))
"""What a map server and its clients speak; a broker's registry includes `MAP_MESSAGES`."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_PARCEL: Final = msgspec.msgpack.Decoder(Parcel)


def payload_of(parcel: Parcel) -> bytes:
    """Give a parcel's bytes."""
    return _ENCODER.encode(parcel)


def parcel_of(payload: bytes) -> Parcel:
    """Read a parcel that our own server wrote."""
    return _PARCEL.decode(payload)


def size_of(message: Message) -> int:
    """Count the bytes of a message's frame, including its head."""
    return len(MAP_PROTOCOL.encode(message))
