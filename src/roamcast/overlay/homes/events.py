"""Inputs and effects of homes, and the events of the system channel (OO 3.3)."""

import msgspec

from roamcast.model.machine import Effect, Input
from roamcast.overlay.homes.choice import Direction, HomeReason

# --- inputs of the driver


class MeasureLoad(Input, frozen=True, gc=False):
    """The resource monitor's reading: share of capacity in use, and of energy that is left."""

    load: float
    battery: float = 1.0


class AddHomeClient(Input, frozen=True, gc=False):
    """A client is served here from now on."""

    client: str
    weight: float = 0.0
    """Share of this broker's capacity that its modulators need."""
    passed: float = 1.0
    """Share of bytes that leave its modulators."""


class DropHomeClient(Input, frozen=True, gc=False):
    """A client is served here no longer: it left, or its move is done."""

    client: str


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


# --- effects for the driver


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
