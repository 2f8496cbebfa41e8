"""What nodes say of the topology over links."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import Message, messages_of
from roamcast.overlay.topology.items import LinkItem

ITEMS_MAX: Final = 200
"""Items of one message: with names of 100 letters it fits a frame."""


class TopologyItems(Message, frozen=True, tag="topology.items", gc=False):
    """Node to neighbour: what it knows newer; everything, in several, when a link comes up."""

    items: Annotated[tuple[LinkItem, ...], Meta(max_length=ITEMS_MAX)]


TOPOLOGY_MESSAGES: Final = messages_of(__name__)
