"""What a modulator reads and writes: an event's opaque bytes and its context, as MessagePack.

`[data, [vid, place, point, attributes, t_r, t_d]]`: the data come first, so that code that cares
for nothing else finds them without reading the context.
"""

from typing import Any, Final

import msgspec

from roamcast.errors import InputError, ModulatorError
from roamcast.model.contexts import Context, body_of, context_of

DATA_BYTES_MAX: Final = 1024 * 1024
BODY_BYTES_MAX: Final = 512 * 1024


class Sample(msgspec.Struct, frozen=True):
    """An event as modulators see it."""

    body: bytes
    """The context, packed (`body_of`)."""
    data: bytes = b""

    @property
    def context(self) -> Context:
        """What filters match; InputError if it cannot be read."""
        return context_of(self.body)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, msgspec.Raw]).decode


def sample_of(context: Context, data: bytes = b"") -> Sample:
    """Make a sample of a context."""
    return Sample(body_of(context), data)


def packed(sample: Sample) -> bytes:
    """Give the bytes that a module reads."""
    return _encode((sample.data, msgspec.Raw(sample.body)))


def unpacked(answer: bytes) -> Sample:
    """Read what a module wrote; ModulatorError if it is no event."""
    try:
        data, body = _decode(answer)
        sample = Sample(bytes(body), data)
        if len(data) > DATA_BYTES_MAX or len(sample.body) > BODY_BYTES_MAX:
            raise ModulatorError("its answer is larger than an event may be")
        context_of(sample.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModulatorError(f"its answer is no event: {error}") from None
    except ModulatorError:
        raise
    except InputError as error:
        raise ModulatorError(f"its answer is no event: {error}") from None
    return sample


def listed(value: Any) -> bytes:
    """Pack a small state in a canonical form."""
    return _encode(value)
