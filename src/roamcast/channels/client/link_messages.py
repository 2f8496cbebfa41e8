"""The messages of a link, the WebSocket between a client and the live map service.

The map's own messages ride on it unchanged, each in a binary WebSocket message, so that the same
machines run over it as in the simulator. Around them: who is who, which groups to send over the
link because the client receives neither UDP multicast nor NATS, and why a link ends.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.channels.reliable.messages import MESSAGES
from roamcast.channels.server.messages import MAP_MESSAGES, REASON_LENGTH_MAX
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import MessageError
from roamcast.model.wire import Count, Message, Name, Registry, messages_of

GROUP_FRAME_BYTES_MAX: Final = 64_000
"""The largest message of a group, on every way: sealed it still fits a UDP datagram."""

KEY_BYTES: Final = 32
VIEW_BYTES: Final = 16
SETTINGS_BYTES_MAX: Final = 16_384
ADDRESS_LENGTH_MAX: Final = 1_024
HOSTS_MAX: Final = 16

Address = Annotated[str, Meta(max_length=ADDRESS_LENGTH_MAX)]
Group = Annotated[Name, Meta(description="a multicast group: a channel, or the well-known one")]


class LinkWelcome(Message, frozen=True, tag="link.welcome", gc=False):
    """Server to client, the first message of a link, and again whenever the key changes."""

    client: Annotated[Name, Meta(description="the name the server knows this client by")]
    server: Name
    epoch: Annotated[Count, Meta(description="which life of the map service this is")]
    settings: Annotated[
        bytes, Meta(max_length=SETTINGS_BYTES_MAX, description="the server's `MapSettings`")
    ]
    udp: Annotated[Address, Meta(description="multicast range and port, empty for none")] = ""
    nats: Annotated[Address, Meta(description="the NATS server's url, empty for none")] = ""
    prefix: Annotated[
        str, Meta(max_length=256, description="what all NATS subjects of the service begin with")
    ] = ""
    key: Annotated[
        bytes,
        Meta(max_length=KEY_BYTES, description="opens what this client may read on UDP and NATS"),
    ] = b""
    now: Annotated[Count, Meta(description="the server's clock, microseconds since 1970")] = 0
    view: Annotated[
        bytes,
        Meta(max_length=VIEW_BYTES, description="the same for all who may see the same (relays)"),
    ] = b""
    hosts: Annotated[
        tuple[Address, ...],
        Meta(max_length=HOSTS_MAX, description="where the service may be, if on several hosts"),
    ] = ()
    elsewhere: Annotated[
        bool, Meta(description="whether other nodes have maps: `GET /changes` follows them, too")
    ] = False


class Tune(Message, frozen=True, tag="link.tune", gc=False):
    """Client to server: send this group's messages over this link, or send them no more."""

    group: Group
    on: bool


class Grouped(Message, frozen=True, tag="link.grouped", gc=False):
    """Server to client: a group's message, the same bytes for every link tuned to the group."""

    group: Group
    frame: Annotated[
        bytes, Meta(max_length=GROUP_FRAME_BYTES_MAX, description="a frame of this protocol")
    ]


class Goodbye(Message, frozen=True, tag="link.goodbye", gc=False):
    """Server to client, the last message of a link: why it ends and when to come again."""

    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]
    retry_us: Annotated[Count, Meta(description="come again after this, 0: do not")] = 0


LINK_MESSAGES: Final = messages_of(__name__)
LINK_PROTOCOL: Final = Registry((*MESSAGES, *MAP_MESSAGES, *LINK_MESSAGES))
"""What the live map service and the SDK speak."""

_SETTINGS: Final = msgspec.msgpack.Decoder(MapSettings)


def settings_bytes(settings: MapSettings) -> bytes:
    """Write a server's settings for its clients."""
    return msgspec.msgpack.encode(settings)


def settings_of(data: bytes) -> MapSettings:
    """Read what `settings_bytes` wrote."""
    try:
        return _SETTINGS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AssertionError) as error:
        raise MessageError(f"the server's settings cannot be read: {error}") from None
