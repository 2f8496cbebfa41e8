"""What nodes say to find a module, and to have its bytes from one that has it."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import Message, messages_of
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.modulators.sandbox import SandboxLimits
from roamcast.overlay.topology.messages import Hops

PIECE_BYTES: Final = 48_000
"""Bytes of a module in one message."""

ModuleName = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="SHA-256 of its bytes")]
Bytes = Annotated[int, Meta(ge=0, le=SandboxLimits().module_bytes)]


class ModuleSought(Message, frozen=True, tag="modules.sought", gc=False):
    """Node to all others over the tree: who has this module?"""

    origin: NodeName
    module: ModuleName
    hops: Hops = 0


class ModuleHad(Message, frozen=True, tag="modules.had", gc=False):
    """A node that has it to the one that seeks it, hop by hop."""

    to: NodeName
    origin: NodeName
    module: ModuleName
    size: Bytes
    hops: Hops = 0


class ModuleWanted(Message, frozen=True, tag="modules.wanted", gc=False):
    """The node that seeks it to one that has it: give me the bytes from here on."""

    to: NodeName
    origin: NodeName
    module: ModuleName
    at: Bytes
    hops: Hops = 0


class ModulePiece(Message, frozen=True, tag="modules.piece", gc=False):
    """The answer: some of its bytes."""

    to: NodeName
    origin: NodeName
    module: ModuleName
    at: Bytes
    piece: Annotated[bytes, Meta(max_length=PIECE_BYTES)]
    hops: Hops = 0


MODULE_MESSAGES: Final = messages_of(__name__)
