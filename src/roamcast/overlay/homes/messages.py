"""What nodes say of their load, and how a home asks another broker to take a client."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import NAME_LENGTH_MAX, Count, Message, Name, messages_of
from roamcast.overlay.flows.vector import ORIGINS_MAX, Pairs
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.topology.messages import Hops

Load = Annotated[float, Meta(ge=0, le=1_000, description="share of capacity in use")]
Weight = Annotated[float, Meta(ge=0, le=1_000, description="share of capacity that a client needs")]


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
    client: Annotated[
        str, Meta(max_length=NAME_LENGTH_MAX, description="for whom; empty: unknown")
    ] = ""
    reason: Annotated[str, Meta(max_length=100, description="why it is to move")] = ""
    direction: Annotated[str, Meta(max_length=20, description="which way it moves")] = ""
    passed: Annotated[
        float, Meta(ge=0, le=1, description="share of bytes that leaves its modulators")
    ] = 1.0


class HomeAnswer(Message, frozen=True, tag="homes.answer", gc=False):
    """HomeCandidate to the home that asked: room is reserved, or there is none."""

    to: NodeName
    origin: NodeName
    epoch: Count
    number: Count
    accepted: bool
    hops: Hops = 0


class HomeClaim(Message, frozen=True, tag="homes.claim"):
    """New home to a former one, hop by hop: this consumer is with me; give me what is kept of it.

    It is repeated until `homes.given` answers it.
    """

    to: NodeName
    origin: NodeName
    consumer: Name
    owner: Name
    attachment: Attachment
    served: Annotated[Attachment, Meta(description="when it was last served: older is void")]
    state: Annotated[bool, Meta(description="its modulators' state is wanted, in a parcel")]
    had: Annotated[Pairs, Meta(max_length=ORIGINS_MAX, description="what its end has had")]
    hops: Hops = 0


class HomeGiven(Message, frozen=True, tag="homes.given", gc=False):
    """The answer to a claim: where what is kept of the consumer is, or on its way to."""

    to: NodeName
    origin: NodeName
    consumer: Name
    attachment: Annotated[Attachment, Meta(description="the claim's, or a newer one's")]
    at: Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="a node; empty: unknown")]
    hops: Hops = 0


HOMES_MESSAGES: Final = messages_of(__name__)
