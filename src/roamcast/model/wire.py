"""Wire messages: frozen tagged structs, and the registry that encodes and decodes their frames.

A frame is one byte of protocol version, then the message as a MessagePack array: its tag, then its
fields in order. New fields go last and have a default, so older readers skip them and older
messages still decode; any other change raises the version. `decode` returns an `Unreadable` instead
of raising: no sender can stop a broker with malformed bytes.
"""

import enum
import inspect
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from roamcast.errors import LimitError

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Larger frames are rejected without decoding. A snapshot must fit; datagrams are far smaller."""

NAME_LENGTH_MAX: Final = 256

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of wire messages. A subclass has its own tag; its docstring states when it is sent."""


class Reason(enum.StrEnum):
    """Why a frame could not be read."""

    EMPTY = "empty"
    OVERSIZED = "oversized"
    NEWER_VERSION = "newer version"
    UNKNOWN_TAG = "unknown tag"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"


class Unreadable(msgspec.Struct, frozen=True):
    """What `decode` returns for a frame that it cannot read: the reason and a line of detail."""

    reason: Reason
    detail: str


class Registry:
    """The messages a program understands, by tag; encodes and decodes their frames."""

    def __init__(self, messages: Iterable[type[Message]], *, version: int = VERSION) -> None:
        assert 0 < version < 256
        self.version = version
        self.messages = tuple(messages)
        tags = [tag_of(message) for message in self.messages]
        assert len(set(tags)) == len(tags), f"two messages share a tag: {sorted(tags)}"
        self._tags = frozenset(tags)
        self._types = frozenset(self.messages)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Union[self.messages]  # noqa: UP007 — made at run time from a tuple
        )
        self._encode = msgspec.msgpack.Encoder().encode
        self._prefix = bytes([version])

    def encode(self, message: Message) -> bytes:
        """Return the frame of a message; raise LimitError if it is too large."""
        assert type(message) in self._types, f"{type(message).__name__} is not registered"
        frame = self._prefix + self._encode(message)
        if len(frame) > FRAME_BYTES_MAX:
            raise LimitError(f"a message of {len(frame)} bytes exceeds {FRAME_BYTES_MAX}")
        return frame

    def decode(self, frame: bytes) -> Message | Unreadable:
        """Decode a frame; return an `Unreadable` if it is not a known, valid message."""
        if len(frame) < 2:
            return Unreadable(Reason.EMPTY, f"{len(frame)} bytes")
        if len(frame) > FRAME_BYTES_MAX:
            return Unreadable(Reason.OVERSIZED, f"{len(frame)} bytes exceed {FRAME_BYTES_MAX}")
        # Older versions decode as well: fields they lack have defaults.
        if frame[0] > self.version:
            return Unreadable(Reason.NEWER_VERSION, f"version {frame[0]}, ours is {self.version}")
        if frame[0] == 0:
            return Unreadable(Reason.MALFORMED, "version 0")
        try:
            message: Message = self._decoder.decode(memoryview(frame)[1:])
        except msgspec.ValidationError as error:
            return self._refused(frame, str(error))
        except msgspec.DecodeError as error:
            reason = Reason.TRUNCATED if "truncated" in str(error) else Reason.MALFORMED
            return Unreadable(reason, str(error))
        except (UnicodeDecodeError, RecursionError) as error:
            return Unreadable(Reason.MALFORMED, str(error))
        return message

    def _refused(self, frame: bytes, problem: str) -> Unreadable:
        """Distinguish an unknown tag from invalid fields."""
        # Decode again without types, only on this error path, to see the tag.
        try:
            loose = msgspec.msgpack.decode(memoryview(frame)[1:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Unreadable(Reason.MALFORMED, str(error))
        tag = loose[0] if isinstance(loose, list) and loose else None
        if isinstance(tag, str) and tag not in self._tags:
            return Unreadable(Reason.UNKNOWN_TAG, tag[:NAME_LENGTH_MAX])
        return Unreadable(Reason.MALFORMED, problem)


def messages_of(module: str) -> tuple[type[Message], ...]:
    """List the messages that a module defines, in the order of their definition.

    A protocol is its module: a struct that is added there is spoken, read and documented.
    """
    found = (kind for kind in Message.__subclasses__() if kind.__module__ == module)
    return tuple(found)


def tag_of(message: type[Message]) -> str:
    """Return a message's tag on the wire."""
    tag = message.__struct_config__.tag
    assert isinstance(tag, str), f"{message.__name__} has no tag"
    return tag


def page_of(registry: Registry) -> str:
    """Generate the protocol page: every message of the registry, its fields, types and limits."""
    lines: list[str] = []
    for message in sorted(registry.messages, key=tag_of):
        lines += [f"### `{tag_of(message)}`", "", inspect.cleandoc(message.__doc__ or ""), ""]
        lines += ["| # | field | type | says |", "|---|---|---|---|"]
        for number, field in enumerate(msgspec.structs.fields(message), start=1):
            kind, said = _described(field.type)
            lines.append(f"| {number} | `{field.name}` | {kind} | {said} |")
        lines.append("")
    return "\n".join(lines)


def _described(kind: Any) -> tuple[str, str]:
    """Return a field's type with its limits, and its description."""
    said = ""
    limits: list[str] = []
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        for note in (note for note in notes if isinstance(note, msgspec.Meta)):
            said = note.description or said
            bounds = {"≥": note.ge, "≤": note.le, "length ≥": note.min_length}
            bounds["length ≤"] = note.max_length
            limits += [f"{sign} {_shown(v)}" for sign, v in bounds.items() if v is not None]
    if get_origin(kind) is tuple:
        inner, inner_said = _described(get_args(kind)[0])
        name, said = f"list of {inner}", said or inner_said
    elif get_origin(kind) in (Union, UnionType):
        name = " or ".join(getattr(part, "__name__", str(part)) for part in get_args(kind))
    else:
        name = getattr(kind, "__name__", str(kind))
    return ", ".join([name, *limits]), said


def _shown(limit: float) -> str:
    return "2⁶³ − 1" if limit == 2**63 - 1 else f"{limit:,}"
