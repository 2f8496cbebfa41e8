"""What drivers give to handoff and get from it."""

from roamcast.model.machine import Effect, Input
from roamcast.overlay.flows.vector import Pairs
from roamcast.overlay.handoff.messages import Attachment


class AttachConsumer(Input, frozen=True):
    """A consumer's session begins at this node, or again [Register]."""

    ticket: int
    consumer: str
    owner: str
    attachment: Attachment
    wanted: str
    """CQL2 text; it may say here('floor')."""
    vector: Pairs = ()
    place: str = ""
    previous: str = ""
    """The node it was at before."""
    why: str = ""
    """Why it left that."""


class ReportPlace(Input, frozen=True):
    """A consumer is in this place now [Register]; `toward` are the nodes it is heading for."""

    consumer: str
    place: str
    toward: tuple[str, ...] | None = None
    """The driver's prediction; None: all that border the place."""


class ChangeWanted(Input, frozen=True):
    """A consumer wants something else from now on [Subscribe]."""

    ticket: int
    consumer: str
    wanted: str


class DetachConsumer(Input, frozen=True):
    """A consumer's session is over: for a while, or for good."""

    consumer: str
    attachment: Attachment
    final: bool = False


class PrepareNext(Input, frozen=True):
    """Let a node prepare for a consumer wherever it is: this one is about to stop serving it."""

    consumer: str
    node: str


class ConsumerAttached(Effect, frozen=True):
    """A consumer is served here; `prepared`: a virtual consumer stood, so there is no gap."""

    ticket: int
    consumer: str
    prepared: bool


class ConsumerReleased(Effect, frozen=True):
    """The old home of a consumer sends it nothing more; what its client had in the last second."""

    consumer: str
    spent: tuple[tuple[int, int], ...]


class ConsumerGone(Effect, frozen=True):
    """A consumer is at another node, or did not come back: end its session if it has one."""

    consumer: str
    to: str = ""
