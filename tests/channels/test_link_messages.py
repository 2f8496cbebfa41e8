"""What is said on a link reads back as it was written, and nothing larger than a limit does."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.link_messages import (
    GROUP_FRAME_BYTES_MAX,
    KEY_BYTES,
    LINK_PROTOCOL,
    SETTINGS_BYTES_MAX,
    Goodbye,
    Grouped,
    LinkWelcome,
    Tune,
    settings_bytes,
    settings_of,
)
from roamcast.channels.reliable.messages import PAYLOAD_BYTES_MAX, Data
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.messages import MAP_PROTOCOL, ServerHere
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.errors import MessageError
from roamcast.model.wire import Message, Reason, Unreadable

names = st.text(min_size=1, max_size=256)
counts = st.integers(0, 2**63 - 1)
messages = st.one_of(
    st.builds(
        LinkWelcome,
        names,
        names,
        counts,
        st.binary(max_size=200),
        st.text(max_size=50),
        st.text(max_size=50),
        st.text(max_size=50),
        st.binary(max_size=KEY_BYTES),
        counts,
    ),
    st.builds(Tune, names, st.booleans()),
    st.builds(Grouped, names, st.binary(max_size=500)),
    st.builds(Goodbye, st.text(max_size=100), counts),
)


@given(messages)
def test_every_link_message_reads_back(message: Message) -> None:
    assert LINK_PROTOCOL.decode(LINK_PROTOCOL.encode(message)) == message


def test_a_link_speaks_the_maps_messages_in_the_same_bytes() -> None:
    here = ServerHere(7, 1)
    assert LINK_PROTOCOL.encode(here) == MAP_PROTOCOL.encode(here)


@pytest.mark.parametrize(
    "message",
    [
        Grouped("g", bytes(GROUP_FRAME_BYTES_MAX + 1)),
        LinkWelcome("c", "s", 1, bytes(SETTINGS_BYTES_MAX + 1)),
        LinkWelcome("c", "s", 1, b"", key=bytes(KEY_BYTES + 1)),
        Tune("", True),
        Goodbye("x" * 501),
    ],
    ids=lambda message: type(message).__name__,
)
def test_one_more_than_a_limit_is_malformed(message: Message) -> None:
    read = LINK_PROTOCOL.decode(LINK_PROTOCOL.encode(message))
    assert isinstance(read, Unreadable)
    assert read.reason is Reason.MALFORMED


def test_the_largest_message_of_a_channel_fits_a_grouped_frame() -> None:
    largest = Data("c" * 256, 2**63 - 1, 2**63 - 1, bytes(PAYLOAD_BYTES_MAX))
    frame = LINK_PROTOCOL.encode(largest)
    assert len(frame) <= GROUP_FRAME_BYTES_MAX
    carried = LINK_PROTOCOL.decode(LINK_PROTOCOL.encode(Grouped("c" * 256, frame)))
    assert isinstance(carried, Grouped)
    assert LINK_PROTOCOL.decode(carried.frame) == largest


def test_a_client_uses_its_servers_settings() -> None:
    settings = MapSettings(
        mode=Mode.SINGLE, subscribers_min=5, channel=ChannelSettings(gather_us=3)
    )
    assert settings_of(settings_bytes(settings)) == settings


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode({"mode": "no such"}),
        msgspec.msgpack.encode({"channel": {"gather_us": 0}}),
    ],
)
def test_settings_that_cannot_be_read_are_an_error_with_a_line(data: bytes) -> None:
    with pytest.raises(MessageError, match="settings cannot be read"):
        settings_of(data)
