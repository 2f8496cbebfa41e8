"""What nodes say of parcels over links."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.wire import Count, Message, messages_of
from roamcast.overlay.events import ParcelId
from roamcast.overlay.links.chunks import CHUNK_BYTES
from roamcast.overlay.links.messages import NodeName

TARGETS_MAX: Final = 500
"""Nodes of one parcel: an answer that names them all fits a frame."""

Targets = Annotated[tuple[NodeName, ...], Meta(max_length=TARGETS_MAX)]


class ParcelContent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A parcel as it travels, in chunks: for whom it is, beyond this link."""

    kind: Annotated[str, Meta(min_length=1, max_length=100)]
    targets: Annotated[Targets, Meta(min_length=1)]
    age_us: Count
    """How long it was held so far, by the clocks of those who held it."""
    body: bytes


class ParcelChunk(Message, frozen=True, tag="custody.parcel", gc=False):
    """Node to neighbour: the next bytes of a parcel; nothing of another comes in between."""

    parcel: ParcelId
    chunk: Annotated[bytes, Meta(max_length=CHUNK_BYTES)]
    last: bool


class ParcelAnswer(Message, frozen=True, tag="custody.answer", gc=False):
    """Node to the neighbour that sent it a parcel: for which nodes it answers from now on."""

    parcel: ParcelId
    taken: Annotated[Targets, Meta(description="on its disk now: forget them")]
    pruned: Annotated[Targets, Meta(description="it had them already: forget them")]
    busy: Annotated[Targets, Meta(description="not taken: hold them, and try again later")]
    reason: Annotated[str, Meta(max_length=200, description="why some were not taken")] = ""


CUSTODY_MESSAGES: Final = messages_of(__name__)
