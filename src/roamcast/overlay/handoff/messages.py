"""What nodes say of consumers that cross, along the shared tree; the paper's names in brackets."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.contexts import PATH_LENGTH_MAX
from roamcast.model.wire import Count, Message, Name, messages_of
from roamcast.overlay.flows.vector import Pairs
from roamcast.overlay.links.messages import NodeName

FILTER_LENGTH_MAX: Final = 64_000
WINDOW_MAX: Final = 64
"""Steps of a second that a client's window has."""


class Attachment(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """When a consumer's session began, and how many nodes it was at since: the lower one loses."""

    start: Count
    counter: Count


class StepNumber(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The order of what is said of a consumer: by its attachment, then as its home counts."""

    attachment: Attachment
    number: Count


class HandoffMessage(Message, frozen=True, gc=False):
    """A message about one consumer, from node to node."""

    to: NodeName
    sender: NodeName
    consumer: Name
    step: StepNumber


class HandoffRequest(HandoffMessage, frozen=True, tag="handoff.request", gc=False):
    """Home to neighbour [Pre_handoffRequest]: a consumer may come to you."""


class HandoffEnable(HandoffMessage, frozen=True, tag="handoff.enable", gc=False):
    """Neighbour to home [Enable_prehandoff]: I have a virtual one; what does it want?"""


class HandoffForward(HandoffMessage, frozen=True, tag="handoff.forward", gc=False):
    """Home to neighbour [Preforward, Pre_Subforward]: whose it is, what it wants, where it is now.

    It comes again while the consumer may still cross: it renews the lease.
    """

    owner: Annotated[Name, Meta(description="only this credential may claim it")]
    wanted: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX)]
    place: Annotated[str, Meta(max_length=PATH_LENGTH_MAX)]


class HandoffStanding(HandoffMessage, frozen=True, tag="handoff.standing", gc=False):
    """Neighbour to home: all routes stand, and everything after these positions is held."""

    start: Pairs


class HandoffCancel(HandoffMessage, frozen=True, tag="handoff.cancel", gc=False):
    """Home to neighbour [Cancel_Preforward]: it will not come to you."""


class HandoffArrived(HandoffMessage, frozen=True, tag="handoff.arrived", gc=False):
    """New home to old home: it is here. Cancel what you prepared elsewhere."""


class HandoffReceipt(HandoffMessage, frozen=True, tag="handoff.receipt", gc=False):
    """Old home to new home: it is yours, and I send it nothing more."""

    spent: Annotated[
        tuple[tuple[Count, Count], ...],
        Meta(
            max_length=WINDOW_MAX,
            description="what its client was sent in the last second: µs ago, and bytes",
        ),
    ] = ()


HANDOFF_MESSAGES: Final = (
    HandoffRequest,
    HandoffEnable,
    HandoffForward,
    HandoffStanding,
    HandoffCancel,
    HandoffArrived,
    HandoffReceipt,
)
assert set(messages_of(__name__)) <= {HandoffMessage}
