"""What does a broker write down? One record type per thing it does.

Records are effects: a machine returns them, the driver adds the time and the host and writes them
to the journal, so that live and simulated brokers leave the same trace. A record names contexts by
vid and never a person. New fields go to the end with a default; `journal.schema` gives the columns.
"""

from roamcast.model.machine import Effect


class Record(Effect, frozen=True, array_like=True, gc=False):
    """The base of what can stand in a journal."""


class ContextOpened(Record, frozen=True, gc=False):
    """A context appeared; `body` is all of it, in the bytes it came in."""

    vid: str
    place: str = ""
    t_r: int = 0
    body: bytes = b""


class ContextChanged(Record, frozen=True, gc=False):
    """An object's context gave way to the next one, which begins here."""

    vid: str
    place: str = ""
    t_r: int = 0
    body: bytes = b""


class ContextClosed(Record, frozen=True, gc=False):
    """A context ended: it left, was replaced, or its heartbeats stopped."""

    vid: str
    t_d: int = 0
    reason: str = ""


class UpdateMatched(Record, frozen=True, gc=False):
    """An update was held against the filters: how many queries and clients want it.

    `matched`: the numbers of those queries, apart by spaces; numbers of queries and updates begin
    anew with each `epoch` of a broker. `place`: where the object is, or was when it left.
    """

    update: str
    vid: str = ""
    change: str = ""
    queries: int = 0
    clients: int = 0
    matched: str = ""
    place: str = ""
    epoch: int = 0


class QueryStep(Record, frozen=True, gc=False):
    """A client was counted in or out at a query: `placed` or `withdrawn`, after which update.

    `remote`: the client hears no channels and is told alone.
    """

    query: int
    step: str
    receiver: str
    update: str = ""
    epoch: int = 0
    filter: str = ""
    view_class: str = ""
    remote: bool = False


class QuerySet(Record, frozen=True, gc=False):
    """The update query set of an update (AMS 11): its hash, how often it recurred, its channel."""

    update: str
    query_set: str
    queries: int = 0
    recurrence: int = 0
    channel: str = ""


class Transmission(Record, frozen=True, gc=False):
    """A message left the host once: by a channel's group, or to one peer."""

    message: str
    bytes: int
    channel: str = ""
    peer: str = ""
    receivers: int = 0


class Delivery(Record, frozen=True, gc=False):
    """A user got something, so many microseconds after its producer gave it."""

    receiver: str
    producer: str
    number: int
    delay_us: int = 0
    channel: str = ""
    bytes: int = 0


class ChannelStep(Record, frozen=True, gc=False):
    """A reliable channel did something beside plain delivery: joined, stale, snapshot."""

    channel: str
    step: str
    incarnation: int = 0
    number: int = 0
    reason: str = ""


class HandoffStep(Record, frozen=True, gc=False):
    """A handoff (JIT) or a home broker change (OO) took a step."""

    receiver: str
    step: str
    peer: str = ""
    number: int = 0


class CastStep(Record, frozen=True, gc=False):
    """A cast (TCC) took a step: matched, forwarded, backtracked, cached, resolved, delivered."""

    cast: str
    step: str
    peer: str = ""
    number: int = 0


class Drop(Record, frozen=True, gc=False):
    """Something was not carried or not kept, and why."""

    reason: str
    message: str = ""
    bytes: int = 0
    peer: str = ""
    channel: str = ""


class Fault(Record, frozen=True, gc=False):
    """Something happened to the host: crash, restart, pause, resume, partition, heal."""

    step: str
    reason: str = ""


RECORDS: tuple[type[Record], ...] = (
    ContextOpened,
    ContextChanged,
    ContextClosed,
    UpdateMatched,
    QueryStep,
    QuerySet,
    Transmission,
    Delivery,
    ChannelStep,
    HandoffStep,
    CastStep,
    Drop,
    Fault,
)
