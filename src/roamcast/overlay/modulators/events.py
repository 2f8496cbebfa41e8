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
    owner: str = ""
    """The credential that answers for the memory its modules take."""


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


# --- modules, by the hash of their bytes


class NeedModule(Effect, frozen=True, gc=False):
    """A home needs a module; `ModuleReady` or `ModuleMissing` follows."""

    module: str


class ModuleReady(Effect, frozen=True, gc=False):
    """A module is on this node's shelf."""

    module: str


class ModuleMissing(Effect, frozen=True, gc=False):
    """No node in reach has a module, or none could give it."""

    module: str
    reason: str


class LookUpModule(Effect, frozen=True, gc=False):
    """Say how many bytes a module on the shelf has, and read some; `ModuleLookedUp` follows."""

    module: str
    to: str = ""
    """The node that asks; empty: this one."""
    at: int = 0
    most: int = 0
    """How many bytes to read."""


class ShelveModule(Effect, frozen=True):
    """Put a module on the shelf; `ModuleShelved` follows."""

    module: str
    code: bytes


class ModuleLookedUp(Input, frozen=True):
    """What the shelf has of a module; a size of 0: it has none."""

    module: str
    to: str
    at: int
    size: int = 0
    piece: bytes = b""


class ModuleShelved(Input, frozen=True, gc=False):
    """A module is on the shelf, or the reason why it is not."""

    module: str
    refused: str = ""


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
