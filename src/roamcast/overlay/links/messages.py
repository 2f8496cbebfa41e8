"""The messages between two linked nodes; everything else between nodes travels inside frames."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.channels.reliable.messages import Data, HealRequest, HealResponse, Synchronisation
from roamcast.model.wire import Count, Message, messages_of

PROTOCOL_VERSION: Final = 1
PROTOCOL_OLDEST: Final = 1
"""The oldest version that this one still speaks: nodes are upgraded one after the other."""

NONCE_BYTES: Final = 16
PROOF_BYTES_MAX: Final = 64
REASON_LENGTH_MAX: Final = 200

NodeName = Annotated[str, Meta(min_length=1, max_length=100, description="a node's name")]
Nonce = Annotated[bytes, Meta(max_length=NONCE_BYTES)]
Session = Annotated[Count, Meta(description="both nonces of the link's session, hashed")]


class Greeting(Message, frozen=True, tag="overlay.greeting", gc=False):
    """Node to node until both are up: who it is, and the proof that answers the other's nonce."""

    node: NodeName
    to: NodeName
    protocol: Annotated[Count, Meta(description="version of the overlay's protocol")]
    epoch: Annotated[Count, Meta(description="of the host that serves the node")]
    clock_us: Annotated[Count, Meta(description="what its clock shows")]
    nonce: Annotated[Nonce, Meta(description="drawn for one session")]
    echo: Annotated[Nonce, Meta(description="the other's nonce, empty while it is unknown")]
    up: Annotated[bool, Meta(description="the sender's link is up: it seeks no new session")]
    proof: Annotated[bytes, Meta(max_length=PROOF_BYTES_MAX, description="signs all of it")] = b""
    oldest: Annotated[Count, Meta(description="the oldest protocol that it still speaks")] = (
        PROTOCOL_OLDEST
    )


def protocol_problem(greeting: Greeting) -> str:
    """Say why two nodes do not understand each other (0261); empty if they do."""
    if greeting.oldest > PROTOCOL_VERSION:
        return "newer protocol"
    return "older protocol" if greeting.protocol < PROTOCOL_OLDEST else ""


class LinkRefusal(Message, frozen=True, tag="overlay.refusal", gc=False):
    """Node to whoever greeted it: there will be no link, and why."""

    node: NodeName
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


class LinkFrame(Message, frozen=True, tag="overlay.frame", gc=False):
    """Node to node on a link that is up: a message of the reliable channel, and the receipt."""

    session: Session
    acknowledged: Annotated[Count, Meta(description="everything up to here has been delivered")]
    part: Data | HealResponse | Synchronisation | HealRequest | None = None


LINK_MESSAGES: Final = messages_of(__name__)
