"""Inputs and effects of homes, and the events of the system channel (OO 3.3)."""

import msgspec

from roamcast.model.machine import Effect, Input
from roamcast.overlay.flows.vector import Pairs
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.choice import Direction, HomeReason
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.modulators.specs import Spec

# --- inputs of the driver


class MeasureLoad(Input, frozen=True):
    """The resource monitor's reading: share of capacity in use, and of energy that is left."""

    load: float
    battery: float = 1.0
    weights: tuple[tuple[str, float], ...] | None = None
    """Consumers → the share of capacity that their modulators took; None: not measured."""


class AddHomeClient(Input, frozen=True, gc=False):
    """A client is served here from now on."""

    client: str
    weight: float = 0.0
    """Share of this broker's capacity that its modulators need; 0: not known."""
    passed: float | None = None
    """Share of bytes that leave its modulators; None: not known."""
    came_from: str = ""
    """The node that served it before, if it was another."""


class DropHomeClient(Input, frozen=True, gc=False):
    """A client is served here no longer: it left, or its move is done."""

    client: str
    away: bool = False
    """It may come back: this is its home still."""


class ReportBrokers(Input, frozen=True):
    """A client searched for brokers: these are in reach, so many hops away."""

    client: str
    found: tuple[tuple[str, float], ...]


class SetProducers(Input, frozen=True):
    """The homes of the producers whose events clients here want."""

    homes: tuple[str, ...]


class MoveFailed(Input, frozen=True, gc=False):
    """A move was given up; the client stays."""

    client: str
    reason: str


class AttachModulated(Input, frozen=True):
    """A consumer with modulators comes to be served here, or comes again.

    `ModulatedAttached` once it is, or `Failed`; then `EventsStanding`, `EventsDelivered` and
    `EventsLost` as for any consumer, with what its modulators leave of the events.
    """

    ticket: int
    consumer: str
    owner: str
    """The credential that it belongs to."""
    attachment: Attachment
    wanted: str
    """CQL2 text: what modulators get."""
    specs: tuple[Spec, ...]
    relocation: Relocation = Relocation()
    vector: Pairs = ()
    """What its end has had."""
    served: Attachment = Attachment(0, 0)
    """At which attachment it was last served anywhere, …"""
    trail: tuple[str, ...] = ()
    """… by the first of these; the nodes it has tried since."""
    weight: float = 0.0


class DetachModulated(Input, frozen=True, gc=False):
    """A consumer's session is over: for a while, or for good."""

    consumer: str
    attachment: Attachment
    final: bool = False


class ConfirmModulated(Input, frozen=True):
    """The consumer's end has had everything up to this vector."""

    consumer: str
    attachment: Attachment
    vector: Pairs


# --- effects for the driver


class ModulatedAttached(Effect, frozen=True, gc=False):
    """A consumer is served here; `continued`: its modulators go on where they were."""

    ticket: int
    consumer: str
    continued: bool


class ModulatorsAnew(Effect, frozen=True, gc=False):
    """A consumer's modulators have begun anew although their state should have moved, and why."""

    consumer: str
    reason: str


class ModulatorsStopped(Effect, frozen=True, gc=False):
    """A consumer's modulators run no more, so it gets nothing any more."""

    consumer: str
    reason: str


class ServedElsewhere(Effect, frozen=True, gc=False):
    """A consumer is served by another node now: end its session here if it has one."""

    consumer: str
    to: str


class MoveClient(Effect, frozen=True, gc=False):
    """Relocate a client with its modulators: room for it is reserved there for a while."""

    client: str
    to: str
    reason: HomeReason
    direction: Direction = Direction.HORIZONTAL


# --- the system channel


class SystemEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that adaptors may react to."""


class TopologyMoved(SystemEvent, frozen=True, gc=False):
    """The broker network changed: paths are others."""


class LoadCrossed(SystemEvent, frozen=True, gc=False):
    """This broker became loaded, or open again."""

    loaded: bool


class BrokersFound(SystemEvent, frozen=True, gc=False):
    """A client reported which brokers are near it."""

    client: str


class RoomChanged(SystemEvent, frozen=True, gc=False):
    """Another broker became loaded, or open again."""

    broker: str
    loaded: bool
