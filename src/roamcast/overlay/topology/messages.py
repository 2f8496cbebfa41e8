"""What nodes say of the topology over links."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import Message, messages_of
from roamcast.overlay.topology.items import LinkItem

ITEMS_MAX: Final = 200
"""Items of one message: with names of 100 letters it fits a frame."""

HOPS_MAX: Final = 64
"""A message that wandered so far is lost: its way changed under it."""

Hops = Annotated[int, Meta(ge=0, le=HOPS_MAX)]


class TopologyItems(Message, frozen=True, tag="topology.items", gc=False):
    """Node to neighbour: what it knows newer; everything, in several, when a link comes up."""

    items: Annotated[tuple[LinkItem, ...], Meta(max_length=ITEMS_MAX)]


TOPOLOGY_MESSAGES: Final = messages_of(__name__)
