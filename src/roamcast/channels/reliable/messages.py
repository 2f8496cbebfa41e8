"""The messages of a reliable channel (AMS, "A Reliable Multicast Design", and footnote 5)."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import Count, Message, Name, Registry, messages_of

PAYLOAD_BYTES_MAX: Final = 60_000
"""A data message and its head fit one UDP datagram."""

SNAPSHOT_BYTES_MAX: Final = 8 * 1024 * 1024
HEAL_SEQUENCES_MAX: Final = 64

Channel = Annotated[Name, Meta(description="the channel, which is also its multicast group")]
Incarnation = Annotated[
    Count, Meta(description="which life of the sender numbered this; grows with every restart")
]
Sequence = Annotated[int, Meta(ge=1, le=2**63 - 1, description="position in the incarnation")]
Payload = Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX, description="the user's bytes")]


class Data(Message, frozen=True, tag="channel.data", gc=False):
    """Sender to group: the next message."""

    channel: Channel
    incarnation: Incarnation
    sequence: Sequence
    payload: Payload


class HealResponse(Message, frozen=True, tag="channel.heal", gc=False):
    """Sender to group, or to one receiver that joined late: a message once more."""

    channel: Channel
    incarnation: Incarnation
    sequence: Sequence
    payload: Payload


class Synchronisation(Message, frozen=True, tag="channel.sync", gc=False):
    """Sender to group after a quiet interval: its position, so that a lost tail is noticed."""

    channel: Channel
    incarnation: Incarnation
    first: Annotated[int, Meta(ge=1, description="oldest sequence that can still be healed")]
    last: Annotated[Count, Meta(description="newest sequence sent, 0 before the first")]
    receivers: Annotated[Count, Meta(description="the sender's guess of its audience")] = 0


class HealRequest(Message, frozen=True, tag="channel.ask", gc=False):
    """Receiver to sender, after its back-off: these messages are missing."""

    channel: Channel
    incarnation: Incarnation
    sequences: Annotated[
        tuple[Sequence, ...],
        Meta(min_length=1, max_length=HEAL_SEQUENCES_MAX, description="what is missing"),
    ]
    alone: Annotated[
        bool,
        Meta(
            description="only this receiver lacks them, because it joined late: answer by unicast"
        ),
    ] = False


class Join(Message, frozen=True, tag="channel.join", gc=False):
    """Receiver to sender: everything before this position is here, send what follows.

    A newcomer sends incarnation 0 and sequence 1, for everything already sent (AMS, footnote 5).
    The answer is a welcome if the sender can still heal from there, else a snapshot.
    """

    channel: Channel
    incarnation: Incarnation
    sequence: Sequence


class ChannelWelcome(Message, frozen=True, tag="channel.welcome", gc=False):
    """Sender to one receiver: start here, and heal up to `last`."""

    channel: Channel
    incarnation: Incarnation
    sequence: Sequence
    last: Annotated[Count, Meta(description="newest sequence sent, 0 before the first")]


class Snapshot(Message, frozen=True, tag="channel.snapshot", gc=False):
    """Sender to one receiver or to the group: the state that all messages up to here lead to."""

    channel: Channel
    incarnation: Incarnation
    sequence: Annotated[Count, Meta(description="the last sequence that the state includes")]
    payload: Annotated[
        bytes, Meta(max_length=SNAPSHOT_BYTES_MAX, description="the user's whole state")
    ]


MESSAGES: Final = messages_of(__name__)
PROTOCOL: Final = Registry(MESSAGES)
"""The channel's own messages; a broker's registry includes `MESSAGES`."""
