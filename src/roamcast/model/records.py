"""Journal records: one struct per thing a broker does.

Records are effects. A machine returns them, the driver adds time and host and writes them to the
journal, so live and simulated brokers leave the same trace. A record names contexts by vid and
never a person.

The structs are the only definition of what is on disk: `journal.schema` derives the columns from
their fields. A new field goes to the end of its record, with a default, and older segments read as
that default. Each record states its kind as `tag`, which is what stands on disk; renaming the class
changes nothing there.
"""

from roamcast.model.machine import Effect


def _no_kind(name: str) -> str:
    """Refuse a record class that does not state its kind; msgspec calls this with the name."""
    if name != "Record":
        raise TypeError(f'{name} states no kind: write class {name}(Record, tag="…")')
    return ""


class Record(Effect, frozen=True, array_like=True, gc=False, tag=_no_kind):
    """Base of everything that can stand in a journal; subclasses state their kind as `tag`."""


class ContextOpened(Record, frozen=True, gc=False, tag="ContextOpened"):
    """A context appeared; `body` is all of it, in the bytes it came in."""

    vid: str
    place: str = ""
    t_r: int = 0
    body: bytes = b""


class ContextChanged(Record, frozen=True, gc=False, tag="ContextChanged"):
    """A context gave way to the next one of the same vid, which begins here."""

    vid: str
    place: str = ""
    t_r: int = 0
    body: bytes = b""


class ContextClosed(Record, frozen=True, gc=False, tag="ContextClosed"):
    """A context ended: it left, was replaced, or its heartbeats stopped."""

    vid: str
    t_d: int = 0
    reason: str = ""


class UpdateMatched(Record, frozen=True, gc=False, tag="UpdateMatched"):
    """An update was matched against the filters: how many queries and clients want it.

    matched: the numbers of those queries, separated by spaces. Queries and updates are numbered
        from 1 in each `epoch` of a broker.
    place: where the context is, or was when it left.
    """

    update: str
    vid: str = ""
    change: str = ""
    queries: int = 0
    clients: int = 0
    matched: str = ""
    place: str = ""
    epoch: int = 0


class QueryStep(Record, frozen=True, gc=False, tag="QueryStep"):
    """A client joined or left a query: `placed` or `withdrawn`, after which update.

    remote: the client cannot hear channels and gets its updates by unicast.
    """

    query: int
    step: str
    receiver: str
    update: str = ""
    epoch: int = 0
    filter: str = ""
    view_class: str = ""
    remote: bool = False


class QuerySet(Record, frozen=True, gc=False, tag="QuerySet"):
    """The update query set of an update (AMS 11): its hash, how often it recurred, its channel."""

    update: str
    query_set: str
    queries: int = 0
    recurrence: int = 0
    channel: str = ""


class Transmission(Record, frozen=True, gc=False, tag="Transmission"):
    """A message left the host once: by a channel's group, or to one peer."""

    message: str
    bytes: int
    channel: str = ""
    peer: str = ""
    receivers: int = 0


class Delivery(Record, frozen=True, gc=False, tag="Delivery"):
    """A user received something, `delay_us` microseconds after its producer published it."""

    receiver: str
    producer: str
    number: int
    delay_us: int = 0
    channel: str = ""
    bytes: int = 0


class ChannelStep(Record, frozen=True, gc=False, tag="ChannelStep"):
    """A reliable channel did something besides plain delivery: joined, stale, snapshot."""

    channel: str
    step: str
    incarnation: int = 0
    number: int = 0
    reason: str = ""


class HandoffStep(Record, frozen=True, gc=False, tag="HandoffStep"):
    """A handoff (JIT) or a home broker change (OO) took a step."""

    receiver: str
    step: str
    peer: str = ""
    number: int = 0


class CastStep(Record, frozen=True, gc=False, tag="CastStep"):
    """A cast (TCC) took a step: matched, forwarded, backtracked, cached, resolved, delivered."""

    cast: str
    step: str
    peer: str = ""
    number: int = 0


class OverlayStep(Record, frozen=True, gc=False, tag="OverlayStep"):
    """A layer of the overlay (links, topology, tables, custody) took a step towards a node."""

    layer: str
    step: str
    node: str = ""
    number: int = 0
    reason: str = ""


class TrustStep(Record, frozen=True, gc=False, tag="TrustStep"):
    """A trusted node did something, so many times; nobody is named, nor a vid, nor a cast."""

    step: str
    number: int = 0
    reason: str = ""


class Drop(Record, frozen=True, gc=False, tag="Drop"):
    """Something was not carried or not stored, and why."""

    reason: str
    message: str = ""
    bytes: int = 0
    peer: str = ""
    channel: str = ""


class Fault(Record, frozen=True, gc=False, tag="Fault"):
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
    OverlayStep,
    TrustStep,
    Drop,
    Fault,
)
"""Every kind that a journal is read back as; a kind that is not listed is skipped by readers."""


def kind_of(record: Record | type[Record]) -> str:
    """Give the kind that stands on disk."""
    kind = record.__struct_config__.tag
    assert isinstance(kind, str)
    return kind
