"""What is sealed to a vid: the payload of a cast, and a receipt that says why it came.

Only the person can read it: the reason has the filter of the cast, which the trusted node that
forwards it must never see.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.casts import PAYLOAD_BYTES_MAX

REASON_LENGTH_MAX: Final = 600
TEXT_LENGTH_MAX: Final = 255

NODE_LENGTH_MAX: Final = 128
LETTER_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 4 * (REASON_LENGTH_MAX + NODE_LENGTH_MAX) + 768
_MARK: Final = b"roamcast letter 1\n"
_TEXT: Final = "text/plain; charset=utf-8"


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """A payload, what it is, and why a person gets it."""

    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
    media_type: Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)] = _TEXT
    sent_us: int = 0
    expires_us: int = 0
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] = ""
    """What a context of the person's satisfies; cut where it is long."""
    node: Annotated[str, Meta(max_length=NODE_LENGTH_MAX)] = ""
    """Who says so: the access node, which signs all of this (`receipts.py`)."""
    node_key: Annotated[bytes, Meta(max_length=32)] = b""
    signature: Annotated[bytes, Meta(max_length=64)] = b""


def encode_letter(letter: Letter) -> bytes:
    """Write a letter down, to be sealed."""
    return _MARK + msgspec.msgpack.encode(letter)


def decode_letter(opened: bytes) -> Letter:
    """Read what was sealed; bytes that are no letter of ours are a payload as they stand."""
    if opened.startswith(_MARK):
        try:
            return msgspec.msgpack.decode(opened[len(_MARK) :], type=Letter)
        except msgspec.DecodeError:
            pass
    return Letter(opened[:PAYLOAD_BYTES_MAX])
