"""Frames: what is written is read again, and what cannot be read is a value, never a crash."""

import importlib.util
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.reliable.messages import (
    HEAL_SEQUENCES_MAX,
    PAYLOAD_BYTES_MAX,
    PROTOCOL,
    Data,
    HealRequest,
    Join,
    Snapshot,
    Synchronisation,
)
from roamcast.errors import LimitError
from roamcast.model import wire
from roamcast.model.wire import Message, Reason, Registry, Unreadable, page_of, tag_of

names = st.text(min_size=1, max_size=20)
counts = st.integers(0, 2**63 - 1)
sequences = st.integers(1, 2**63 - 1)
messages = st.one_of(
    st.builds(Data, names, counts, sequences, st.binary(max_size=200)),
    st.builds(Synchronisation, names, counts, sequences, counts, counts),
    st.builds(
        HealRequest,
        names,
        counts,
        st.lists(sequences, min_size=1, max_size=HEAL_SEQUENCES_MAX).map(tuple),
        st.booleans(),
    ),
    st.builds(Join, names, counts, sequences),
    st.builds(Snapshot, names, counts, counts, st.binary(max_size=200)),
)


def reason(frame: bytes, registry: Registry = PROTOCOL) -> Reason:
    read = registry.decode(frame)
    assert isinstance(read, Unreadable)
    assert "\n" not in read.detail
    return read.reason


@given(messages)
def test_what_is_encoded_is_decoded_the_same(message: Message) -> None:
    assert PROTOCOL.decode(PROTOCOL.encode(message)) == message


@given(messages, st.data())
def test_every_truncated_frame_is_an_error_value(message: Message, data: st.DataObject) -> None:
    frame = PROTOCOL.encode(message)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert reason(frame[:cut]) in {Reason.EMPTY, Reason.TRUNCATED}


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_decoder(frame: bytes) -> None:
    assert isinstance(PROTOCOL.decode(frame), Message | Unreadable)


@given(messages, st.data())
def test_no_flipped_byte_crashes_the_decoder(message: Message, data: st.DataObject) -> None:
    frame = bytearray(PROTOCOL.encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(PROTOCOL.decode(bytes(frame)), Message | Unreadable)


def test_a_newer_version_is_named() -> None:
    frame = PROTOCOL.encode(Join("c", 0, 1))
    assert reason(bytes([PROTOCOL.version + 1]) + frame[1:]) is Reason.NEWER_VERSION
    assert reason(b"\x00" + frame[1:]) is Reason.MALFORMED


def test_an_unknown_tag_is_told_from_wrong_fields() -> None:
    def framed(body: object) -> bytes:
        return bytes([PROTOCOL.version]) + msgspec.msgpack.encode(body)

    assert reason(framed(["channel.shout", 1])) is Reason.UNKNOWN_TAG
    assert reason(framed(["channel.join", "c", 0, "one"])) is Reason.MALFORMED
    assert reason(framed(["channel.join", "c", 0, 0])) is Reason.MALFORMED
    assert reason(framed({"type": "channel.join"})) is Reason.MALFORMED
    assert reason(framed([])) is Reason.MALFORMED
    assert reason(framed(["channel.join", "c", 0, 1]) + b"x") is Reason.MALFORMED


def test_deep_nesting_and_broken_text_are_malformed() -> None:
    assert reason(b"\x01" + b"\x91" * 100_000) is Reason.MALFORMED
    assert reason(b"\x01\x91\xa1\xff") is Reason.MALFORMED
    assert reason(b"\x01\x92\xacchannel.join\xa1\xff") is Reason.MALFORMED


def test_a_frame_at_the_limit_is_read_and_one_byte_more_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = Join("c", 0, 1)
    frame = PROTOCOL.encode(message)
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", len(frame))
    assert PROTOCOL.decode(PROTOCOL.encode(message)) == message
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", len(frame) - 1)
    assert reason(frame) is Reason.OVERSIZED
    with pytest.raises(LimitError):
        PROTOCOL.encode(message)


@pytest.mark.parametrize("more", [0, 1])
def test_fields_are_held_to_their_limits(more: int) -> None:
    for message in (
        Data("c", 1, 1, bytes(PAYLOAD_BYTES_MAX + more)),
        HealRequest("c", 1, tuple(range(1, HEAL_SEQUENCES_MAX + 1 + more))),
        Join("c" * (wire.NAME_LENGTH_MAX + more), 0, 1),
    ):
        read = PROTOCOL.decode(PROTOCOL.encode(message))
        assert isinstance(read, Unreadable) if more else read == message


class Old(Message, frozen=True, tag="test.note"):
    text: str


class New(Message, frozen=True, tag="test.note"):
    text: str
    urgent: bool = False


class Other(Message, frozen=True, tag="test.other"):
    numbers: Annotated[tuple[int, ...], msgspec.Meta(max_length=3, description="some | numbers")]


def test_a_field_added_at_the_end_is_understood_both_ways() -> None:
    older, newer = Registry((Old, Other)), Registry((New, Other))
    assert older.decode(newer.encode(New("hi", urgent=True))) == Old("hi")
    assert newer.decode(older.encode(Old("hi"))) == New("hi", urgent=False)


def test_two_messages_under_one_tag_are_refused() -> None:
    with pytest.raises(AssertionError, match="share a tag"):
        Registry((Old, New))


def test_an_unregistered_message_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="not registered"):
        Registry((Old, Other)).encode(Join("c", 0, 1))


def test_the_page_names_every_message_field_and_limit() -> None:
    page = page_of(PROTOCOL)
    for message in PROTOCOL.messages:
        assert f"### `{tag_of(message)}`" in page
        for field in message.__struct_fields__:
            assert f"| `{field}` |" in page
    assert "list of int, ≥ 1" in page
    assert f"length ≤ {PAYLOAD_BYTES_MAX:,}" in page


def test_the_generated_pages_of_the_docs_are_current() -> None:
    path = Path(__file__).parents[2] / "scripts" / "docs.py"
    spec = importlib.util.spec_from_file_location("docs_script", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.stale() == [], "run `make docs`"
