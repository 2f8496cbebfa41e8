"""What drivers ask of the event desk."""

from roamcast.model.contexts import Context
from roamcast.model.earth import Point
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.overlay.flows.vector import Pairs
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.modulators.specs import Spec


class PublishEventFor(Input, frozen=True):
    """Publish an event on behalf of a subject; `EventPublished` once it is on disk, or `Failed`."""

    ticket: int
    owner: str
    producer: str
    """The program's own name for this life of it; others see only a digest."""
    life: int
    number: int
    context: Context
    data: bytes = b""
    needs: Pairs = ()


class SubscribeSessionEvents(Input, frozen=True):
    """Let a session have every event that a filter matches; the same name again replaces it."""

    ticket: int
    session: str
    subscription: str
    wanted: Filter | str
    """Text where it says here(), which is read anew at each place."""
    vector: Pairs = ()
    place: str = ""
    previous: str = ""
    attachment: Attachment | None = None
    """None: it is nowhere else."""
    expires_us: int = 0
    """How long events are held for it when its session is over."""
    modulators: tuple[Spec, ...] = ()
    relocation: Relocation = Relocation()
    served: Attachment = Attachment(0, 0)
    trail: tuple[str, ...] = ()
    """With modulators: what moves, when it was last served, by whom, and who was tried since."""
    why: str = ""
    """Why it left its previous node."""


class ConfirmSessionEvents(Input, frozen=True):
    """A session has had a subscription's events up to this vector."""

    session: str
    subscription: str
    vector: Pairs


class UnsubscribeSessionEvents(Input, frozen=True):
    """End a session's subscription of events."""

    ticket: int
    session: str
    subscription: str


class ReportSessionPlace(Input, frozen=True):
    """Whoever holds a session is in this place now, and at this point if it says so."""

    session: str
    place: str
    point: Point | None = None


class ReportSessionBrokers(Input, frozen=True):
    """Whoever holds a session looked for brokers: how long each takes to answer, microseconds."""

    session: str
    here_us: int
    found: tuple[tuple[str, int], ...]
    """Where people reach a node → how long it takes."""


class ConsumerMoved(Effect, frozen=True):
    """A consumer of this node is served by another one now."""

    consumer: str
    to: str
