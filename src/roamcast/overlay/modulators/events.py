"""What homes ask of the place where modulators run, and its answers (`workshop.py`)."""

from roamcast.model.machine import Effect, Input
from roamcast.overlay.flows.messages import Events
from roamcast.overlay.modulators.modulation import Checkpoint
from roamcast.overlay.modulators.specs import Spec


class StartModulation(Effect, frozen=True):
    """Make a consumer's modulators, from a checkpoint or new; `ModulationFailed` if they cannot."""

    consumer: str
    instance: int
    specs: tuple[Spec, ...]
    checkpoint: Checkpoint | None = None


class Modulate(Effect, frozen=True):
    """Let events through, span by span; `ModulationAnswer` or `ModulationFailed` follows."""

    consumer: str
    instance: int
    job: int
    events: tuple[Events, ...]
    checkpoint: bool = False
    """Take a checkpoint afterwards."""


class EndModulation(Effect, frozen=True, gc=False):
    """Forget a consumer's modulators."""

    instance: int


class ModulationAnswer(Input, frozen=True):
    """What is left of the events, span by span."""

    consumer: str
    instance: int
    job: int
    events: tuple[Events, ...]
    mark: bytes
    checkpoint: Checkpoint | None = None


class ModulationFailed(Input, frozen=True):
    """The modulators trapped, went beyond a limit, or could not be made: they run no more."""

    consumer: str
    instance: int
    reason: str
