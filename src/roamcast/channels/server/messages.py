"""What do a map server and its clients say to each other? (AMS, active map service.)

A client numbers its operations and repeats them until answered; the server numbers its batches and
repeats them until receipted. Everything for many clients at once rides on reliable channels as the
same `Parcel` that a batch carries, so one state of an object has the same bytes everywhere.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from roamcast.channels.reliable.messages import (
    MESSAGES,
    PAYLOAD_BYTES_MAX,
    Channel,
    Incarnation,
    Sequence,
)
from roamcast.errors import ContextError
from roamcast.model.contexts import VID_LENGTH_MAX, Context, check
from roamcast.model.places_path import PATH_LENGTH_MAX
from roamcast.model.wire import Count, Message, Name, Registry

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

Epoch = Annotated[Count, Meta(description="which life of the map service this belongs to")]
Session = Annotated[Count, Meta(description="which life of the client this belongs to")]
Opened = Annotated[
    Count,
    Meta(
        description="when the server opened the session; another moment than before means that it "
        "had given the client up and knows only what a repeated first request told it"
    ),
]
Vid = Annotated[str, Meta(min_length=1, max_length=VID_LENGTH_MAX)]
Site = Annotated[str, Meta(max_length=PATH_LENGTH_MAX)]
Body = Annotated[
    bytes, Meta(max_length=CONTEXT_BYTES_MAX, description="the object, empty when it is gone")
]


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something inside a request or a parcel."""


class Publish(Item, frozen=True, tag="publish", gc=False):
    """Publish an object or change it; of two states the one with the later stamp stays."""

    body: Body
    stamp: Count


class Unpublish(Item, frozen=True, tag="unpublish", gc=False):
    """Cancel the publication of an object; of states and this, what has the latest stamp stays."""

    vid: Vid
    stamp: Annotated[Count, Meta(description="0: somebody else may publish its last state")] = 0


class Subscribe(Item, frozen=True, tag="subscribe", gc=False):
    """Place a standing query; the same name again replaces it and lists the current set anew."""

    subscription: Name
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX, description="CQL2 text")]


class Unsubscribe(Item, frozen=True, tag="unsubscribe", gc=False):
    """End a standing query."""

    subscription: Name


class Refresh(Item, frozen=True, tag="refresh", gc=False):
    """Something was lost for good: list the current set of this subscription again."""

    subscription: Name


class Hello(Item, frozen=True, tag="hello", gc=False):
    """The first operation of a session: what the client can take."""

    limit_bytes: Annotated[Count, Meta(description="most bytes in any second, 0 for no limit")] = 0
    site: Annotated[
        Site, Meta(description="where it is, such as campus/b35: groups of which scope reach it")
    ] = ""
    relay: Annotated[bool, Meta(description="it asks for others, who cannot hear groups")] = False


class Settled(Item, frozen=True, tag="settled", gc=False):
    """Everything the client publishes has been said; what it published before is cancelled."""


Operation = Publish | Unpublish | Subscribe | Unsubscribe | Refresh | Hello | Settled


class State(Item, frozen=True, tag="s", gc=False):
    """The state of an object after an update; all messages of one update have its number."""

    number: Count
    vid: Vid
    body: Body


class Band(Item, frozen=True, tag="b", gc=False):
    """One channel of a stream; clients with at least this limit listen from this position."""

    limit_bytes: Annotated[Count, Meta(description="0: only clients without limit")]
    channel: Channel
    incarnation: Incarnation
    next: Sequence


class Announce(Item, frozen=True, tag="announce", gc=False):
    """Updates of this query also come by these channels, until each says that it ends."""

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
    count: Annotated[Count, Meta(description="how many objects match")]
    queries: Annotated[tuple[Count, ...], Meta(max_length=QUERIES_MAX)]
    streams: Annotated[tuple[Announce, ...], Meta(max_length=QUERIES_MAX * STREAMS_MAX)]
    carousel: tuple[Band, ...] = ()


class Closing(Item, frozen=True, tag="closing", gc=False):
    """The current set as of this update has been listed, or as much of it as a client may get."""

    subscription: Name
    as_of: Count
    complete: bool = True


