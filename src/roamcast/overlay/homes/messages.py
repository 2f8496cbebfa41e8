"""What nodes say of their load, and how a home asks another broker to take a client."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import Count, Message, messages_of
from roamcast.overlay.links.messages import NodeName

HOPS_MAX: Final = 64
"""A request or answer that wandered so far is lost: its way changed under it."""

Load = Annotated[float, Meta(ge=0, le=1_000, description="share of capacity in use")]
Weight = Annotated[float, Meta(ge=0, le=1_000, description="share of capacity that a client needs")]
Hops = Annotated[int, Meta(ge=0, le=HOPS_MAX)]


class BrokerInformation(Message, frozen=True, tag="homes.information", gc=False):
    """Node to all others over the tree: how loaded it is; passed on if newer than what is known."""

    node: NodeName
    epoch: Count
    number: Count
    load: Load
    loaded: bool
    battery: Annotated[float, Meta(ge=0, le=1)] = 1.0


class HomeRequest(Message, frozen=True, tag="homes.request", gc=False):
    """Home to a candidate, hop by hop: would you take a client that weighs so much?"""

    to: NodeName
    origin: NodeName
    epoch: Count
    number: Annotated[Count, Meta(description="of the request, in the origin's epoch")]
    weight: Weight
    hops: Hops = 0


class HomeAnswer(Message, frozen=True, tag="homes.answer", gc=False):
    """HomeCandidate to the home that asked: room is reserved, or there is none."""

    to: NodeName
    origin: NodeName
    epoch: Count
    number: Count
    accepted: bool
    hops: Hops = 0


HOMES_MESSAGES: Final = messages_of(__name__)