class Page(Item, frozen=True, tag="page", gc=False):
    """All objects with low < vid ≤ high (no high: to the end), as of this update or later."""

    query: Count
    as_of: Count
    low: str
    high: str
    states: Annotated[tuple[State, ...], Meta(max_length=ITEMS_MAX)]


class Refused(Item, frozen=True, tag="refused", gc=False):
    """An operation was not accepted, and why."""

    about: Name
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


class Dropped(Item, frozen=True, tag="dropped", gc=False):
    """The server gave up on this client's subscriptions, and why."""

    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


class Superseded(Item, frozen=True, tag="superseded", gc=False):
    """Somebody else published this object later, or cancelled it: it is not the client's now."""

    vid: Vid
    stamp: Count


class Last(Item, frozen=True, tag="last", gc=False):
    """The channel's last message: it is given back, and whoever reads this has all of it."""


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
        Meta(max_length=BANDS_MAX, description="updates still pending, for this band and above"),
    ] = ()
    as_of: Annotated[
        Count, Meta(description="in a batch: the last update when it was made; its states are so")
    ] = 0


class Request(Message, frozen=True, tag="map.request", gc=False):
    """Client to server: operations, the first of this number; without any, a heartbeat."""

    epoch: Epoch
    session: Session
    number: Count
    operations: Annotated[tuple[Operation, ...], Meta(max_length=OPERATIONS_MAX)]


class Answer(Message, frozen=True, tag="map.answer", gc=False):
    """Server to client: every operation up to this number was taken."""

    epoch: Epoch
    session: Session
    number: Count
    opened: Opened


class Unknown(Message, frozen=True, tag="map.unknown", gc=False):
    """Server to client: I do not know this session; begin a new one."""

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
    """Client to server: the batch of this number has come."""

    epoch: Epoch
    session: Session
    number: Count


class ServerHere(Message, frozen=True, tag="map.server", gc=False):
    """Server to the well-known group: at a start (Server-Restart) and ever again (watch-dog).

    Clients that know an older epoch register anew, each at a moment drawn from the spread.
    """

    epoch: Epoch
    spread_us: Count


MAP_MESSAGES: Final = (Request, Answer, Unknown, Batch, Receipt, ServerHere)
MAP_PROTOCOL: Final = Registry((*MESSAGES, *MAP_MESSAGES))
"""What a map server and its clients speak; a broker's registry includes `MAP_MESSAGES`."""


class _Located(msgspec.Struct, frozen=True, array_like=True):
    """A context on the wire; msgspec has no type for text or a timestamp but Any."""

    vid: str
    place: str | None = None
    point: tuple[float, float] | None = None
    attributes: dict[str, Any] = {}
    t_r: int = 0
    t_d: int | None = None


_ENCODER: Final = msgspec.msgpack.Encoder()
_LOCATED: Final = msgspec.msgpack.Decoder(_Located)
_PARCEL: Final = msgspec.msgpack.Decoder(Parcel)


def body_of(context: Context) -> bytes:
    """Give an object's bytes; the same for every client that may see the same of it."""
    return _ENCODER.encode(
        (
            context.vid,
            context.place,
            context.point,
            context.attributes,
            context.t_r,
            context.t_d,
        )
    )


def context_of(body: bytes) -> Context:
    """Read an object's bytes; `ContextError` where they are none."""
    try:
        located = _LOCATED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContextError(f"no object: {error}") from None
    return check(
        Context(
            located.vid,
            located.place,
            located.point,
            located.attributes,
            located.t_r,
            located.t_d,
        )
    )


def payload_of(parcel: Parcel) -> bytes:
    """Give a parcel's bytes."""
    return _ENCODER.encode(parcel)


def parcel_of(payload: bytes) -> Parcel:
    """Read a parcel that our own server wrote."""
    return _PARCEL.decode(payload)


def size_of(message: Message) -> int:
    """Count the bytes of a message's frame, the head included."""
    return len(MAP_PROTOCOL.encode(message))
